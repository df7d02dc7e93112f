"""One task of a launch: its plan, its process once started, and what is known of it."""

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
from estimator_pipeline.launch.local.plan import TaskPlan
from estimator_pipeline.launch.local.processes import Process
from estimator_pipeline.launch.local.timeouts import TaskMonitor
from estimator_pipeline.launch.supervisor.ranks import Ranks
from estimator_pipeline.progress.log_reader import LogReader
from estimator_pipeline.progress.progress_file import (
    HEARTBEAT_FOLDER_VARIABLE,
    ProgressReader,
    Tail,
    TaskState,
    heartbeat_path,
)

__all__ = ["ChangeDetector", "Heartbeats", "RunningTask", "WriteProbe", "changed", "memory_kills", "size"]

_LOOK_SECS = 0.5
_PROBE_SECS = 1.0
# As much as any event takes, and as the last page of a file on a full disk does not have left.
_PROBE_BYTES = 8192


class ChangeDetector:
    """Whether a file or a folder changes: its own state, that of what is in it, and of what is in its folders.

    Args:
        path: It need not be there yet.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._seen = self._state()

    def look(self) -> bool:
        """Whether it has changed since the last look."""
        before, self._seen = self._seen, self._state()
        return self._seen != before

    def _state(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        self._add(self.path, found, levels=2)
        return found

    def _add(self, path: Path, found: dict[str, tuple[int, int]], *, levels: int) -> None:
        try:
            stat = path.stat()
            found[str(path)] = (stat.st_mtime_ns, stat.st_size)
            if levels and path.is_dir():
                for entry in list(os.scandir(path)):
                    self._add(Path(entry.path), found, levels=levels - 1)
        except OSError:
            return  # gone while we looked


class Heartbeats:
    """The heartbeats of the tasks that one command has started, on this machine or others: a file for each.

    Args:
        folder: Where they touch their files. Those that lie there already are of tasks before.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self._before = set(self._states())
        self._seen: dict[str, tuple[int, float]] = {}

    def look(self, now: float) -> dict[str, float]:
        """The name of each task's file, "HOST-PROCESS" -> when a heartbeat of it was last noticed."""
        found = {}
        for name, state in self._states().items():
            if name not in self._before and not self._is_dead(name):
                seen = self._seen.get(name)
                found[name] = (state, now) if seen is None or seen[0] != state else seen
        self._seen = found
        return {name: at for name, (_, at) in found.items()}

    def excuse(self, seconds: float, now: float) -> None:
        """Nobody has looked for so long."""
        self._seen = {name: (state, min(now, at + seconds)) for name, (state, at) in self._seen.items()}

    def _states(self) -> dict[str, int]:
        found = {}
        with contextlib.suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):  # gone while we looked
                    found[entry.name] = entry.stat().st_mtime_ns
        return found

    @staticmethod
    def _is_dead(name: str) -> bool:
        """Whether it was killed, as far as that can be seen from here: that is noticed otherwise, if it matters."""
        host, _, number = name.rpartition("-")
        return host == socket.gethostname() and number.isdecimal() and not psutil.pid_exists(int(number))


