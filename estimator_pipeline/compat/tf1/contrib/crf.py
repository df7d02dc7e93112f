"""`tf.contrib.crf`: linear-chain conditional random fields (Lafferty, McCallum and Pereira, 2001).

Shapes: `inputs` and `potentials` [batch, time, tags], float32: the score of each tag at each time step; `tag_indices`
[batch, time], int32 or int64; `sequence_lengths` [batch], int32 or int64; `transition_params` [tags, tags]: the score
of tag j after tag i at [i, j]. Time steps after a sequence's length are ignored.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

__all__ = [
    "crf_binary_score",
    "crf_decode",
    "crf_log_likelihood",
    "crf_log_norm",
    "crf_multitag_sequence_score",
    "crf_sequence_score",
    "crf_unary_score",
    "viterbi_decode",
]

_v1: Any = tf.compat.v1


def crf_unary_score(tag_indices: Any, sequence_lengths: Any, inputs: Any) -> Any:
    """Return the sum of the tags' unary scores, [batch]."""
    scores = tf.gather(inputs, tag_indices, axis=2, batch_dims=2)
    return tf.reduce_sum(scores * tf.sequence_mask(sequence_lengths, tf.shape(tag_indices)[1], inputs.dtype), 1)


def crf_binary_score(tag_indices: Any, sequence_lengths: Any, transition_params: Any) -> Any:
    """Return the sum of the transition scores, [batch]."""
    transition_params = tf.convert_to_tensor(transition_params)
    pairs = tf.stack([tag_indices[:, :-1], tag_indices[:, 1:]], axis=-1)
    mask = tf.sequence_mask(sequence_lengths, tf.shape(tag_indices)[1], transition_params.dtype)[:, 1:]
    return tf.reduce_sum(tf.gather_nd(transition_params, pairs) * mask, 1)


def crf_sequence_score(inputs: Any, tag_indices: Any, sequence_lengths: Any, transition_params: Any) -> Any:
    """Return the score of each tag sequence, [batch]; 0 for length 0."""
    return crf_unary_score(tag_indices, sequence_lengths, inputs) + crf_binary_score(
        tag_indices, sequence_lengths, transition_params
    )


def crf_multitag_sequence_score(inputs: Any, tag_bitmap: Any, sequence_lengths: Any, transition_params: Any) -> Any:
    """Return the log-sum-exp of the scores of all tag sequences that `tag_bitmap` allows, [batch].

    Args:
        inputs: As above.
        tag_bitmap: [batch, time, tags], bool: the allowed tags at each time step.
        sequence_lengths: As above.
        transition_params: As above.
    """
    return crf_log_norm(
        tf.where(tf.cast(tag_bitmap, tf.bool), inputs, tf.fill(tf.shape(inputs), inputs.dtype.as_numpy_dtype(-np.inf))),
        sequence_lengths,
        transition_params,
    )


def _steps(inputs: Any) -> tuple[Any, Any]:
    """Return the elements of a scan over the time steps after the first: [time - 1, batch, tags], and indices."""
    rest = tf.transpose(inputs[:, 1:], [1, 0, 2])
    return rest, tf.range(1, tf.shape(inputs)[1])


def crf_log_norm(inputs: Any, sequence_lengths: Any, transition_params: Any) -> Any:
    """Return the log-sum-exp of the scores of all tag sequences, [batch]; 0 for length 0."""
    lengths = tf.cast(sequence_lengths, tf.int32)
    alphas = tf.convert_to_tensor(inputs)[:, 0]

    def step(before: Any, element: Any) -> Any:
        scores, number = element
        after = scores + tf.reduce_logsumexp(before[:, :, tf.newaxis] + transition_params, axis=1)
        return tf.where((number < lengths)[:, tf.newaxis], after, before)

    # An empty scan has no last element, so the first time step is prepended.
    all_alphas = tf.concat([alphas[tf.newaxis], tf.scan(step, _steps(inputs), initializer=alphas)], axis=0)
    norm = tf.reduce_logsumexp(all_alphas[-1], axis=1)
    return tf.where(lengths > 0, norm, tf.zeros_like(norm))


def crf_log_likelihood(
    inputs: Any, tag_indices: Any, sequence_lengths: Any, transition_params: Any = None
) -> tuple[Any, Any]:
    """Return the log-likelihood of tag sequences, [batch], and the transition scores.

    Without `transition_params` the variable "transitions" of the current variable scope is used.
    """
    if transition_params is None:
        tags = tf.compat.dimension_value(inputs.shape[2])
        transition_params = _v1.get_variable("transitions", [tags, tags])
    score = crf_sequence_score(inputs, tag_indices, sequence_lengths, transition_params)
    return score - crf_log_norm(inputs, sequence_lengths, transition_params), transition_params


def crf_decode(potentials: Any, transition_params: Any, sequence_length: Any) -> tuple[Any, Any]:
    """Return the tag sequence with the highest score, by the Viterbi algorithm.

    Returns:
        The tags, [batch, time], int32, 0 after a sequence's length, and their score, [batch].
    """
    # A sequence of length 0 gets the best tag at its first time step, as in TensorFlow 1.
    lengths = tf.maximum(tf.cast(sequence_length, tf.int32), 1)
    first = tf.convert_to_tensor(potentials)[:, 0]
    tags = tf.shape(first)[1]
    stay = tf.zeros_like(first, tf.int32) + tf.range(tags)

    def forward(before: Any, element: Any) -> Any:
        scores, number = element
        paths = before[0][:, :, tf.newaxis] + transition_params
        inside = (number < lengths)[:, tf.newaxis]
        best = tf.where(inside, scores + tf.reduce_max(paths, axis=1), before[0])
        # After the end each tag points to itself, so that backtracking starts at the end.
        return best, tf.where(inside, tf.argmax(paths, axis=1, output_type=tf.int32), stay)

    steps = _steps(potentials)
    best, pointers = tf.scan(forward, steps, initializer=(first, stay))
    last = tf.concat([first[tf.newaxis], best], axis=0)[-1]
    end = tf.argmax(last, axis=1, output_type=tf.int32)

    def backward(tag: Any, pointer: Any) -> Any:
        return tf.gather(pointer, tag, axis=1, batch_dims=1)

    way = tf.scan(backward, pointers, initializer=end, reverse=True)
    decoded = tf.transpose(tf.concat([way, end[tf.newaxis]], axis=0))
    mask = tf.sequence_mask(lengths, tf.shape(potentials)[1], tf.int32)
    return decoded * mask, tf.reduce_max(last, axis=1)


def viterbi_decode(score: Any, transition_params: Any) -> tuple[list[int], float]:
    """Return the tag sequence with the highest score for one sequence, in NumPy.

    Args:
        score: [time, tags].
        transition_params: [tags, tags].

    Returns:
        The tags, and their score.
    """
    best = np.array(score[0])
    pointers = []
    for scores in score[1:]:
        paths = best[:, np.newaxis] + transition_params
        pointers.append(np.argmax(paths, axis=0))
        best = scores + np.max(paths, axis=0)
    tags = [int(np.argmax(best))]
    for pointer in reversed(pointers):
        tags.append(int(pointer[tags[-1]]))
    return tags[::-1], np.max(best)
