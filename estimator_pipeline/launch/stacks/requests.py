"""Requests for the Python stacks of tasks, which answer by `stack_dumps.py`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.launch.stacks.frames import user_lines_in, waiting_line
from estimator_pipeline.progress.stack_dumps import FOLDER, REQUEST
from estimator_pipeline.utils import durable_files as durable
from estimator_pipeline.utils.deadline import Deadline

__all__ = ["TaskStacks", "attempt_of", "attempts_of", "is_log_folder", "newest_heartbeat", "request_stacks"]

_POLL_SECS = 0.2
# Tasks send a heartbeat every two seconds; if it is older than this, the job has ended or the task is suspended.
_FRESH_SECS = 30.0
# Without a heartbeat for this time, heartbeats are missing and not only late.
_MISSED_SECS = 6.0
_ATTEMPT = re.compile(r"attempt-(\d+)")
_HEARTS = "heartbeats"
_ENDED = "all of them have ended"
_EVENTS = (b'"start"', b'"result"', b'"end"')


@dataclass(frozen=True)
class TaskStacks:
    """The answer of a task.

    Attributes:
        task: Its name, or that of its process if no name was reported.
        process: "HOST-PROCESS"; "" if unknown.
        stacks: The stacks of all threads in the format of faulthandler, the main thread last; "" without an answer.
        missing: The probable reason for a missing answer.
        ended: Whether the answer is missing because the task has ended.
    """

    task: str
    process: str = ""
    stacks: str = ""
    missing: str = ""
    ended: bool = False

    @property
    def head(self) -> str:
        """Its name and process: "worker:1 (process 4711 on node-1)"."""
        host, _, number = self.process.rpartition("-")
        return f"{self.task} (process {number} on {host})" if host and self.task != self.process else self.task

    def lines(self) -> list[str]:
        """Format its current position, in one or more lines."""
        if not self.stacks:
            return [f"{self.head} {self.missing}"]
        lines = user_lines_in(self.stacks)
        return [f"{self.head} is at {line}" for line in lines] or [
            f"{self.head} is in {waiting_line(self.stacks) or 'no Python code'}"
        ]


@dataclass
class _Heart:
    """A heartbeat file of a task."""

    path: Path
    beat: float
    task: str = ""
    process: str = ""
    reported_end: bool = False

    @property
    def shared(self) -> bool:
        """Whether it is one of a command's tasks, which delete the file when they exit."""
        return self.path.parent.name == _HEARTS

    @property
    def name(self) -> str:
        return self.path.name.removesuffix(".heartbeat")


def is_log_folder(folder: Path) -> bool:
    """Return whether a folder has the logs of a launch or of a supervisor."""
    return any(folder.glob("*.progress.jsonl")) or attempt_of(folder) != folder


def attempts_of(folder: Path) -> list[Path]:
    """Return the folders of the attempts in their order; only the folder itself without attempts."""
    attempts = [(int(match[1]), path) for path in folder.glob("attempt-*") if (match := _ATTEMPT.fullmatch(path.name))]
    return [path for _, path in sorted(attempts)] or [folder]


def attempt_of(folder: Path) -> Path:
    """Return the folder of the newest attempt; the folder itself without attempts."""
    return attempts_of(folder)[-1]


def newest_heartbeat(folder: Path) -> float:
    """Return the time of the last heartbeat in seconds since 1970; 0 for none."""
    return max((heart.beat for heart in _hearts(folder)), default=0.0)


def request_stacks(
    folder: Path, *, ranks: Sequence[str] = (), wanted: str | None = None, timeout: float = 15.0
) -> list[TaskStacks]:
    """Request the stacks of all tasks, and wait for the answers of the running ones.

    Args:
        folder: The log folder of an attempt, or of a launch without attempts.
        ranks: The tasks' names by rank, if srun started them.
        wanted: The task to return; None for all.
        timeout: Seconds to wait.

    Returns:
        The answers, sorted by task.

    Raises:
        ConfigError: The folder cannot be written to, or no task, or not the wanted one, is running.
    """
    try:
        asked = _ask(folder)
    except OSError as error:
        raise ConfigError(
            f"the stacks of the tasks cannot be requested: {folder} cannot be written to.",
            code="file/unwritable",
            found=error.strerror or str(error),
            hint="run this as the job's user, where the job's log folder is.",
        ) from None
    hearts = _hearts(folder)
    _name(hearts, folder)
    # A task may report its end long before its process exits.
    running = [
        heart
        for heart in hearts
        if not _is_gone(heart) and not (heart.reported_end and asked - heart.beat > _MISSED_SECS)
    ]
    _check_running(folder, hearts, running, asked)
    answers: dict[str, str] = {}
    for _ in Deadline(timeout).polls(_POLL_SECS):
        for heart in running:
            if heart.name not in answers and (text := _answer(folder, heart.name, asked)):
                answers[heart.name] = text
        if all(heart.name in answers or _is_gone(heart) for heart in running):
            break
    latest = {heart.name: heart.beat for heart in _hearts(folder)}
    _name(running, folder)
    tasks = [
        _result(heart, answers.get(heart.name, ""), beats=latest.get(heart.name), ranks=ranks, timeout=timeout)
        for heart in running
    ]
    if all(stacks.ended for stacks in tasks):
        raise _nothing_runs(folder, _ENDED)
    if wanted is not None:
        known = ", ".join(sorted(stacks.task for stacks in tasks))
        tasks = [stacks for stacks in tasks if stacks.task == wanted]
        if not tasks:
            raise ConfigError(
                f"--task {wanted}: this task is not running.", code="jobs/not-found", found=f"running tasks: {known}"
            )
    return sorted(tasks, key=_order)


