"""Processes of a launch, and signals that the launcher receives."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.launch.local import exec_shim as shim_module
from estimator_pipeline.launch.local import orphan_guard as guard_module
from estimator_pipeline.utils import system_limits

__all__ = ["Guard", "Interruptions", "Process", "end_name", "interruptions"]


def end_name(exit_code: int) -> str:
    """Describe how a process ended: "exit code 3" or "signal SIGKILL"."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"signal {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"signal {-exit_code}"


class Process:
    """A task's program in a new session, with its output in a log file.

    The thread that starts it must outlive it: when that thread exits, the kernel kills the process too.

    Args:
        command: The program and its arguments.
        environ: Its whole environment.
        cores: The CPUs it may use; empty for all.
        log: The file to which standard output and standard error are appended.
    """

    def __init__(
        self, command: tuple[str, ...], *, environ: Mapping[str, str], cores: tuple[int, ...], log: Path
    ) -> None:
        shim = [
            sys.executable,
            "-I",
            "-S",
            str(Path(shim_module.__file__).resolve()),
            str(os.getpid()),
            ",".join(map(str, cores)) or "-",
        ]
        with open(log, "ab") as output:
            self._child = _start(  # the user's program
                [*shim, *command],
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self._child.pid
        self.started = time.monotonic()
        self.seconds: float | None = None
        self.stopped_at: float | None = None
        self.exit_code: int | None = None

    def poll(self) -> bool:
        """Return whether it has ended. It remains a zombie until `reap`, so that its group's number is not reused."""
        if self.exit_code is None:
            self.exit_code = self._ended()
            if self.exit_code is not None:
                self.seconds = time.monotonic() - self.started
        return self.exit_code is not None

    def _ended(self) -> int | None:
        if not hasattr(os, "waitid"):
            return self._child.poll()
        status = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if status is None:
            return None
        return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status

    def terminate(self) -> None:
        """Send SIGTERM to the group, once, and SIGCONT for suspended processes."""
        if self.stopped_at is None:
            self.stopped_at = time.monotonic()
            guard_module.send_to_groups([self.pid], signal.SIGTERM)
            guard_module.send_to_groups([self.pid], signal.SIGCONT)

    def abort(self) -> None:
        """Send SIGABRT to the process, once. Under PYTHONFAULTHANDLER, Python prints its stacks and exits."""
        if self.stopped_at is None:
            self.stopped_at = time.monotonic()
            guard_module.send([self.pid], signal.SIGABRT)
            guard_module.send_to_groups([self.pid], signal.SIGCONT)

    def forward(self, number: int) -> None:
        """Send a signal to the whole group without expecting it to end."""
        guard_module.send_to_groups([self.pid], number)

    def kill(self) -> None:
        """Send SIGKILL to the whole group."""
        guard_module.send_to_groups([self.pid], signal.SIGKILL)

    def reap(self) -> None:
        """Reap the process if it has ended."""
        if self.exit_code is not None:
            self._child.wait()


class Guard:
    """Process that kills the tasks if the launcher is killed, see `orphan_guard.py`.

    Args:
        run_id: The launch's value of ESTIMATOR_PIPELINE_RUN_ID.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id

    def __enter__(self) -> Guard:
        self._child = _start(
            [sys.executable, "-I", "-S", str(Path(guard_module.__file__).resolve()), self._run_id],
            # Without these marks: inside an outer launch, the guard would count as one of its processes and be killed
            # together with this launcher.
            env={name: value for name, value in os.environ.items() if name not in guard_module.MARKS},
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return self

    def watch(self, group: int) -> None:
        """Add a process group to those that the guard kills."""
        self._send(f"{group}\n")

    def __exit__(self, *_: object) -> None:
        self._send("done\n")
        with contextlib.suppress(OSError):
            self._child.stdin.close()  # type: ignore[union-attr]
        self._child.wait()

    def _send(self, line: str) -> None:
        # Without the guard the job still has the kernel's parent-death signal.
        with contextlib.suppress(OSError):
            self._child.stdin.write(line.encode())  # type: ignore[union-attr]
            self._child.stdin.flush()  # type: ignore[union-attr]


def _start(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(command, **options)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.ENOMEM):
            raise
        raise ConfigError(
            f"no further process can be started here: {error.strerror}",
            code="launch/cannot-start",
            found=system_limits.describe_limits(),
            hint=system_limits.HINT,
        ) from error


_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_FORWARDED = (signal.SIGUSR1, signal.SIGUSR2)


class Interruptions:
    """Received signals that stop the launcher, and signals to forward to its tasks."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self.forwarded: list[int] = []

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        (self.forwarded if number in _FORWARDED else self.received).append(number)


@contextlib.contextmanager
def interruptions() -> Iterator[Interruptions]:
    """Collect SIGINT, SIGTERM and SIGHUP instead of exiting; on the main thread only.

    Also SIGUSR1 and SIGUSR2, which schedulers send as an early warning. A signal that is already ignored (`nohup`, a
    background job of a shell) is still ignored.
    """
    signals = Interruptions()
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (*_ENDING, *_FORWARDED):
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, signals.handle)
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
