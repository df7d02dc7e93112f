"""Evaluations of a legacy program's `train_and_evaluate`: of every checkpoint, and in one graph."""

from __future__ import annotations

import numpy as np

from estimator_pipeline import compat

tf = compat.install()


def evaluated(folder):
    """The steps whose evaluations are in the event files, and how often the model was built for evaluation."""
    built = []

    def model_fn(features, labels, mode):
        built.append(mode)
        weight = tf.compat.v1.get_variable("weight", initializer=0.0)
        loss = tf.reduce_mean(tf.square(weight * features - labels))
        step = tf.compat.v1.train.get_or_create_global_step()
        train_op = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss, step)
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    def input_fn():
        return tf.data.Dataset.from_tensors((np.ones(4, np.float32), np.full(4, 2.0, np.float32))).repeat(20)

    config = tf.estimator.RunConfig(str(folder), save_checkpoints_steps=2)
    # EvalSpec's own delays are 120 s before the first evaluation and 600 s between two.
    tf.estimator.train_and_evaluate(
        tf.estimator.Estimator(model_fn, config=config),
        tf.estimator.TrainSpec(input_fn, max_steps=8),
        tf.estimator.EvalSpec(input_fn, steps=1),
    )
    steps = {
        event.step
        for file in folder.glob("eval/events*")
        for event in tf.compat.v1.train.summary_iterator(str(file))
        if event.summary.value
    }
    return sorted(steps), built.count(tf.estimator.ModeKeys.EVAL)


def test_every_checkpoint_is_evaluated_in_one_graph(tmp_path):
    steps, built = evaluated(tmp_path)
    assert steps == [2, 4, 6, 8]
    assert built == 1
