"""A training on several workers, of which each has its own number of batches.

    python uneven_workers.py MODEL_DIR BATCHES,BATCHES,... [--repeat] [--steps_per_execution N]

--repeat: the data of those that have any have no end. With --steps_per_execution it is this package's own function.
"""

from __future__ import annotations

import argparse
import json

import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("model_dir")
parser.add_argument("batches", type=lambda text: [int(n) for n in text.split(",")])
parser.add_argument("--repeat", action="store_true")
parser.add_argument("--steps_per_execution", type=int)
options = parser.parse_args()

X = np.random.RandomState(0).rand(200, 3).astype(np.float32)
Y = X.sum(1, keepdims=True)


def train_fn(input_context=None):
    records = 4 * options.batches[input_context.input_pipeline_id]
    data = tf.data.Dataset.from_tensor_slices((X[:records], Y[:records]))
    return (data.repeat() if options.repeat else data).batch(4)


def model_fn(features, labels, mode):
    out = tf.compat.v1.layers.dense(features, 1)
    loss = tf.compat.v1.losses.mean_squared_error(labels, out)
    step = tf.compat.v1.train.get_or_create_global_step()
    train_op = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss, step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def main() -> None:
    strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()
    config = tf.estimator.RunConfig(
        options.model_dir, save_checkpoints_steps=100, log_step_count_steps=100, train_distribute=strategy
    )
    estimator = tf.estimator.Estimator(model_fn, config=config)
    training = tf.estimator.TrainSpec(train_fn, max_steps=30)
    evaluation = tf.estimator.EvalSpec(lambda: tf.data.Dataset.from_tensors((X, Y)), steps=None)
    if options.steps_per_execution is None:
        metrics, _ = tf.estimator.train_and_evaluate(estimator, training, evaluation)
    else:
        import estimator_pipeline as ep

        steps = options.steps_per_execution
        outcome = ep.train_and_evaluate(estimator, training, evaluation, steps_per_execution=steps)
        metrics = {**outcome.metrics, "ended": outcome.ended}
    print("result", json.dumps(metrics, default=float))


if __name__ == "__main__":
    main()
