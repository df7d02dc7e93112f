"""One of several workers of MultiWorkerMirroredStrategy. Worker 0 begins once a file is there.

    worker_that_waits.py MODEL_DIR FILE

Prints "begun", and at the end of training a hash of all variables that this worker has.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time

import numpy as np
import tensorflow as tf

model_dir, go = sys.argv[1:]
print("begun", flush=True)
if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 0:
    deadline = time.monotonic() + 100
    while not os.path.exists(go) and time.monotonic() < deadline:
        time.sleep(0.05)


def input_fn(input_context=None):
    pipeline = input_context.input_pipeline_id if input_context else 0
    x = np.random.RandomState(pipeline).rand(64, 3).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True))).batch(8).repeat()


def model_fn(features, labels, mode):
    out = tf.compat.v1.layers.dense(features, 1)
    loss = tf.compat.v1.losses.mean_squared_error(labels, out)
    tf.compat.v1.summary.scalar("seen", loss)
    step = tf.compat.v1.train.get_or_create_global_step()
    train_op = tf.compat.v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss, step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


class Hash(tf.estimator.SessionRunHook):
    def begin(self):
        found = {variable.op.name: variable for variable in tf.compat.v1.global_variables()}
        self.values = [found[name].read_value() for name in sorted(found)]

    def end(self, session):
        values = b"".join(np.asarray(value).tobytes() for value in session.run(self.values))
        print("variables", len(self.values), hashlib.sha256(values).hexdigest(), flush=True)


strategy = tf.distribute.MultiWorkerMirroredStrategy()
config = tf.estimator.RunConfig(model_dir, train_distribute=strategy, save_checkpoints_steps=100, save_summary_steps=2)
tf.estimator.train_and_evaluate(
    tf.estimator.Estimator(model_fn, config=config),
    tf.estimator.TrainSpec(input_fn, max_steps=6, hooks=[Hash()]),
    tf.estimator.EvalSpec(input_fn, steps=1),
)
