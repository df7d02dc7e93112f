"""A Keras optimizer that is given as an object: more than one call, more than one replica, new classes and old."""

from __future__ import annotations

import numpy as np
import pytest

from estimator_pipeline.errors import CompatError
from estimator_pipeline.testing import training_runs as runs
from tests.support.processes import tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()
legacy = tf.keras.optimizers.legacy

X = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
Y = (X.sum(axis=1) > 0).astype(np.int32)


def input_fn():
    return tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).batch(8).repeat()


def classifier(folder, optimizer, **config):
    config = tf.estimator.RunConfig(str(folder), tf_random_seed=1, **config)
    columns = [tf.feature_column.numeric_column("x", shape=[4])]
    return tf.estimator.DNNClassifier([3], columns, optimizer=optimizer, config=config)


def own(folder, optimizer):
    """A model function that gives the optimizer it was made with the global step, whatever it is called for."""

    def model_fn(features, labels, mode):
        layer = tf.keras.layers.Dense(2, kernel_initializer="zeros")
        logits = layer(features["x"])
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
        made = optimizer() if callable(optimizer) else optimizer
        made.iterations = tf.compat.v1.train.get_or_create_global_step()
        (train_op,) = made.get_updates(loss, layer.trainable_weights)
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    return tf.estimator.Estimator(model_fn, config=tf.estimator.RunConfig(str(folder), tf_random_seed=1))


def values(estimator):
    return {name: estimator.get_variable_value(name) for name in estimator.get_variable_names()}


def assert_same(one, other):
    one, other = values(one), values(other)
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)


MAKERS = {
    "adam": lambda: legacy.Adam(0.01, beta_1=0.8),
    "decay": lambda: legacy.SGD(0.1, momentum=0.9, decay=0.1),
    "schedule": lambda: legacy.SGD(tf.keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5), momentum=0.9),
}


@pytest.mark.gate("own-schedule")
@pytest.mark.parametrize(("made", "name"), [(classifier, "adam"), (own, "adam"), (own, "decay"), (own, "schedule")])
def test_two_trainings_and_an_evaluation(tmp_path, made, name):
    """The same variables and slots, bit by bit, as with an optimizer that is made anew for each."""
    make = MAKERS[name]
    with_object, anew = made(tmp_path / "object", make()), made(tmp_path / "anew", make)
    for estimator in (with_object, anew):
        estimator.train(input_fn, steps=3)
        estimator.evaluate(input_fn, steps=1)
        estimator.train(input_fn, steps=3)
    assert with_object.get_variable_value("global_step") == 6
    assert_same(with_object, anew)


@pytest.mark.nightly
def test_two_replicas(tmp_path):
    trained = []
    for name, optimizer in (("object", legacy.Adam(0.01)), ("anew", lambda: legacy.Adam(0.01))):
        estimator = classifier(tmp_path / name, optimizer, train_distribute=runs.two_replicas())
        estimator.train(input_fn, steps=3)
        trained.append(estimator)
    assert_same(*trained)


def rate():
    """As the documentation of the canned Estimators has it: a tensor that follows the global step."""
    return tf.compat.v1.train.exponential_decay(0.1, tf.compat.v1.train.get_global_step(), 2, 0.5)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("given", "twin"),
    [
        (tf.keras.optimizers.Adam(0.01, beta_1=0.8, clipnorm=1.0), legacy.Adam(0.01, beta_1=0.8, clipnorm=1.0)),
        (lambda: tf.keras.optimizers.SGD(0.1, 0.9, jit_compile=False), legacy.SGD(0.1, 0.9)),
        (lambda: tf.keras.optimizers.Adagrad(learning_rate=rate()), lambda: legacy.Adagrad(learning_rate=rate())),
    ],
    ids=["object", "function", "rate"],
)
def test_a_new_class_in_a_canned_estimator(tmp_path, given, twin):
    new, old = classifier(tmp_path / "new", given), classifier(tmp_path / "old", twin)
    for estimator in (new, old):
        estimator.train(input_fn, steps=3)
        estimator.train(input_fn, steps=3)
    assert_same(new, old)


@pytest.mark.parametrize(
    ("optimizer", "found"),
    [
        (lambda: tf.keras.optimizers.Adam(weight_decay=0.01), "found: weight_decay=0.01"),
        (tf.keras.optimizers.SGD(use_ema=True), "found: use_ema=True"),
        (tf.keras.optimizers.AdamW(weight_decay=0.0), "found: tf.keras.optimizers.legacy has no AdamW"),
    ],
    ids=["weight_decay", "use_ema", "AdamW"],
)
def test_a_new_class_without_a_twin(tmp_path, optimizer, found):
    with pytest.raises(CompatError, match=found):
        classifier(tmp_path, optimizer).train(input_fn, steps=1)
    assert isinstance(tf.keras.optimizers.Adam(), tf.keras.optimizers.experimental.Optimizer)


def test_eager_use_is_as_ever():
    """Where there is no session's graph, an optimizer keeps its variables from step to step."""
    optimizer = legacy.SGD(0.5, momentum=0.9)
    variable = tf.Variable(1.0)

    @tf.function
    def step():
        optimizer.minimize(lambda: variable * variable, [variable])

    values = []
    for _ in range(2):
        step()
        values.append(float(variable))
    np.testing.assert_allclose(values, [0.0, -0.9], atol=1e-6)
    assert int(optimizer.iterations) == 2
    with pytest.raises(RuntimeError, match="Cannot set `iterations`"):
        optimizer.iterations = tf.Variable(0, dtype=tf.int64)
