"""Logs and progress of a Slurm job's tasks, over all requeues."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from estimator_pipeline.launch.job_status import job_progress
from estimator_pipeline.launch.pace import Paces
from estimator_pipeline.launch.slurm.script import OUTPUT
from estimator_pipeline.progress.progress_file import ProgressReader, TaskState

__all__ = ["SCRIPT_LABEL", "LogReaders", "progress_of", "runs_of"]

SCRIPT_LABEL = "script"
# Bytes before the current position by which a log is recognized.
_KNOWN_BYTES = 256


def runs_of(folder: Path) -> list[Path]:
    """Return the folders run-0, run-1, ... in their order."""
    runs = [(int(match[1]), path) for path in folder.glob("run-*") if (match := re.fullmatch(r"run-(\d+)", path.name))]
    return [path for _, path in sorted(runs)]


def progress_of(folder: Path) -> dict[str, Any]:
    """Return the progress that the tasks of the newest run with a step have reported.

    `warning` is the last warning of a newer run without steps: mostly about tasks that do not start.
    """
    warning: dict[str, Any] = {}
    for run in reversed(runs_of(folder)):
        # By number: attempt-10 comes after attempt-9.
        files = sorted(run.glob("attempt-*/*.progress.jsonl"), key=lambda path: (len(path.parent.name), str(path)))
        for file in reversed(files):
            state, step, paces, warned, at = TaskState("all"), -1, Paces(), None, None
            for event in ProgressReader(file).read():
                state.apply(event)
                at = event.get("time", at)
                if event["event"] == "pace":
                    paces.update(event)
                step = max(step, state.step if state.step is not None else -1)
                warned = event.get("text", warned) if event["event"] == "warning" else warned
            if step >= 0:
                return job_progress(
                    state,
                    step=step,
                    result=state.result,
                    straggler=None if paces.slow is None else paces.slow.document(),
                    time=at if isinstance(at, int | float) else None,
                    **warning,
                )
            if warned and not warning:
                warning = {"warning": str(warned)}
    return warning


class LogReaders:
    """Reader that follows a job's logs: the script's, and each task's in every run.

    Args:
        folder: The folder of output.log and of the runs.
        tasks: The task names by rank.
        wanted: The task to show; None for all tasks and the script.
        last: The number of lines of each file in the first read, without lines of earlier runs; None for all lines of
            all runs.
    """

    def __init__(
        self, folder: Path, tasks: Sequence[str], *, wanted: str | None = None, last: int | None = None
    ) -> None:
        self._folder, self._tasks, self._wanted, self._last = folder, tuple(tasks), wanted, last
        self._logs: dict[Path, list[_LogFile]] = {}
        self._looked = False

    def read(self, *, whole: bool = True) -> Iterator[tuple[str, str]]:
        """Return the new lines as pairs (label, line).

        Args:
            whole: Whether to return the last line only when it is complete.
        """
        runs = runs_of(self._folder)
        for path, label in self._files(runs):
            lines = self._fresh(path, whole=whole)
            if not self._looked and self._last is not None:
                stale = path.parent in runs[:-1]
                lines = [] if stale or not self._last else lines[-self._last :]
            yield from ((label, line) for line in lines)
        self._looked = True

    def _files(self, runs: Sequence[Path]) -> Iterator[tuple[Path, str]]:
        if self._wanted in (None, SCRIPT_LABEL):
            yield self._folder / OUTPUT, SCRIPT_LABEL
        for run in runs:
            for rank, task in enumerate(self._tasks):
                if self._wanted in (None, task):
                    yield run / f"task-{rank}.log", task

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
