"""TFRecord files read by record number: an index of the records' offsets, then reads at those offsets.

The framing of a TFRecord is, for each record: its length (8 bytes, little endian), a masked CRC-32C of the
length (4 bytes), the data, and a masked CRC-32C of the data (4 bytes); see "TFRecords format details" in
TensorFlow's guide. The index is built from the lengths only, each checked against its CRC, and stored in the
user's cache (`index_cache`), so that a file is scanned once and not once per process. The data of a record are
checked against their CRC at each read, as in `tf.data`. The scan also collects the CRCs of the data: a digest of all
of them identifies the content of a file.

An index may also be beside its file, as `FILE.idx`: a line "offset size" for each record, in bytes of the whole
record with its framing. NVIDIA's DALI and the package `tfrecord` write that format with `tfrecord2idx`. With it, no
worker scans a file whose records it does not read. This module does not need TensorFlow.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import mmap
import os
import struct
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import google_crc32c
import numpy as np

from estimator_pipeline.errors import InputError
from estimator_pipeline.inputs.sources.index_cache import PackedIndex, identity, write_aside
from estimator_pipeline.progress.stages import LongStep
from estimator_pipeline.utils import io_errors
from estimator_pipeline.utils.cache_folder import cache_dir
from estimator_pipeline.utils.logger import logger

__all__ = [
    "INDEX_SUFFIX",
    "SAMPLED",
    "IndexedTFRecords",
    "cache_dir",
    "check_file",
    "compression_of",
    "index_file",
    "masked_crc",
    "sampled",
    "write_index",
]

INDEX_SUFFIX = ".idx"
SAMPLED = "sampled "
"""The prefix of digests of some of a file's blocks."""

_HEADER = struct.Struct("<QI")
_CHECK = struct.Struct("<I")
_BETWEEN = struct.Struct("<IQI")  # the end of a record and the header of the next
_FOOTER = _CHECK.size
_FRAME = _HEADER.size + _FOOTER
_OPEN_FILES = 64
_THREADS = 8  # A file system on a network answers several at a time.
_FILES_A_TASK = 64
# Files of at most so many records have their index in the cache file of all.
_PACKED_RECORDS = 4096
_PACKED_SUFFIX = ".packed"
_AT_A_TIME = 1024
_LARGE = 32 * 1024
_SMALL_FILE = 128 * 1024
_BLOCK = 4096
_BLOCKS = 4


def check_file(path: str) -> None:
    """Reject a path that is not a readable file.

    Raises:
        InputError: The path is remote, missing, not a file, or not readable for this user.
    """
    if "://" in path:
        raise InputError(
            "Files are read by record, which needs a mounted file system",
            code="argument/not-applicable",
            found=path,
            hint="mount the store, or copy the files to a local disk, and use that path",
        )
    if not os.path.isfile(path):
        there = "a directory" if os.path.isdir(path) else "nothing there"
        raise InputError(
            "A data file is missing", code="data/not-found", found=f"{path}: {there}", hint="check the path"
        )
    if not os.access(path, os.R_OK):
        raise InputError(
            "A data file cannot be read",
            code="data/unreadable",
            found=f"{path}: no permission",
            hint="give this user read access",
        )


def compression_of(paths: Sequence[str]) -> str:
    """Return the compression of TFRecord files by their names: "GZIP" if they end in .gz, otherwise "".

    Raises:
        InputError: Some are compressed and some are not.
    """
    zipped = [path.endswith(".gz") for path in paths]
    if any(zipped) and not all(zipped):
        raise InputError(
            "Some files are compressed and some are not",
            code="argument/conflict",
            found=f"{paths[zipped.index(True)]} and {paths[zipped.index(False)]}",
            hint="write them alike",
        )
    return "GZIP" if all(zipped) else ""


