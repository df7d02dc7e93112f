"""Batches for several replicas of one process: as many as can be dealt out, so that no replica is left without one.

In a session each step of a mirrored evaluation asks for a batch for each replica. Where the data end in the middle of
such a round, the step fails as a whole, and whether the replicas that had a batch have counted it by then is a race.
"""

from __future__ import annotations

from typing import Any

__all__ = ["UNEVEN", "are_whole", "whole_rounds"]

# Begins what an evaluation's error says where the rounds cannot be made whole.
UNEVEN = "The batches of the evaluation cannot be dealt out"
# Set on a dataset whose rounds have been made whole.
_WHOLE = "_estimator_pipeline_whole_rounds"


def are_whole(dataset: Any) -> bool:
    """Whether a dataset comes from :func:`whole_rounds` as it is."""
    return bool(getattr(dataset, _WHOLE, False))


def whole_rounds(dataset: Any, replicas: int, *, strict: bool = True) -> Any:
    """The same records in the same order, in batches whose number is a multiple of the replicas'.

    Where they end in the middle of a round, the batches of this round are cut into parts; where they have too few
    records, those of the round before it as well. All others stay as they are.

    Args:
        dataset: a `tf.data.Dataset` of batches: structures of tensors, sparse or ragged ones too, whose first axis
            counts the records.
        replicas: 2 or more.
        strict: whether it is an error that a batch would have to be cut, and cannot, because its size is fixed
            (`drop_remainder=True`) or because it has fewer records than parts; else it stays whole.

    Returns:
        A dataset of the same structure. Where it is strict, reading what cannot be cut raises InvalidArgumentError.
    """
    import tensorflow

    tf: Any = tensorflow
    untouched = tf.autograph.experimental.do_not_convert

    def of_window(number: Any, window: Any) -> Any:
        # A round, and as much of the next one as there is.
        batches = tf.data.Dataset.zip(window) if isinstance(window, tuple | dict) else window
        count = batches.cardinality()
        left = tf.maximum(count - replicas, 1)
        most = -(-replicas // left)
        # Whether those behind the round can be cut into one.
        ends = batches.skip(replicas).reduce(
            tf.constant(True), untouched(lambda all_can, *batch: all_can & _can_be_cut(tf, _single(batch), most))
        )

        def parts_of(place: Any, *batch: Any) -> Any:
            # (tf.equal: in a session's graph, == compares tensors as objects.)
            # Whole rounds: the first of them now. A round and a part of one: both now, of which the part is cut, so
            # that as many rounds as can be stay as they are, or else batches of the round too. A part of one: had by
            # the window before this one, if there was any.
            whole = tf.cast(place < replicas, tf.int64)
            share = replicas // left + tf.cast(place - replicas < replicas % left, tf.int64)
            behind = tf.where(place < replicas, tf.ones_like(share), share)
            both = tf.where(ends, behind, 1 + tf.cast(place < 2 * replicas - count, tf.int64))
            alone = replicas // count + tf.cast(place < replicas % count, tf.int64)
            alone = tf.where(tf.equal(number, 0), alone, 0)
            parts = tf.where(tf.equal(count % replicas, 0), whole, tf.where(count > replicas, both, alone))
            if not strict:
                parts = tf.where(tf.logical_or(parts <= 1, _can_be_cut(tf, _single(batch), parts)), parts, 1)
            return tf.data.Dataset.range(parts).map(untouched(lambda part: _part(tf, _single(batch), part, parts)))

        return batches.enumerate().flat_map(untouched(parts_of))

    windows = dataset.window(2 * replicas, shift=replicas).enumerate()
    found = windows.flat_map(untouched(lambda number, *window: of_window(number, _single(window))))
    setattr(found, _WHOLE, True)
    return found


def _single(element: tuple[Any, ...]) -> Any:
    return element[0] if len(element) == 1 else element


def _part(tf: Any, batch: Any, part: Any, parts: Any) -> Any:
    """One of the parts, nearly alike, that a batch is cut into."""
    leaves, axes = _leaves(tf, batch)
    if not axes:
        return batch
    size, fixed = _size(tf, axes[0]), _is_fixed(tf, axes)
    begin, end = size * part // parts, size * (part + 1) // parts
    told = [f"{UNEVEN}: a round has fewer records than replicas, or batches are of one size"]
    possible = tf.logical_or(tf.equal(parts, 1), _can_be_cut(tf, batch, parts))
    with tf.control_dependencies([tf.debugging.Assert(possible, told)]):
        begin = tf.identity(begin)
    cut = [leaf if leaf.shape.rank == 0 else _rows(tf, leaf, begin, end, fixed=fixed) for leaf in leaves]
    return tf.nest.pack_sequence_as(batch, cut)


def _can_be_cut(tf: Any, batch: Any, parts: Any) -> Any:
    """Whether each of the parts has a record, and any number of records is a batch: a bool tensor."""
    _, axes = _leaves(tf, batch)
    if not axes or _is_fixed(tf, axes):
        return tf.constant(False)
    return _size(tf, axes[0]) >= parts


def _leaves(tf: Any, batch: Any) -> tuple[list[Any], list[Any]]:
    """All tensors of a batch, and those that have an axis of records."""
    leaves = tf.nest.flatten(batch)
    return leaves, [leaf for leaf in leaves if leaf.shape.rank != 0]


def _is_fixed(tf: Any, axes: list[Any]) -> bool:
    return any(not isinstance(leaf, tf.SparseTensor) and leaf.shape[:1].is_fully_defined() for leaf in axes)


def _size(tf: Any, leaf: Any) -> Any:
    if isinstance(leaf, tf.SparseTensor):
        return leaf.dense_shape[0]
    return leaf.nrows(out_type=tf.int64) if isinstance(leaf, tf.RaggedTensor) else tf.shape(leaf, out_type=tf.int64)[0]


def _rows(tf: Any, leaf: Any, begin: Any, end: Any, *, fixed: bool) -> Any:
    if isinstance(leaf, tf.SparseTensor):
        rest = leaf.dense_shape[1:]
        return tf.sparse.slice(leaf, tf.concat([[begin], tf.zeros_like(rest)], 0), tf.concat([[end - begin], rest], 0))
    rows = leaf[begin:end]
    if fixed and not isinstance(leaf, tf.RaggedTensor):
        rows.set_shape(leaf.shape)
    return rows
