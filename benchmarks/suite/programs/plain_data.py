"""The input pipeline of a tutorial: files, shard, map, cache, shuffle, repeat, batch, prefetch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.suite import work

# As the tutorials have it; more than there are records, so that all are shuffled.
SHUFFLE_BUFFER = 10_000


def parse_function(data: str) -> Any:
    """Make (features, label) of one serialized record."""
    import tensorflow as tf

    def parse_image(record: Any) -> Any:
        found = tf.io.parse_single_example(
            record, {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
        )
        image = tf.reshape(tf.io.decode_raw(found["image"], tf.uint8), [work.IMAGE_SIDE, work.IMAGE_SIDE, 1])
        return tf.cast(image, tf.float32) / 255.0, found["label"]

    def parse_row(record: Any) -> Any:
        columns = {name: tf.io.FixedLenFeature([1], tf.float32) for name in work.NUMBERS}
        columns |= {name: tf.io.FixedLenFeature([1], tf.int64) for name in work.CATEGORIES}
        found = tf.io.parse_single_example(record, {**columns, "label": tf.io.FixedLenFeature([1], tf.int64)})
        label = found.pop("label")
        return found, label

    return parse_image if data == "images" else parse_row


def dataset(
    folder: str,
    data: str,
    batch: int,
    *,
    split: str = "train",
    shard: tuple[int, int] | None = None,
    cache: bool = True,
) -> Any:
    """Batches: endless and shuffled to train on, in order and once to evaluate.

    Args:
        folder: where the data sets are.
        data: "images" or "table".
        batch: records of a batch.
        split: "train" or "eval".
        shard: (number of workers, this one).
        cache: whether parsed records are kept in memory.
    """
    import tensorflow as tf

    records = tf.data.TFRecordDataset(work.files_of(Path(folder), data, split))
    if shard is not None:
        records = records.shard(*shard)
    records = records.map(parse_function(data), num_parallel_calls=tf.data.AUTOTUNE)
    if cache:
        records = records.cache()
    if split == "eval":
        return records.batch(batch).prefetch(tf.data.AUTOTUNE)
    records = records.shuffle(SHUFFLE_BUFFER).repeat()
    return records.batch(batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def loss_of(data: str) -> Any:
    """Return the loss of each example, on logits."""
    import tensorflow as tf

    none = tf.keras.losses.Reduction.NONE
    if data == "images":
        return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=none)
    return tf.keras.losses.BinaryCrossentropy(from_logits=True, reduction=none)
