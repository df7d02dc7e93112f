"""What a graph says of its optimizer, its random numbers and its metrics, whatever these are called."""

from __future__ import annotations

import numpy as np
import pytest

from estimator_pipeline.parity.graph_facts import (
    GraphFacts,
    options_of_keras,
    random_of_model,
)
from tests.support.processes import tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()
v1, legacy = tf.compat.v1, tf.keras.optimizers.legacy

pytestmark = pytest.mark.filterwarnings("ignore:.tf.layers:UserWarning")
X = np.random.RandomState(0).uniform(size=[32, 4]).astype("float32")
Y = (X.sum(axis=1, keepdims=True) > 2).astype("float32")


def data():
    return tf.data.Dataset.from_tensor_slices((X, Y)).repeat().batch(8)


@pytest.fixture
def trained(tmp_path):
    """Trains one step; what its graph has said."""

    def trained(optimizer=lambda step: v1.train.GradientDescentOptimizer(0.1), drop=None, strategy=None):
        def model_fn(features, labels, mode):
            hidden = v1.layers.dense(features, 3, name="hidden")
            hidden = hidden if drop is None else drop(hidden)
            # What only looks on draws nothing for the loss.
            tf.random.uniform([3], name="beside")
            loss = tf.reduce_mean((v1.layers.dense(hidden, 1, name="logits") - labels) ** 2)
            step = v1.train.get_or_create_global_step()
            made = optimizer(step)
            if isinstance(made, v1.train.Optimizer):
                return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=made.minimize(loss, step))
            made.iterations = step
            weights = v1.trainable_variables()
            train_op = made.apply_gradients(zip(tf.gradients(loss, weights), weights, strict=True))
            return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

        facts = GraphFacts()
        config = tf.estimator.RunConfig(train_distribute=strategy)
        tf.estimator.Estimator(model_fn, tmp_path, config).train(data, max_steps=1, hooks=[facts.hook()])
        return facts

    return trained


@pytest.mark.parametrize(
    ("optimizer", "keras", "options"),
    [
        (
            lambda step: v1.train.AdamOptimizer(0.01, beta1=0.8),
            legacy.Adam(0.01, beta_1=0.8, epsilon=1e-8),
            {"kind": "adam", "learning_rate": 0.01, "beta_1": 0.8, "beta_2": 0.999, "epsilon": 1e-8},
        ),
        (
            lambda step: v1.train.MomentumOptimizer(v1.train.exponential_decay(0.1, step, 9, 0.5), 0.8),
            legacy.SGD(tf.keras.optimizers.schedules.ExponentialDecay(0.1, 9, 0.5), momentum=0.8),
            {"kind": "momentum", "momentum": 0.8, "nesterov": False},
        ),
        # Those of Keras keep their numbers in variables.
        (
            lambda step: legacy.SGD(0.1, momentum=0.8, nesterov=True),
            tf.keras.optimizers.SGD(0.1, momentum=0.8, nesterov=True),
            {"kind": "momentum", "momentum": 0.8, "nesterov": True, "learning_rate": 0.1},
        ),
        (
            lambda step: v1.train.RMSPropOptimizer(0.01, epsilon=1e-7),
            legacy.RMSprop(0.01),
            {"kind": "rmsprop", "learning_rate": 0.01, "rho": 0.9, "momentum": 0.0, "epsilon": 1e-7},
        ),
        (lambda step: v1.train.FtrlOptimizer(0.1), legacy.Ftrl(0.1),
         {"kind": "ftrl", "learning_rate": 0.1, "l1": 0.0, "l2": 0.0, "learning_rate_power": -0.5}),
        (lambda step: legacy.SGD(0.1), tf.keras.optimizers.SGD(0.1), {"kind": "sgd", "learning_rate": 0.1}),
    ],
    ids=["adam", "momentum by a schedule", "nesterov of keras", "rmsprop", "ftrl", "sgd"],
)  # fmt: skip
def test_the_options_of_an_optimizer(trained, optimizer, keras, options):
    assert trained(optimizer).options == options == options_of_keras(keras)


def test_options_under_a_strategy(trained):
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    facts = trained(lambda step: v1.train.AdamOptimizer(0.01), strategy=strategy)
    assert facts.options["epsilon"] == 1e-8 and facts.random == []


def test_two_optimizers_for_one_model_have_no_options_in_common(trained):
    class Both(v1.train.Optimizer):
        def __init__(self):
            super().__init__(False, "both")

        def minimize(self, loss, global_step):
            one, other = (v1.trainable_variables(part) for part in ("hidden", "logits"))
            return tf.group(
                v1.train.AdamOptimizer(0.1).minimize(loss, var_list=one),
                v1.train.GradientDescentOptimizer(0.1).minimize(loss, global_step, var_list=other),
            )

    assert trained(lambda step: Both()).options == {}


@pytest.mark.parametrize(
    ("drop", "names"),
    [
        (None, []),
        (lambda x: tf.nn.dropout(x, rate=0.5), ["dropout"]),
        (lambda x: v1.layers.dropout(x, 0.5, training=True), ["dropout"]),
        (lambda x: tf.keras.layers.Dropout(0.5)(x, training=True), ["dropout"]),
        (lambda x: tf.keras.layers.Dropout(0.0)(x, training=True), []),
        (lambda x: x + tf.random.normal(tf.shape(x), name="noise"), ["noise"]),
        (lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: tf.nn.dropout(x, rate=0.5), lambda: x), ["cond"]),
    ],
    ids=["none", "tf.nn", "v1", "keras", "keras at 0", "noise", "in a branch"],
)
def test_random_numbers(trained, drop, names):
    assert trained(drop=drop).random == names


def test_random_numbers_of_a_keras_model():
    layers = tf.keras.layers
    stack = [layers.Dense(3), layers.Dropout(0.5), layers.Dropout(0.0), layers.GaussianNoise(0.1), layers.Dense(1)]
    model = tf.keras.Sequential([layers.InputLayer((4,)), *stack])
    assert random_of_model(model, tf.constant(X)) == ([stack[1].name, stack[3].name], [])
    drop = layers.Lambda(lambda x: tf.nn.dropout(x, rate=0.5), name="own")
    model = tf.keras.Sequential([layers.InputLayer((4,)), drop])
    assert random_of_model(model, tf.constant(X)) == (["own/dropout"], [])
    names, notes = random_of_model(model, tf.constant(X[:, :2]))
    assert not names and notes[0].startswith("whether the Keras model draws random numbers is unknown: ValueE")
