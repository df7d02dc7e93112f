"""Layers of Keras are called by `apply`, as TensorFlow 1 had it."""

from __future__ import annotations

import numpy as np

from estimator_pipeline import compat

tf = compat.install()


def test_apply_calls_the_layer():
    dense = tf.keras.layers.Dense(2, kernel_initializer="ones")
    assert dense.apply(np.ones((1, 3), np.float32)).numpy().tolist() == [[3.0, 3.0]]
    with tf.Graph().as_default():
        assert tf.keras.layers.Dropout(0.5).apply(tf.ones([4, 3]), training=True).shape == (4, 3)
