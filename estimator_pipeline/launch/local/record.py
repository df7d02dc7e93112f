"""Record of a launch: `launch.json` in its log folder, by which other processes find the launch and its end.

The launcher writes it when it starts, and again with `end` when it has ended. Progress, restarts and failures of
attempts are in the files that tasks and supervisor write.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from estimator_pipeline.launch.job_status import TaskFailure
from estimator_pipeline.launch.local.outcome import LaunchOutcome
from estimator_pipeline.launch.local.plan import make_log_folder
from estimator_pipeline.launch.scheduler import LAUNCH
from estimator_pipeline.launch.stacks.requests import attempt_of, is_log_folder, newest_heartbeat
from estimator_pipeline.utils import durable_files

__all__ = ["RECORD", "Launch", "is_launch", "read_launch", "record_launch"]

RECORD = LAUNCH
# Tasks send a heartbeat every two seconds; file systems of several machines may show it late.
_FRESH_SECS = 60.0


@dataclass(frozen=True)
class Launch:
    """A launch, from its record. Without one only the folder is known: an earlier version, or `supervise`, wrote it.

    Attributes:
        folder: The log folder.
        run_id: The run id.
        name: The name of the job, or of the program.
        model_dir: The model directory; "" for a program.
        tasks: The names of the tasks.
        command: The command of each task.
        host: The machine on which the launcher was started; "" without a record.
        pid: The launcher's process id there.
        process_start: The start of that process in clock ticks since the boot: a process that reuses the id has a
            different one.
        started: The time in seconds since 1970.
        grace: Seconds between SIGTERM and SIGKILL.
        end: The end: time, reason, exit_code, signal, seconds, why, and the first failure; None if none is recorded.
    """

    folder: Path
    run_id: str = ""
    name: str = ""
    model_dir: str = ""
    tasks: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    host: str = ""
    pid: int = 0
    process_start: int | None = None
    started: float = 0.0
    grace: float = 0.0
    end: Mapping[str, Any] | None = None

    @property
    def is_here(self) -> bool:
        """Whether its launcher was started on this machine, so that its process shows whether it runs."""
        return self.host == socket.gethostname()

    @property
    def is_running(self) -> bool:
        """Whether it runs: by its process, or on a different machine by the heartbeats of its tasks."""
        if self.end is not None:
            return False
        if self.is_here:
            return self.process_start is not None and _process_start(self.pid) == self.process_start
        return time.time() - self.last_active < _FRESH_SECS

    @property
    def last_active(self) -> float:
        """When it ended, or last showed that it runs, in seconds since 1970."""
        if self.end is not None:
            return float(self.end["time"])
        return max(self.started, newest_heartbeat(attempt_of(self.folder)))

    def document(self) -> dict[str, Any]:
        """Return it as a JSON document."""
        fields = {"scheduler": "local", "log_dir": str(self.folder), **self.__dict__}
        del fields["folder"]
        return fields


def record_launch(launch: Launch, run: Callable[[], LaunchOutcome]) -> LaunchOutcome:
    """Run a launch, and record its start and its end.

    Args:
        launch: The launch, without what describes this process.
        run: Runs it.

    Returns:
        The result of `run`.

    Raises:
        Exception: The error of `run`, which is recorded as its end.
    """
    pid = os.getpid()
    launch = replace(launch, host=socket.gethostname(), pid=pid, process_start=_process_start(pid), started=time.time())

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # From the record on, `cancel` may send it; `run` handles it otherwise once there are tasks to stop.
    before = signal.signal(signal.SIGTERM, stop)
    try:
        _write(launch)
        outcome = run()
    except BaseException as error:
        seconds = time.time() - launch.started
        _write(replace(launch, end=_end(LaunchOutcome.of_error(error, launch.run_id, launch.folder, seconds))))
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
    _write(replace(launch, end=_end(outcome)))
    return outcome


def is_launch(folder: Path) -> bool:
    """Return whether a folder is the log folder of a launch, or of a supervisor."""
    return os.path.isfile(folder / RECORD) or is_log_folder(folder)


def read_launch(folder: Path) -> Launch:
    """Read the record in a log folder."""
    folder = folder.absolute()
    try:
        known = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        values = {name: known[name] for name in Launch.__dataclass_fields__ if name in known}
        values |= {"tasks": tuple(known["tasks"]), "command": tuple(known["command"])}
        # The current path: the file system may be mounted elsewhere.
        return Launch(folder, **values)
    except (OSError, ValueError, KeyError, TypeError):
        return Launch(folder)


def _end(outcome: LaunchOutcome) -> dict[str, Any]:
    failure = outcome.failure
    return {
        "time": time.time(),
        "reason": outcome.reason,
        "exit_code": outcome.exit_code,
        "signal": outcome.signal,
        "seconds": outcome.seconds,
        "why": outcome.gave_up,
        "failure": None
        if failure is None
        else TaskFailure(
            task=failure.task,
            description=failure.head,
            error=failure.error,
            reason=outcome.reason,
            exit_code=failure.exit_code,
            attempt=len(outcome.attempts) or 1,
            log=os.path.relpath(failure.log, outcome.log_dir),
            time=time.time(),
        ).document(),
    }


def _write(launch: Launch) -> None:
    # Without a record the launch is judged by its heartbeats; what prevents the logs, too, is the launcher's error.
    with contextlib.suppress(OSError):
        make_log_folder(launch.folder)
        text = json.dumps(launch.document(), indent=1)
        durable_files.write(launch.folder / RECORD, text.encode() + b"\n", to_disk=launch.end is not None)


def _process_start(pid: int) -> int | None:
    """Return when a process started, in clock ticks since the boot; None if it does not run any more."""
    try:
        # proc(5): the state follows the name of the program, which may contain parentheses; starttime is field 22.
        state, *fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in ("Z", "X") else int(fields[18])
