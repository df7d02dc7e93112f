"""TFRecord files read by record number: an index of where each record begins, then reads at those places.

The framing of a TFRecord is, for each record: its length (8 bytes, little endian), a masked CRC-32C of the
length (4 bytes), the data, and a masked CRC-32C of the data (4 bytes); see "TFRecords format details" in
TensorFlow's guide. The index is made from the lengths alone, each checked against its CRC, and kept in the
user's cache, so that a file is walked through once and not once a process. This module needs no TensorFlow.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import mmap
import os
import struct
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from estimator_pipeline.errors import InputError

__all__ = ["RecordFiles", "cache_dir", "check_file", "index_file"]

_HEADER = struct.Struct("<QI")
_FOOTER = 4
_OPEN_FILES = 64
_INDEX_VERSION = 1


def cache_dir(environ: Mapping[str, str]) -> Path:
    """Where this package keeps what it can make again: XDG_CACHE_HOME or ~/.cache, and its own name."""
    base = environ.get("XDG_CACHE_HOME") or os.path.join(
        environ.get("HOME") or os.path.expanduser("~"), ".cache"
    )
    return Path(base) / "estimator_pipeline"


def check_file(path: str) -> None:
    """Refuses a path that is no file that can be read.

    Raises:
        InputError: It is remote, missing, no file, or closed to this user.
    """
    if "://" in path:
        raise InputError(
            "Files are read by record, which needs a file system of this machine",
            found=path,
            mend="mount the store, or copy the files to a local disk, and give that path",
        )
    if not os.path.isfile(path):
        there = "a directory" if os.path.isdir(path) else "nothing there"
        raise InputError("A data file is missing", found=f"{path}: {there}", mend="check the path")
    if not os.access(path, os.R_OK):
        raise InputError(
            "A data file cannot be read", found=f"{path}: no permission", mend="give this user read access"
        )


def index_file(path: str, *, cache: Path | None) -> np.ndarray:
    """Where each record's data begins and how long it is.

    Args:
        path: An uncompressed TFRecord file.
        cache: Directory for the index, or None to keep none.

    Returns:
        int64 array of shape (records, 2): offset and length, in bytes.

    Raises:
        InputError: It isn't a TFRecord file, or it is cut off or damaged.
    """
    check_file(path)
    stat = os.stat(path)
    if cache is None:
        return _walk(path, _read(path))
    # A file that was written anew has another size or time of change, hence another name for its index.
    key = f"{_INDEX_VERSION}:{os.path.realpath(path)}:{stat.st_size}:{stat.st_mtime_ns}"
    kept = cache / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.npy"
    try:
        return np.load(kept)
    except (OSError, ValueError, EOFError):
        pass  # Not there, or half a file from a full disk: made anew.
    index = _walk(path, _read(path))
    _keep(kept, index)
    return index


def _keep(path: Path, index: np.ndarray) -> None:
    """Written aside and renamed, so that another process sees the whole index or none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
            np.save(file, index)
        os.replace(file.name, path)
    except OSError:
        pass  # A read-only or full cache costs time and nothing else.


def _read(path: str) -> bytes | mmap.mmap:
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return b""  # An empty file can't be mapped; it holds no records.
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _walk(path: str, data: bytes | mmap.mmap) -> np.ndarray:
    size, position = len(data), 0
    places: list[tuple[int, int]] = []
    checks: list[int] = []
    while position < size:
        if position + _HEADER.size > size:
            raise _damaged(path, len(places), position, "the file ends within a record's header")
        length, check = _HEADER.unpack_from(data, position)
        end = position + _HEADER.size + length + _FOOTER
        if end > size:
            # A wrong length shows here first; its CRC tells a foreign file from one that was cut off.
            if not _lengths_match(
                np.array([length], dtype=np.uint64), np.array([check], dtype=np.uint32)
            ).all():
                raise _damaged(
                    path, len(places), position, "the length of the record does not match its checksum"
                )
            raise _damaged(path, len(places), position, f"cut off: the record ends at byte {end} of {size}")
        places.append((position + _HEADER.size, length))
        checks.append(check)
        position = end
    index = np.array(places, dtype=np.int64).reshape(-1, 2)
    good = _lengths_match(index[:, 1].astype(np.uint64), np.array(checks, dtype=np.uint32))
    if not good.all():
        first = int(np.flatnonzero(~good)[0])
        begin = places[first][0] - _HEADER.size
        raise _damaged(path, first, begin, "the length of the record does not match its checksum")
    return index


