"""Feature columns as Keras layers, held against those of TensorFlow: words and numbers that no vocabulary has."""

from __future__ import annotations

import numpy as np
import pytest

from estimator_pipeline import compat
from estimator_pipeline.models.keras_runtime import feature_columns as keras_columns

tf = compat.install()
FEATURES = {
    "city": np.array([["a"], ["unknown"], ["b"], [""]]),
    "size": np.array([[0.5], [1.5], [3.0], [0.1]], "float32"),
    "kind": np.array([[5], [6], [100], [-1]], "int64"),
}
COLUMNS = {
    "crossed": lambda of: of.crossed_column(
        [of.categorical_column_with_vocabulary_list("city", ["a", "b"]),
         of.bucketized_column(of.numeric_column("size"), [1.0, 2.0])], 50,
    ),
    "buckets behind numbers": lambda of: of.categorical_column_with_vocabulary_list(
        "kind", [5, 7, 9], num_oov_buckets=3
    ),
}  # fmt: skip


@pytest.mark.parametrize("make", COLUMNS.values(), ids=COLUMNS)
def test_as_tensorflow_counts_them(make):
    """An unknown word is crossed, an absent one is not; an unknown number has the bucket of its text's hash."""
    features = {name: tf.constant(value) for name, value in FEATURES.items()}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        given = {name: tf.constant(value) for name, value in FEATURES.items()}
        column = tf.feature_column.indicator_column(make(tf.feature_column))
        found = tf.compat.v1.feature_column.input_layer(given, [column])
        session.run(tf.compat.v1.tables_initializer())
        wanted = session.run(found)
    layer = keras_columns.feature_layer([keras_columns.indicator_column(make(keras_columns))])
    assert np.array_equal(layer(features).numpy(), wanted) and wanted.sum() == 3
