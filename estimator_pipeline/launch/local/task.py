"""State of one task of a launch: its plan, its process and its progress."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from estimator_pipeline.launch.local.cores import TRAINING_JOBS
from estimator_pipeline.launch.local.outcome import DIVERGED, Failure, last_lines
from estimator_pipeline.launch.local.plan import TaskPlan
from estimator_pipeline.launch.local.processes import Process
from estimator_pipeline.launch.local.timeouts import TaskMonitor
from estimator_pipeline.launch.supervisor.ranks import MEMORY, NO_ALLOCATION, Ranks
from estimator_pipeline.progress.error_lines import error_in
from estimator_pipeline.progress.log_reader import log_event
from estimator_pipeline.progress.progress_file import (
    HEARTBEAT_FOLDER_VARIABLE,
    ProgressReader,
    Tail,
    TaskState,
    given_up_path,
    heartbeat_path,
)

__all__ = ["Heartbeats", "RunningTask", "WriteProbe", "changed", "memory_kills", "size"]

_LOOK_SECS = 0.5
# A process that uses less of a processor is idle: a server without work uses some thousandths.
_IDLE_SHARE = 0.05
_PROBE_SECS = 1.0
_DESCRIPTIONS = {"diverged": DIVERGED, "preempted": "was stopped from outside the job"}
# Enough lines for a long traceback.
_ERROR_LINES = 400
# Larger than any event, and larger than the free rest of a file's last page on a full disk.
_PROBE_BYTES = 8192


class Heartbeats:
    """Heartbeat files of the tasks that one command started, on any machine.

    Files that are in the folder already belong to earlier tasks.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self._before = set(self._states())
        self._seen: dict[str, tuple[int, float]] = {}

    def poll(self, now: float) -> dict[str, float]:
        """Return when each file, "HOST-PROCESS", was last seen to change."""
        seen = {}
        for name, state in self._states().items():
            if name not in self._before and not self._is_dead(name):
                before = self._seen.get(name)
                seen[name] = (state, now) if before is None or before[0] != state else before
        self._seen = seen
        return {name: at for name, (_, at) in seen.items()}

    def discount(self, seconds: float, now: float) -> None:
        """Discount a time in which this process did not poll."""
        self._seen = {name: (state, min(now, at + seconds)) for name, (state, at) in self._seen.items()}

    def _states(self) -> dict[str, int]:
        states = {}
        with contextlib.suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):  # removed in the meantime
                    states[entry.name] = entry.stat().st_mtime_ns
        return states

    @staticmethod
    def _is_dead(name: str) -> bool:
        """Return whether it is a process of this host that has exited."""
        host, _, number = name.rpartition("-")
        return host == socket.gethostname() and number.isdecimal() and not psutil.pid_exists(int(number))


