"""Optimizers by name, as objects of both kinds and from a callable: their steps against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.surface_data import APIS, config, feed, tf, variables

NAMES = ("Adagrad", "Adam", "Ftrl", "RMSProp", "SGD")
LABELS = np.array([1.0, 2.0, 6.0], np.float32)
FEATURES = {"x": np.zeros((3, 1), np.float32)}
STEPS = 5


def walk(name, *, rate, api, summed):
    """The bias of a baseline, squared error, after STEPS from 0: each optimizer's published formula and defaults."""
    b = m = v = 0.0
    accumulator = 0.1  # Adagrad and Ftrl
    z = 0.0
    # RMSProp: V1 starts its mean square at 1, its epsilon lies under the root in both.
    square, rho, epsilon = (1.0, 0.9, 1e-10) if api == "v1" else (0.0, 0.9, 1e-7)
    for t in range(1, STEPS + 1):
        step = rate(t - 1) if callable(rate) else rate
        g = 2 * (b - LABELS).sum() / (1 if summed else len(LABELS))
        if name == "SGD":
            b -= step * g
        elif name == "Adam":
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            b -= step * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (np.sqrt(v) + (1e-8 if api == "v1" else 1e-7))
        elif name == "Adagrad":
            accumulator += g * g
            b -= step * g / (np.sqrt(accumulator) + (0 if api == "v1" else 1e-7))
        elif name == "RMSProp":
            square = rho * square + (1 - rho) * g * g
            b -= step * g / np.sqrt(square + epsilon)
        elif name == "Ftrl":
            z += g - (np.sqrt(accumulator + g * g) - np.sqrt(accumulator)) / step * b
            accumulator += g * g
            b = -z / (np.sqrt(accumulator) / step)
    return b


def bias(model_dir, api, optimizer):
    estimator = APIS[api].BaselineRegressor(optimizer=optimizer, config=config(model_dir))
    estimator.train(feed(FEATURES, LABELS, repeat=True), steps=STEPS)
    return variables(estimator.latest_checkpoint())["baseline/bias"][0]


@pytest.mark.gate("Adam-v1", "SGD-v2")
@pytest.mark.symbols("tf.estimator.BaselineRegressor", "tf.compat.v1.estimator.BaselineRegressor")
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("name", NAMES)
def test_by_name(tmp_path, name, api):
    """A name stands for the optimizer's own defaults, with the rate of the family: 0.3 for baselines."""
    expected = walk(name, rate=0.3, api=api, summed=api == "v1")
    np.testing.assert_allclose(bias(tmp_path, api, name), expected, rtol=1e-5)


@pytest.mark.gate("SGD-v1", "Adagrad-v2")
@pytest.mark.symbols("tf.estimator.BaselineRegressor", "tf.compat.v1.estimator.BaselineRegressor")
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("name", NAMES)
def test_by_object(tmp_path, name, api):
    keras = getattr(tf.keras.optimizers.legacy, "RMSprop" if name == "RMSProp" else name)
    v1 = getattr(tf.compat.v1.train, ("GradientDescent" if name == "SGD" else name) + "Optimizer")
    options = {"initial_accumulator_value": 0.1} if name == "Adagrad" else {}
    expected = walk(name, rate=0.05, api=api, summed=api == "v1")
    found = bias(tmp_path, api, (keras if api == "v2" else v1)(learning_rate=0.05, **options))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.gate("v1")
@pytest.mark.symbols("tf.estimator.BaselineRegressor", "tf.compat.v1.estimator.BaselineRegressor")
@pytest.mark.parametrize("api", APIS)
def test_by_callable_with_a_decaying_rate(tmp_path, api):
    """The callable runs inside the model's graph, where the global step is."""
    made = {"v2": tf.keras.optimizers.legacy.Adam, "v1": tf.compat.v1.train.AdamOptimizer}[api]

    def optimizer():
        step = tf.compat.v1.train.get_or_create_global_step()
        return made(learning_rate=tf.compat.v1.train.exponential_decay(0.2, step, 1, 0.5))

    expected = walk("Adam", rate=lambda step: 0.2 * 0.5**step, api=api, summed=api == "v1")
    np.testing.assert_allclose(bias(tmp_path, api, optimizer), expected, rtol=1e-5)


@pytest.mark.symbols("tf.estimator.BaselineRegressor")
def test_keras_schedule(tmp_path):
    schedule = tf.keras.optimizers.schedules.ExponentialDecay(0.2, 1, 0.5)
    expected = walk("SGD", rate=lambda step: 0.2 * 0.5**step, api="v2", summed=False)
    np.testing.assert_allclose(bias(tmp_path, "v2", tf.keras.optimizers.legacy.SGD(schedule)), expected, rtol=1e-5)


@pytest.mark.parametrize("optimizer", ["other kind", "unknown name"])
@pytest.mark.parametrize("api", APIS)
def test_what_is_refused(tmp_path, api, optimizer):
    """Keras's new optimizers, which plain tf.estimator refuses: tests/compat/test_optimizer_objects.py."""
    other = {"v2": tf.compat.v1.train.AdamOptimizer, "v1": tf.keras.optimizers.legacy.Adam}[api]
    given = {"other kind": other, "unknown name": lambda: "Adamm"}[optimizer]()
    message = {
        "other kind": "given object is not an? .*[Oo]ptimizer instance",
        "unknown name": "Unsupported optimizer name: Adamm",
    }[optimizer]
    with pytest.raises(ValueError, match=message):
        bias(tmp_path, api, given)
