"""Readers of log files that grow, of all tasks of a job."""

from __future__ import annotations

import abc
import itertools
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from estimator_pipeline.launch.scheduler import LogRequest

__all__ = ["JobLogs"]

# Bytes before the current position by which a log is recognized.
_KNOWN_BYTES = 256
_POLL_SECS = 1.0
# After every third poll the scheduler is asked whether the job has ended.
_ASK_EVERY = 3


class JobLogs(abc.ABC):
    """Reader that follows the log files of a job.

    Args:
        last: The number of lines of each file in the first read, without lines of earlier runs; None for all lines of
            all runs.
    """

    def __init__(self, *, last: int | None = None) -> None:
        self._last = last
        self._logs: dict[Path, list[_LogFile]] = {}
        self._looked = False

    @abc.abstractmethod
    def files(self) -> Iterator[tuple[Path, str, bool]]:
        """Iterate over the files: path, label, and whether it belongs to the newest run. They may not exist yet."""

    def read(self, *, whole: bool = True) -> Iterator[tuple[str, str]]:
        """Return the new lines as pairs (label, line).

        Args:
            whole: Whether to return the last line only when it is complete.
        """
        for path, label, newest in self.files():
            lines = self._fresh(path, whole=whole)
            if not self._looked and self._last is not None:
                lines = lines[-self._last :] if newest and self._last else []
            yield from ((label, line) for line in lines)
        self._looked = True

    def show(self, request: LogRequest, labels: Sequence[str], *, has_ended: Callable[[], bool]) -> None:
        """Write the lines that are requested; until the job has ended, if it is followed."""
        write = request.show(labels)

        def write_new(*, whole: bool) -> None:
            for label, line in self.read(whole=whole):
                write(label, line)

        write_new(whole=request.follow)
        for polls in itertools.count() if request.follow else ():
            ended = polls % _ASK_EVERY == 0 and has_ended()
            write_new(whole=not ended)
            if ended:
                return
            time.sleep(_POLL_SECS)

    def _fresh(self, path: Path, *, whole: bool) -> list[str]:
        try:
            inode = path.stat().st_ino
        except OSError:
            inode = None
        files = self._logs.setdefault(path, [])
        if inode is not None and all(file.inode != inode for file in files):
            # A file that a log rotation has renamed may still be written to.
            files[:] = [file for file in files if file.exists()] or [_LogFile(path, inode, *_position(files))]
            if all(file.inode != inode for file in files):
                files.append(_LogFile(path, inode))
        return [line for file in files for line in file.fresh(whole=whole)]


def _position(files: Sequence[_LogFile]) -> tuple[int, bytes]:
    """Return the position in the last of these files, for a copy that has replaced it."""
    return (files[-1].offset, files[-1].known) if files else (0, b"")


@dataclass
class _LogFile:
    """A log file, also after a log rotation has renamed or truncated it.

    Attributes:
        path: The path at which it was found last.
        inode: Its inode.
        offset: The position of the first byte that has not been read.
        known: The bytes before that position.
    """

    path: Path
    inode: int
    offset: int = 0
    known: bytes = b""

    def exists(self) -> bool:
        """Return whether the file exists, at its path or beside it."""
        file = self._open()
        if file is not None:
            file.close()
        return file is not None

    def fresh(self, *, whole: bool) -> list[str]:
        """Return the new lines, the last one only when it is complete if `whole`."""
        file = self._open()
        if file is None:
            return []
        with file:
            file.seek(self.offset - len(self.known))
            fresh = file.read()
            if fresh.startswith(self.known):
                fresh = fresh[len(self.known) :]
            else:
                # It was truncated, and may have become longer again since.
                self.offset, self.known = 0, b""
                file.seek(0)
                fresh = file.read()
        if whole:
            fresh = fresh[: fresh.rfind(b"\n") + 1]
        self.offset += len(fresh)
        self.known = (self.known + fresh)[-_KNOWN_BYTES:]
        return fresh.decode("utf-8", "replace").splitlines()

    def _open(self) -> BinaryIO | None:
        # Renamed files are named output.log.1 or output.log-20260102.
        name = re.match(r".*?\.log", self.path.name)
        renamed = self.path.parent.glob(f"{name[0] if name else self.path.name}?*")
        for path in itertools.chain([self.path], renamed):
            try:
                file = open(path, "rb")  # noqa: SIM115
            except OSError:
                continue
            if os.fstat(file.fileno()).st_ino == self.inode:
                self.path = path
                return file
            file.close()
        return None
