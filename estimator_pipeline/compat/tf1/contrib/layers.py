"""`tf.contrib.layers`: what tf-slim left out of it."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["bow_encoder", "embed_sequence"]

_v1: Any = tf.compat.v1


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
    """The embedding of each id, of a variable "embeddings".

    Args:
        ids: [batch, time], int32 or int64.
        vocab_size: how many ids there are; not needed with `reuse`.
        embed_dim: size of an embedding; not needed with `reuse`.
        unique: not needed any more: each id is looked up.
        initializer: of the variable.
        regularizer: of the variable.
        trainable: whether it trains.
        scope: its scope, "EmbedSequence" by default.
        reuse: whether it is there.

    Returns:
        [batch, time, embed_dim].

    Raises:
        ValueError: no sizes, and no variable to reuse.
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
    """The mean of the embeddings of a row's ids: [batch, time] -> [batch, embed_dim]."""
    with _v1.variable_scope(scope, "bow_encoder", [ids], reuse=reuse):
        embeddings = _v1.get_variable(
            "embeddings", [vocab_size, embed_dim], initializer=initializer, regularizer=regularizer, trainable=trainable
        )
        if isinstance(ids, (tf.SparseTensor, _v1.SparseTensorValue)):
            return _v1.nn.safe_embedding_lookup_sparse(embeddings, ids)
        return tf.reduce_mean(tf.nn.embedding_lookup(embeddings, ids), axis=1)
