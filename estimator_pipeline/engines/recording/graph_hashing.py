"""The fingerprints of `estimator_pipeline.inputs.ledger.hashing`, bit for bit, as TensorFlow operations.

NumPy releases and acquires the GIL for each operation on a large array, and waits each time for the training loop,
which holds it. The steps of a small model took twice as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from estimator_pipeline.inputs.ledger import hashing

__all__ = ["can_take", "fingerprints"]


def can_take(parts: Sequence[Any]) -> bool:
    """Return whether these tensors are numeric, with records along the first axis."""
    return all(
        part.shape.rank and (part.dtype.is_integer or part.dtype.is_floating or part.dtype.is_bool) for part in parts
    )


def fingerprints(tf: Any, parts: Sequence[Any]) -> Any:
    """Return a uint64 tensor [records]; see `estimator_pipeline.inputs.ledger.hashing.fingerprints`."""
    sizes = [tf.shape(part, out_type=tf.int64)[0] for part in parts]
    if len(parts) == 1:
        return _of_records(tf, parts, sizes[0])
    # Whether they have the same number of rows may be known only at run time.
    return tf.cond(
        tf.reduce_all(tf.equal(tf.stack(sizes), sizes[0])),
        lambda: _of_records(tf, parts, sizes[0]),
        lambda: tf.numpy_function(lambda *values: hashing.fingerprints(values), parts, tf.uint64),
    )


def _of_records(tf: Any, parts: Sequence[Any], records: Any) -> Any:
    total = tf.zeros([records], tf.uint64)
    for number, part in enumerate(parts):
        sums = _sums(tf, part, records, tf.constant(hashing.key_of(number), tf.uint64))
        total = _mixed(tf, total * tf.constant(3, tf.uint64) + sums)
    return total


def _sums(tf: Any, part: Any, records: Any, key: Any) -> Any:
    """Return the sum of each record's 64-bit words, mixed with their position; a word of zeros adds nothing."""
    part = tf.cast(part, tf.uint8) if part.dtype.is_bool else part
    octets = tf.bitcast(part, tf.uint8)
    count = tf.size(octets, out_type=tf.int64) // tf.maximum(records, 1)
    rows = tf.pad(tf.reshape(octets, [records, count]), [[0, 0], [0, -count % 8]])
    words = tf.bitcast(tf.reshape(rows, [records, (count + 7) // 8, 8]), tf.uint64)
    places = tf.cast(tf.range(1, (count + 7) // 8 + 1), tf.uint64) * tf.constant(hashing.GOLDEN, tf.uint64) + key
    mixed = _mixed(tf, words + places)
    return tf.reduce_sum(tf.where(tf.equal(words, tf.constant(0, tf.uint64)), tf.zeros_like(mixed), mixed), axis=1)


def _mixed(tf: Any, value: Any) -> Any:
    for shift, factor in hashing.ROUNDS:
        value = tf.bitwise.bitwise_xor(value, tf.bitwise.right_shift(value, tf.constant(shift, tf.uint64)))
        value = value * tf.constant(factor, tf.uint64)
    return tf.bitwise.bitwise_xor(value, tf.bitwise.right_shift(value, tf.constant(hashing.LAST_SHIFT, tf.uint64)))
