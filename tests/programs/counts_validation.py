"""A callback that prints a checksum of each record that this worker validates with: "validated: 12 34 ..." a batch."""

import zlib

import numpy as np
import tensorflow as tf


def tell(features):
    if len(features):
        print("validated:", *(zlib.crc32(np.ascontiguousarray(record).tobytes()) for record in features), flush=True)
    return np.int64(0)


class CountsValidation(tf.keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        theirs = self.model.test_step

        def test_step(data):
            features = tf.keras.utils.unpack_x_y_sample_weight(data)[0]
            with tf.control_dependencies([tf.numpy_function(tell, [features], tf.int64)]):
                return theirs(tf.nest.map_structure(tf.identity, data))

        self.model.test_step = test_step
        self.model.test_function = None


def callback():
    return CountsValidation()
