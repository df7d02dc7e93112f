"""The canned Estimators of TensorFlow 1 and 2 as Keras models: the numbers of the Estimators, to the bit."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from estimator_pipeline import compat
from estimator_pipeline.models.keras_runtime import model_fn as keras_model_fn
from estimator_pipeline.models.keras_runtime.model_fn.canned import listed

tf = compat.install()
v1 = tf.compat.v1
pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:UserWarning")
RANDOM = np.random.RandomState(0)
X = {
    "number": RANDOM.rand(100).astype("float32"),
    "word": RANDOM.choice(["u", "v", "w"], 100),
    "weight": RANDOM.rand(100).astype("float32"),
}
YES, CLASSES, NUMBERS = (X["number"] > 0.5).astype("int64"), RANDOM.randint(0, 3, 100), X["number"] * 2 + 1
WORDS = np.array(["no", "yes"])[YES]


def columns():
    column = tf.feature_column
    number = column.numeric_column("number")
    word = column.categorical_column_with_vocabulary_list("word", ["u", "v", "w"])
    return [number, word], [number, column.embedding_column(word, 2), column.indicator_column(word)]


WIDE, DEEP = columns()
BOTH = {"linear_feature_columns": WIDE, "dnn_feature_columns": DEEP, "dnn_hidden_units": [4]}
LONG = pytest.mark.nightly
CASES = {
    "weights": ("DNNClassifier", {"hidden_units": [8, 4], "feature_columns": DEEP, "weight_column": "weight"}, YES),
    "classes": (
        "DNNClassifier",
        {"hidden_units": [4], "feature_columns": DEEP, "n_classes": 3, "batch_norm": True, "optimizer": "Adam"},
        CLASSES,
    ),
    "numbers": (
        "DNNRegressor",
        {"hidden_units": [4], "feature_columns": DEEP, "loss_reduction": "weighted_mean"},
        NUMBERS,
    ),
    "linear": ("LinearClassifier", {"feature_columns": WIDE, "label_vocabulary": ["no", "yes"]}, WORDS),
    "linear numbers": ("LinearRegressor", {"feature_columns": WIDE, "optimizer": "Adagrad"}, NUMBERS),
    "both": ("DNNLinearCombinedClassifier", BOTH, YES),
    "both numbers": ("DNNLinearCombinedRegressor", BOTH, NUMBERS),
}


@pytest.mark.parametrize("name", [name if name == "both" else pytest.param(name, marks=LONG) for name in CASES])
def test_as_the_estimator(name, tmp_path):
    check_as_the_estimator(v1.estimator, "", CASES[name], tmp_path)


KERAS = tf.keras.optimizers
CASES_V2 = {
    "weights": ("DNNClassifier", {"hidden_units": [8, 4], "feature_columns": DEEP, "weight_column": "weight"}, YES),
    "classes": (
        "DNNClassifier",
        {"hidden_units": [4], "feature_columns": DEEP, "n_classes": 3, "batch_norm": True, "optimizer": "Adam"},
        CLASSES,
    ),
    "numbers": (
        "DNNRegressor",
        {"hidden_units": [4], "feature_columns": DEEP, "loss_reduction": "sum", "optimizer": "SGD"},
        NUMBERS,
    ),
    "an optimizer": (
        "DNNRegressor",
        {"hidden_units": [4], "feature_columns": DEEP, "optimizer": lambda: KERAS.legacy.RMSprop(0.01)},
        NUMBERS,
    ),
    "linear": ("LinearClassifier", {"feature_columns": WIDE, "label_vocabulary": ["no", "yes"]}, WORDS),
    "linear numbers": ("LinearRegressor", {"feature_columns": WIDE, "weight_column": "weight"}, NUMBERS),
    "both": ("DNNLinearCombinedClassifier", BOTH, YES),
    "both numbers": ("DNNLinearCombinedRegressor", BOTH, NUMBERS),
    "only linear": ("DNNLinearCombinedRegressor", {"linear_feature_columns": WIDE}, NUMBERS),
}


@pytest.mark.parametrize("name", [name if name == "both" else pytest.param(name, marks=LONG) for name in CASES_V2])
def test_as_the_estimator_of_tensorflow_2(name, tmp_path):
    """The optimizers' variables have the Estimator's names, too."""
    check_as_the_estimator(tf.estimator, "V2", CASES_V2[name], tmp_path)


def check_as_the_estimator(estimators, suffix, case, tmp_path):
    kind, options, labels = case

    def data(repeat=1):
        return tf.data.Dataset.from_tensor_slices((X, labels)).batch(20).repeat(repeat)

    estimator = getattr(estimators, kind)(model_dir=str(tmp_path / "old"), **options)
    estimator.train(lambda: data(None), steps=1)
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    estimator.train(lambda: data(None), steps=8)
    model = getattr(keras_model_fn, kind + suffix)(model_dir=str(tmp_path / "new"), **options)
    model.fit(data(None), steps_per_epoch=8)
    wanted = estimator.evaluate(data)
    assert model.evaluate(data(), return_dict=True) == {key: pytest.approx(wanted[key], abs=0) for key in wanted}
    one, other = next(estimator.predict(data)), next(keras_model_fn.predictions(model, data()))
    assert one.keys() == other.keys() and all(np.array_equal(one[key], other[key]) for key in one)
    assert set(model.get_variable_names()) == set(estimator.get_variable_names())
    if suffix:
        back = getattr(estimators, kind)(model_dir=str(tmp_path / "new"), **options)
        assert back.evaluate(data) == wanted


@LONG
def test_an_optimizer_of_today_and_an_export(tmp_path):
    """An optimizer that makes no operations of graphs is replaced by the one that does."""
    model = keras_model_fn.DNNClassifierV2(
        [4], DEEP, str(tmp_path / "model"), dropout=0.5, optimizer=KERAS.Adam(0.01), weight_column="weight"
    )
    data = tf.data.Dataset.from_tensor_slices((X, YES)).batch(20)
    model.fit(data)
    model.fit(data.map(lambda features, labels: (features, labels[:, tf.newaxis])))
    assert model.global_step == 10 and "training/Adam/dnn/logits/bias/m" in model.get_variable_names()
    spec = {"number": tf.io.FixedLenFeature([], tf.float32), "word": tf.io.FixedLenFeature([], tf.string)}
    serving = keras_model_fn.build_parsing_serving_input_receiver_fn(spec)
    path = keras_model_fn.export_saved_model(model, str(tmp_path / "export"), serving)
    signatures = tf.saved_model.load(path.decode()).signatures
    assert set(signatures) == {"serving_default", "classification", "regression", "predict"}


def test_columns_that_are_read_once():
    """Values of a dict, a generator, a set; or one column by itself, which is a tuple."""
    column = tf.feature_column.numeric_column("number")
    for given in ({"a": column}.values(), (one for one in [column]), {column}, column):
        assert listed(given) == [column]
    assert listed(None) == listed(()) == []


@LONG
@pytest.mark.parametrize("version", ["", "V2"])
def test_columns_and_units_that_are_read_once(version, tmp_path):
    """By each graph of the model: values of a dict, a generator, `map`; or one column by itself."""
    make = getattr(keras_model_fn, f"DNNClassifier{version}")
    column = tf.feature_column.numeric_column("number")
    data = tf.data.Dataset.from_tensor_slices((X, YES)).batch(50)
    for given in ({"a": column}.values(), (one for one in [column]), column):
        model = make(map(int, ["4"]), given, str(tmp_path / version / type(given).__name__))
        model.fit(data)
        assert "dnn/hiddenlayer_0/kernel" in model.get_variable_names()
        assert model.evaluate(data, return_dict=True)["global_step"] == 2


@LONG
def test_further_metrics_and_features(tmp_path):
    """add_metrics and forward_features make another model of the same folder."""
    kind, options, labels = CASES["numbers"]
    model = getattr(keras_model_fn, kind)(model_dir=str(tmp_path), **options)
    metric = v1.metrics.mean_absolute_error
    model = keras_model_fn.add_metrics(
        model, lambda labels, predictions: {"mae": metric(labels, predictions["predictions"][:, 0])}
    )
    model = keras_model_fn.forward_features(model, "word")
    data = tf.data.Dataset.from_tensor_slices((X, labels)).batch(20)
    model.fit(data)
    found = list(keras_model_fn.predictions(model, data))
    error = np.mean([abs(one["predictions"][0] - label) for one, label in zip(found, labels, strict=True)])
    assert model.evaluate(data, return_dict=True)["mae"] == pytest.approx(error, rel=1e-5)
    assert [one["word"].decode() for one in found] == X["word"].tolist()
