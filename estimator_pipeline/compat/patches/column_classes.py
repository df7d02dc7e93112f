"""`isinstance(column, _NumericColumn)` is true of what `tf.feature_column.numeric_column` makes.

Until TensorFlow 1.12 it made a `_NumericColumn` of `tensorflow.python.feature_column.feature_column`, and programs
choose columns by that class. Now it makes a `NumericColumn`: such a program went on without its columns
("feature_columns must not be empty").

Private use: the classes of the two modules. Those before are abstract base classes, with which another can be
registered; nothing of TensorFlow's own asks for one of them alone.
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
