"""The optimizers of the Keras path: the arithmetic of the ones they stand for, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.models.optimizers import keras2 as keras_optimizers
from estimator_pipeline.models.optimizers.spec import NAMES, Optimizer
from estimator_pipeline.models.optimizers.weight_decay import decays
from tests.support.processes import tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()

STEPS, ROWS = 12, 7
DECAYING = [name for name in NAMES if name != "ftrl"]
RATE = {"kind": "exponential", "initial_learning_rate": 0.2, "decay_steps": 5, "decay_rate": 0.5}
SOME = {
    "momentum": {"momentum": 0.8},
    "nesterov": {"momentum": 0.8},
    "adam": {"beta1": 0.8, "epsilon": 1e-4},
    "adagrad": {"initial_accumulator_value": 0.3},
    "rmsprop": {"decay": 0.7, "momentum": 0.6, "epsilon": 1e-3},
    "ftrl": {"l1_regularization_strength": 0.01, "l2_regularization_strength": 0.02},
}


def gradients(sparse):
    """STEPS gradients of a [ROWS, 3] variable; sparse ones name a row twice."""
    random = np.random.default_rng(7)
    for _ in range(STEPS):
        values = random.normal(size=(ROWS, 3)).astype(np.float32)
        if sparse:
            yield values[:4], np.array([1, 4, 1, 6], np.int64)
        else:
            yield values, None


def start():
    return np.random.default_rng(3).normal(size=(ROWS, 3)).astype(np.float32)


def steps_of_keras(optimizer, sparse, decay=0.0, name="Variable"):
    """Within a tf.function, as under `Model.fit`: eagerly a schedule's value may differ in its last bit."""
    variable = tf.Variable(start(), name=name)

    @tf.function
    def step(values, rows):
        if decay:
            rate = optimizer._decayed_lr(tf.float32)
            variable.assign_sub(variable * decay * rate)
        gradient = tf.IndexedSlices(values, rows, tf.constant([ROWS, 3])) if sparse else values
        optimizer.apply_gradients([(gradient, variable)])

    after = []
    for values, rows in gradients(sparse):
        step(tf.constant(values), tf.constant(rows if sparse else 0))
        after.append(variable.numpy())
    return after


