"""`tf.contrib.lookup`: tables with their old arguments."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.ops import lookup_ops

__all__ = [
    "HashTable",
    "HashTableInitializer",
    "index_table_from_tensor",
    "index_to_string",
    "index_to_string_table_from_tensor",
    "string_to_index",
    "string_to_index_table_from_file",
    "string_to_index_table_from_tensor",
]


class HashTable(tf.compat.v1.lookup.StaticHashTable):
    """A static table, with its initialization operation as `init` and `initializer`."""

    def __init__(
        self, initializer: Any, default_value: Any, shared_name: str | None = None, name: str | None = None
    ) -> None:
        super().__init__(initializer, default_value, name=name)

    @property
    def init(self) -> Any:
        return self.initializer


def HashTableInitializer(keys: Any, values: Any, key_dtype: Any = None, value_dtype: Any = None) -> Any:
    return lookup_ops.KeyValueTensorInitializer(keys, values, key_dtype, value_dtype)


def index_table_from_tensor(
    mapping: Any,
    num_oov_buckets: int = 0,
    default_value: int = -1,
    hasher_spec: Any = lookup_ops.FastHashSpec,
    dtype: Any = tf.string,
    name: str | None = None,
) -> Any:
    """Return a table from values of `mapping` (1-D, of `dtype`) to their indices, int64."""
    return lookup_ops.index_table_from_tensor(mapping, num_oov_buckets, default_value, hasher_spec, dtype, name)


def string_to_index_table_from_tensor(
    mapping: Any,
    num_oov_buckets: int = 0,
    default_value: int = -1,
    hasher_spec: Any = lookup_ops.FastHashSpec,
    name: str | None = None,
) -> Any:
    return index_table_from_tensor(mapping, num_oov_buckets, default_value, hasher_spec, tf.string, name)


def string_to_index_table_from_file(
    vocabulary_file: Any,
    num_oov_buckets: int = 0,
    vocab_size: int | None = None,
    default_value: int = -1,
    hasher_spec: Any = lookup_ops.FastHashSpec,
    name: str | None = None,
) -> Any:
    return lookup_ops.index_table_from_file(
        vocabulary_file, num_oov_buckets, vocab_size, default_value, hasher_spec, name=name
    )


def string_to_index(tensor: Any, mapping: Any, default_value: int = -1, name: str | None = None) -> Any:
    """Return the index in `mapping` of each string in `tensor`, int64."""
    return index_table_from_tensor(mapping, default_value=default_value, name=name).lookup(tensor)


def index_to_string_table_from_tensor(mapping: Any, default_value: str = "UNK", name: str | None = None) -> Any:
    """Return a table from indices (int64) to the strings of `mapping`."""
    return lookup_ops.index_to_string_table_from_tensor(mapping, default_value, name)


def index_to_string(tensor: Any, mapping: Any, default_value: str = "UNK", name: str | None = None) -> Any:
    """Return the string of `mapping` at each index in `tensor` (int64)."""
    return index_to_string_table_from_tensor(mapping, default_value, name).lookup(tensor)
