"""Input pipeline of a tutorial: files, shard, map, cache, shuffle, repeat, batch, prefetch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.suite import work

# As in the tutorials; larger than the number of records, so that all are shuffled.
SHUFFLE_BUFFER = 10_000


def parse_function(data: str) -> Any:
    """Return the function that parses a serialized record to (features, label)."""
    import tensorflow as tf

    def parse_image(record: Any) -> Any:
        features = tf.io.parse_single_example(
            record, {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
        )
        image = tf.reshape(tf.io.decode_raw(features["image"], tf.uint8), [work.IMAGE_SIDE, work.IMAGE_SIDE, 1])
        return tf.cast(image, tf.float32) / 255.0, features["label"]

    def parse_row(record: Any) -> Any:
        columns = {name: tf.io.FixedLenFeature([1], tf.float32) for name in work.NUMBERS}
        columns |= {name: tf.io.FixedLenFeature([1], tf.int64) for name in work.CATEGORIES}
        features = tf.io.parse_single_example(record, {**columns, "label": tf.io.FixedLenFeature([1], tf.int64)})
        label = features.pop("label")
        return features, label

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
    """Return the batches: endless and shuffled for training, in order and once for evaluation.

    Args:
        folder: Folder of the data sets.
        data: "images" or "table".
        batch: Records per batch.
        split: "train" or "eval".
        shard: (number of workers, index of this worker).
        cache: Whether parsed records are cached in memory.
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
    """Return the loss function of logits, without reduction."""
    import tensorflow as tf

    none = tf.keras.losses.Reduction.NONE
    if data == "images":
        return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=none)
    return tf.keras.losses.BinaryCrossentropy(from_logits=True, reduction=none)
