"""Batches for several replicas of one process: as many as can be dealt out, so that no replica is left without one.

In a session each step of a mirrored evaluation asks for a batch for each replica. Where the data end in the middle of
such a round, the step fails as a whole, and whether the replicas that had a batch have counted it by then is a race.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.inputs.input_fn import InputFn

__all__ = ["UNEVEN", "in_whole_rounds", "whole_rounds"]

# Begins what an evaluation's error says where the rounds cannot be made whole.
UNEVEN = "The batches of the evaluation cannot be dealt out"


def in_whole_rounds(input_fn: Callable[..., Any], replicas: int) -> Callable[..., Any]:
    """An input function whose dataset has whole rounds; what gives no dataset stays as it is.

    Args:
        input_fn: of an evaluation in one process. Those of this package have whole rounds.
        replicas: of this process.
    """
    if replicas < 2 or isinstance(input_fn, InputFn):
        return input_fn

    def outer(*args: Any, **kwargs: Any) -> Any:
        found = input_fn(*args, **kwargs)
        tf: Any = compat.install()
        return (
            whole_rounds(found, replicas) if isinstance(found, tf.data.Dataset | tf.compat.v1.data.Dataset) else found
        )

    # TensorFlow looks at the names of its parameters.
    outer.__signature__ = inspect.signature(input_fn)  # type: ignore[attr-defined]
    outer.__name__ = getattr(input_fn, "__name__", "input_fn")
    return outer


def whole_rounds(dataset: Any, replicas: int) -> Any:
    """The same records in the same order, in batches whose number is a multiple of the replicas'.

    Where they end in the middle of a round, batches of this round and the one before it are cut into parts. All others
    stay as they are.

    Args:
        dataset: a `tf.data.Dataset` of batches: structures of tensors, sparse or ragged ones too, whose first axis
            counts the records.
        replicas: 2 or more.

    Returns:
        A dataset of the same structure. Where a batch would have to be cut, and cannot, because its size is fixed
        (`drop_remainder=True`) or because it has fewer records than parts, reading it raises InvalidArgumentError.
    """
    tf: Any = compat.install()
    untouched = tf.autograph.experimental.do_not_convert

    def of_window(number: Any, window: Any) -> Any:
        # A round, and as much of the next one as there is.
        batches = tf.data.Dataset.zip(window) if isinstance(window, tuple | dict) else window
        count = batches.cardinality()

        def parts_of(place: Any, *batch: Any) -> Any:
            # (tf.equal: in a session's graph, == compares tensors as objects.)
            # Whole rounds: the first of them now. A round and a part of one: both now. A part of one: had by the window
            # before this one, if there was any.
            whole = tf.cast(place < replicas, tf.int64)
            both = 1 + tf.cast(place < 2 * replicas - count, tf.int64)
            alone = replicas // count + tf.cast(place < replicas % count, tf.int64)
            alone = tf.where(tf.equal(number, 0), alone, 0)
            parts = tf.where(tf.equal(count % replicas, 0), whole, tf.where(count > replicas, both, alone))
            return tf.data.Dataset.range(parts).map(untouched(lambda part: _part(tf, _single(batch), part, parts)))

        return batches.enumerate().flat_map(untouched(parts_of))

    windows = dataset.window(2 * replicas, shift=replicas).enumerate()
    return windows.flat_map(untouched(lambda number, *window: of_window(number, _single(window))))


def _single(element: tuple[Any, ...]) -> Any:
    return element[0] if len(element) == 1 else element


def _part(tf: Any, batch: Any, part: Any, parts: Any) -> Any:
    """One of the parts, nearly alike, that a batch is cut into."""
    leaves = tf.nest.flatten(batch)
    axes = [leaf for leaf in leaves if leaf.shape.rank != 0]
    if not axes:
        return batch
    size = _size(tf, axes[0])
    begin, end = size * part // parts, size * (part + 1) // parts
    fixed = any(not isinstance(leaf, tf.SparseTensor) and leaf.shape[:1].is_fully_defined() for leaf in axes)
    told = [f"{UNEVEN}: a round has fewer records than replicas, or batches are of one size"]
    possible = tf.logical_or(tf.equal(parts, 1), tf.logical_and(size >= parts, not fixed))
    with tf.control_dependencies([tf.debugging.Assert(possible, told)]):
        begin = tf.identity(begin)
    cut = [leaf if leaf.shape.rank == 0 else _rows(tf, leaf, begin, end, fixed=fixed) for leaf in leaves]
    return tf.nest.pack_sequence_as(batch, cut)


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