def _order(stacks: TaskStacks) -> tuple[str, int, str]:
    kind, _, index = stacks.task.partition(":")
    return kind, int(index) if index.isdigit() else -1, stacks.process


def _ask(folder: Path) -> float:
    """Write the request; return its time by the clock of the file system."""
    durable.write(folder / REQUEST, b"", to_disk=False)
    return (folder / REQUEST).stat().st_mtime


def _hearts(folder: Path) -> list[_Heart]:
    hearts = []
    for path in [*folder.glob("*.heartbeat"), *folder.glob(f"{_HEARTS}/*")]:
        # An NFS client may cache the time of a file for a minute unless it is opened.
        with contextlib.suppress(OSError), open(path, "rb") as file:
            hearts.append(_Heart(path, os.fstat(file.fileno()).st_mtime))
    return hearts


def _name(hearts: Sequence[_Heart], folder: Path) -> None:
    """Set the tasks' names, processes and ends from their events."""
    reported = {path.name.removesuffix(".progress.jsonl"): _events(path) for path in folder.glob("*.progress.jsonl")}
    names = {
        str(event.get("process")): str(event.get("task") or "") for events in reported.values() for event in events
    }
    for heart in hearts:
        if heart.shared:
            heart.task, heart.process = names.get(heart.name, ""), heart.name
        else:
            events = reported.get(heart.name, [])
            heart.task = ":".join(heart.name.rsplit("-", 1))
            heart.process = next((str(event["process"]) for event in reversed(events) if event.get("process")), "")
            heart.reported_end = bool(events) and events[-1]["event"] != "start"


def _is_gone(heart: _Heart) -> bool:
    """Return whether its process is known to have exited."""
    if heart.shared and not heart.path.exists():
        return True
    host, _, number = heart.process.rpartition("-")
    return host == socket.gethostname() and number.isdigit() and not psutil.pid_exists(int(number))


def _events(path: Path) -> list[dict]:
    """Read the first and last events of trainings, without the many steps."""
    events = []
    with contextlib.suppress(OSError), open(path, "rb") as lines:
        for line in lines:
            if any(word in line for word in _EVENTS):
                with contextlib.suppress(ValueError):
                    event = json.loads(line)
                    if isinstance(event, dict) and event.get("event") in ("start", "result", "end"):
                        events.append(event)
    return events


def _check_running(folder: Path, hearts: Sequence[_Heart], running: Sequence[_Heart], asked: float) -> None:
    if any(asked - heart.beat < _FRESH_SECS for heart in running):
        return
    (folder / REQUEST).unlink(missing_ok=True)
    last = max((heart.beat for heart in running), default=None)
    if last is not None:
        state = f"the last heartbeat of a task is {asked - last:.0f} s old: the tasks were killed, or are suspended"
    elif hearts:
        state = _ENDED
    else:
        state = "no heartbeat of a task: none has started its training yet, or they do not run this package's engines"
    raise _nothing_runs(folder, state)


def _nothing_runs(folder: Path, found: str) -> ConfigError:
    return ConfigError(
        f"no running task with its log in {folder}, so there are no stacks to show.",
        code="jobs/not-found",
        found=found,
        hint="name a running job, or its log folder; `py-spy dump --pid N` on the task's machine works for any Python.",
    )


def _answer(folder: Path, name: str, asked: float) -> str:
    try:
        with open(folder / FOLDER / name, encoding="utf-8", errors="replace") as file:
            return file.read() if os.fstat(file.fileno()).st_mtime >= asked else ""
    except OSError:
        return ""


def _result(heart: _Heart, answer: str, *, beats: float | None, ranks: Sequence[str], timeout: float) -> TaskStacks:
    head, _, stacks = answer.partition("\n")
    process, _, rank = head.partition(" rank ")
    by_rank = ranks[int(rank)] if rank.isdigit() and int(rank) < len(ranks) else ""
    task, process = heart.task or by_rank or heart.name, process or heart.process
    if answer:
        return TaskStacks(task, process, stacks.strip("\n"))
    beat = beats is not None and beats > heart.beat
    if beats is None or _is_gone(heart) or (heart.reported_end and not beat):
        return TaskStacks(task, process, missing="has ended meanwhile", ended=True)
    missing = f"did not answer within {timeout:g} s"
    if beat:
        missing += "; it sends heartbeats: it may be of an older version, or cannot write to the log folder"
    elif timeout > _MISSED_SECS:
        missing += ", nor send heartbeats: it is suspended, or a call in C holds the interpreter's lock (GIL)"
    return TaskStacks(task, process, missing=missing)
