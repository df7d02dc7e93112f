"""The Python stacks of a running job's tasks, asked for; the side of whoever asks. See `stack_dumps.py`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.launch.stacks.frames import own_lines_in, waiting_line
from estimator_pipeline.progress.stack_dumps import FOLDER, REQUEST
from estimator_pipeline.utils import durable_files as durable

__all__ = ["TaskStacks", "attempt_of", "is_log_folder", "newest_heartbeat", "request_stacks"]

_POLL_SECS = 0.2
# A heartbeat comes every two seconds; one so old is of a job that has ended, or of a task that is stopped.
_FRESH_SECS = 30.0
# So many seconds without one are more than a late look.
_MISSED_SECS = 6.0
_ATTEMPT = re.compile(r"attempt-(\d+)")
_HEARTS = "heartbeats"
_ENDED = "all of them have ended"
_TOLD = (b'"start"', b'"result"', b'"end"')


@dataclass(frozen=True)
class TaskStacks:
    """What a task has answered.

    Attributes:
        task: Its name, or that of its process where nobody has told it.
        process: "HOST-PROCESS"; "" where it is not known.
        stacks: Of all threads, as faulthandler writes them, the main one last; "" where it has not answered.
        missing: Why there is no answer, as far as that can be seen.
        ended: Whether it has none since it has ended meanwhile.
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
        """Where it stands, in a line or some."""
        if not self.stacks:
            return [f"{self.head} {self.missing}"]
        own = own_lines_in(self.stacks)
        return [f"{self.head} stands at {line}" for line in own] or [
            f"{self.head} is in {waiting_line(self.stacks) or 'no Python at all'}"
        ]


@dataclass
class _Heart:
    """A file that a task touches."""

    path: Path
    beat: float
    task: str = ""
    process: str = ""
    said_end: bool = False

    @property
    def shared(self) -> bool:
        """Whether it is one of several tasks of a command, each of which takes its file away at its end."""
        return self.path.parent.name == _HEARTS

    @property
    def name(self) -> str:
        return self.path.name.removesuffix(".heartbeat")


def is_log_folder(folder: Path) -> bool:
    """Whether a launch or a supervisor has its logs here."""
    return any(folder.glob("*.progress.jsonl")) or attempt_of(folder) != folder


def attempt_of(folder: Path) -> Path:
    """The folder of the newest attempt; the folder itself, where a job has one attempt alone."""
    found = [(int(match[1]), path) for path in folder.glob("attempt-*") if (match := _ATTEMPT.fullmatch(path.name))]
    return max(found)[1] if found else folder


def newest_heartbeat(folder: Path) -> float:
    """When a task of an attempt has sent its last one, in seconds since 1970; 0 for none."""
    return max((heart.beat for heart in _hearts(folder)), default=0.0)


def request_stacks(
    folder: Path, *, ranks: Sequence[str] = (), wanted: str | None = None, timeout: float = 15.0
) -> list[TaskStacks]:
    """Asks all tasks for their stacks, and waits for the answers of those that run.

    Args:
        folder: The logs of an attempt, or of a launch without attempts.
        ranks: The tasks' names by rank, where srun has started them.
        wanted: The task to look at; None for all.
        timeout: Seconds to wait.

    Returns:
        The tasks by name.

    Raises:
        ConfigError: The folder cannot be written to, no task of a running job is there, or not the one that is wanted.
    """
    try:
        asked = _ask(folder)
    except OSError as error:
        raise ConfigError(
            f"the tasks cannot be asked for their stacks: {folder} cannot be written to.",
            code="file/unwritable",
            found=error.strerror or str(error),
            hint="run this as the job's user, where the job's log folder is.",
        ) from None
    hearts = _hearts(folder)
    _name(hearts, folder)
    # A task may say its last word long before its process has ended.
    running = [one for one in hearts if not _is_gone(one) and not (one.said_end and asked - one.beat > _MISSED_SECS)]
    _refuse_ended(folder, hearts, running, asked)
    answers: dict[str, str] = {}
    deadline = time.monotonic() + timeout
    while True:
        for heart in running:
            if heart.name not in answers and (text := _answer(folder, heart.name, asked)):
                answers[heart.name] = text
        if all(one.name in answers or _is_gone(one) for one in running) or time.monotonic() >= deadline:
            break
        time.sleep(_POLL_SECS)
    latest = {heart.name: heart.beat for heart in _hearts(folder)}
    _name(running, folder)
    found = [
        _result(one, answers.get(one.name, ""), beats=latest.get(one.name), ranks=ranks, timeout=timeout)
        for one in running
    ]
    if all(one.ended for one in found):
        raise _nothing_runs(folder, _ENDED)
    if wanted is not None:
        known = ", ".join(sorted(one.task for one in found))
        found = [one for one in found if one.task == wanted]
        if not found:
            raise ConfigError(
                f"--task {wanted}: no such task runs.", code="jobs/not-found", found=f"tasks that run: {known}"
            )
    return sorted(found, key=_order)


