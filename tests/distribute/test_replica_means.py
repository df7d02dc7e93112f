"""While a model is evaluated, replicas have the mean of what each has of its own; and their own again afterwards."""

from __future__ import annotations

import numpy as np
import pytest

from estimator_pipeline.distribute import replica_sync as replica_means
from tests.support.processes import tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()
X = np.random.default_rng(0).normal(size=(48, 4)).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)


@pytest.fixture(scope="module")
def model():
    strategy = tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1", "CPU:2"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    with strategy.scope():
        model = tf.keras.Sequential(
            [tf.keras.layers.InputLayer(input_shape=(4,)), tf.keras.layers.BatchNormalization(momentum=0.5),
             tf.keras.layers.Dense(1)]
        )  # fmt: skip
        model.compile("sgd", "mse")
    model.fit(X, Y, batch_size=12, epochs=2, shuffle=False, verbose=0)
    return model


def own(model):
    """Of each replica: the moving mean and variance."""
    return [[part.numpy() for part in weight.values] for weight in model.layers[0].non_trainable_weights]


def test_all_have_the_mean_and_then_their_own_again(model):
    before = own(model)
    assert all(np.any(parts[0] != parts[1]) for parts in before), "each replica has read other records"
    with replica_means.alike(model):
        for parts, one in zip(own(model), before, strict=True):
            np.testing.assert_allclose(parts[0], np.mean(one, axis=0), rtol=1e-6)
            assert all(np.array_equal(part, parts[0]) for part in parts)
    np.testing.assert_array_equal(own(model), before)


def test_what_is_evaluated_is_what_is_saved(model, tmp_path):
    model.save_weights(tmp_path / "weights")
    alone = tf.keras.models.clone_model(model)
    alone.load_weights(tmp_path / "weights").expect_partial()
    alone.compile("sgd", "mse")
    wanted = alone.evaluate(X, Y, batch_size=48, verbose=0)
    with replica_means.alike(model):
        assert model.evaluate(X, Y, batch_size=48, verbose=0) == pytest.approx(wanted, rel=1e-6)
    assert abs(model.evaluate(X, Y, batch_size=48, verbose=0) / wanted - 1) > 1e-4, "by itself it is not"


def test_their_own_come_back_after_an_error(model):
    before = own(model)
    with pytest.raises(KeyError), replica_means.alike(model):
        raise KeyError
    np.testing.assert_array_equal(own(model), before)


def test_one_replica_has_nothing_of_its_own():
    layer = tf.keras.layers.BatchNormalization()
    model = tf.keras.Sequential([tf.keras.layers.InputLayer(input_shape=(4,)), layer])
    assert replica_means.begin(model) == []
