"""The file format of the ledger: a step counter, then blocks that are appended and never changed.

    offset 0    b"EPLEDGR1"
    offset 8    the counter, a 64-bit word in native byte order: segment (16 bits), steps in it (48 bits)
    offset 16   blocks: mark, kind, length, CRC-32 of kind and payload, payload

Each step writes only the counter: a store into mapped memory, which survives any end of the process. Blocks are
independent, so that a truncated file loses only its last block.

Ids take as few bytes as their range needs, as differences if they are consecutive, in planes of bytes, deflated if that
helps: about 1.3 bytes for each id of a shuffled data set of some thousand records, and almost nothing for consecutive
ids. Fingerprints cannot be compressed and take 8 bytes.

NumPy only.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

__all__ = ["BEGIN", "COUNTER", "Block", "Rows", "block", "decode_rows", "encode_rows", "parse", "split_word", "word"]

MAGIC = b"EPLEDGR1"
COUNTER = 8
BEGIN = 16

HEADER, GENERATION, ROWS, SEGMENT, END = b"H", b"G", b"R", b"S", b"E"
_MARK = b"\xa7L"
_BLOCK = struct.Struct("<2scII")
_ROWS = struct.Struct("<IQIi")
_IDS = struct.Struct("<BBxxIqq")
_DELTA, _DEFLATED, _FINGERPRINTS = 1, 2, 4
_STEPS = 48


class Block(NamedTuple):
    """A complete block: its offset, kind and payload."""

    offset: int
    kind: bytes
    payload: bytes


class Rows(NamedTuple):
    """Consecutive batches of one iterator.

    Attributes:
        generation: The number of the iterator over the data.
        first: The number of the first batch within the generation, from 0.
        sizes: Records in each batch; int64.
        ids: Ids of all batches, concatenated; int64, or uint64 fingerprints.
    """

    generation: int
    first: int
    sizes: np.ndarray
    ids: np.ndarray


def word(segment: int, steps: int) -> int:
    """Return the counter's value."""
    return segment << _STEPS | steps


def split_word(value: int) -> tuple[int, int]:
    """Return (segment, steps) of the counter's value."""
    return value >> _STEPS, value & ((1 << _STEPS) - 1)


def block(kind: bytes, payload: bytes) -> bytes:
    """Return the bytes of a block."""
    return _BLOCK.pack(_MARK, kind, len(payload), zlib.crc32(payload, zlib.crc32(kind))) + payload


def parse(data: bytes) -> Iterator[Block | int]:
    """Yield the blocks of a file's content, from `BEGIN` on.

    Yields:
        Each block; at last, if the file is truncated or damaged, the offset from which it cannot be read.
    """
    at = BEGIN
    while at < len(data):
        head = data[at : at + _BLOCK.size]
        if len(head) < _BLOCK.size:
            yield at
            return
        mark, kind, length, checksum = _BLOCK.unpack(head)
        payload = data[at + _BLOCK.size : at + _BLOCK.size + length]
        if mark != _MARK or len(payload) != length or zlib.crc32(payload, zlib.crc32(kind)) != checksum:
            yield at
            return
        yield Block(at, kind, payload)
        at += _BLOCK.size + length


def encode_rows(generation: int, first: int, batches: np.ndarray | Sequence[np.ndarray]) -> bytes:
    """Return the payload of a block of batches.

    Args:
        generation: see `Rows`.
        first: the number of the first batch.
        batches: ids, int64 or uint64 (fingerprints): [batches, records], or one array for each batch.
    """
    if isinstance(batches, np.ndarray):
        head = _ROWS.pack(generation, first, len(batches), batches.shape[1])
        return head + _encode_ids(batches.ravel())
    sizes = np.array([len(batch) for batch in batches], dtype="<u4")
    ids = np.concatenate(batches) if batches else np.empty(0, np.int64)
    return _ROWS.pack(generation, first, len(batches), -1) + sizes.tobytes() + _encode_ids(ids)


def decode_rows(payload: bytes) -> Rows:
    """Decode the payload of `encode_rows`."""
    generation, first, count, size = _ROWS.unpack_from(payload)
    at = _ROWS.size + (0 if size >= 0 else 4 * count)
    return Rows(generation, first, sizes_of(payload), _decode_ids(payload[at:]))


def generation_of(payload: bytes) -> int:
    """Which generation a payload of batches belongs to."""
    return int(_ROWS.unpack_from(payload)[0])


def first_of(payload: bytes) -> int:
    """Return the number of the first batch in a payload."""
    return int(_ROWS.unpack_from(payload)[1])


def sizes_of(payload: bytes) -> np.ndarray:
    """Return the records in each batch of a payload; int64."""
    _, _, count, size = _ROWS.unpack_from(payload)
    if size >= 0:
        return np.full(count, size, dtype=np.int64)
    return np.frombuffer(payload, dtype="<u4", count=count, offset=_ROWS.size).astype(np.int64)


def _encode_ids(ids: np.ndarray) -> bytes:
    if ids.dtype == np.uint64:
        return _IDS.pack(_FINGERPRINTS, 8, len(ids), 0, 0) + ids.astype("<u8", copy=False).tobytes()
    flags, base, least, values = 0, 0, 0, ids
    if len(ids) > 1:
        steps = np.diff(ids)
        if 2 * int(np.count_nonzero(steps == steps[0])) >= len(steps):
            # They run on: what repeats deflates to nothing.
            flags, base, least = _DELTA, int(ids[0]), int(steps.min())
            values = steps
    if not flags & _DELTA and len(ids):
        least = int(ids.min())
    offsets = (values - least).astype(np.uint64)
    width = next(w for w in (1, 2, 4, 8) if not len(offsets) or int(offsets.max()) < 1 << 8 * w)
    narrow = offsets.astype(f"<u{width}")
    # The low bytes are noise and the high ones alike: apart from each other the latter deflate.
    planes = np.ascontiguousarray(narrow.view(np.uint8).reshape(-1, width).T).tobytes()
    packed = zlib.compress(planes, 1)
    if len(packed) < len(planes):
        flags, planes = flags | _DEFLATED, packed
    return _IDS.pack(flags, width, len(ids), base, least) + planes


def _decode_ids(data: bytes) -> np.ndarray:
    flags, width, count, base, least = _IDS.unpack_from(data)
    planes = data[_IDS.size :]
    if flags & _FINGERPRINTS:
        return np.frombuffer(planes, dtype="<u8").astype(np.uint64)
    if flags & _DEFLATED:
        planes = zlib.decompress(planes)
    narrow = np.ascontiguousarray(np.frombuffer(planes, np.uint8).reshape(width, -1).T).view(f"<u{width}").ravel()
    values = narrow.astype(np.int64) + least
    if not flags & _DELTA:
        return values
    return np.concatenate([[base], base + np.cumsum(values)]).astype(np.int64)[:count]
