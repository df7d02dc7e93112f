"""`tf.contrib.layers`: the parts that tf-slim does not have.

Its feature columns are those of `tf.feature_column`, the only ones that canned Estimators accept. Each gives the same
values as in TensorFlow 1, except crossed columns, which use a different hash, and identities out of range, which are
rejected. The dense column, such as an embedding, sets how the values of a row are combined.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

__all__ = [
    "bow_encoder",
    "bucketized_column",
    "create_feature_spec_for_parsing",
    "crossed_column",
    "embed_sequence",
    "embedding_column",
    "one_hot_column",
    "real_valued_column",
    "sparse_column_with_hash_bucket",
    "sparse_column_with_integerized_feature",
    "sparse_column_with_keys",
    "sparse_column_with_vocabulary_file",
    "weighted_sparse_column",
]

_v1: Any = tf.compat.v1
_columns: Any = tf.feature_column


def embed_sequence(
    ids: Any,
    vocab_size: int | None = None,
    embed_dim: int | None = None,
    unique: bool = False,
    initializer: Any = None,
    regularizer: Any = None,
    trainable: bool = True,
    scope: Any = None,
    reuse: Any = None,
) -> Any:
    """Return the embedding of each id, with the variable "embeddings".

    Args:
        ids: [batch, time], int32 or int64.
        vocab_size: The number of ids; not needed with `reuse`.
        embed_dim: The size of an embedding; not needed with `reuse`.
        unique: Ignored: each id is looked up.
        initializer: The variable's initializer.
        regularizer: The variable's regularizer.
        trainable: Whether the variable is trainable.
        scope: The variable scope, "EmbedSequence" by default.
        reuse: Whether the variable exists.

    Returns:
        [batch, time, embed_dim].

    Raises:
        ValueError: There are neither sizes nor a variable to reuse.
    """
    if not (reuse or (vocab_size and embed_dim)):
        raise ValueError(
            f"Must specify vocab size and embedding dimension when not reusing. Got {vocab_size}, {embed_dim}"
        )
    with _v1.variable_scope(scope, "EmbedSequence", [ids], reuse=reuse):
        shape: list[int] | None = None if vocab_size is None or embed_dim is None else [vocab_size, embed_dim]
        embeddings = _v1.get_variable(
            "embeddings", shape, initializer=initializer, regularizer=regularizer, trainable=trainable
        )
        return tf.nn.embedding_lookup(embeddings, ids)


def bow_encoder(
    ids: Any,
    vocab_size: int,
    embed_dim: int,
    sparse_lookup: bool = True,
    initializer: Any = None,
    regularizer: Any = None,
    trainable: bool = True,
    scope: Any = None,
    reuse: Any = None,
) -> Any:
    """Return the mean of the embeddings of each row's ids: [batch, time] -> [batch, embed_dim]."""
    with _v1.variable_scope(scope, "bow_encoder", [ids], reuse=reuse):
        embeddings = _v1.get_variable(
            "embeddings", [vocab_size, embed_dim], initializer=initializer, regularizer=regularizer, trainable=trainable
        )
        if isinstance(ids, (tf.SparseTensor, _v1.SparseTensorValue)):
            return _v1.nn.safe_embedding_lookup_sparse(embeddings, ids)
        return tf.reduce_mean(tf.nn.embedding_lookup(embeddings, ids), axis=1)


def real_valued_column(
    column_name: str, dimension: int | None = 1, default_value: Any = None, dtype: Any = tf.float32,
    normalizer: Any = None,
) -> Any:  # fmt: skip
    """Return a column of numbers, [batch, dimension].

    Raises:
        ValueError: The `dimension` is unset, which `tf.feature_column` does not support.
    """
    if dimension is None:
        raise ValueError("real_valued_column: dimension=None has no successor in tf.feature_column")
    return _columns.numeric_column(column_name, (dimension,), default_value, dtype, normalizer)


def sparse_column_with_keys(
    column_name: str, keys: Sequence[Any], default_value: int = -1, combiner: str = "sum", dtype: Any = tf.string
) -> Any:  # fmt: skip
    """Return a categorical column with a vocabulary list."""
    return _columns.categorical_column_with_vocabulary_list(column_name, keys, dtype, default_value)


def sparse_column_with_vocabulary_file(
    column_name: str, vocabulary_file: str, num_oov_buckets: int = 0, vocab_size: int | None = None,
    default_value: int = -1, combiner: str = "sum", dtype: Any = tf.string,
) -> Any:  # fmt: skip
    """Return a categorical column with a vocabulary file."""
    default = None if num_oov_buckets else default_value
    return _columns.categorical_column_with_vocabulary_file(
        column_name, vocabulary_file, vocab_size, dtype, default, num_oov_buckets
    )


def sparse_column_with_hash_bucket(
    column_name: str, hash_bucket_size: int, combiner: str = "sum", dtype: Any = tf.string, hash_keys: Any = None
) -> Any:  # fmt: skip
    """Return a categorical column with hash buckets."""
    return _columns.categorical_column_with_hash_bucket(column_name, hash_bucket_size, dtype)


def sparse_column_with_integerized_feature(
    column_name: str, bucket_size: int, combiner: str = "sum", dtype: Any = tf.int64
) -> Any:  # fmt: skip
    """Return a categorical column of integers below `bucket_size`."""
    return _columns.categorical_column_with_identity(column_name, bucket_size)


def bucketized_column(source_column: Any, boundaries: Sequence[float]) -> Any:
    """Return a column with the bucket of a number."""
    return _columns.bucketized_column(source_column, sorted(boundaries))


def crossed_column(
    columns: Iterable[Any], hash_bucket_size: int, combiner: str = "sum", *unused: Any, **more: Any
) -> Any:
    """Return a column of hashed combinations of categories."""
    return _columns.crossed_column([*columns], hash_bucket_size, more.get("hash_key"))


def weighted_sparse_column(sparse_id_column: Any, weight_column_name: str, dtype: Any = tf.float32) -> Any:
    """Return a categorical column with weights from a different feature."""
    return _columns.weighted_categorical_column(sparse_id_column, weight_column_name, dtype)


def one_hot_column(sparse_id_column: Any) -> Any:
    """Return a column with the count of each category."""
    return _columns.indicator_column(sparse_id_column)


def embedding_column(
    sparse_id_column: Any, dimension: int, combiner: str | None = None, initializer: Any = None,
    ckpt_to_load_from: Any = None, tensor_name_in_ckpt: Any = None, max_norm: float | None = None,
    trainable: bool = True,
) -> Any:  # fmt: skip
    """Return a column with the mean embedding of a row's categories, [batch, dimension]."""
    if initializer is None:
        initializer = tf.compat.v1.truncated_normal_initializer(stddev=1 / math.sqrt(sparse_id_column.num_buckets))
    return _columns.embedding_column(
        sparse_id_column, dimension, combiner or "mean", initializer, ckpt_to_load_from, tensor_name_in_ckpt, max_norm,
        trainable,
    )  # fmt: skip


def create_feature_spec_for_parsing(feature_columns: Iterable[Any]) -> Any:
    """Return the feature spec for `tf.io.parse_example`."""
    return _columns.make_parse_example_spec([*feature_columns])
