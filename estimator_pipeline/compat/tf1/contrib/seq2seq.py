"""`tf.contrib.seq2seq`: sequence loss and the beam search operation, without decoders."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["gather_tree", "sequence_loss", "tile_batch"]

_v1: Any = tf.compat.v1


def sequence_loss(
    logits: Any,
    targets: Any,
    weights: Any,
    average_across_timesteps: bool = True,
    average_across_batch: bool = True,
    sum_over_timesteps: bool = False,
    sum_over_batch: bool = False,
    softmax_loss_function: Any = None,
    name: str | None = None,
) -> Any:
    """Return the weighted cross entropy of sequences, reduced over the selected axes.

    Args:
        logits: [batch, time, symbols].
        targets: [batch, time], int.
        weights: [batch, time].
        average_across_timesteps: Divide the sum over time by the sum of the weights.
        average_across_batch: Divide the sum over the batch by the sum of the weights.
        sum_over_timesteps: Divide the sum over time by the number of nonzero weights.
        sum_over_batch: Divide the sum over the batch by the number of nonzero weights.
        softmax_loss_function: A function of labels and logits that replaces the sparse cross entropy.
        name: The name scope.

    Returns:
        A scalar, [batch], [time] or [batch, time].

    Raises:
        ValueError: A rank is wrong, or both an average and a sum are set.
    """
    for label, value, rank in (("Logits", logits, 3), ("Targets", targets, 2), ("Weights", weights, 2)):
        if value.shape.ndims != rank:
            raise ValueError(f"{label} must have {rank} dimensions; got {value.shape}")
    if (average_across_timesteps and sum_over_timesteps) or (average_across_batch and sum_over_batch):
        raise ValueError("average_across_... and sum_over_... cannot both be True")
    with _v1.name_scope(name, "sequence_loss", [logits, targets, weights]):
        flat, labels = tf.reshape(logits, [-1, tf.shape(logits)[2]]), tf.reshape(targets, [-1])
        loss = softmax_loss_function or tf.nn.sparse_softmax_cross_entropy_with_logits
        losses = tf.reshape(loss(labels=labels, logits=flat), tf.shape(logits)[:2]) * weights
        counts = tf.cast(tf.not_equal(weights, 0), losses.dtype)

        def reduced(axis: int | None, by: Any) -> Any:
            return tf.math.divide_no_nan(tf.reduce_sum(losses, axis), tf.reduce_sum(by, axis))

        if average_across_timesteps and average_across_batch:
            return reduced(None, weights)
        if sum_over_timesteps and sum_over_batch:
            return reduced(None, counts)
        if average_across_timesteps or average_across_batch:
            return reduced(0 if average_across_batch else 1, weights)
        if sum_over_timesteps or sum_over_batch:
            return reduced(0 if sum_over_batch else 1, counts)
        return losses


def tile_batch(t: Any, multiplier: int, name: str | None = None) -> Any:
    """Repeat each row of the tensors of a structure `multiplier` times: [batch × multiplier, …]."""
    with _v1.name_scope(name, "tile_batch"):
        return tf.nest.map_structure(
            lambda each: each if isinstance(each, tf.TensorArray) else tf.repeat(each, multiplier, axis=0), t
        )


def gather_tree(
    step_ids: Any, parent_ids: Any, max_sequence_lengths: Any, end_token: Any, name: str | None = None
) -> Any:
    """Backtrack the beams of a beam search.

    Args:
        step_ids: [time, batch, beams], int32: the token of each beam at each step.
        parent_ids: [time, batch, beams], int32: the parent beam at the previous step.
        max_sequence_lengths: [batch], int32: the number of steps.
        end_token: Scalar, int32: the token after the first end of a beam, and after the last step.
        name: The name scope.

    Returns:
        [time, batch, beams], int32.
    """
    with _v1.name_scope(name, "GatherTree", [step_ids, parent_ids]):
        time, beams = tf.shape(step_ids)[0], tf.shape(step_ids)[2]
        lengths = tf.minimum(tf.cast(max_sequence_lengths, tf.int32), time)[:, tf.newaxis]
        identity = tf.zeros_like(step_ids[0]) + tf.range(beams)

        def back(after: Any, element: Any) -> Any:
            ids, parents, step = element
            # At the last step each beam is itself; before that it is the parent of its successor.
            at = tf.where(step >= lengths - 1, identity, after[1])
            token = tf.where(step < lengths, tf.gather(ids, at, batch_dims=1), tf.fill(tf.shape(ids), end_token))
            return token, tf.gather(parents, at, batch_dims=1)

        tokens, _ = tf.scan(
            back, (step_ids, parent_ids, tf.range(time)), initializer=(identity, identity), reverse=True
        )
        # The first end token is kept; all tokens after it are replaced.
        ended = tf.cumsum(tf.cast(tf.equal(tokens, end_token), tf.int32), axis=0, exclusive=True) > 0
        return tf.where(ended, tf.fill(tf.shape(tokens), end_token), tokens)
