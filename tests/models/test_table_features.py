"""Features of tables: what is found in records, and that a transformation means what TensorFlow's and Keras' does."""

from __future__ import annotations

import numpy as np
import pytest

from estimator_pipeline.errors import ConfigError, InputError
from estimator_pipeline.inputs.source import ArraySource
from estimator_pipeline.models.features import analysis
from estimator_pipeline.models.features.analysis import analyse, plan_features
from estimator_pipeline.models.features.columns import FeatureSpec
from estimator_pipeline.models.features.table import TableFeatures

NAN = float("nan")


def texts(*values):
    return np.array([value.encode() for value in values] + [None], dtype=object)[:-1]


def numbers(*values):
    return np.array(values, dtype=np.float32)


def features_of(arrays, declared=None, *, labels=None, vocabularies=None):
    """The features of arrays, of which the labels are not features."""
    labels = labels or {}
    types = {name: "text" if array.dtype == object else "float" for name, array in arrays.items()}
    plan = plan_features(declared or {}, types, without=list(labels))
    arrays = {name: _as(array, plan.raw.get(name, labels.get(name))) for name, array in arrays.items()}
    read = {name: array for name, array in arrays.items() if name in plan.raw or name in labels}
    source = ArraySource(read, description="records")
    return analyse(source, plan, list(read), labels=labels, vocabularies=vocabularies or {}, declared={"a": 1})


def _as(array, dtype):
    return texts(*(f"{value:g}" for value in array)) if dtype == "string" and array.dtype != object else array


def by_name(features):
    return {column.name: column for column in features.columns}


def kinds(features):
    return {name: kind for name, kind, _ in features.report}


MANY = np.arange(60)
# Column of 60 records -> the kind that is found.
KINDS = {
    "amount": (np.where(MANY % 7, MANY * 1.5 - 40, NAN).astype(np.float32), "numeric"),
    "whole": (numbers(*(MANY * 37 % 41)), "numeric"),
    "row": (numbers(*(MANY + 1)), "key"),
    "sorted": (numbers(*(MANY * 100)), "numeric"),
    "constant": (numbers(*[3.0] * 60), "left out"),
    "nothing": (numbers(*[NAN] * 60), "left out"),
    "word": (texts(*("abc"[i % 3] for i in MANY)), "categorical"),
    "some": (texts(*(["x", ""][i % 2] for i in MANY)), "categorical"),
    "name": (texts(*(f"n{i}" for i in MANY)), "key"),
    "one": (texts(*["x"] * 60), "left out"),
    "empty": (texts(*[""] * 60), "left out"),
}


def test_what_columns_are_taken_for():
    features = features_of({name: array for name, (array, _) in KINDS.items()})
    assert kinds(features) == {name: kind for name, (_, kind) in KINDS.items()}
    assert set(features.raw) == {"amount", "whole", "sorted", "word", "some"}
    amount, values = by_name(features)["amount"], KINDS["amount"][0].astype(np.float64)
    there = values[~np.isnan(values)]
    assert (amount.shift, amount.scale) == (pytest.approx(there.mean()), pytest.approx(there.std()))
    assert amount.missing == pytest.approx(np.median(there))
    assert by_name(features)["word"].vocabulary == ("a", "b", "c")
    assert by_name(features)["some"].vocabulary == ("x", "")
    rows = {name: text for name, _, text in features.report}
    assert rows["amount"].endswith("9 missing: 5; standard")
    assert rows["word"] == "3 values: a, b, c" and rows["some"] == "1 value: x, 30 missing"
    assert rows["row"] == "a number of the record, 1 to 60"


def test_statistics_of_several_chunks_are_those_of_all(monkeypatch):
    rng = np.random.default_rng(0)
    values = rng.normal(1e4, 3.0, 5000).astype(np.float32)
    values[::11] = NAN
    words = texts(*(f"w{int(abs(value)) % 5}" if value == value else "" for value in values))
    whole = features_of({"x": values, "w": words})
    monkeypatch.setattr(analysis, "_CHUNK", 64)
    monkeypatch.setattr(analysis, "_SAMPLE", 1000)
    parts = features_of({"x": values, "w": words})
    assert by_name(parts)["w"] == by_name(whole)["w"]
    sampled, other = by_name(parts)["x"], by_name(whole)["x"]
    assert (sampled.shift, sampled.scale) == (
        pytest.approx(other.shift, rel=1e-6),
        pytest.approx(other.scale, rel=1e-4),
    )
    assert sampled.missing == pytest.approx(other.missing, rel=1e-4), "of a sample"