def index_file(path: str, *, cache: Path | None) -> np.ndarray:
    """Return the offset and the length of each record's data.

    They come from the index beside the file, from the index in the cache, or from a scan of the file.

    Args:
        path: An uncompressed TFRecord file.
        cache: Directory for the index, or None for no cache.

    Returns:
        int64 array of shape (records, 2): offset and length, in bytes.

    Raises:
        InputError: The file is not a TFRecord file, is truncated or damaged, or has the index of a different file.
    """
    return _indexed(path, cache)[0]


def _indexed(path: str, cache: Path | None, packed: PackedIndex | None = None) -> tuple[np.ndarray, str | None]:
    """Return the index of a file, and the digest of its records; None with an index beside it."""
    check_file(path)
    beside = _beside(path)
    if beside is not None:
        return beside, None
    if cache is None:
        return _walk(path, _read(path))
    # A large index is read and kept alone. The name has the identity, because hosts that share a home may each have a
    # disk of their own below the same path.
    if packed is not None and (known := packed.get(path)) is not None:
        return _index_of(known[0]), known[1]
    before = identity(path)
    alone = PackedIndex(_kept(cache, f"{os.path.realpath(path)}:{before}"))
    if (known := alone.get(path)) is not None:
        return _index_of(known[0]), known[1]
    index, digest = _walk(path, _read(path))
    chosen = packed if packed is not None and len(index) <= _PACKED_RECORDS else alone
    chosen.add(path, before, index[:, 1], digest)
    if chosen is alone:
        alone.save([path])
    return index, digest


def _index_of(lengths: np.ndarray) -> np.ndarray:
    """Return the index of a file whose records have these lengths."""
    lengths = lengths.astype(np.int64)
    starts = np.cumsum(lengths + _FRAME) - lengths - _FOOTER
    return np.stack([starts, lengths], axis=1)


def _digest(path: str, cache: Path | None, packed: PackedIndex | None) -> str:
    """Return the digest of an uncompressed file's content."""
    check_file(path)
    # With an index the file is not scanned.
    digest = None if os.path.exists(path + INDEX_SUFFIX) else _indexed(path, cache, packed)[1]
    return sampled(path) if digest is None else digest


def _packed_index(pattern: str, path: str, cache: Path) -> Path:
    """Return the path of the common index of a pattern's files, of which `path` is one."""
    # Hosts that share a home may each have a disk of their own below the same path.
    folder = os.path.dirname(os.path.abspath(path))
    return _kept(cache, f"{pattern}:{folder}:{os.stat(folder).st_ino}")


def _kept(cache: Path, key: str) -> Path:
    return cache / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}{_PACKED_SUFFIX}"


