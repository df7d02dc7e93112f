"""Dumps of a running task's Python stacks on request; the task's side.

A client creates or replaces the file `stacks.request` in the log folder of the launch or of the attempt. The heartbeat
thread checks for it, and writes the stacks of all threads to the task's file in the folder `stacks` beside it. This
needs no signal, which could end a program that does not handle it, and works for tasks on different machines with the
same file system.

    worker-0                the file's name is that of the heartbeat: the task's, or HOST-PROCESS
    tick-9188 rank 1        its first line: HOST-PROCESS; under srun and in PBS also the rank
    Thread 0x... (most recent call first):
    ...                     the format of faulthandler with the thread's name, the main thread last
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

__all__ = ["FOLDER", "REQUEST", "StackDumps", "stacks"]

REQUEST = "stacks.request"
FOLDER = "stacks"
# Of srun, and of the starter of `submit pbs`.
_RANKS = ("SLURM_PROCID", "ESTIMATOR_PIPELINE_RANK")


class StackDumps:
    """Handler of the requests in one folder.

    Args:
        folder: The folder of the requests.
        name: The name of this task's file.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._answered: tuple[int, int] | None = None

    def poll(self) -> None:
        """Write the stacks if they were requested since the last call.

        It raises nothing, since heartbeats must continue.
        """
        with contextlib.suppress(Exception):
            asked = self._asked()
            if asked != self._answered:
                self._write(stacks())
                self._answered = asked

    def _asked(self) -> tuple[int, int]:
        # An NFS client may cache for a minute that a file does not exist; opening its folder refreshes the cache.
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            status = os.stat(REQUEST, dir_fd=folder)
        finally:
            os.close(folder)
        return status.st_mtime_ns, status.st_ino

    def _write(self, text: bytes) -> None:
        """Write the answer atomically."""
        folder = self._folder / FOLDER
        folder.mkdir(exist_ok=True)
        durable.write(folder / self._name, text, to_disk=False)


def stacks() -> bytes:
    """Return the stacks of this process, in the format above."""
    rank = next((os.environ[name] for name in _RANKS if name in os.environ), "")
    lines = [f"{socket.gethostname()}-{os.getpid()}" + (f" rank {rank}" if rank.isdigit() else "")]
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()
    # The thread that answers is left out.
    frames.pop(threading.get_ident(), None)
    # Not by faulthandler, which stops after a hundred threads, before the main thread.
    for ident in sorted(frames, key=lambda ident: ident == threading.main_thread().ident):
        lines += ["", f"Thread 0x{ident:016x} [{names.get(ident, '?')}] (most recent call first):"]
        frame: FrameType | None = frames[ident]
        while frame is not None:
            lines.append(f'  File "{frame.f_code.co_filename}", line {frame.f_lineno} in {frame.f_code.co_name}')
            frame = frame.f_back
    return ("\n".join(lines) + "\n").encode(errors="replace")
