"""`isinstance(column, _NumericColumn)` is true for the result of `tf.feature_column.numeric_column`.

Until TensorFlow 1.12 it returned a `_NumericColumn` of `tensorflow.python.feature_column.feature_column`, and programs
select columns by that class. Now it returns a `NumericColumn`, so such a program finds no columns ("feature_columns
must not be empty").

Private use: the classes of both modules. The old ones are abstract base classes, so the new ones can be registered with
them. TensorFlow does not check for the old classes.
"""

from __future__ import annotations

NAME = "column-classes"
WHAT = "columns are instances of the private classes that TensorFlow had for them until 1.12"

_CLASSES = (
    "NumericColumn", "BucketizedColumn", "EmbeddingColumn", "SharedEmbeddingColumn", "HashedCategoricalColumn",
    "VocabularyFileCategoricalColumn", "VocabularyListCategoricalColumn", "IdentityCategoricalColumn",
    "WeightedCategoricalColumn", "CrossedColumn", "IndicatorColumn", "SequenceCategoricalColumn",
)  # fmt: skip


def apply() -> None:
    from tensorflow.python.feature_column import feature_column, feature_column_v2

    for name in _CLASSES:
        before, now = getattr(feature_column, f"_{name}", None), getattr(feature_column_v2, name, None)
        if before is not None and now is not None and not issubclass(now, before):
            before.register(now)
