"""A compiled Keras model by `model_to_estimator`: the numbers of the Estimator that tf.keras.estimator makes of it."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.models.keras_runtime import model_fn as keras_model_fn

tf = compat.install()
pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:UserWarning")
LONG = pytest.mark.nightly
RANDOM = np.random.RandomState(0)
X = RANDOM.rand(64, 3).astype("float32")
Y = (X.sum(1) > 1.5).astype("int64")


def sequential():
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            layers.Dense(4, "relu", input_shape=(3,), name="one"),
            layers.BatchNormalization(momentum=0.5, name="norm"),
            layers.Dense(2, "softmax", name="two"),
        ]
    )
    optimizer, metric = tf.keras.optimizers.legacy.Adam(0.05), tf.keras.metrics.SparseCategoricalAccuracy("accuracy")
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=[metric])
    return model, (X, Y)


def functional():
    one, other = tf.keras.Input([3], name="one"), tf.keras.Input([3], name="other")
    net = tf.keras.layers.concatenate([one, other])
    outputs = [tf.keras.layers.Dense(1, name="a")(net), tf.keras.layers.Dense(1, "sigmoid", name="b")(net)]
    model = tf.keras.Model([one, other], outputs)
    losses = {"a": "mse", "b": "binary_crossentropy"}
    model.compile(tf.keras.optimizers.SGD(0.1), losses, metrics={"a": ["mae"], "b": ["accuracy"]})
    labels = {"a": X.sum(1, keepdims=True), "b": Y[:, np.newaxis]}
    return model, ({"one": X, "other": X * 2}, labels)


@pytest.mark.parametrize("made", [sequential, pytest.param(functional, marks=LONG)])
def test_as_the_estimator(made, tmp_path):
    keras_model, given = made()

    def data(repeat=1):
        return tf.data.Dataset.from_tensor_slices(given).batch(16).repeat(repeat)

    wanted = [one[0] for one in tf.nest.flatten(keras_model.predict(next(iter(data()))[0], verbose=0))]
    first = keras_model_fn.model_to_estimator(keras_model, model_dir=str(tmp_path / "first"))
    found = next(keras_model_fn.predictions(first, data()))
    assert list(found) == keras_model.output_names
    assert all(np.allclose(one, other, rtol=1e-5) for one, other in zip(found.values(), wanted, strict=True))

    estimator = tf.keras.estimator.model_to_estimator(
        made()[0], model_dir=str(tmp_path / "old"), checkpoint_format="saver"
    )
    estimator.train(lambda: data(None), steps=1)
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    estimator.train(lambda: data(None), steps=6)
    model = keras_model_fn.model_to_estimator(made()[0], model_dir=str(tmp_path / "new"))
    model.fit(data(None), steps_per_epoch=6)
    assert set(model.get_variable_names()) == set(estimator.get_variable_names())
    wanted = estimator.evaluate(data)
    assert model.evaluate(data(), return_dict=True) == {key: pytest.approx(wanted[key], rel=1e-6) for key in wanted}
    one, other = next(estimator.predict(data)), next(keras_model_fn.predictions(model, data()))
    assert one.keys() == other.keys() and all(np.allclose(one[key], other[key], rtol=1e-6) for key in one)


def test_a_file_and_names_of_metrics(tmp_path):
    keras_model, given = sequential()
    keras_model.save(tmp_path / "model.h5")
    data = tf.data.Dataset.from_tensor_slices(given).batch(16)
    wanted = keras_model.evaluate(data, return_dict=True, verbose=0)
    model = keras_model_fn.model_to_estimator(
        keras_model_path=str(tmp_path / "model.h5"), metric_names_map={"accuracy": "right"}
    )
    found = model.evaluate(data, return_dict=True)
    assert found["right"] == pytest.approx(wanted["accuracy"]) and found["loss"] == pytest.approx(wanted["loss"])


def test_what_is_refused():
    layers = tf.keras.layers
    compiled = tf.keras.Sequential([layers.Dense(1)])
    compiled.compile("sgd", "mse")
    for given, code in (
        ({}, "argument/missing"),
        ({"keras_model": compiled, "keras_model_path": "model.h5"}, "argument/conflict"),
        ({"keras_model": compiled}, "argument/bad-value"),  # the shape of its input is not known
        ({"keras_model": tf.keras.Sequential([layers.Dense(1, input_shape=(3,))])}, "argument/bad-value"),
    ):
        with pytest.raises(ConfigError) as error:
            keras_model_fn.model_to_estimator(**given)
        assert error.value.code == code