def sampled(path: str) -> str:
    """Return a digest of some of a file's blocks, for files that take too long to read completely.

    It detects a replaced file, but not every change of single records.
    """
    size = os.path.getsize(path)
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for number in range(_BLOCKS):
            file.seek(max(size - _BLOCK, 0) * number // (_BLOCKS - 1))
            digest.update(file.read(_BLOCK))
    return f"{SAMPLED}{digest.hexdigest()[:16]}"


def write_index(path: str) -> tuple[int, bool]:
    """Write the index of a file beside it, unless a correct index exists.

    An existing index is compared with the file: every length with its checksum.

    Args:
        path: An uncompressed TFRecord file.

    Returns:
        The number of records, and whether the index was written: False if it existed.

    Raises:
        InputError: The file is not a TFRecord file, is damaged or compressed, or the index cannot be written.
    """
    check_file(path)
    if path.endswith(".gz"):
        raise InputError(
            "A compressed TFRecord file is not read by record and needs no index",
            code="argument/not-applicable",
            found=path,
            hint="leave it out, or write it uncompressed",
        )
    index, _ = _walk(path, _read(path))
    rows = np.stack([index[:, 0] - _HEADER.size, index[:, 1] + _FRAME], axis=1).tolist()
    text = "".join(f"{start} {size}\n" for start, size in rows)
    there = Path(path + INDEX_SUFFIX)
    try:
        if there.exists() and there.read_text(encoding="ascii", errors="replace") == text:
            return len(index), False
        # With the permissions of the file: other users train from it.
        write_aside(there, lambda file: file.write(text.encode()), to_disk=True, mode=os.stat(path).st_mode & 0o666)
    except OSError as error:
        raise InputError(
            "An index cannot be written",
            code="file/unwritable",
            found=f"{there}: {error.strerror}",
            hint="run the command as a user with write access",
        ) from error
    return len(index), True


def _beside(path: str) -> np.ndarray | None:
    """Return the index beside a file, in the form of `index_file`; None without one."""
    there = path + INDEX_SUFFIX
    try:
        with open(there, "rb") as file:  # `Path` takes as long as the system for the many files without an index.
            text = file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(
            "The index of a TFRecord file cannot be read",
            code="data/unreadable",
            found=f"{there}: {error.strerror}",
            hint="remove it",
        ) from error
    try:
        rows = np.array(text.split(), dtype=np.int64).reshape(-1, 2)
    except (ValueError, OverflowError):
        raise _not_its_index(path, "it has other lines than 'offset size'") from None
    starts, sizes = rows[:, 0], rows[:, 1]
    ends = np.concatenate([[0], starts + sizes])
    size = os.path.getsize(path)
    if (sizes < _FRAME).any() or (ends[:-1] != starts).any() or ends[-1] != size:
        raise _not_its_index(path, f"its records do not make up the file, which has {size} bytes")
    return np.stack([starts + _HEADER.size, sizes - _FRAME], axis=1)


def _not_its_index(path: str, why: str) -> InputError:
    return InputError(
        "An index beside a TFRecord file does not match the file",
        code="data/unreadable",
        found=f"{path}{INDEX_SUFFIX}: {why}",
        hint=f"create it again with `estimator-pipeline index {path}`, or remove it",
    )


def _read(path: str) -> bytes | mmap.mmap:
    with io_errors.naming(path), open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size <= _SMALL_FILE:
            return file.read()  # Faster than a map. An empty file can't be mapped; it holds no records.
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _ask_for(data: bytes | mmap.mmap, places: Sequence[Sequence[int]]) -> None:
    """Ask the system to prefetch only large records: otherwise it also reads ahead around each new page of a map."""
    for start, length in places:
        if length >= _LARGE and isinstance(data, mmap.mmap):
            begin = (start - _HEADER.size) // mmap.PAGESIZE * mmap.PAGESIZE
            with contextlib.suppress(OSError):  # not supported by the file system
                data.madvise(mmap.MADV_WILLNEED, begin, start + length + _FOOTER - begin)


def _walk(path: str, data: bytes | mmap.mmap) -> tuple[np.ndarray, str]:
    """Return the offset and the length of each record's data, and a digest of the checksums of all data."""
    size, position = len(data), 0
    # Arrays, because a tuple for each record would take as long as the rest.
    ends, lengths, checks, sums = array("q"), array("Q"), array("I"), array("I")
    last = size - _HEADER.size
    if size and last < 0:
        raise _damaged(path, 0, 0, "the file ends within a record's header")
    length, check = _HEADER.unpack_from(data, 0) if size else (0, 0)
    while position < size:
        end = position + length + _FRAME
        if end > size:
            # A wrong length is detected here first; its CRC distinguishes a different file type from a truncated file.
            if not _lengths_match(np.array([length], dtype=np.uint64), np.array([check], dtype=np.uint32)).all():
                raise _damaged(path, len(ends), position, "the length of the record does not match its checksum")
            raise _damaged(path, len(ends), position, f"cut off: the record ends at byte {end} of {size}")
        ends.append(end)
        lengths.append(length)
        checks.append(check)
        if end <= last:
            checksum, length, check = _BETWEEN.unpack_from(data, end - _FOOTER)
        elif end < size:
            raise _damaged(path, len(ends), end, "the file ends within a record's header")
        else:
            (checksum,) = _CHECK.unpack_from(data, end - _FOOTER)
        sums.append(checksum)
        position = end
    sizes = np.array(lengths, dtype=np.uint64)
    good = _lengths_match(sizes, np.array(checks, dtype=np.uint32))
    starts = np.array(ends, dtype=np.int64) - sizes.astype(np.int64) - _FOOTER
    if not good.all():
        first = int(np.flatnonzero(~good)[0])
        begin = int(starts[first]) - _HEADER.size
        raise _damaged(path, first, begin, "the length of the record does not match its checksum")
    digest = hashlib.sha256(np.array(sums, dtype="<u4").tobytes()).hexdigest()[:16]
    return np.stack([starts, sizes.astype(np.int64)], axis=1), digest


def _damaged(path: str, record: int, position: int, why: str) -> InputError:
    return InputError(
        "A TFRecord file cannot be read",
        code="data/unreadable",
        found=f"{path}, record {record}, at byte {position}: {why}",
        hint="write the file again; if it is compressed, name it .gz or pass compression='GZIP'",
    )


def _crc_table() -> np.ndarray:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0x82F63B78), table >> 1).astype(np.uint32)
    return table


