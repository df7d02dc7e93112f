"""`tf.contrib.data`: functions with different arguments in `tf.data`, or without a replacement."""

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
    """Return a transformation into batches without a smaller last batch."""
    return lambda dataset: dataset.batch(batch_size, drop_remainder=True)


def padded_batch_and_drop_remainder(batch_size: Any, padded_shapes: Any, padding_values: Any = None) -> Transformation:
    """Return a transformation into padded batches without a smaller last batch."""
    return lambda dataset: dataset.padded_batch(batch_size, padded_shapes, padding_values, drop_remainder=True)


def map_and_batch(
    map_func: Callable[..., Any],
    batch_size: Any,
    num_parallel_batches: Any = None,
    drop_remainder: Any = False,
    num_parallel_calls: Any = None,
) -> Transformation:
    """Return a transformation that maps and batches, with `num_parallel_batches` × `batch_size` parallel calls.

    Raises:
        ValueError: Both numbers of calls are set.
    """
    if num_parallel_batches is not None and num_parallel_calls is not None:
        raise ValueError("The `num_parallel_batches` and `num_parallel_calls` arguments are mutually exclusive.")
    if num_parallel_calls is None:
        num_parallel_calls = batch_size * (1 if num_parallel_batches is None else num_parallel_batches)
    elif isinstance(num_parallel_calls, int) and num_parallel_calls == AUTOTUNE:
        num_parallel_calls = tf.data.AUTOTUNE

    # TensorFlow deprecates its map_and_batch in favor of these two, which its graph optimizer fuses.
    return lambda dataset: dataset.map(map_func, num_parallel_calls=num_parallel_calls).batch(
        batch_size, drop_remainder=drop_remainder
    )


def sliding_window_batch(
    window_size: int, stride: int | None = None, window_shift: int | None = None, window_stride: int = 1
) -> Transformation:  # fmt: skip
    """Return a transformation into sliding windows, each as a batch.

    Args:
        window_size: Elements of a window; smaller windows are dropped.
        stride, window_shift: Distance between the starts of consecutive windows; default 1.
        window_stride: Distance between consecutive elements of a window.

    Raises:
        ValueError: `stride` and `window_shift` are both set.
    """
    if stride is not None and window_shift is not None:
        raise ValueError("Cannot specify both `stride` and `window_shift`")
    shift = stride or window_shift or 1

    def apply(dataset: Any) -> Any:
        windows = dataset.window(window_size, shift, window_stride, drop_remainder=True)

        def batch(*parts: Any) -> Any:
            inner = tf.nest.map_structure(lambda window: window.batch(window_size, drop_remainder=True), parts)
            return inner[0] if len(inner) == 1 and not isinstance(inner[0], (tuple, dict)) else _zipped(inner)

        return windows.flat_map(batch)

    return apply


def _zipped(parts: Any) -> Any:
    return tf.data.Dataset.zip(parts[0] if len(parts) == 1 else parts)


def sloppy_interleave(map_func: Callable[..., Any], cycle_length: int, block_length: int = 1) -> Transformation:
    """Return a nondeterministic `parallel_interleave` transformation."""
    return tf.compat.v1.data.experimental.parallel_interleave(
        map_func, cycle_length=cycle_length, block_length=block_length, sloppy=True
    )


def unbatch() -> Transformation:
    """Return a transformation that splits each element into its rows."""
    return lambda dataset: dataset.unbatch()


def reduce_dataset(dataset: Any, reducer: Any) -> Any:
    """Reduce all elements to one value with a `tf.data.experimental.Reducer`."""
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
    """Return batches of parsed tf.train.Example records, name -> tensor, from a new iterator."""
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
