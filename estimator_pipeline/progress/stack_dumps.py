"""The Python stacks of a running task, written down when somebody asks for them; the task's side.

Whoever wants them makes the file `stacks.request` anew in the folder of the launch's, or the attempt's, logs. The
thread that sends the heartbeats looks whether it is there, and writes the stacks of all threads to a file of the
task's own in the folder `stacks` beside it. So no signal is needed, which could end a program that does not know it,
and a task may be on another machine that has the same file system.

    worker-0                the file's name is the heartbeat's: the task's, or HOST-PROCESS of one of several
    tick-9188 rank 1        its first line: HOST-PROCESS; under srun the rank
    Thread 0x... (most recent call first):
    ...                     as faulthandler writes them, with the thread's name, the main thread last
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from pathlib import Path
from types import FrameType

from estimator_pipeline.utils import durable_files as durable

__all__ = ["FOLDER", "REQUEST", "StackDumps"]

REQUEST = "stacks.request"
FOLDER = "stacks"
_RANK = "SLURM_PROCID"


class StackDumps:
    """Answers the requests of one folder.

    Args:
        folder: Where requests are made.
        name: That of this task's file.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._answered: tuple[int, int] | None = None

    def look(self) -> None:
        """Writes the stacks, where they were asked for since the last look. Raises nothing: heartbeats must go on."""
        with contextlib.suppress(Exception):
            asked = self._asked()
            if asked != self._answered:
                self._write(_stacks())
                self._answered = asked

    def _asked(self) -> tuple[int, int]:
        # An NFS client may believe for a minute that a file is not there; to open its folder makes it ask.
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            found = os.stat(REQUEST, dir_fd=folder)
        finally:
            os.close(folder)
        return found.st_mtime_ns, found.st_ino

    def _write(self, text: bytes) -> None:
        """Whole or not at all."""
        folder = self._folder / FOLDER
        folder.mkdir(exist_ok=True)
        durable.write(folder / self._name, text, to_disk=False)


def _stacks() -> bytes:
    rank = os.environ.get(_RANK, "")
    lines = [f"{socket.gethostname()}-{os.getpid()}" + (f" rank {rank}" if rank.isdigit() else "")]
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()
    # This thread answers, and stands nowhere else.
    frames.pop(threading.get_ident(), None)
    # Not by faulthandler, which ends after a hundred threads, and the main one comes last.
    for ident in sorted(frames, key=lambda one: one == threading.main_thread().ident):
        lines += ["", f"Thread 0x{ident:016x} [{names.get(ident, '?')}] (most recent call first):"]
        frame: FrameType | None = frames[ident]
        while frame is not None:
            lines.append(f'  File "{frame.f_code.co_filename}", line {frame.f_lineno} in {frame.f_code.co_name}')
            frame = frame.f_back
    return ("\n".join(lines) + "\n").encode(errors="replace")
