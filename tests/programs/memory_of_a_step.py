"""A tf.estimator program that needs 300 MiB for a moment in each step; prints its page faults per step.

    TF_CONFIG=... python memory_of_a_step.py MODEL_DIR [--call]

Without --call it knows nothing of estimator_pipeline; with it, it calls `ep.train_and_evaluate` itself.
"""

import resource
import sys

import numpy as np

if "--call" in sys.argv:
    import estimator_pipeline as ep

    tf = ep.compat.install()
    train_and_evaluate = ep.train_and_evaluate
else:
    import tensorflow as tf

    train_and_evaluate = tf.estimator.train_and_evaluate

STEPS, WARM = 14, 4


def input_fn():
    return tf.data.Dataset.from_tensors([[1.0]]).repeat()


def model_fn(features, labels, mode):
    v1 = tf.compat.v1
    loss = tf.reduce_sum(features * v1.get_variable("weight", [], initializer=v1.ones_initializer()))
    step = v1.train.get_or_create_global_step()
    train_op = v1.train.GradientDescentOptimizer(0.01).minimize(loss, step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


class Faults(tf.estimator.SessionRunHook):
    steps = 0

    def after_run(self, run_context, run_values):
        # Blocks of 1 MiB, like a step's tensors. Whether tensors fault depends on which arenas have grown before.
        blocks = [np.ones(1 << 17) for _ in range(300)]
        del blocks
        self.steps += 1
        if self.steps == WARM:
            self.first = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        if self.steps == STEPS:
            faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - self.first
            print("page faults per step:", faults // (STEPS - WARM), flush=True)


strategy = tf.distribute.MultiWorkerMirroredStrategy()
config = tf.estimator.RunConfig(model_dir=sys.argv[1], train_distribute=strategy, save_checkpoints_steps=1000)
train_and_evaluate(
    tf.estimator.Estimator(model_fn, config=config),
    tf.estimator.TrainSpec(input_fn, max_steps=STEPS, hooks=[Faults()]),
    tf.estimator.EvalSpec(input_fn, steps=1),
)