def test_a_vocabulary_has_the_most_frequent_values(monkeypatch):
    monkeypatch.setattr(analysis, "_MAX_VOCABULARY", 2)
    column = by_name(features_of({"w": texts(*"bcabcbdbb")}))["w"]
    assert column.vocabulary == ("b", "c") and column.buckets == 3


def test_what_is_kept_is_read_again():
    declared = {"x": {"kind": "bucketized", "source": "x", "boundaries": [1, 2]}}
    features = features_of(
        {"x": numbers(1, 2, 3), "w": texts("a", "b", "ü"), "y": texts("no", "yes", "no")}, declared,
        labels={"y": "string"}, vocabularies={"y": ["no", "yes"]},
    )  # fmt: skip
    again = TableFeatures.loads(features.dumps())
    assert again == features and again.digest == features.digest
    assert again.label == {"y": {"dtype": "string", "classes": ["no", "yes"], "counts": [2, 1]}}
    for text in ("{}", "[1]", '{"version": 99}', "torn {"):
        with pytest.raises(ValueError, match=r"."):
            TableFeatures.loads(text)


# Declared features, the error.
REFUSED = {
    "no such column": ({"ege": {"kind": "numeric"}}, "no column 'ege'(.|\n)*did you mean 'age'"),
    "the label": ({"y": {"kind": "numeric"}}, "'y' is the label"),
    "ranges of text": ({"b": {"kind": "bucketized", "source": "plan", "boundaries": [1]}}, "needs numbers"),
    "combinations of numbers": (
        {"c": {"kind": "crossed", "sources": ["age", "plan"], "hash_buckets": 5}},
        "needs a categorical column, and 'age' is numeric(.|\n)*add age: categorical",
    ),
    "log of negative numbers": ({"age": {"kind": "numeric", "normalize": "log"}}, "needs numbers from 0 on"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_declared_features_that_do_not_match(case):
    declared, words = REFUSED[case]
    arrays = {"age": numbers(-5, 3, 4), "plan": texts("a", "b", "a"), "y": numbers(0, 1, 0)}
    with pytest.raises(ConfigError, match=words):
        features_of(arrays, declared, labels={"y": "float32"})


def test_records_that_cannot_be_trained_on():
    with pytest.raises(InputError, match=r"'x' is infinite(.|\n)*record 1: inf"):
        features_of({"x": numbers(1, np.inf, 2)})
    labels = {"labels": {"y": "string"}, "vocabularies": {"y": ["no", "yes"]}}
    with pytest.raises(ConfigError, match=r"not in model.label_vocabulary(.|\n)*maybe; the vocabulary: no, yes"):
        features_of({"x": numbers(1, 2), "y": texts("no", "maybe")}, **labels)
    with pytest.raises(ConfigError, match="1 training record without a label"):
        features_of({"x": numbers(1, 2), "y": texts("no", "")}, **labels)
    with pytest.raises(ConfigError, match="no column of the table can be an input"):
        features_of({"x": numbers(1, 1)})


# In TensorFlow ----------------------------------------------------------------------------------------------------

RAW = {
    "age": numbers(3.0, NAN, 25.0, 60.5, 39.99),
    "city": texts("Oslo", "", "Köln", "Nowhere", "Paris, Texas"),
    "plan": texts("a", "b", "a", "c", "b"),
}
COLUMNS = (
    FeatureSpec("age", "numeric", "age", ("age",), missing=30.0, shift=20.0, scale=4.0),
    FeatureSpec("log", "numeric", "log", ("age",), missing=30.0, log=True),
    FeatureSpec("group", "bucketized", "group", ("age",), missing=30.0, boundaries=(25.0, 40.0)),
    FeatureSpec("city", "categorical", "city", ("city",), vocabulary=("Köln", "Oslo", ""), oov_buckets=2),
    FeatureSpec("hash", "categorical", "hash", ("city",), hash_buckets=7),
    FeatureSpec("both", "crossed", "both", ("plan", "group"), hash_buckets=50),
)


@pytest.fixture(scope="module")
def tf():
    from estimator_pipeline import compat

    return compat.install()


def table_of(columns, raw):
    return TableFeatures(tuple(columns), raw, declared={}, records=0, label={}, report=())


@pytest.fixture(scope="module")
def outputs(tf):
    transform = table_of(COLUMNS, {"age": "float32", "city": "string", "plan": "string"})
    values = transform.bind(tf)({name: tf.constant(values) for name, values in RAW.items()})
    assert {name: (spec.dtype, spec.shape.rank) for name, spec in transform.specs(tf).items()} == {
        name: (value.dtype, 1) for name, value in values.items()
    }
    return {name: value.numpy() for name, value in values.items()}


@pytest.mark.tf
def test_numbers(tf, outputs):
    filled = np.nan_to_num(RAW["age"], nan=30.0)
    assert outputs["age"].tolist() == ((filled - 20) / 4).tolist()
    np.testing.assert_allclose(outputs["log"], np.log1p(filled), rtol=1e-6)
    normalization = tf.keras.layers.Normalization(mean=20.0, variance=16.0)
    np.testing.assert_allclose(outputs["age"], normalization(filled).numpy().ravel(), rtol=1e-6)
    discretization = tf.keras.layers.Discretization(bin_boundaries=[25.0, 40.0])
    assert outputs["group"].tolist() == discretization(filled).numpy().ravel().tolist() == [0, 1, 1, 2, 1]


@pytest.mark.tf
def test_ids(tf, outputs):
    lookup = tf.keras.layers.StringLookup(vocabulary=["Köln", "Oslo", ""], num_oov_indices=0)
    known = outputs["city"] < 3
    assert outputs["city"][known].tolist() == lookup(tf.constant(RAW["city"][known])).numpy().tolist() == [1, 2, 0]
    assert set(outputs["city"][~known]) <= {3, 4}
    assert outputs["hash"].tolist() == tf.keras.layers.Hashing(7)(tf.constant(RAW["city"])).numpy().tolist()
    crossing = tf.keras.layers.HashedCrossing(50)
    wanted = crossing((tf.constant(RAW["plan"])[:, None], tf.constant(outputs["group"])[:, None]))
    assert outputs["both"].tolist() == wanted.numpy().ravel().tolist()


@pytest.mark.tf
def test_ids_are_those_of_feature_columns(tf, outputs):
    """The one-hot encodings of tf.feature_column have their ones at the ids."""
    column = tf.feature_column
    city = column.categorical_column_with_vocabulary_list("city", ["Köln", "Oslo", ""], num_oov_buckets=2)
    age = column.numeric_column("age")
    wanted = {
        "city": city,
        "hash": column.categorical_column_with_hash_bucket("city", 7),
        "group": column.bucketized_column(age, [25.0, 40.0]),
    }
    features = {
        "city": tf.constant(RAW["city"])[:, None],
        "age": tf.constant(np.nan_to_num(RAW["age"], nan=30.0))[:, None],
    }
    # A feature column takes "" for a missing value, which has no id.
    there = RAW["city"] != b""
    for name, each in wanted.items():
        encoded = each if name == "group" else column.indicator_column(each)
        ones = tf.keras.layers.DenseFeatures([encoded])(features).numpy()
        chosen = slice(None) if name == "group" else there
        assert ones[chosen].argmax(axis=1).tolist() == outputs[name][chosen].tolist(), name


@pytest.mark.tf
def test_any_shape_and_names_of_an_export(tf):
    columns = [FeatureSpec("a b", "categorical", "a_b", ("a b",), vocabulary=("x",)), COLUMNS[5], COLUMNS[2]]
    transform = table_of(columns, {"a b": "string", "a_b": "string", "plan": "string", "age": "float32"})
    assert transform.serving_names == {"a b": "a_b", "a_b": "a_b_2", "plan": "plan", "age": "age"}
    grid = {"plan": tf.constant([["a", "b"], ["c", "a"]]), "age": tf.ones([2, 2]), "a b": tf.constant([["x", "y"]] * 2)}
    bound = transform.bind(tf)
    assert [value.shape.as_list() for value in bound(grid).values()] == [[2, 2]] * 3
    served = bound.served({"a_b": grid["a b"], "a_b_2": grid["a b"], "plan": grid["plan"], "age": grid["age"]})
    assert served["a_b"].numpy().tolist() == [[0, 1], [0, 1]]


@pytest.mark.tf
@pytest.mark.parametrize("name", ["linear", "dnn", "wide_deep"])
def test_a_number_is_predicted_in_its_unit(name):
    """With the same weights, the answer is the target's mean and deviation times that of a model without them."""
    import model_fns

    params = {"numeric": ["x"], "categorical": {"n": 3}, "classes": 1}
    plain, scaled = (
        model_fns.get(name).keras_model({**model_fns.complete(name, {**params, **target})})
        for target in ({}, {"target_mean": 5000.0, "target_deviation": 300.0})
    )
    weights = [np.full(array.shape, 0.1 * (number + 1)) for number, array in enumerate(plain.get_weights())]
    answers = []
    for model in (plain, scaled):
        model.set_weights(weights)
        answers.append(np.asarray(model({"x": numbers(0.5, -2.0).reshape(2, 1), "n": np.array([[0], [2]])})))
    np.testing.assert_allclose(answers[1], answers[0] * 300 + 5000, rtol=1e-6)
    assert np.ptp(answers[0]) > 0.01
