"""Heads that a model_fn makes itself, held against those of tf.estimator and tf.contrib.estimator."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.models.keras_runtime import model_fn as keras_model_fn

tf = compat.install()
v1 = tf.compat.v1
pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:UserWarning")
LONG = pytest.mark.nightly
RANDOM = np.random.RandomState(0)
X = {"x": RANDOM.rand(64, 3).astype("float32"), "weight": RANDOM.rand(64).astype("float32")}
YES, CLASSES = (X["x"].sum(1) > 1.5).astype("int64"), RANDOM.randint(0, 3, 64)
NUMBERS, MANY = X["x"].sum(1), (X["x"] > 0.5).astype("int64")
WORDS = np.array(["u", "v", "w"])


def loss_fn(labels, logits, features):
    return tf.square(labels - logits) * features["weight"][:, tf.newaxis]


# Which head, its arguments, the labels.
CASES = {
    "two": ("BinaryClassHead", {"thresholds": [0.3], "weight_column": "weight", "name": "two"}, YES),
    "more": ("MultiClassHead", {"n_classes": 3, "label_vocabulary": list(WORDS)}, WORDS[CLASSES]),
    "numbers": ("RegressionHead", {"weight_column": tf.feature_column.numeric_column("weight")}, NUMBERS),
    "own loss": ("RegressionHead", {"loss_fn": loss_fn, "loss_reduction": "sum"}, NUMBERS),
    "counts": ("PoissonRegressionHead", {"name": "counts"}, NUMBERS),
    "shares": ("LogisticRegressionHead", {}, YES),
    "labels": (
        "MultiLabelHead",
        {"n_classes": 3, "thresholds": [0.5], "weight_column": "weight", "classes_for_class_based_metrics": [1]},
        MANY,
    ),
    "several": ("MultiHead", {"head_weights": [1.0, 0.5]}, {"yes": YES, "number": NUMBERS}),
}
CASES_V1 = {
    "two": ("binary_classification_head", {"thresholds": [0.3], "weight_column": "weight", "name": "two"}, YES),
    "more": ("multi_class_head", {"n_classes": 3}, CLASSES),
    "numbers": ("regression_head", {"loss_fn": loss_fn}, NUMBERS),
    "counts": ("poisson_regression_head", {}, NUMBERS),
    "shares": ("logistic_regression_head", {}, YES),
}


def of_both(heads, kind, options):
    """The head, of the names that `heads` has."""
    if kind == "MultiHead":
        options = {**options, "heads": [heads.BinaryClassHead(name="yes"), heads.RegressionHead(name="number")]}
    return getattr(heads, kind)(**options)


def model_fn_of(heads, kind, options):
    def model_fn(features, labels, mode):
        head = of_both(heads, kind, options)
        layer = tf.keras.layers.Dense(head.logits_dimension, name="logits")
        logits, trained, optimizer = layer(features["x"]), layer.trainable_variables, None
        regularization = [1e-3 * tf.reduce_sum(tf.square(trained[0]))]
        if mode == "train":
            optimizer = tf.keras.optimizers.legacy.Adam(0.05)
            optimizer.iterations = v1.train.get_or_create_global_step()
        return head.create_estimator_spec(
            features, mode, logits, labels, optimizer, trained, regularization_losses=regularization
        )

    return model_fn


def model_fn_of_v1(heads, kind, options):
    def model_fn(features, labels, mode):
        head = of_both(heads, kind, options)
        logits = v1.layers.dense(features["x"], head.logits_dimension, name="logits")
        return head.create_estimator_spec(features, mode, logits, labels, v1.train.AdagradOptimizer(0.05))

    return model_fn


def check(of, estimators, case, folder):
    kind, options, labels = case

    def data(repeat=1):
        return tf.data.Dataset.from_tensor_slices((X, labels)).batch(16).repeat(repeat)

    estimator = tf.estimator.Estimator(of(estimators, kind, options), str(folder / "old"))
    estimator.train(lambda: data(None), steps=1)
    shutil.copytree(folder / "old", folder / "new")
    estimator.train(lambda: data(None), steps=6)
    model = keras_model_fn.ModelFnModel(of(keras_model_fn, kind, options), str(folder / "new"))
    model.fit(data(None), steps_per_epoch=6)
    assert set(model.get_variable_names()) == set(estimator.get_variable_names())
    wanted = estimator.evaluate(data)
    assert model.evaluate(data(), return_dict=True) == {key: pytest.approx(wanted[key], rel=1e-6) for key in wanted}
    one, other = next(estimator.predict(data)), next(keras_model_fn.predictions(model, data()))
    assert one.keys() == other.keys() and all(np.array_equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("name", [name if name == "two" else pytest.param(name, marks=LONG) for name in CASES])
def test_heads_of_tensorflow_2(name, tmp_path):
    check(model_fn_of, tf.estimator, CASES[name], tmp_path)


@LONG
@pytest.mark.parametrize("name", CASES_V1)
def test_heads_of_contrib(name, tmp_path):
    from estimator_pipeline.compat.tf1.contrib import estimator

    check(model_fn_of_v1, estimator, CASES_V1[name], tmp_path)


def test_what_a_head_refuses():
    with pytest.raises(ConfigError) as error:
        keras_model_fn.RegressionHead(loss_reduction="none")
    assert error.value.code == "argument/unknown-name"
    with pytest.raises(ConfigError) as error:
        keras_model_fn.MultiHead([keras_model_fn.RegressionHead()])
    assert error.value.code == "argument/missing"
    for given in ({}, {"optimizer": tf.keras.optimizers.legacy.SGD()}):
        with pytest.raises(ConfigError) as error, tf.Graph().as_default():
            keras_model_fn.RegressionHead().create_estimator_spec({}, "train", tf.ones([2, 1]), tf.ones([2]), **given)
        assert error.value.code == "argument/missing"
