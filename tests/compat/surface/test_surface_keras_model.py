"""model_to_estimator: the same numbers as Keras itself, for every kind of model.

What an Estimator does makes the Keras models of its process unusable, so Keras is always asked first.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

from tests.support.surface_models import tf

L = tf.keras.layers
RNG = np.random.default_rng(3)
X = RNG.normal(size=(8, 3)).astype(np.float32)
Y = (X @ [[1.0], [-2.0], [0.5]] + 0.3).astype(np.float32)


@tf.keras.utils.register_keras_serializable("surface")
class Scale(L.Layer):
    """A layer of one's own, known to Keras by name: a path to a model needs no more."""

    def build(self, shape):
        self.factor = self.add_weight("factor", (), initializer="ones")

    def call(self, inputs):
        return inputs * self.factor


def cube(x):
    return x**3


class Subclassed(tf.keras.Model):
    def __init__(self, units=4, **options):
        super().__init__(**options)
        self.units = units
        self.hidden = L.Dense(units, activation="tanh", name="hidden")
        self.last = L.Dense(1, name="last")

    def call(self, inputs):
        return self.last(self.hidden(inputs))

    def get_config(self):
        return {"units": self.units}


def functional(last=Scale):
    inputs = tf.keras.Input((3,), name="x")
    hidden = L.Dense(4, activation="tanh", name="hidden")(inputs)
    return tf.keras.Model(inputs, L.Dense(1, name="y")(last()(hidden)))


def sequential(*between):
    layers = [L.Dense(4, activation="tanh", name="hidden"), *between, L.Dense(1, name="y")]
    return tf.keras.Sequential([tf.keras.Input((3,), name="x"), *layers])


def normalized():
    return sequential(L.BatchNormalization(momentum=0.5))


def two_inputs():
    first, second = tf.keras.Input((2,), name="first"), tf.keras.Input((1,), name="second")
    joined = L.Concatenate()([L.Dense(2, activation="tanh")(first), second])
    return tf.keras.Model([first, second], L.Dense(1, name="y")(joined))


KINDS = {"functional": functional, "sequential": sequential, "two inputs": two_inputs}


def compiled(make, optimizer=None):
    tf.keras.utils.set_random_seed(11)
    model = make()
    model.compile(optimizer or tf.keras.optimizers.legacy.SGD(0.1, momentum=0.9), "mse", metrics=["mae"])
    return model


def features_of(kind):
    if kind == "two inputs":
        return {"first": X[:, :2], "second": X[:, 2:]}
    return {"x": X}


def data(features, labels=Y):
    return lambda: tf.data.Dataset.from_tensor_slices((features, labels)).batch(8)


def convert(model, folder, **options):
    config = tf.estimator.RunConfig(tf_random_seed=1)
    return tf.keras.estimator.model_to_estimator(model, model_dir=str(folder), config=config, **options)