def _order(one: TaskStacks) -> tuple[str, int, str]:
    kind, _, index = one.task.partition(":")
    return kind, int(index) if index.isdigit() else -1, one.process


def _ask(folder: Path) -> float:
    """Makes the request. Its time is that of the file system, as those of heartbeats and answers are."""
    durable.write(folder / REQUEST, b"", to_disk=False)
    return (folder / REQUEST).stat().st_mtime


def _hearts(folder: Path) -> list[_Heart]:
    found = []
    for path in [*folder.glob("*.heartbeat"), *folder.glob(f"{_HEARTS}/*")]:
        # Opened, since an NFS client may know the time of a file that is not open only by what it was a minute ago.
        with contextlib.suppress(OSError), open(path, "rb") as file:
            found.append(_Heart(path, os.fstat(file.fileno()).st_mtime))
    return found


def _name(hearts: Sequence[_Heart], folder: Path) -> None:
    """Takes over what tasks have told: their names, processes and ends."""
    told = {path.name.removesuffix(".progress.jsonl"): _told(path) for path in folder.glob("*.progress.jsonl")}
    names = {str(event.get("process")): str(event.get("task") or "") for events in told.values() for event in events}
    for heart in hearts:
        if heart.shared:
            heart.task, heart.process = names.get(heart.name, ""), heart.name
        else:
            events = told.get(heart.name, [])
            heart.task = ":".join(heart.name.rsplit("-", 1))
            heart.process = next((str(one["process"]) for one in reversed(events) if one.get("process")), "")
            heart.said_end = bool(events) and events[-1]["event"] != "start"


def _is_gone(heart: _Heart) -> bool:
    """Whether its process is no more, as far as that can be seen from here."""
    if heart.shared and not heart.path.exists():
        return True
    host, _, number = heart.process.rpartition("-")
    return host == socket.gethostname() and number.isdigit() and not psutil.pid_exists(int(number))


def _told(path: Path) -> list[dict]:
    """The first and the last words of trainings; a file of steps may be long."""
    found = []
    with contextlib.suppress(OSError), open(path, "rb") as lines:
        for line in lines:
            if any(word in line for word in _TOLD):
                with contextlib.suppress(ValueError):
                    event = json.loads(line)
                    if isinstance(event, dict) and event.get("event") in ("start", "result", "end"):
                        found.append(event)
    return found


def _refuse_ended(folder: Path, hearts: Sequence[_Heart], running: Sequence[_Heart], asked: float) -> None:
    if any(asked - heart.beat < _FRESH_SECS for heart in running):
        return
    (folder / REQUEST).unlink(missing_ok=True)
    last = max((heart.beat for heart in running), default=None)
    if last is not None:
        found = (
            f"the last heartbeat of a task is {asked - last:.0f} s old: they were killed, or all of them are stopped"
        )
    elif hearts:
        found = _ENDED
    else:
        found = "no heartbeat of a task: none has come to its training yet, or they run no engine of this package"
    raise _nothing_runs(folder, found)


def _nothing_runs(folder: Path, found: str) -> ConfigError:
    return ConfigError(
        f"no task runs that could be asked for its stacks, by {folder}.",
        code="jobs/not-found",
        found=found,
        hint="name a running job, or its log folder; `py-spy dump --pid N` on the task's machine asks any Python.",
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
    if beats is None or _is_gone(heart) or (heart.said_end and not beat):
        return TaskStacks(task, process, missing="has ended meanwhile", ended=True)
    missing = f"did not answer within {timeout:g} s"
    if beat:
        missing += "; it sends heartbeats: is it of an older version, or cannot write to the log folder?"
    elif timeout > _MISSED_SECS:
        missing += ", nor send heartbeats: it is stopped, or a call in C does not let go of the interpreter (GIL)"
    return TaskStacks(task, process, missing=missing)
