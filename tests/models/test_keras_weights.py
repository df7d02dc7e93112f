"""Weights of a Keras model by an Estimator's names: what is taken over from a checkpoint, and what is refused."""

from __future__ import annotations

import pytest

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.models.keras_runtime.warm_start import WarmStartSettings, named_values, restore, warm_start
from tests.support.processes import tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()


def model(units=2, start="ones"):
    """A layer that has its scope in its name, one of a function that has not, and one that is not trained."""
    layers = tf.keras.layers
    made = tf.keras.Sequential(
        [
            layers.Dense(units, name="net_first", kernel_initializer=start, input_shape=(3,)),
            layers.Dense(1, name="second", kernel_initializer=start),
            layers.BatchNormalization(name="norm"),
        ]
    )
    made.compile("sgd", "mse")
    return made


@pytest.fixture
def saved(tmp_path):
    model(start="zeros").save_weights(tmp_path / "weights")
    return str(tmp_path)


def values(made):
    return {name: value.ravel()[0] for name, value in named_values(made, scope="net").items()}


def test_names():
    assert set(values(model())) == {
        "net/first/kernel", "net/first/bias", "net/second/kernel", "net/second/bias", "net/norm/gamma", "net/norm/beta",
        "net/norm/moving_mean", "net/norm/moving_variance",
    }  # fmt: skip
    assert "net_first/kernel" in named_values(model())


def test_what_is_taken_over(saved):
    """A pattern is for trained weights, as in an Estimator; a list for any; a path alone for all that are trained."""
    made = model()
    warm_start(made, WarmStartSettings(saved, "net/f", scope="net"), scope="net")
    assert values(made)["net/first/kernel"] == 0 and values(made)["net/second/kernel"] == 1
    names = {"net/second/kernel": "net/second/kernel"}
    warm_start(made, WarmStartSettings(saved, ["net/s.*kernel"], names, scope="net"), scope="net")
    assert values(made)["net/second/kernel"] == 0
    other = model()
    warm_start(other, None)
    assert values(other)["net/first/kernel"] == 1
    warm_start(other, saved)
    assert values(other)["net/first/kernel"] == 0


def test_a_saved_model(tmp_path):
    tf.saved_model.save(model(start="zeros"), str(tmp_path / "export"))
    made = model()
    warm_start(made, WarmStartSettings(str(tmp_path / "export"), ".*kernel"))
    assert values(made)["net/first/kernel"] == 0


def test_restored(saved, tmp_path):
    made = model()
    made.layers[2].moving_mean.assign([5.0])
    assert restore(made, saved) and values(made)["net/norm/moving_mean"] == 0
    assert restore(made, str(tmp_path / "none"), required=False) is False


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vars_to_warm_start": "x", "var_name_to_prev_var_name": {"a": "b"}}, "has 'a', and no such weight"),
        ({"var_name_to_prev_var_name": {"net_first/kernel": "x/kernel"}}, "has no weight 'x/kernel'"),
        ({"vars_to_warm_start": "net_first/k", "var_name_to_prev_var_name": {"net_first/kernel": "second/kernel"}},
         r"has the shape \(3, 2\), but not in the checkpoint"),
    ],
)  # fmt: skip
def test_what_is_refused(saved, settings, message):
    with pytest.raises(ConfigError, match=message):
        warm_start(model(), WarmStartSettings(saved, **settings))


def test_no_checkpoint(tmp_path):
    with pytest.raises(ConfigError, match="the model cannot be restored: there is no checkpoint"):
        restore(model(), str(tmp_path))
    with pytest.raises(ConfigError, match="a warm start is not possible: there is no checkpoint"):
        warm_start(model(), str(tmp_path))
