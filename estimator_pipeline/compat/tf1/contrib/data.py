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
    "sliding_window_batch",
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


def sliding_window_batch(
    window_size: int, stride: int | None = None, window_shift: int | None = None, window_stride: int = 1
) -> Transformation:  # fmt: skip
    """For `dataset.apply`: batches of elements that follow each other, each so many elements behind the one before.

    Args:
        window_size: elements of a batch; there is none that is smaller.
        stride, window_shift: by how many elements the next batch is further; 1 where neither is given.
        window_stride: from one element of a batch to the next.

    Raises:
        ValueError: `stride` and `window_shift` are both given.
    """
    if stride is not None and window_shift is not None:
        raise ValueError("Cannot specify both `stride` and `window_shift`")
    shift = stride or window_shift or 1

    def apply(dataset: Any) -> Any:
        windows = dataset.window(window_size, shift, window_stride, drop_remainder=True)

        def batch(*parts: Any) -> Any:
            inner = tf.nest.map_structure(lambda one: one.batch(window_size, drop_remainder=True), parts)
            return inner[0] if len(inner) == 1 and not isinstance(inner[0], (tuple, dict)) else _zipped(inner)

        return windows.flat_map(batch)

    return apply


def _zipped(parts: Any) -> Any:
    return tf.data.Dataset.zip(parts[0] if len(parts) == 1 else parts)


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
