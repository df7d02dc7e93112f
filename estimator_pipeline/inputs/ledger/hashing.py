"""Fingerprints: 64-bit hashes of the content of each record of a batch, for records without ids.

Records of equal content have equal fingerprints. Different records collide by chance: among a million records with a
probability of one in 37 million (n**2 / 2**65). Trailing zeros do not count, so that padding to the longest record of
a batch does not change a fingerprint.

Each 64-bit word of a record is mixed with its position by the finaliser of SplitMix64 (Steele, Lea and Flood, 2014),
and the results are summed; text is hashed with BLAKE2b first. Imports only NumPy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

__all__ = ["Sparse", "fingerprints"]

GOLDEN = 0x9E3779B97F4A7C15  # The golden ratio as a 64-bit fraction, odd.
ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))  # SplitMix64's: shift, then multiply.
LAST_SHIFT = 31

_GOLDEN = np.array([GOLDEN], dtype=np.uint64)


class Sparse(NamedTuple):
    """A sparse batch: indices [n, rank], values [n], the dense shape [rank]; the batch is axis 0."""

    indices: np.ndarray
    values: np.ndarray
    dense_shape: np.ndarray


def fingerprints(leaves: Sequence[np.ndarray | Sparse]) -> np.ndarray:
    """Return the fingerprint of each record of a batch.

    Args:
        leaves: The batch's tensors, in a fixed order, with the records along their first axis. Without a common first
            axis the batch is one record.

    Returns:
        uint64 array [records].
    """
    sizes = {_rows(leaf) for leaf in leaves}
    records = sizes.pop() if len(sizes) == 1 else None
    if records is None:
        leaves, records = [leaf if isinstance(leaf, Sparse) else np.asarray(leaf)[np.newaxis] for leaf in leaves], 1
    total = np.zeros(records, dtype=np.uint64)
    for number, leaf in enumerate(leaves):
        key = np.array([key_of(number)], dtype=np.uint64)
        total = _mixed(total * np.uint64(3) + _sums(leaf, records, key))
    return total


def key_of(number: int) -> int:
    """Return the hash key of the leaf with this number."""
    return int(_mixed(np.uint64(number + 1) * _GOLDEN)[0])


def _rows(leaf: np.ndarray | Sparse) -> int | None:
    if isinstance(leaf, Sparse):
        return int(leaf.dense_shape[0]) if len(leaf.dense_shape) else None
    shape = np.shape(leaf)
    return shape[0] if shape else None


def _sums(leaf: np.ndarray | Sparse, records: int, key: np.ndarray) -> np.ndarray:
    if isinstance(leaf, Sparse):
        rows = leaf.indices[:, 0] if len(leaf.indices) else np.empty(0, np.int64)
        values = _placed(_words(leaf.values, len(leaf.values)), key)
        places = leaf.indices[:, 1:]
        if places.shape[1]:
            values ^= _placed(_words(places, len(places)), key + _GOLDEN)
        mixed = _mixed(values)
        sums = np.zeros(records, dtype=np.uint64)
        np.add.at(sums, np.zeros_like(rows) if records == 1 else rows, mixed)
        return sums
    return _placed(_words(leaf, records), key)


def _placed(words: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Return the sum of each row's words, each mixed with its place; a word of zeros adds nothing."""
    if not words.shape[1]:
        return np.zeros(len(words), dtype=np.uint64)
    places = np.arange(1, words.shape[1] + 1, dtype=np.uint64) * _GOLDEN + key
    mixed = _mixed(words + places)
    mixed[words == 0] = 0
    return mixed.sum(axis=1, dtype=np.uint64)


def _words(array: np.ndarray, records: int) -> np.ndarray:
    """uint64 [records, words]."""
    array = np.asarray(array)
    if array.dtype.kind in "OSU":
        texts = (text.encode() if isinstance(text, str) else bytes(text) for text in array.ravel().tolist())
        hashes = [int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") for text in texts]
        return np.array(hashes, dtype=np.uint64).reshape(records, -1) if hashes else np.zeros((records, 0), np.uint64)
    if not array.size:
        return np.zeros((records, 0), np.uint64)
    data = np.ascontiguousarray(array).reshape(records, -1).view(np.uint8).reshape(records, -1)
    if short := -data.shape[1] % 8:
        data = np.pad(data, ((0, 0), (0, short)))
    return data.view("<u8")


def _mixed(value: np.ndarray) -> np.ndarray:
    for shift, factor in ROUNDS:
        value = (value ^ (value >> np.uint64(shift))) * np.uint64(factor)
    return value ^ (value >> np.uint64(LAST_SHIFT))
