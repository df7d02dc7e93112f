"""The processes of a launch: started, watched and ended, each with its group."""

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
    """How a process ended, in words: "exit code 3" or "signal SIGKILL"."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"signal {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"signal {-exit_code}"


class Process:
    """One task's program in a session and process group of its own, with its output in a log file.

    The thread that starts it must stay to its end: with that thread the kernel takes the process away too.

    Args:
        command: The program and its arguments.
        environ: Its whole environment.
        cores: The CPUs it may use; empty for all.
        log: Where standard output and standard error are appended.
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
            self._child = _start(  # The user's own program.
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
        self.asked_to_end: float | None = None
        self.exit_code: int | None = None

    def look(self) -> bool:
        """Whether it has ended. It stays a zombie until `reap`, lest somebody else get its group's number."""
        if self.exit_code is None:
            self.exit_code = self._ended()
            if self.exit_code is not None:
                self.seconds = time.monotonic() - self.started
        return self.exit_code is not None

    def _ended(self) -> int | None:
        if not hasattr(os, "waitid"):
            return self._child.poll()
        found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def ask_to_end(self) -> None:
        """SIGTERM to the whole group, once. A stopped process hears it, for it is let go on."""
        if self.asked_to_end is None:
            self.asked_to_end = time.monotonic()
            guard_module.send_to_groups([self.pid], signal.SIGTERM)
            guard_module.send_to_groups([self.pid], signal.SIGCONT)

    def ask_where_it_stands(self) -> None:
        """SIGABRT to the process itself, once: a Python under PYTHONFAULTHANDLER tells all its stacks, and ends."""
        if self.asked_to_end is None:
            self.asked_to_end = time.monotonic()
            guard_module.send([self.pid], signal.SIGABRT)
            guard_module.send_to_groups([self.pid], signal.SIGCONT)

    def pass_on(self, number: int) -> None:
        """A signal to the whole group, which it may answer as it likes."""
        guard_module.send_to_groups([self.pid], number)

    def kill(self) -> None:
        """SIGKILL to the whole group."""
        guard_module.send_to_groups([self.pid], signal.SIGKILL)

    def reap(self) -> None:
        """Let the kernel forget it, once it has ended."""
        if self.exit_code is not None:
            self._child.wait()


class Guard:
    """The small process that ends the tasks when this one is killed with SIGKILL. See `guard.py`.

    Args:
        run_id: The launch's value of ESTIMATOR_PIPELINE_RUN_ID.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id

    def __enter__(self) -> Guard:
        self._child = _start(
            [sys.executable, "-I", "-S", str(Path(guard_module.__file__).resolve()), self._run_id],
            # Not our own environment: inside another launch it would be one of that launch's processes,
            # and be killed together with the launcher that it stands for.
            env={name: value for name, value in os.environ.items() if name not in guard_module.MARKS},
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return self

    def watch(self, group: int) -> None:
        """Have this process group ended too."""
        self._say(f"{group}\n")

    def __exit__(self, *_: object) -> None:
        self._say("done\n")
        with contextlib.suppress(OSError):
            self._child.stdin.close()  # type: ignore[union-attr]
        self._child.wait()

    def _say(self, line: str) -> None:
        # A guard that someone killed takes nothing from the job, which has the kernel's death signal still.
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
            found=system_limits.in_words(),
            hint=system_limits.HINT,
        ) from error


_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)


class Interruptions:
    """The signals that asked the launcher to end, and those that are for its tasks, in the order they came."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self.passed_on: list[int] = []

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        (self.passed_on if number in _PASSED_ON else self.received).append(number)


@contextlib.contextmanager
def interruptions() -> Iterator[Interruptions]:
    """Collect SIGINT, SIGTERM and SIGHUP instead of dying of them; on the main thread only.

    SIGUSR1 and SIGUSR2 too, by which schedulers give an early warning. A signal that is ignored already (`nohup`, a
    background job of a shell) stays ignored.
    """
    got = Interruptions()
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (*_ENDING, *_PASSED_ON):
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, got.handle)
    try:
        yield got
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
