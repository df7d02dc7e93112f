"""A callback that kills its worker in the middle of training: DIES_ONCE="worker:1 17 MARKER", unless MARKER is there."""

import json
import os
import pathlib
import signal

import tensorflow as tf


class DiesOnce(tf.keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        who, step, marker = os.environ["DIES_ONCE"].split()
        task = json.loads(os.environ["TF_CONFIG"])["task"]
        me = f"{task['type']}:{task['index']}" == who
        if me and int(self.model.optimizer.iterations.numpy()) == int(step) and not os.path.exists(marker):
            pathlib.Path(marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)


def callback():
    return DiesOnce()