_CRC_TABLE = _crc_table()


def _lengths_match(lengths: np.ndarray, checks: np.ndarray) -> np.ndarray:
    """Return whether the masked CRC-32C of each 8-byte length matches the file, for all records at once."""
    crc = np.full(lengths.shape, 0xFFFFFFFF, dtype=np.uint32)
    for shift in range(0, 64, 8):
        byte = ((lengths >> np.uint64(shift)) & np.uint64(0xFF)).astype(np.uint32)
        crc = _CRC_TABLE[(crc ^ byte) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
    crc = ~crc
    masked = ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(0xA282EAD8)
    return masked == checks


def masked_crc(crc: int) -> int:
    """Return a CRC in its stored, masked form, which differs for data that contain CRCs."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


class IndexedTFRecords:
    """TFRecord files that are opened when one of their records is first read.

    Args:
        paths: The files.
        compression: "" or "GZIP". Compressed files are decompressed into memory at the first read, because they do
            not support random access.
        cache: Directory for indexes; None for no cache.
        memory_limit: The maximum size of decompressed files in bytes; the least recently read are dropped beyond
            it.
        report: Called with lines about how far a long scan is; None: the log.
    """

    def __init__(
        self,
        paths: Sequence[str],
        *,
        compression: str,
        cache: Path | None,
        memory_limit: int,
        report: Callable[[str], None] | None = None,
    ) -> None:
        self._report = report or logger.info
        self.paths = tuple(paths)
        self.compression = compression
        self._cache = cache
        self._memory_limit = memory_limit
        self._open: OrderedDict[str, tuple[bytes | mmap.mmap, np.ndarray]] = OrderedDict()
        self._digests: dict[str, str] = {}
        self._packed: PackedIndex | None = None
        self._lock = threading.Lock()

    def counts(self, pattern: str = "") -> tuple[int, ...]:
        """Return the number of records in each file; files without an index are scanned, several at a time.

        Args:
            pattern: The files as the user named them, which names their common index in the cache.

        Raises:
            InputError: A file is damaged; see `index_file`.
        """
        if self._cache is not None and not self.compression and self.paths:
            self._packed = PackedIndex(_packed_index(pattern, self.paths[0], self._cache))
        packed = self._packed
        reading = LongStep("indexing TFRecord files", len(self.paths), self._report, first=False)
        counts: list[int] = []
        # To hand a file to a thread takes longer than to read a small file.
        size = min(max(len(self.paths) // (4 * _THREADS), 1), _FILES_A_TASK)
        groups = [self.paths[start : start + size] for start in range(0, len(self.paths), size)]
        pool = ThreadPoolExecutor(_THREADS)
        try:
            for group in pool.map(lambda group: list(map(self.count, group)), groups):
                counts += group
                if reading.is_due and packed is not None:
                    packed.save(self.paths)
                reading.done(len(counts), noun="files")
        finally:
            pool.shutdown(cancel_futures=True)
            if packed is not None:
                packed.save(self.paths)
        return tuple(counts)

    def count(self, path: str) -> int:
        """Return the number of records in a file."""
        if self.compression:
            return len(self._opened(path)[1])
        index, digest = _indexed(path, self._cache, self._packed)
        if digest is not None:
            self._digests[path] = digest
        return len(index)

    def digest(self, path: str) -> str:
        """Return the digest of a file: of the checksums of all records, or see `sampled`."""
        if path not in self._digests:
            if self.compression:
                self._opened(path)
            else:
                self._digests[path] = _digest(path, self._cache, self._packed)
        return self._digests[path]

    def is_unchanged(self, path: str) -> bool:
        """Scan a file again, and return whether it still has the content of `digest`; False if that is not known."""
        before = self._digests.get(path, SAMPLED)
        if before.startswith(SAMPLED):
            return False
        try:
            if self.compression:
                return before == _walk(path, self._unpacked(path))[1]
            return before == _digest(path, self._cache, self._packed)
        except InputError:
            return False  # no TFRecord file any more

    def read(self, path: str, records: np.ndarray) -> list[bytes]:
        """Return the data of records of one file, by number.

        Raises:
            InputError: The file has changed since its index was created, or the data of a record are damaged.
        """
        data, index = self._opened(path)
        contents = []
        places = index[records].tolist()
        _ask_for(data, places)
        for record, (start, length) in zip(records.tolist(), places, strict=True):
            begin = start - _HEADER.size
            # An index beside a file may belong to a different file of the same size.
            if _HEADER.unpack_from(data, begin)[0] != length:
                raise _not_its_index(path, f"there is no record of {length} bytes at byte {begin}")
            content = bytes(data[start : start + length])
            if masked_crc(google_crc32c.value(content)) != _CHECK.unpack_from(data, start + length)[0]:
                raise _damaged(path, record, begin, "the data of the record do not match their checksum")
            contents.append(content)
        return contents

    def check(self, path: str) -> int:
        """Read all records of a file, and return their number.

        Raises:
            InputError: A record is damaged; see `read`.
        """
        count = len(self._opened(path)[1])
        for begin in range(0, count, _AT_A_TIME):
            self.read(path, np.arange(begin, min(count, begin + _AT_A_TIME)))
        return count

    def _opened(self, path: str) -> tuple[bytes | mmap.mmap, np.ndarray]:
        with self._lock:
            if path in self._open:
                self._open.move_to_end(path)
                return self._open[path]
            if self.compression:
                data: bytes | mmap.mmap = self._unpacked(path)
                index, self._digests[path] = _walk(path, data)
            else:
                index = _indexed(path, self._cache, self._packed)[0]
                data = _read(path)
            self._open[path] = data, index
            while len(self._open) > 1 and self._too_many():
                self._open.popitem(last=False)  # Closed when the last reader releases it.
            return data, index

    def _too_many(self) -> bool:
        if self.compression:
            return sum(len(data) for data, _ in self._open.values()) > self._memory_limit
        return len(self._open) > _OPEN_FILES

    def _unpacked(self, path: str) -> bytes:
        check_file(path)
        buffer = io.BytesIO()
        try:
            with io_errors.naming(path), gzip.open(path, "rb") as file:
                while block := file.read(1 << 20):
                    buffer.write(block)
                    if buffer.tell() > self._memory_limit:
                        raise InputError(
                            "A compressed TFRecord file is too large to be decompressed into memory",
                            code="data/unreadable",
                            found=f"{path}: more than {self._memory_limit} bytes",
                            hint="write it uncompressed (it is then read by record), or raise memory_limit",
                        )
        except (OSError, EOFError) as error:
            raise InputError(
                "A compressed TFRecord file cannot be read",
                code="data/unreadable",
                found=f"{path}: {error}",
                hint="write the file again; if it is not compressed, pass compression=''",
            ) from error
        return buffer.getvalue()
