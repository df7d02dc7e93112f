"""Batches for several replicas of one process: as many as can be dealt out, so that no replica is left without one.

In a session each step of a mirrored evaluation asks for a batch for each replica. Where the data end in the middle of
such a round, the step fails as a whole, and whether the replicas that had a batch have counted it by then is a race.
"""

from __future__ import annotations

from typing import Any

__all__ = ["UNEVEN", "are_even", "even_batches", "mark_even"]

# Begins what an evaluation's error says where the rounds cannot be made whole.
UNEVEN = "The batches of the evaluation cannot be dealt out"
# Set on a dataset whose rounds have been made whole.
_EVEN = "_estimator_pipeline_even_batches"


def are_even(dataset: Any) -> bool:
    """Whether a dataset comes from :func:`even_batches` or :func:`mark_even` as it is."""
    return bool(getattr(dataset, _EVEN, False))


def mark_even(dataset: Any) -> Any:
    """The same dataset, of which it is known that its batches can be dealt out as they are."""
    setattr(dataset, _EVEN, True)
    return dataset


def even_batches(dataset: Any, replicas: int, *, strict: bool = True) -> Any:
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
        # A round, and as much of the next one as there is. Nearly all are whole, and go by as they are: what looks at
        # single batches runs for others alone. (`reduce` and the like would run a pipeline of its own, at a hundred
        # times the cost of a window.)
        batches = tf.data.Dataset.zip(window) if isinstance(window, tuple | dict) else window
        is_whole = tf.equal(batches.cardinality() % replicas, 0)
        others = batches.take(tf.where(is_whole, tf.constant(0, tf.int64), -1))
        sizes = others.map(untouched(lambda *batch: _most_parts(tf, _single(batch)))).batch(2 * replicas)
        ends = sizes.flat_map(untouched(lambda found: of_sizes(number, found, others)))
        return batches.take(tf.where(is_whole, tf.constant(replicas, tf.int64), 0)).concatenate(ends)

    def of_sizes(number: Any, sizes: Any, batches: Any) -> Any:
        parts = _parts(tf, number, sizes, replicas)
        if strict:
            told = f"{UNEVEN}: a round has fewer records than replicas, or batches are of one size"
            possible = tf.reduce_all((parts <= 1) | (sizes >= parts))
            with tf.control_dependencies([tf.debugging.Assert(possible, [told])]):
                parts = tf.identity(parts)
        else:
            parts = tf.where((parts <= 1) | (sizes >= parts), parts, tf.ones_like(parts))
        shares = tf.data.Dataset.from_tensor_slices(parts)
        return tf.data.Dataset.zip((shares, batches)).flat_map(untouched(cut))

    def cut(parts: Any, batch: Any) -> Any:
        return tf.data.Dataset.range(parts).map(untouched(lambda part: _part(tf, batch, part, parts)))

    # Where it is known that the rounds come out even, or that there is no end, nothing is looked at. (`take(0)` does
    # not begin to read: one of the branches reads the data, and never both.)
    # In a scope: in a graph these operations come before the model, and a layer of the name of one of them, such as
    # "size", would have variables of other names than in training.
    with tf.compat.v1.name_scope("estimator_pipeline_even_batches"):
        count = dataset.cardinality()
        is_even = tf.equal(count, tf.data.INFINITE_CARDINALITY) | ((count >= 0) & tf.equal(count % replicas, 0))
        everything, nothing = tf.constant(-1, tf.int64), tf.constant(0, tf.int64)
        windows = dataset.take(tf.where(is_even, nothing, everything)).window(2 * replicas, shift=replicas).enumerate()
        rounds = windows.flat_map(untouched(lambda number, *window: of_window(number, _single(window))))
        return mark_even(dataset.take(tf.where(is_even, everything, nothing)).concatenate(rounds))


def _parts(tf: Any, number: Any, sizes: Any, replicas: int) -> Any:
    """Into how many parts each batch of a window is cut, which is not whole: int64; 0: it is another window's.

    A round and a part of one: both now, of which the part is cut, so that as many rounds as can be stay as they are, or
    else batches of the round too. A part of one: had by the window before this one, if there was any.

    Args:
        number: of the window, from 0.
        sizes: into how many parts each of its batches can be cut.
        replicas: of a round.
    """
    place = tf.range(tf.size(sizes, out_type=tf.int64))
    count = tf.size(sizes, out_type=tf.int64)
    left = tf.maximum(count - replicas, 1)
    share = replicas // left + tf.cast(place - replicas < replicas % left, tf.int64)
    behind = tf.where(place < replicas, tf.ones_like(share), share)
    ends = tf.reduce_all((place < replicas) | (sizes >= -(-replicas // left)))
    both = tf.where(ends, behind, 1 + tf.cast(place < 2 * replicas - count, tf.int64))
    alone = replicas // count + tf.cast(place < replicas % count, tf.int64)
    alone = tf.where(tf.equal(number, 0), alone, tf.zeros_like(alone))
    return tf.where(count > replicas, both, alone)


def _single(element: tuple[Any, ...]) -> Any:
    return element[0] if len(element) == 1 else element


def _part(tf: Any, batch: Any, part: Any, parts: Any) -> Any:
    """One of the parts, nearly alike, that a batch is cut into."""
    leaves, axes = _leaves(tf, batch)
    if not axes:
        return batch
    size, fixed = _size(tf, axes[0]), _is_fixed(tf, axes)
    begin, end = size * part // parts, size * (part + 1) // parts
    cut = [leaf if leaf.shape.rank == 0 else _rows(tf, leaf, begin, end, fixed=fixed) for leaf in leaves]
    return tf.nest.pack_sequence_as(batch, cut)


def _most_parts(tf: Any, batch: Any) -> Any:
    """Into how many parts a batch can be cut, a record each at least: int64; 1 where its size is fixed."""
    _, axes = _leaves(tf, batch)
    if not axes or _is_fixed(tf, axes):
        return tf.constant(1, tf.int64)
    return _size(tf, axes[0])


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
