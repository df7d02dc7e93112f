"""Even batches: a dataset whose number of batches is a multiple of the number of replicas in a process.

In a session each step of a mirrored evaluation needs a batch for each replica. If the data ends within a step, the
whole step fails, and it is a race whether the replicas with a batch have already counted it.
"""

from __future__ import annotations

from typing import Any

__all__ = ["UNEVEN", "are_even", "even_batches", "mark_even"]

# The start of the error of an evaluation whose batches cannot be split evenly.
UNEVEN = "The batches of the evaluation cannot be distributed evenly"
# Set on a dataset with even batches.
_EVEN = "_estimator_pipeline_even_batches"


def are_even(dataset: Any) -> bool:
    """Whether a dataset is the unchanged result of `even_batches` or `mark_even`."""
    return bool(getattr(dataset, _EVEN, False))


def mark_even(dataset: Any) -> Any:
    """Mark a dataset as having even batches, and return it."""
    setattr(dataset, _EVEN, True)
    return dataset


def even_batches(dataset: Any, replicas: int, *, strict: bool = True) -> Any:
    """Return the same records in the same order, in a number of batches that is a multiple of `replicas`.

    The batches of an incomplete last round (one batch per replica) are split; if they have too few records, those of
    the previous round too. All other batches are unchanged.

    Args:
        dataset: A `tf.data.Dataset` of batches: structures of tensors, also sparse or ragged, whose first axis is the
            records.
        replicas: The number of replicas, 2 or more.
        strict: Whether to raise an error if a batch must be split but cannot be, because its size is static
            (`drop_remainder=True`) or it has fewer records than parts. Otherwise such a batch is unchanged.

    Returns:
        A dataset of the same structure. If strict, reading a batch that cannot be split raises InvalidArgumentError.
    """
    import tensorflow

    tf: Any = tensorflow
    untouched = tf.autograph.experimental.do_not_convert

    def of_window(number: Any, window: Any) -> Any:
        # A round, and the available part of the next one. Nearly all are complete and pass unchanged; single batches
        # are inspected only for others. (`reduce` would run a separate pipeline, at a hundred times the cost of a
        # window.)
        batches = tf.data.Dataset.zip(window) if isinstance(window, tuple | dict) else window
        is_whole = tf.equal(batches.cardinality() % replicas, 0)
        others = batches.take(tf.where(is_whole, tf.constant(0, tf.int64), -1))
        sizes = others.map(untouched(lambda *batch: _most_parts(tf, _single(batch)))).batch(2 * replicas)
        ends = sizes.flat_map(untouched(lambda parts: of_sizes(number, parts, others)))
        return batches.take(tf.where(is_whole, tf.constant(replicas, tf.int64), 0)).concatenate(ends)

    def of_sizes(number: Any, sizes: Any, batches: Any) -> Any:
        parts = _parts(tf, number, sizes, replicas)
        if strict:
            message = f"{UNEVEN}: a round has fewer records than replicas, or the batch size is static"
            possible = tf.reduce_all((parts <= 1) | (sizes >= parts))
            with tf.control_dependencies([tf.debugging.Assert(possible, [message])]):
                parts = tf.identity(parts)
        else:
            parts = tf.where((parts <= 1) | (sizes >= parts), parts, tf.ones_like(parts))
        shares = tf.data.Dataset.from_tensor_slices(parts)
        return tf.data.Dataset.zip((shares, batches)).flat_map(untouched(cut))

    def cut(parts: Any, batch: Any) -> Any:
        return tf.data.Dataset.range(parts).map(untouched(lambda part: _part(tf, batch, part, parts)))

    # If the number of batches is known to be even or infinite, nothing is inspected. (`take(0)` does not read, so only
    # one of the branches reads the data.)
    # In a name scope: in a graph these operations precede the model, and a layer with the same name as one of them,
    # such as "size", would have different variable names than in training.
    with tf.compat.v1.name_scope("estimator_pipeline_even_batches"):
        count = dataset.cardinality()
        is_even = tf.equal(count, tf.data.INFINITE_CARDINALITY) | ((count >= 0) & tf.equal(count % replicas, 0))
        everything, nothing = tf.constant(-1, tf.int64), tf.constant(0, tf.int64)
        windows = dataset.take(tf.where(is_even, nothing, everything)).window(2 * replicas, shift=replicas).enumerate()
        rounds = windows.flat_map(untouched(lambda number, *window: of_window(number, _single(window))))
        return mark_even(dataset.take(tf.where(is_even, everything, nothing)).concatenate(rounds))


def _parts(tf: Any, number: Any, sizes: Any, replicas: int) -> Any:
    """Return the number of parts for each batch of an incomplete window, int64; 0: in a different window.

    A window with a complete and a partial round returns both: the partial round is split, and the complete one only if
    necessary. A window with only a partial round is part of the previous window, if there is one.

    Args:
        number: The index of the window.
        sizes: The largest possible number of parts of each batch.
        replicas: The number of batches of a round.
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
    """Return one of the parts, of nearly equal size, of a batch."""
    leaves, axes = _leaves(tf, batch)
    if not axes:
        return batch
    size, fixed = _size(tf, axes[0]), _is_fixed(tf, axes)
    begin, end = size * part // parts, size * (part + 1) // parts
    cut = [leaf if leaf.shape.rank == 0 else _rows(tf, leaf, begin, end, fixed=fixed) for leaf in leaves]
    return tf.nest.pack_sequence_as(batch, cut)


def _most_parts(tf: Any, batch: Any) -> Any:
    """Return the largest number of parts of a batch, with at least one record each: int64; 1 for a static size."""
    _, axes = _leaves(tf, batch)
    if not axes or _is_fixed(tf, axes):
        return tf.constant(1, tf.int64)
    return _size(tf, axes[0])


def _leaves(tf: Any, batch: Any) -> tuple[list[Any], list[Any]]:
    """Return all tensors of a batch, and those with an axis of records."""
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
