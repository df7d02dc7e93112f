"""`tf.contrib.data`: what has other arguments, or no home, in `tf.data`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

__all__ = [
    "AUTOTUNE",
    "batch_and_drop_remainder",
    "map_and_batch",
    "padded_batch_and_drop_remainder",
    "read_batch_features",
    "reduce_dataset",
    "sloppy_interleave",
    "unbatch",
]

AUTOTUNE = tf.data.experimental.AUTOTUNE
Transformation = Callable[[Any], Any]


def batch_and_drop_remainder(batch_size: Any) -> Transformation:
    """For `dataset.apply`: batches, without a last one that is smaller."""
    return lambda dataset: dataset.batch(batch_size, drop_remainder=True)


def padded_batch_and_drop_remainder(batch_size: Any, padded_shapes: Any, padding_values: Any = None) -> Transformation:
    """For `dataset.apply`: padded batches, without a last one that is smaller."""
    return lambda dataset: dataset.padded_batch(batch_size, padded_shapes, padding_values, drop_remainder=True)


def map_and_batch(
    map_func: Callable[..., Any],
    batch_size: Any,
    num_parallel_batches: Any = None,
    drop_remainder: Any = False,
    num_parallel_calls: Any = None,
) -> Transformation:
    """For `dataset.apply`: `map`, then `batch`, with `num_parallel_batches` × `batch_size` calls at a time.

    Raises:
        ValueError: both numbers of calls are given.
    """
    if num_parallel_batches is not None and num_parallel_calls is not None:
        raise ValueError("The `num_parallel_batches` and `num_parallel_calls` arguments are mutually exclusive.")
    if num_parallel_calls is None:
        num_parallel_calls = batch_size * (1 if num_parallel_batches is None else num_parallel_batches)
    elif isinstance(num_parallel_calls, int) and num_parallel_calls == AUTOTUNE:
        num_parallel_calls = tf.data.AUTOTUNE

    # TensorFlow's own is deprecated for these two, which its graph optimizer fuses.
    return lambda dataset: dataset.map(map_func, num_parallel_calls=num_parallel_calls).batch(
        batch_size, drop_remainder=drop_remainder
    )


def sloppy_interleave(map_func: Callable[..., Any], cycle_length: int, block_length: int = 1) -> Transformation:
    """For `dataset.apply`: `parallel_interleave` whose order may change from run to run."""
    return tf.compat.v1.data.experimental.parallel_interleave(
        map_func, cycle_length=cycle_length, block_length=block_length, sloppy=True
    )


def unbatch() -> Transformation:
    """For `dataset.apply`: the rows of each element, one by one."""
    return lambda dataset: dataset.unbatch()


def reduce_dataset(dataset: Any, reducer: Any) -> Any:
    """One value of all elements, by a `tf.data.experimental.Reducer`."""
    state = reducer.init_func(tf.constant(0, tf.int64))
    return reducer.finalize_func(dataset.reduce(state, reducer.reduce_func))


def read_batch_features(
    file_pattern: Any,
    batch_size: int,
    features: dict[str, Any],
    reader: Any = None,
    reader_args: Any = None,
    randomize_input: bool = True,
    num_epochs: int | None = None,
    capacity: int = 10000,
) -> Any:
    """Batches of parsed tf.train.Example records: name -> tensor, of an iterator that is made here."""
    dataset = tf.compat.v1.data.experimental.make_batched_features_dataset(
        file_pattern,
        batch_size,
        features,
        reader=tf.compat.v1.data.TFRecordDataset if reader is None else reader,
        reader_args=reader_args,
        num_epochs=num_epochs,
        shuffle=randomize_input,
        shuffle_buffer_size=capacity,
    )
    return tf.compat.v1.data.make_one_shot_iterator(dataset).get_next()
