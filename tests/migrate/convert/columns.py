"""Each kind of feature column, with the values of features that show its rules; run as a program by test_columns.py.

python columns.py compare FOLDER      # the values equal those of tf.feature_column; saves a model with all columns
python columns.py load FOLDER         # the loaded model answers as the saved one
"""

import sys

import numpy as np
import tensorflow as tf
from column_classes import (
    BucketizedColumn,
    CrossedColumn,
    EmbeddingColumn,
    HashedColumn,
    IdentityColumn,
    IndicatorColumn,
    NumericColumn,
    VocabularyColumn,
    VocabularyFileColumn,
    dense_columns,
    linear_columns,
)

fc = tf.feature_column
FEATURES = {
    "age": np.array([-1.0, 20.0, 20.5, 61.0], np.float32),
    "size": np.array([[1, 2], [3, 4], [5, 6], [7, 8]], np.int64),
    "high": np.array([0.1, 0.2, 0.3, 0.4], np.float64),
    "city": np.array(["oslo", "", "rome", "bern"]),
    "tags": np.array([["a", "b"], ["a", "a"], ["", "x"], ["", ""]]),
    "kind": np.array([[3, 7], [5, -1], [9, 5], [-1, -1]], np.int64),
    "floor": np.array([0, 2, -1, 1], np.int64),
    "far": np.array([0, 9, -7, -1], np.int64),
}


def pairs(folder):
    """Return name -> (the column, that of TensorFlow)."""
    file = f"{folder}/words.txt"
    with open(file, "w") as words:
        words.write("a\nb\nc\n")
    vocabulary = "categorical_column_with_vocabulary_list"
    made = {
        "numeric": (NumericColumn("age"), fc.numeric_column("age")),
        "shape": (NumericColumn("size", shape=2), fc.numeric_column("size", shape=2)),
        "normalized": (
            NumericColumn("high", normalizer_fn=lambda x: (x - 0.2) / 4.0),
            fc.numeric_column("high", normalizer_fn=lambda x: (x - 0.2) / 4.0),
        ),
    }
    categorical = {
        "bucketized": (
            BucketizedColumn(NumericColumn("age"), boundaries=[0, 20, 61]),
            fc.bucketized_column(fc.numeric_column("age"), boundaries=[0, 20, 61]),
        ),
        "vocabulary": (
            VocabularyColumn("city", ["rome", "oslo"]),
            getattr(fc, vocabulary)("city", ["rome", "oslo"]),
        ),
        "default": (
            VocabularyColumn("city", ["rome", "oslo"], default_value=1),
            getattr(fc, vocabulary)("city", ["rome", "oslo"], default_value=1),
        ),
        "unknown": (
            VocabularyColumn("tags", ("b", "c"), num_oov_buckets=5),
            getattr(fc, vocabulary)("tags", ("b", "c"), num_oov_buckets=5),
        ),
        "numbers": (
            VocabularyColumn("kind", [5, 9], num_oov_buckets=3),
            getattr(fc, vocabulary)("kind", [5, 9], num_oov_buckets=3),
        ),
        "file": (
            VocabularyFileColumn("tags", file, 2, num_oov_buckets=2),
            fc.categorical_column_with_vocabulary_file("tags", file, 2, num_oov_buckets=2),
        ),
        "lines": (
            VocabularyFileColumn("tags", vocabulary_file=file),
            fc.categorical_column_with_vocabulary_file("tags", vocabulary_file=file, vocabulary_size=3),
        ),
        "identity": (IdentityColumn("floor", 3), fc.categorical_column_with_identity("floor", 3)),
        "range": (IdentityColumn("far", 4, 2), fc.categorical_column_with_identity("far", 4, 2)),
        "hash": (HashedColumn("tags", 7), fc.categorical_column_with_hash_bucket("tags", 7)),
        "integers": (HashedColumn("kind", 7, tf.int64), fc.categorical_column_with_hash_bucket("kind", 7, tf.int64)),
    }
    categorical["crossed"] = (
        CrossedColumn(["city", "floor", categorical["bucketized"][0]], 11),
        fc.crossed_column(["city", "floor", categorical["bucketized"][1]], 11),
    )
    categorical["crossed_words"] = (
        CrossedColumn([categorical["vocabulary"][0], categorical["unknown"][0]], 13, hash_key=5),
        fc.crossed_column([categorical["vocabulary"][1], categorical["unknown"][1]], 13, hash_key=5),
    )
    made["bucketized"] = categorical["bucketized"]
    for name, (ours, theirs) in categorical.items():
        made[f"{name}_indicator"] = IndicatorColumn(ours), fc.indicator_column(theirs)
        for combiner in ("mean", "sum", "sqrtn") if name == "unknown" else ("mean",):
            made[f"{name}_{combiner}"] = (
                EmbeddingColumn(ours, 2, combiner, tf.keras.initializers.Ones()),
                fc.embedding_column(theirs, 2, combiner, tf.compat.v1.ones_initializer()),
            )
    return made, categorical


def of_tensorflow(*groups):
    """Return the values that TensorFlow computes for groups of columns."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        features = {name: tf.constant(value) for name, value in FEATURES.items()}
        tensors = [tf.compat.v1.feature_column.input_layer(features, list(columns)) for columns in groups]
        session.run([tf.compat.v1.global_variables_initializer(), tf.compat.v1.tables_initializer()])
        return session.run(tensors)


def model_of(function, *groups):
    types = {name: tf.constant(value).dtype for name, value in FEATURES.items()}
    inputs = {name: tf.keras.Input(FEATURES[name].shape[1:], name=name, dtype=kind) for name, kind in types.items()}
    return tf.keras.Model(inputs, [function(inputs, list(columns)) for columns in groups])


def answers(model):
    answered = model({name: tf.constant(value) for name, value in FEATURES.items()})
    return [one.numpy() for one in answered]


def compare(folder):
    made, categorical = pairs(folder)
    # Each column, and all of them in another order than that of their names.
    distinct = {ours.name: (ours, theirs) for ours, theirs in [*made.values()][::-1]}.values()
    groups = [*([pair] for pair in made.values()), distinct]
    model = model_of(dense_columns, *([ours for ours, _ in group] for group in groups))
    expected = of_tensorflow(*([theirs for _, theirs in group] for group in groups))
    for name, one, other in zip([*made, "all"], answers(model), expected, strict=True):
        np.testing.assert_allclose(one, other, 1e-6, 1e-7, err_msg=name)
    assert all(ours.name == theirs.name for ours, theirs in [*made.values(), *categorical.values()])
    model.save(f"{folder}/dense.keras")
    np.save(f"{folder}/dense.npy", answers(model)[-1])
    linear = model_of(linear_columns, {ours.name: ours for ours, _ in [*categorical.values(), *distinct]}.values())
    assert not answers(linear)[0].any()  # zeros, as in TensorFlow


def load(folder):
    loaded = tf.keras.models.load_model(f"{folder}/dense.keras")
    np.testing.assert_array_equal(answers(loaded)[-1], np.load(f"{folder}/dense.npy"))


if __name__ == "__main__":
    {"compare": compare, "load": load}[sys.argv[1]](sys.argv[2])
    print("equal")