class WriteProbe:
    """Checks whether a folder can be written to, by a temporary file, at most once a second."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / f".room.{os.getpid()}"
        self._looked = -math.inf
        self._error: OSError | None = None

    def check(self, now: float) -> OSError | None:
        """Return the error of a write; None if it succeeds."""
        if now - self._looked >= _PROBE_SECS:
            self._looked, self._error = now, self._try()
        return self._error

    def _try(self) -> OSError | None:
        try:
            target = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                if os.write(target, bytes(_PROBE_BYTES)) != _PROBE_BYTES:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            finally:
                os.close(target)
        except OSError as error:
            return error
        finally:
            with contextlib.suppress(OSError):
                self._path.unlink()
        return None


class RunningTask:
    """A task of a plan with its process and its progress.

    Args:
        plan: The task's plan.
        foreign: Whether the command is a user program, which may report no events.
    """

    def __init__(self, plan: TaskPlan, *, foreign: bool = True) -> None:
        self.plan = plan
        self.name = plan.name
        self.trains = plan.task.type in TRAINING_JOBS
        self.state = TaskState(self.name)
        # A folder that was used before holds older logs; this launch appends to them.
        self.log_offset = size(plan.log)
        self._progress = ProgressReader(plan.progress, offset=size(plan.progress))
        self._log = Tail(plan.log, offset=self.log_offset)
        self._has_events = False
        self._heartbeat = heartbeat_path(plan.progress)
        self._last_beat = changed(self._heartbeat)
        shared = plan.environ.get(HEARTBEAT_FOLDER_VARIABLE)
        self._heartbeats = Heartbeats(shared) if shared else None
        # Finds the failed task where one command starts several.
        output = Tail(plan.log, offset=self.log_offset)
        self.ranks = Ranks(output, logs=plan.log.parent.parent) if shared else None
        self._log_size = self.log_offset
        self._looked = 0.0
        self._memory_kills = 0
        self.process: Process
        # For the other tasks. An earlier launch with these logs may have left it.
        self.given_up = given_up_path(plan.progress, self.name)
        self.given_up.unlink(missing_ok=True)
        self.monitor = TaskMonitor(trains=self.trains, foreign=foreign, now=time.monotonic())
        self.starts = 0
        self._used = self._looked_at_use = self._busy = 0.0
        self._written = 0

    def start(self, base: Mapping[str, str]) -> None:
        """Start the process with the plan's environment added to `base`; again, if it has ended."""
        environ = {**base, **self.plan.environ}
        self._memory_kills = memory_kills()
        if self.starts:
            self.process.kill()  # its children
            self.process.reap()
            self.monitor = TaskMonitor(trains=self.trains, foreign=self.monitor.foreign, now=time.monotonic())
            self.state.exit_code = self.state.seconds = None
        self.starts += 1
        self.process = Process(self.plan.command, environ=environ, cores=self.plan.cores, log=self.plan.log)
        self.monitor.started = self._busy = self._looked_at_use = time.monotonic()
        self._used = 0.0
        self.state.pid = self.process.pid
        self.state.state = "running"

    @property
    def started(self) -> bool:
        """Whether its process was started."""
        return self.state.pid is not None

    @property
    def reports(self) -> bool:
        """Whether it has reported an event of training or evaluation, as this package's engines do."""
        return self._has_events

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self.started and self.process.exit_code is None

    @property
    def out_of_memory(self) -> bool:
        """Whether it was killed while the kernel's count of out-of-memory kills rose."""
        return self.state.exit_code == -signal.SIGKILL and memory_kills() > self._memory_kills

    @property
    def ended_preempted(self) -> bool:
        """Whether it ended as preempted: it reported so, or was killed by SIGTERM before its first event.

        A task of this package handles signals from its first event on, not during the imports.
        """
        during_imports = self.state.exit_code == -signal.SIGTERM and not self._has_events and not self.monitor.foreign
        return self.state.preempted or during_imports

    @property
    def early_exit(self) -> str:
        """A description of an exit with code 0 before its end; "" for other exits.

        A task of this package reports its result. A user program may report nothing, and then its exit code counts; but
        it must report the end of a training whose start it reported.
        """
        state = self.state
        missing = state.begun if self.monitor.foreign else state.result is None and not state.preempted
        if state.exit_code != 0 or not missing:
            return ""
        at = "" if state.step is None else f" at step {state.step}"
        end = "the end of training" if self.trains and not state.trained else "the result"
        others = ", ".join(name for name in state.begun if name not in ("", self.name))
        return f"left with exit code 0{at} before {end}" + (f" of {others}" if others else "")

    def failure(self, reason: str, tail: tuple[str, ...], *, caused_by: RunningTask | None = None) -> Failure:
        """Return its failure, if it has ended; for a command with several tasks, that of the first failed task.

        Args:
            reason: "failed", "diverged" or "preempted".
            tail: The last lines of its log.
            caused_by: The task that it reports as the cause of its failure. If that task still runs, it is reported as
                not answering.
        """
        code, log = self.process.exit_code or 0, self.plan.log
        description = _DESCRIPTIONS.get(reason, self.early_exit)
        if reason == "failed" and caused_by is not None and caused_by is not self and caused_by.alive:
            lines = last_lines(caused_by.plan.log, offset=caused_by.log_offset)
            silent = f"does not answer {self.name}"
            return Failure(caused_by.name, None, caused_by.plan.log, lines, silent, error=self.state.error)
        if reason == "failed" and self.ranks is not None:
            first = None if description else self.ranks.first()
            if first is not None:
                why = first.description
                return Failure(first.task, first.exit_code, log, tail, why, self.state.refusal, error=first.error)
            if not self.ranks.has_allocation:
                return Failure(self.name, code, log, tail, NO_ALLOCATION)
        if self.out_of_memory and not description:
            return Failure(self.name, code, log, tail, MEMORY)
        error = self.state.error if reason == "diverged" else ""
        if reason == "failed" and not description:
            error = self.state.error or error_in(last_lines(log, offset=self.log_offset, count=_ERROR_LINES))
        return Failure(self.name, code, log, tail, description, self.state.refusal, error=error)

    def poll_events(self) -> list[dict]:
        """Read the task's new events, apply them to its state and return them."""
        events = self._progress.read()
        # Heartbeats and warnings may come while it waits for the other tasks to start, before it trains.
        self._has_events = self._has_events or any(event["event"] not in ("heartbeat", "warning") for event in events)
        if not self._has_events:
            events += [event for line in self._log.lines() if (event := log_event(line))]
        now = time.monotonic()
        for event in events:
            self.state.apply(event)
            self.monitor.event(event["event"], now)
            if self.ranks is not None:
                self.ranks.event(event)
        if self.ranks is not None:
            self.ranks.poll(time.time())
        return events

    def poll_activity(self, now: float) -> None:
        """Check the heartbeats and the size of the log."""
        if now - self._looked < _LOOK_SECS:
            return
        self._looked = now
        if self._heartbeats is not None:
            self.monitor.record_heartbeats(self._heartbeats.poll(now))
        elif (beat := changed(self._heartbeat)) != self._last_beat:
            self._last_beat = beat
            self.monitor.beat(now)
        before, self._log_size = self._log_size, size(self.plan.log)
        if self._log_size != before:
            self.monitor.grew(now)

    def idle_secs(self, now: float) -> float:
        """Return how long the task has used no processor, written nothing to its log, and reported no event."""
        if now - self._looked_at_use >= _LOOK_SECS:
            used, written = self._processor_secs(), size(self.plan.log) + size(self.plan.progress)
            if used - self._used > _IDLE_SHARE * (now - self._looked_at_use) or written != self._written:
                self._busy = now
            self._used, self._written, self._looked_at_use = used, written, now
        return self._looked_at_use - self._busy

    def _processor_secs(self) -> float:
        with contextlib.suppress(psutil.Error):
            times = psutil.Process(self.process.pid).cpu_times()
            return times.user + times.system + times.children_user + times.children_system
        return 0.0

    def discount(self, seconds: float, now: float) -> None:
        """Discount a time without polls, such as that of a suspended machine."""
        self._busy = min(now, self._busy + seconds)
        self.monitor.discount(seconds, now)
        if self._heartbeats is not None:
            self._heartbeats.discount(seconds, now)


def memory_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory."""
    with contextlib.suppress(OSError, ValueError), open("/proc/vmstat") as counters:
        return next((int(line.split()[1]) for line in counters if line.startswith("oom_kill ")), 0)
    return 0


def size(path: Path) -> int:
    """Return the size of a file in bytes; 0 if it does not exist."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def changed(path: Path) -> int:
    """Return the modification time of a file in nanoseconds; 0 if it does not exist."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
