"""Columns by the private classes that programs of TensorFlow 1 know them by."""

from __future__ import annotations

import pytest

from estimator_pipeline import compat

tf = compat.install()
from tensorflow.python.feature_column import feature_column  # noqa: E402

COLUMNS = tf.feature_column
KIND = COLUMNS.categorical_column_with_identity("kind", 3)


@pytest.mark.parametrize(
    ("column", "name"),
    [
        (COLUMNS.numeric_column("size"), "_NumericColumn"),
        (COLUMNS.bucketized_column(COLUMNS.numeric_column("size"), [1.0]), "_BucketizedColumn"),
        (COLUMNS.embedding_column(KIND, 2), "_EmbeddingColumn"),
        (COLUMNS.indicator_column(KIND), "_IndicatorColumn"),
        (COLUMNS.categorical_column_with_vocabulary_list("word", ["a"]), "_VocabularyListCategoricalColumn"),
        (COLUMNS.crossed_column(["kind", "word"], 10), "_CrossedColumn"),
    ],
)
def test_a_column_is_of_its_class(column, name):
    others = [one for one in vars(feature_column) if one.startswith("_") and one.endswith("Column") and one != name]
    assert isinstance(column, getattr(feature_column, name))
    # And of none beside those that it comes from.
    bases = ("_FeatureColumn", "_DenseColumn", "_CategoricalColumn", "_SequenceDenseColumn")
    assert not [one for one in others if one not in bases and isinstance(column, getattr(feature_column, one))]


def test_columns_are_what_they_were():
    """What makes numbers of them goes by their own classes."""
    columns = [COLUMNS.numeric_column("size"), COLUMNS.indicator_column(KIND)]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        made = tf.compat.v1.feature_column.input_layer({"size": [[2.0]], "kind": [[1]]}, columns)
        assert session.run(made).tolist() == [[0.0, 1.0, 0.0, 2.0]]
