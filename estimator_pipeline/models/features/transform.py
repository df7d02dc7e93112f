"""From the columns of a table to the inputs of a model, in TensorFlow operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from estimator_pipeline.models.features.columns import FeatureSpec

__all__ = ["BoundTransform"]


class BoundTransform:
    """The transformation in a graph, or in eager mode.

    Attributes:
        resources: The lookup tables, which an exported model must keep.
    """

    def __init__(self, tf: ModuleType, columns: Sequence[FeatureSpec], serving_names: Mapping[str, str]) -> None:
        self._tf, self._columns, self._serving_names = tf, columns, serving_names
        self._tables = {
            column.name: _table(tf, column) for column in columns if column.kind == "categorical" and column.vocabulary
        }

    @property
    def resources(self) -> list[Any]:
        return list(self._tables.values())

    def served(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Return the inputs of the model from the columns by their names in an exported model."""
        return self({column: tensors[name] for column, name in self._serving_names.items()})

    def __call__(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Return the inputs of the model.

        Args:
            raw: Column -> tensor of any shape, float32 with NaN for a missing number or string with "" for a missing
                text.

        Returns:
            Name -> tensor of the same shape: float32, or int64 ids.
        """
        ranges = {column.name: self._ranges(column, raw) for column in self._columns if column.kind == "bucketized"}
        return {column.output: self._output(column, raw, ranges) for column in self._columns}

    def _output(self, column: FeatureSpec, raw: Mapping[str, Any], ranges: Mapping[str, Any]) -> Any:
        tf = self._tf
        if column.kind == "numeric":
            return self._number(column, raw)
        if column.kind == "bucketized":
            return ranges[column.name]
        if column.kind == "crossed":
            return self._crossed([ranges[name] if name in ranges else raw[name] for name in column.sources], column)
        text = raw[column.sources[0]]
        if column.name in self._tables:
            return self._tables[column.name].lookup(text)
        return tf.strings.to_hash_bucket_fast(text, column.hash_buckets)

    def _filled(self, column: FeatureSpec, raw: Mapping[str, Any]) -> Any:
        tf, values = self._tf, raw[column.sources[0]]
        return tf.where(tf.math.is_nan(values), tf.constant(column.missing, tf.float32), values)

    def _number(self, column: FeatureSpec, raw: Mapping[str, Any]) -> Any:
        tf, values = self._tf, self._filled(column, raw)
        if column.log:
            values = tf.math.log1p(tf.maximum(values, 0.0))
        return (values - tf.constant(column.shift, tf.float32)) / tf.constant(column.scale, tf.float32)

    def _ranges(self, column: FeatureSpec, raw: Mapping[str, Any]) -> Any:
        tf = self._tf
        ranges = tf.raw_ops.Bucketize(input=self._filled(column, raw), boundaries=list(column.boundaries))
        return tf.cast(ranges, tf.int64)

    def _crossed(self, values: Sequence[Any], column: FeatureSpec) -> Any:
        tf = self._tf
        flat = [tf.reshape(value, [-1, 1]) for value in values]
        crossed = tf.sparse.cross_hashed(flat, num_buckets=column.hash_buckets)
        return tf.reshape(crossed.values, tf.shape(values[0]))


def _table(tf: ModuleType, column: FeatureSpec) -> Any:
    vocabulary = column.vocabulary or ()
    initializer = tf.lookup.KeyValueTensorInitializer(
        tf.constant(list(vocabulary), tf.string), tf.range(len(vocabulary), dtype=tf.int64)
    )
    return tf.lookup.StaticVocabularyTable(initializer, num_oov_buckets=column.oov_buckets)
