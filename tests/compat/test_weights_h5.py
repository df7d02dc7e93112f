"""The patch `weights-h5`: Keras's own file of weights, loaded under a strategy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.processes import tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()
X = np.arange(8, dtype=np.float32)[:, None]


@pytest.mark.parametrize("devices", [["CPU:0", "CPU:1"], ["CPU:0"]])
def test_weights_and_metrics_are_loaded(tmp_path, devices):
    strategy = tf.distribute.MirroredStrategy(devices)

    def made():
        with strategy.scope():
            text = tf.keras.layers.Normalization(axis=None)
            text.adapt(X)
            model = tf.keras.Sequential([tf.keras.Input([1]), text, tf.keras.layers.Dense(1)])
            model.compile("adam", "mse", metrics=["mae"])
        model.fit(X, 2 * X, batch_size=8, verbose=0)
        return model

    model, other = made(), made()
    path = str(tmp_path / "a.weights.h5")
    model.save_weights(path)
    wanted = model.evaluate(X, 2 * X, verbose=0)
    assert other.evaluate(X, 2 * X, verbose=0) != wanted
    other.load_weights(path)
    assert other.evaluate(X, 2 * X, verbose=0) == wanted
    for one, same in zip(model.optimizer.variables, other.optimizer.variables, strict=True):
        np.testing.assert_array_equal(one, same)