def steps_of_the_estimators(optimizer, sparse):
    """The same steps in a graph and a session, as under an Estimator."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        step = tf.compat.v1.train.get_or_create_global_step()
        variable = tf.compat.v1.get_variable("v", initializer=start(), use_resource=True)
        made, _ = optimizer.make(step)
        values, rows = tf.compat.v1.placeholder(tf.float32), tf.compat.v1.placeholder(tf.int64)
        gradient = tf.IndexedSlices(values, rows, tf.constant([ROWS, 3])) if sparse else tf.reshape(values, [ROWS, 3])
        counted = {"global_step": step} if isinstance(made, tf.compat.v1.train.Optimizer) else {}
        train = made.apply_gradients([(gradient, variable)], **counted)
        session.run(tf.compat.v1.global_variables_initializer())
        after = []
        for value, row in gradients(sparse):
            session.run(train, {values: value, **({rows: row} if sparse else {})})
            after.append(session.run(variable))
        return after


@pytest.mark.gate(
    *(f"{name}-{case}" for name in NAMES for case in ("constant-defaults-sparse", "schedule-options-dense"))
)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("options", ["defaults", "options"])
@pytest.mark.parametrize("rate", [0.1, RATE], ids=["constant", "schedule"])
@pytest.mark.parametrize("name", NAMES)
def test_v1_is_the_v1_optimizer(name, rate, options, sparse):
    chosen = Optimizer(
        name=name, learning_rate=rate, api="v1", options=SOME.get(name, {}) if options == "options" else {}
    )
    theirs, ours = steps_of_the_estimators(chosen, sparse), steps_of_keras(keras_optimizers.make(chosen), sparse)
    np.testing.assert_allclose(np.array(ours), np.array(theirs), rtol=0, atol=0)
    assert not np.array_equal(ours[0], ours[-1])


@pytest.mark.parametrize("name", NAMES)
def test_keras_is_the_keras_optimizer_bit_for_bit(name):
    chosen = Optimizer(name=name, learning_rate=RATE, api="keras")
    theirs, ours = steps_of_the_estimators(chosen, False), steps_of_keras(keras_optimizers.make(chosen), False)
    np.testing.assert_array_equal(np.array(ours), np.array(theirs))


@pytest.mark.gate(*(f"schedule-{name}" for name in NAMES))
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rate", [0.1, RATE], ids=["constant", "schedule"])
def test_the_differences_that_are_told_are_there(name, rate):
    """Where none is told, the stock Keras optimizer comes to the same; where one is, it does not."""
    v1 = Optimizer(name=name, learning_rate=rate, api="v1")
    stock = Optimizer(name=name, learning_rate=rate, api="keras")
    one = np.array(steps_of_keras(keras_optimizers.make(v1), False))
    other = np.array(steps_of_keras(keras_optimizers.make(stock), False))
    apart = np.abs(one - other).max()
    if keras_optimizers.differences(v1) is None:
        assert apart < 1e-5, apart
    else:
        assert apart > 1e-7, apart
    assert keras_optimizers.differences(stock) is None


@pytest.mark.parametrize("api", ["v1", "keras"])
@pytest.mark.parametrize("rate", [0.1, RATE, lambda step: 0.3 / (2.0 + tf.cast(step, tf.float32))],
                         ids=["constant", "schedule", "function"])  # fmt: skip
def test_a_warm_up_is_the_estimators_bit_for_bit(rate, api):
    chosen = Optimizer(name="momentum", learning_rate=rate, api=api, warmup_steps=10, warmup_from=0.01)
    theirs, ours = steps_of_the_estimators(chosen, False), steps_of_keras(keras_optimizers.make(chosen), False)
    np.testing.assert_array_equal(np.array(ours), np.array(theirs))
    without = steps_of_keras(keras_optimizers.make(Optimizer(name="momentum", learning_rate=rate, api=api)), False)
    assert not np.array_equal(ours[0], without[0])


@pytest.mark.gate(*(f"{name}-{case}" for name in DECAYING for case in ("v1-sparse", "keras-dense")))
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("api", ["v1", "keras"])
@pytest.mark.parametrize("name", DECAYING)
def test_weight_decay_is_the_papers_and_the_estimators_bit_for_bit(name, api, sparse):
    """The variable loses its share, whole, and then the plain optimizer makes its step, with the rate of the step."""
    fields = {"name": name, "learning_rate": RATE, "api": api}
    plain, chosen = Optimizer(**fields), Optimizer(**fields, weight_decay=0.03)
    ours = steps_of_keras(keras_optimizers.make(chosen), sparse)
    by_hand = steps_of_keras(keras_optimizers.make(plain), sparse, decay=0.03)
    np.testing.assert_allclose(ours, by_hand, rtol=2e-6, atol=1e-7)
    theirs = steps_of_the_estimators(chosen, sparse)
    if api == "v1" or not sparse:
        np.testing.assert_array_equal(np.array(ours), np.array(theirs))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
    assert np.abs(ours[-1] - steps_of_keras(keras_optimizers.make(plain), sparse)[-1]).max() > 1e-3


def test_what_does_not_decay():
    """By the weight's name within its layer; a configuration keeps it."""
    chosen = Optimizer(name="adamw", learning_rate=0.1, exclude_from_weight_decay=["v", "bias"])
    assert (chosen.name, chosen.weight_decay) == ("adam", 0.004)
    plain = Optimizer(name="adam", learning_rate=0.1)
    np.testing.assert_array_equal(steps_of_the_estimators(chosen, False), steps_of_the_estimators(plain, False))
    made = keras_optimizers.make(chosen)
    assert type(made).__name__ == "V1AdamW"
    again = type(made).from_config(made.get_config())
    for optimizer in (made, again):
        still = steps_of_keras(optimizer, False, name="layer/bias")
        np.testing.assert_array_equal(still, steps_of_keras(keras_optimizers.make(plain), False))
        assert not np.array_equal(steps_of_keras(type(made).from_config(made.get_config()), False), still)
    names = {"dense/bias:0": False, "dense/bias/replica_1:0": False, "bias": False, "bias/kernel:0": True,
             "dense/bias_1:0": True, "v/part_3": False}  # fmt: skip
    assert {name: decays(name, chosen.exclude_from_weight_decay) for name in names} == names
    assert Optimizer(name="adamw", weight_decay=0.2).weight_decay == 0.2
    assert Optimizer(name="adamw", weight_decay=0).decay() == {}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"weight_decay": -0.1}, "weight_decay is -0.1"),
        ({"weight_decay": "0.1"}, "weight_decay is '0.1'"),
        ({"weight_decay": float("inf")}, "weight_decay is inf"),
        ({"weight_decay": True}, "weight_decay is True"),
        ({"weight_decay": 0.1, "name": "ftrl"}, "ftrl recomputes each weight"),
        ({"exclude_from_weight_decay": ["bias"]}, "there is no weight decay"),
        ({"weight_decay": 0.1, "exclude_from_weight_decay": "bias"}, "exclude_from_weight_decay is 'bias'"),
        ({"weight_decay": 0.1, "exclude_from_weight_decay": [3]}, "exclude_from_weight_decay is \\[3\\]"),
    ],
)
def test_a_weight_decay_that_cannot_be(fields, words):
    with pytest.raises(ConfigError, match=words):
        Optimizer(**fields)


