"""A training on two workers in which the loss of worker 1 is NaN in step 7, and no weight ever is.

python nan_on_one_worker.py MODEL_DIR STEPS_PER_EXECUTION
"""

from __future__ import annotations

import sys

import numpy as np

import estimator_pipeline as ep
from estimator_pipeline import inputs
from estimator_pipeline.compat.internals import graph_step_loop as step_loop
from estimator_pipeline.errors import DivergedError

tf = ep.compat.install()
agree = step_loop.StepLoop._first_of_all
step_loop.StepLoop._first_of_all = lambda *given: print("they agree", flush=True) or agree(*given)


def model_fn(features, labels, mode):
    step = tf.compat.v1.train.get_or_create_global_step()
    weight = tf.compat.v1.get_variable("weight", [])
    replica = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.int64)
    loss = tf.reduce_mean(features) * weight + tf.where(tf.equal(step, replica * 7 - 1), np.nan, 0.0)
    # The loss reads the step that this one begins with.
    with tf.control_dependencies([loss]):
        train_op = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def main(model_dir: str, steps: str) -> int:
    x, y = np.ones((40, 2), np.float32), np.zeros(40, np.int64)
    data = inputs.from_arrays(train=(x, y), eval=(x, y), global_batch_size=4)
    config = ep.build_run_config(
        model_dir, train_distribute="multi_worker_mirrored", save_checkpoints_steps=1000, log_step_count_steps=1000
    )
    try:
        ep.train_and_evaluate(
            tf.estimator.Estimator(model_fn, config=config),
            tf.estimator.TrainSpec(data.train_input_fn, max_steps=60),
            tf.estimator.EvalSpec(data.eval_input_fn, steps=None),
            steps_per_execution=int(steps),
        )
    except DivergedError as error:
        print(f"diverged: {error}")
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