@pytest.mark.nightly
@pytest.mark.symbols("tf.keras.estimator.model_to_estimator")
@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_taken_along(tmp_path, kind):
    """Before any training it evaluates and predicts as the Keras model does."""
    model = compiled(KINDS[kind])
    features = features_of(kind)
    model.fit(features, Y, epochs=3, batch_size=4, verbose=0)  # not the initial weights
    expected = model.evaluate(features, Y, verbose=0, return_dict=True)
    answers = model.predict(features, verbose=0)
    estimator = convert(model, tmp_path)
    result = estimator.evaluate(data(features))
    assert isinstance(estimator, tf.estimator.Estimator)
    assert result["global_step"] == 0
    assert result["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert result["mae"] == pytest.approx(expected["mae"], rel=1e-5)
    np.testing.assert_allclose([row["y"] for row in estimator.predict(data(features))], answers, rtol=1e-5, atol=1e-6)


@pytest.mark.gate("checkpoint")
@pytest.mark.symbols("tf.keras.estimator.model_to_estimator")
@pytest.mark.parametrize("checkpoint_format", ["checkpoint", "saver"])
def test_averages_of_batch_normalization_are_taken_along(tmp_path, checkpoint_format):
    """Patch batch-norm-averages: without it they begin anew, and the model evaluates as if it had never seen data."""
    model = compiled(normalized)
    model.fit(X, Y, epochs=3, batch_size=4, verbose=0)
    expected = model.evaluate(X, Y, verbose=0)[0]
    answers = model.predict(X, verbose=0)
    estimator = convert(model, tmp_path, checkpoint_format=checkpoint_format)
    assert estimator.evaluate(data({"x": X}))["loss"] == pytest.approx(expected, rel=1e-5)
    found = [row["y"] for row in estimator.predict(data({"x": X}))]
    np.testing.assert_allclose(found, answers, rtol=1e-4, atol=1e-5)
    # And training goes on from there.
    estimator.train(lambda: data({"x": X})().repeat(), steps=2)
    assert estimator.evaluate(data({"x": X}))["global_step"] == 2


@pytest.mark.gate("Adam")
@pytest.mark.symbols("tf.keras.estimator.model_to_estimator")
@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: tf.keras.optimizers.legacy.SGD(0.1, momentum=0.9),
        lambda: tf.keras.optimizers.Adam(0.05),
        lambda: "adam",
    ],
    ids=["legacy SGD", "Adam", "by name"],
)
def test_training_takes_the_steps_of_keras(tmp_path, optimizer):
    """Three steps on all of the data, with the optimizer that the model was compiled with, in every family."""
    reference, model = (compiled(functional, optimizer()) for _ in range(2))
    for _ in range(3):
        reference.train_on_batch(X, Y)
    expected, loss = reference.predict(X, verbose=0), reference.evaluate(X, Y, verbose=0)[0]
    estimator = convert(model, tmp_path)
    estimator.train(lambda: data({"x": X})().repeat(), steps=3)
    result = estimator.evaluate(data({"x": X}))
    assert result["global_step"] == 3
    # Adam's square roots magnify differences in the order of sums.
    np.testing.assert_allclose([r["y"] for r in estimator.predict(data({"x": X}))], expected, rtol=1e-4, atol=1e-5)
    assert result["loss"] == pytest.approx(loss, rel=1e-4)


@pytest.mark.nightly
@pytest.mark.symbols("tf.keras.estimator.model_to_estimator")
def test_batch_normalization_moves_its_averages(tmp_path):
    reference, model = compiled(normalized), compiled(normalized)
    for _ in range(3):
        reference.train_on_batch(X, Y)
    expected = {weight.name.rpartition("/")[2]: weight.numpy() for weight in reference.layers[1].weights}
    estimator = convert(model, tmp_path)
    estimator.train(lambda: data({"x": X})().repeat(), steps=3)
    assert np.abs(expected["moving_mean:0"]).max() > 0
    stored = {name.rpartition("/.ATTRIBUTES")[0]: name for name in estimator.get_variable_names()}
    for which in ("moving_mean", "moving_variance"):
        (name,) = [name for path, name in stored.items() if path.endswith(which)]
        np.testing.assert_allclose(estimator.get_variable_value(name), expected[f"{which}:0"], rtol=1e-4)


@pytest.mark.nightly
@pytest.mark.symbols("tf.keras.estimator.model_to_estimator")
def test_a_subclassed_model(tmp_path):
    """Weights are not taken along, which Keras cannot; what it trains is what the layers compute."""
    model = compiled(Subclassed)
    with pytest.raises(ValueError, match="not supported with subclassed models"):
        convert(model, tmp_path / "object")
    estimator = convert(model, tmp_path, checkpoint_format="saver")
    first = estimator.train(lambda: data(X)().repeat(), steps=1).evaluate(data(X))
    last = estimator.train(lambda: data(X)().repeat(), steps=40).evaluate(data(X))
    assert (first["global_step"], last["global_step"]) == (1, 41)
    assert last["loss"] < first["loss"] / 2
    value = estimator.get_variable_value
    (kernel,) = [n for n in estimator.get_variable_names() if n.endswith("hidden/kernel")]
    prefix = kernel.removesuffix("hidden/kernel")
    hidden = np.tanh(X @ value(kernel) + value(f"{prefix}hidden/bias"))
    expected = hidden @ value(f"{prefix}last/kernel") + value(f"{prefix}last/bias")
    (key, *_) = next(iter(estimator.predict(data(X))))
    answers = [row[key] for row in estimator.predict(data(X))]
    np.testing.assert_allclose(answers, expected, rtol=1e-5, atol=1e-6)
    assert last["loss"] == pytest.approx(np.mean((expected - Y) ** 2), rel=1e-5)