class WriteProbe:
    """Whether a folder can be written to, such as that in which tasks tell their steps.

    Args:
        folder: It is tried with a file in it, once a second at most, which is taken away again.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / f".room.{os.getpid()}"
        self._looked = -math.inf
        self._error: OSError | None = None

    def lacking(self, now: float) -> OSError | None:
        """Why it cannot be written to; None where it can."""
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
    """A task of a plan, its process once started, and what is known of it.

    Args:
        plan: What to start.
        foreign: Whether it is somebody else's program.
        watch: A file or folder whose changes count as news of this task; None for none.
    """

    def __init__(self, plan: TaskPlan, *, foreign: bool = True, watch: Path | None = None) -> None:
        self.plan = plan
        self.name = plan.name
        self.trains = plan.task.type in TRAINING_JOBS
        self.state = TaskState(self.name)
        # A folder that was used before holds the logs of then; this launch's begin where those end.
        self.log_offset = size(plan.log)
        self._progress = ProgressReader(plan.progress, offset=size(plan.progress))
        self._log = LogReader(plan.log, offset=self.log_offset)
        self._tells = False
        self._heartbeat = ChangeDetector(heartbeat_path(plan.progress))
        shared = plan.environ.get(HEARTBEAT_FOLDER_VARIABLE)
        self._heartbeats = Heartbeats(shared) if shared else None
        # Who of several tasks has failed, where one command starts all of them.
        self.ranks = Ranks(Tail(plan.log, offset=self.log_offset)) if shared else None
        self._watched = None if watch is None else ChangeDetector(watch)
        self._log_size = self.log_offset
        self._looked = 0.0
        self._memory_kills = 0
        self.monitor = TaskMonitor(trains=self.trains, foreign=foreign, now=time.monotonic())

    def start(self, base: Mapping[str, str]) -> None:
        """Start its process, with the plan's environment over `base`."""
        environ = {**base, **self.plan.environ}
        self._memory_kills = memory_kills()
        self.process = Process(self.plan.command, environ=environ, cores=self.plan.cores, log=self.plan.log)
        self.monitor.started = time.monotonic()
        self.state.pid = self.process.pid
        self.state.state = "running"

    @property
    def started(self) -> bool:
        """Whether its process was started."""
        return self.state.pid is not None

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self.started and self.process.exit_code is None

    @property
    def out_of_memory(self) -> bool:
        """Whether it was killed while the kernel killed for want of memory, which it counts, and not whom."""
        return self.state.exit_code == -signal.SIGKILL and memory_kills() > self._memory_kills

    @property
    def ended_as_asked(self) -> bool:
        """Whether it ended as it should when it was asked to: it has told so, or had not come to its first word.

        A program of ours hears signals from its first word on. Before that it imports, and dies of SIGTERM.
        """
        before_its_time = self.state.exit_code == -signal.SIGTERM and not self._tells and not self.monitor.foreign
        return self.state.preempted or before_its_time

    @property
    def left_early(self) -> str:
        """What it did, where it has ended with exit code 0 and its end is missing; "" where the code may be believed.

        A task of ours tells its result. Somebody else's program may tell nothing, and then its code counts; but a
        training that it has begun has an end.
        """
        state = self.state
        missing = state.begun if self.monitor.foreign else state.result is None and not state.preempted
        if state.exit_code != 0 or not missing:
            return ""
        at = "" if state.step is None else f" at step {state.step}"
        end = "the end of training" if self.trains and not state.trained else "the result"
        others = ", ".join(name for name in state.begun if name not in ("", self.name))
        return f"left with exit code 0{at} before {end}" + (f" of {others}" if others else "")

    def news(self) -> list[dict]:
        """The task's new events, which its state has taken over."""
        events = self._progress.read()
        # Heartbeats and warnings may come while it waits for the others to join, before it trains.
        self._tells = self._tells or any(event["event"] not in ("heartbeat", "warning") for event in events)
        if not self._tells:
            events += self._log.read()
        now = time.monotonic()
        for event in events:
            self.state.apply(event)
            self.monitor.event(event["event"], now)
            if self.ranks is not None:
                self.ranks.event(event)
        if self.ranks is not None:
            self.ranks.look(time.time())
        return events

    def listen(self, now: float) -> None:
        """Notice heartbeats, and a log that grows."""
        if now - self._looked < _LOOK_SECS:
            return
        self._looked = now
        if self._heartbeats is not None:
            self.monitor.beats(self._heartbeats.look(now))
        elif self._heartbeat.look():
            self.monitor.beat(now)
        before, self._log_size = self._log_size, size(self.plan.log)
        if self._log_size != before:
            self.monitor.grew(now)
        if self._watched is not None and self._watched.look():
            self.monitor.grew(now)

    def excuse(self, seconds: float, now: float) -> None:
        """Nobody has listened for so long, as when the whole machine stood still: that is no silence of the task."""
        self.monitor.excuse(seconds, now)
        if self._heartbeats is not None:
            self._heartbeats.excuse(seconds, now)


def memory_kills() -> int:
    """How many processes the kernel has killed for want of memory, of the machine or of a cgroup."""
    with contextlib.suppress(OSError, ValueError), open("/proc/vmstat") as counters:
        return next((int(line.split()[1]) for line in counters if line.startswith("oom_kill ")), 0)
    return 0


def size(path: Path) -> int:
    """The size of a file in bytes, 0 where it is not there."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def changed(path: Path) -> int:
    """When a file was last changed, in nanoseconds; 0 where it is not there."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