def _damaged(path: str, record: int, position: int, why: str) -> InputError:
    return InputError(
        "A TFRecord file cannot be read",
        found=f"{path}, record {record}, at byte {position}: {why}",
        mend="write the file anew; if it is compressed, name it .gz or pass compression='GZIP'",
    )


def _crc_table() -> np.ndarray:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0x82F63B78), table >> 1).astype(np.uint32)
    return table


_CRC_TABLE = _crc_table()


def _lengths_match(lengths: np.ndarray, checks: np.ndarray) -> np.ndarray:
    """Whether the masked CRC-32C of each 8-byte length is the one in the file; all records at once."""
    crc = np.full(lengths.shape, 0xFFFFFFFF, dtype=np.uint32)
    for shift in range(0, 64, 8):
        byte = ((lengths >> np.uint64(shift)) & np.uint64(0xFF)).astype(np.uint32)
        crc = _CRC_TABLE[(crc ^ byte) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
    crc = ~crc
    masked = ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(0xA282EAD8)
    return masked == checks


class RecordFiles:
    """TFRecord files, opened when one of their records is first read.

    Args:
        paths: The files.
        compression: "" or "GZIP". Compressed files are unpacked into memory when first read, for there is no
            jumping within them.
        cache: Directory for indexes; None to keep none.
        memory_limit: Bytes that compressed files may unpack to; the least recently read are dropped beyond
            it.
    """

    def __init__(
        self, paths: Sequence[str], *, compression: str, cache: Path | None, memory_limit: int
    ) -> None:
        self.paths = tuple(paths)
        self.compression = compression
        self._cache = cache
        self._memory_limit = memory_limit
        self._open: OrderedDict[str, tuple[bytes | mmap.mmap, np.ndarray]] = OrderedDict()
        self._lock = threading.Lock()

    def count(self, path: str) -> int:
        """Records in a file."""
        if self.compression:
            return len(self._opened(path)[1])
        return len(index_file(path, cache=self._cache))

    def read(self, path: str, records: np.ndarray) -> list[bytes]:
        """The data of records of one file, by number."""
        data, index = self._opened(path)
        return [bytes(data[start : start + length]) for start, length in index[records].tolist()]

    def _opened(self, path: str) -> tuple[bytes | mmap.mmap, np.ndarray]:
        with self._lock:
            if path in self._open:
                self._open.move_to_end(path)
                return self._open[path]
            if self.compression:
                data: bytes | mmap.mmap = self._unpacked(path)
                index = _walk(path, data)
            else:
                index = index_file(path, cache=self._cache)
                data = _read(path)
            self._open[path] = data, index
            while len(self._open) > 1 and self._too_many():
                self._open.popitem(last=False)  # Closed when the last reader lets go of it.
            return data, index

    def _too_many(self) -> bool:
        if self.compression:
            return sum(len(data) for data, _ in self._open.values()) > self._memory_limit
        return len(self._open) > _OPEN_FILES

    def _unpacked(self, path: str) -> bytes:
        check_file(path)
        buffer = io.BytesIO()
        try:
            with gzip.open(path, "rb") as file:
                while block := file.read(1 << 20):
                    buffer.write(block)
                    if buffer.tell() > self._memory_limit:
                        raise InputError(
                            "A compressed TFRecord file is too large to be unpacked into memory",
                            found=f"{path}: more than {self._memory_limit} bytes",
                            mend="write it uncompressed (it is then read by record), or raise memory_limit",
                        )
        except (OSError, EOFError) as error:
            raise InputError(
                "A compressed TFRecord file cannot be read",
                found=f"{path}: {error}",
                mend="write the file anew; if it is not compressed, pass compression=''",
            ) from error
        return buffer.getvalue()