@pytest.mark.nightly
@pytest.mark.symbols("tf.keras.estimator.model_to_estimator")
def test_custom_objects(tmp_path):
    """A function in the model's configuration, which Keras knows by its name alone."""
    model = compiled(lambda: functional(lambda: L.Activation(cube)))
    expected = model.evaluate(X, Y, verbose=0)[0]
    with pytest.raises((TypeError, ValueError), match="cube"):
        convert(model, tmp_path / "without").evaluate(data({"x": X}))
    estimator = convert(model, tmp_path / "with", custom_objects={"cube": cube})
    assert estimator.evaluate(data({"x": X}))["loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.nightly
@pytest.mark.symbols("tf.keras.estimator.model_to_estimator")
@pytest.mark.parametrize("name", ["model.h5", "model.keras", "saved_model"])
def test_a_path_to_a_model(tmp_path, name):
    model = compiled(functional)
    model.fit(X, Y, epochs=2, verbose=0)
    path = os.path.join(str(tmp_path), name)
    model.save(path)
    expected = model.evaluate(X, Y, verbose=0)[0]
    estimator = tf.keras.estimator.model_to_estimator(keras_model_path=path, model_dir=str(tmp_path / "run"))
    result = estimator.evaluate(data({"x": X}))
    assert result["loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.gate("tf.compat.v1.keras")
@pytest.mark.symbols("tf.keras.estimator.model_to_estimator", "tf.compat.v1.keras.estimator.model_to_estimator")
@pytest.mark.parametrize("first", [False, True], ids=["tf.keras", "tf.compat.v1.keras"])
def test_names_of_metrics_and_the_family_of_the_estimator(tmp_path, first):
    keras = tf.compat.v1.keras if first else tf.keras
    model = compiled(functional)
    estimator = keras.estimator.model_to_estimator(
        model, model_dir=str(tmp_path), metric_names_map={"mae": "absolute"}, checkpoint_format="saver"
    )
    assert isinstance(estimator, tf.estimator.Estimator) != first
    assert isinstance(estimator, tf.compat.v1.estimator.Estimator)
    result = estimator.train(data({"x": X}), steps=1).evaluate(data({"x": X}))
    assert "mae" not in result
    answers = np.array([row["y"] for row in estimator.predict(data({"x": X}))])
    assert result["absolute"] == pytest.approx(np.mean(np.abs(answers - Y)), rel=1e-5)


@pytest.mark.nightly
@pytest.mark.symbols("tf.keras.estimator.model_to_estimator")
def test_sample_weights(tmp_path):
    model = compiled(functional)
    weight = np.array([0, 1, 2, 3, 0, 1, 2, 3], np.float32)
    expected = model.evaluate(X, Y, sample_weight=weight, verbose=0)[0]
    assert expected != pytest.approx(model.evaluate(X, Y, verbose=0)[0], rel=0.01)
    result = convert(model, tmp_path).evaluate(data({"features": {"x": X}, "sample_weights": weight}))
    assert result["loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.nightly
@pytest.mark.symbols("tf.keras.estimator.model_to_estimator", "tf.estimator.export.RegressionOutput")
def test_an_export_answers_as_keras_does(tmp_path):
    model = compiled(functional)
    estimator = convert(model, tmp_path / "run", export_outputs={"y": tf.estimator.export.RegressionOutput})

    def receiver():
        codes = tf.compat.v1.placeholder(tf.string, [None], "codes")
        rows = tf.io.decode_raw(codes, tf.float32)
        rows.set_shape([None, 3])
        return tf.estimator.export.ServingInputReceiver({"x": rows}, codes)

    estimator.train(data({"x": X}), steps=1)
    path = os.fsdecode(estimator.export_saved_model(str(tmp_path / "export"), receiver))
    expected = [row["y"] for row in estimator.predict(data({"x": X}))]
    loaded = tf.saved_model.load(path)
    codes = tf.constant([row.tobytes() for row in X])
    for signature, output in (("serving_default", "y"), ("y", "outputs")):
        function = loaded.signatures[signature]
        (argument,) = function.structured_input_signature[1]
        np.testing.assert_allclose(function(**{argument: codes})[output], expected, rtol=1e-5, atol=1e-6)


def test_what_cannot_be_converted_is_refused(tmp_path):
    with pytest.raises(ValueError, match="not been compiled"):
        convert(functional(), tmp_path)
    with pytest.raises(ValueError, match="needs to be provided"):
        tf.keras.estimator.model_to_estimator(model_dir=str(tmp_path))
    with pytest.raises(ValueError, match="but not both"):
        convert(compiled(functional), tmp_path, keras_model_path="somewhere")