@pytest.mark.parametrize(
    "fields",
    [{"warmup_steps": -1}, {"warmup_steps": 2.5}, {"warmup_from": 0.1}, {"warmup_steps": 3, "warmup_from": -1}],
)
def test_a_warm_up_that_cannot_be(fields):
    with pytest.raises(ConfigError, match="warmup_"):
        Optimizer(**fields)


@pytest.mark.parametrize("warmup", [0, 10])
@pytest.mark.parametrize("name", ["momentum", "adam", "adagrad", "rmsprop"])
def test_configuration_survives(name, warmup):
    made = keras_optimizers.make(Optimizer(name=name, learning_rate=RATE, options=SOME[name], warmup_steps=warmup))
    again = type(made).from_config(made.get_config())
    np.testing.assert_array_equal(steps_of_keras(made, False), steps_of_keras(again, False))


def test_a_function_of_the_step_is_a_schedule():
    made = keras_optimizers.make(
        Optimizer(name="sgd", learning_rate=lambda step: 0.1 / (1.0 + tf.cast(step, tf.float32)))
    )
    written = keras_optimizers.make(
        Optimizer(
            learning_rate={"kind": "inverse_time", "initial_learning_rate": 0.1, "decay_steps": 1, "decay_rate": 1.0}
        )
    )
    np.testing.assert_allclose(steps_of_keras(made, False), steps_of_keras(written, False), rtol=1e-6)


@pytest.mark.parametrize(("clip", "argument"), [("clip_norm", 0.5), ("clip_value", 0.1)])
def test_clipping(clip, argument):
    made = keras_optimizers.make(Optimizer(learning_rate=1.0), **{clip: argument})
    first = steps_of_keras(made, False)[0] - start()
    (gradient, _), *_ = gradients(False)
    if clip == "clip_norm":
        expected = gradient * argument / np.linalg.norm(gradient)
    else:
        expected = np.clip(gradient, -argument, argument)
    np.testing.assert_allclose(first, -expected, rtol=1e-4, atol=1e-6)


def test_an_option_that_is_not_there():
    words = r"V1Momentum does not take the options[^$]*it takes: learning_rate, momentum, use_nesterov"
    for decay in (0.0, 0.1):
        with pytest.raises(ConfigError, match=words.replace("Momentum", "MomentumW" if decay else "Momentum")):
            keras_optimizers.make(Optimizer(name="momentum", options={"beta1": 0.5}, weight_decay=decay))


@pytest.mark.parametrize("whole", [True, False], ids=["sum", "parts"])
@pytest.mark.parametrize("api", ["v1", "keras"])
@pytest.mark.parametrize("clipping", [{"clip_norm": 0.5}, {"clip_value": 0.3}], ids=["norm", "value"])
def test_rows_that_are_named_twice_are_clipped_as_their_sum(clipping, api, whole):
    """As the gradient that they are, in jobs; a program's by the parts, as `tf.clip_by_global_norm` and Keras do."""
    chosen = Optimizer(name="sgd", learning_rate=0.1, api=api)
    ours = steps_of_keras(keras_optimizers.make(chosen, **clipping, whole_rows=whole), sparse=True)
    before = start()
    for values, rows in gradients(sparse=True):
        summed = np.zeros_like(before)
        np.add.at(summed, rows, values)
        parts = [np.linalg.norm(values), np.abs(values).max()]
        assert not np.allclose(parts, [np.linalg.norm(summed), np.abs(summed).max()]), "the test tells them apart"
        clipped = summed if whole else values
        if "clip_norm" in clipping:
            clipped = clipped * min(1.0, 0.5 / np.linalg.norm(clipped))
        else:
            clipped = np.clip(clipped, -0.3, 0.3)
        if not whole:
            summed = np.zeros_like(before)
            np.add.at(summed, rows, clipped)
            clipped = summed
        before = before - 0.1 * clipped
        np.testing.assert_allclose(ours.pop(0), before, rtol=1e-5, atol=1e-6)
