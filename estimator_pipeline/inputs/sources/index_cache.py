"""Cached indexes of TFRecord files: one cache file for all small files of a pattern.

A cache file for each data file takes longer than the scan where the files are small, above all in a home directory on
a network. Nothing here is synced to disk: an incomplete cache is detected, and only costs time.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from estimator_pipeline.utils import durable_files as durable

__all__ = ["PackedIndex", "identity", "keep", "write_aside"]

_PACKED_VERSION = 1
_LENGTH = np.dtype("<u8")
_FRAME = 16  # bytes of a record beside its data


class _Entry(NamedTuple):
    identity: list[int]
    lengths: np.ndarray
    digest: str


class PackedIndex:
    """The lengths of the records of many files, and the files' digests, in one file.

    The file is a line of JSON, `{"version": 1, "files": {path: [identity, number of records, digest]}}`, and then the
    lengths of the records of these files in this order, as little-endian integers of 8 bytes. The identity of a data
    file is its size, modification time, change time (both in ns) and inode: a copy may have the same modification time,
    but not the inode's.

    Args:
        path: The cache file; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries: dict[str, _Entry] = {}
        self._changed = False
        # Missing, or damaged: created again.
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            self._entries = _load(path)

    def get(self, file: str) -> tuple[np.ndarray, str] | None:
        """Return the lengths of a file's records, and its digest; None if the file is not known or has changed."""
        entry = self._entries.get(file)
        if entry is None or entry.identity != identity(file) or not entry.digest:
            return None  # Indexes of earlier versions may have no digest.
        if int(entry.lengths.sum()) + _FRAME * len(entry.lengths) != entry.identity[0]:
            return None
        return entry.lengths, entry.digest

    def add(self, file: str, identity: list[int], lengths: np.ndarray, digest: str) -> None:
        """Add a file.

        Args:
            file: Its path.
            identity: From `identity`, before the file was scanned: a write during the scan makes a different file.
            lengths: Bytes of data of each record.
            digest: The digest of its content.
        """
        self._entries[file] = _Entry(identity, lengths.astype(_LENGTH), digest)
        self._changed = True

    def save(self, files: Sequence[str]) -> None:
        """Write the entries of these files, if there are new ones; errors of the disk are ignored."""
        if not self._changed:
            return
        self._changed = False  # first: other threads add entries while these are written
        entries = {file: self._entries[file] for file in files if file in self._entries}
        table = {file: [entry.identity, len(entry.lengths), entry.digest] for file, entry in entries.items()}
        header = json.dumps({"version": _PACKED_VERSION, "files": table}).encode() + b"\n"
        keep(self._path, lambda file: file.writelines([header, *(e.lengths.tobytes() for e in entries.values())]))


def _load(path: Path) -> dict[str, _Entry]:
    with open(path, "rb") as file:
        document = json.loads(file.readline())
        position = file.tell()
        # Mapped, because a job may need the lengths of few of many files.
        content = np.asarray(np.memmap(file, mode="r"))
    if document["version"] != _PACKED_VERSION:
        return {}
    entries = {}
    for name, (stat, records, digest) in document["files"].items():
        end = position + records * _LENGTH.itemsize
        entries[name] = _Entry(stat, content[position:end].view(_LENGTH), digest)
        position = end
    return entries if position == len(content) else {}


def identity(file: str) -> list[int]:
    """Return what identifies the content of a file; see `PackedIndex`."""
    stat = os.stat(file)
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]


def keep(path: Path, write: Callable[[Any], Any]) -> None:
    """Write a file of the cache, if possible: a read-only or full cache only costs time."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_aside(path, write, to_disk=False)


def write_aside(path: Path, write: Callable[[Any], Any], *, to_disk: bool, mode: int | None = None) -> None:
    """Write a file atomically: under a temporary name, then renamed; an incomplete file is removed.

    Args:
        path: The file.
        write: Writes the content to an open file.
        to_disk: Whether to sync the content before the rename.
        mode: Its permissions; None: only for this user.
    """
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", suffix=".tmp", delete=False) as file:
        try:
            write(file)
            file.flush()
            if mode is not None:
                os.chmod(file.name, mode)
            (durable.rename if to_disk else os.replace)(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise
