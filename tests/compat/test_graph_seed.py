"""`RunConfig(tf_random_seed=...)` seeds the initializers of Keras."""

from __future__ import annotations

import random
import sys

import numpy as np
import pytest

from estimator_pipeline import compat

tf = compat.install()
v1 = tf.compat.v1
pytestmark = pytest.mark.filterwarnings("ignore:.tf.layers:UserWarning")


@pytest.fixture(autouse=True)
def no_generator_of_keras(monkeypatch):
    """Other tests call `set_random_seed`, after which Keras has a generator of all graphs."""
    holder = sys.modules[tf.keras.initializers.RandomNormal.__module__].backend._SEED_GENERATOR
    monkeypatch.setattr(type(holder), "is_set", False)
    monkeypatch.delattr(holder, "generator", raising=False)


def model_fn(features, labels, mode):
    net = v1.layers.dense(features, 3, name="first", activation=tf.nn.relu)
    net = tf.keras.layers.Dense(3, name="second", kernel_initializer="orthogonal")(net)
    net = tf.keras.layers.Dropout(0.5)(net, training=True)
    net = v1.layers.dense(net, 3, name="third")
    loss = v1.losses.mean_squared_error(labels, v1.layers.dense(net, 1, name="fourth"))
    step = v1.train.GradientDescentOptimizer(0.001).minimize(loss, v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=step)


def input_fn():
    rows = np.random.RandomState(0).rand(8, 3).astype("float32")
    return tf.data.Dataset.from_tensor_slices((rows, rows[:, :1])).repeat().batch(4)


def trained(folder, seed, steps=2, strategy=None):
    config = tf.estimator.RunConfig(str(folder), tf_random_seed=seed, train_distribute=strategy)
    estimator = tf.estimator.Estimator(model_fn, config=config)
    estimator.train(input_fn, steps=steps)
    return {name: estimator.get_variable_value(name) for name in estimator.get_variable_names()}


def is_equal(first, other):
    return all(np.array_equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("mirrored", [False, True])
def test_two_runs_with_a_seed_are_equal(tmp_path, mirrored):
    def run(name, seed):
        return trained(tmp_path / name, seed, strategy=tf.distribute.MirroredStrategy(["CPU:0"]) if mirrored else None)

    python, numpy = random.getstate(), np.random.get_state()[1].copy()
    first = run("a", 1)
    assert is_equal(first, run("b", 1))
    assert not is_equal(first, run("c", 2))
    # Two layers of the same kind and shape begin with different values; two steps change them by less.
    assert np.max(np.abs(first["first/kernel"] - first["third/kernel"])) > 0.1
    # The program's own random numbers are left alone.
    assert random.getstate() == python and np.array_equal(np.random.get_state()[1], numpy)


def test_no_seed_is_no_seed(tmp_path):
    assert not is_equal(trained(tmp_path / "a", None), trained(tmp_path / "b", None))
