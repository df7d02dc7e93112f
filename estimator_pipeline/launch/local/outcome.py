"""How a launch ended: each task, the failure if there was one, and the job's result."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from estimator_pipeline.launch.history import Attempt
from estimator_pipeline.launch.local.processes import end_name
from estimator_pipeline.launch.logs.noise import is_noise
from estimator_pipeline.progress.progress_file import TaskState
from estimator_pipeline.utils.jsonable import finite

__all__ = ["Failure", "LaunchOutcome", "TaskEnd", "combined_result", "end_of", "last_lines"]

_CHIEF_FIRST = ("chief:0", "worker:0")


@dataclass(frozen=True)
class TaskEnd:
    """How one task ended. The fields are those of `progress.TaskState`.

    Attributes:
        log: Its log file.
    """

    task: str
    pid: int | None
    state: str
    exit_code: int | None
    seconds: float | None
    step: int | None
    log: Path

    def document(self) -> dict[str, Any]:
        """As a JSON document."""
        return {**self.__dict__, "log": str(self.log)}


@dataclass(frozen=True)
class Failure:
    """The first task that failed by itself.

    Attributes:
        task: Its name.
        exit_code: As subprocess gives it: minus the signal's number when a signal ended it. None for a task that
            did not end.
        log: Its log file.
        tail: The last lines of it.
        what: What it did, where the exit code does not say it: "made no step for 60.1 s".
        refusal: The error of a task of ours that refused its input, as it told it: code, what, found, hint.
        where: Of a task that hung, and of those that made no step with it: where the job's own code stood, see
            :func:`stacks.own_lines`.
        error: The exception that ended it, in one line, as it told it or as the last traceback of its log has it.
    """

    task: str
    exit_code: int | None
    log: Path
    tail: tuple[str, ...]
    what: str = ""
    refusal: Mapping[str, str | None] | None = None
    where: tuple[str, ...] = ()
    error: str = ""

    @property
    def head(self) -> str:
        """The failure in one line."""
        ended = "failed" if self.exit_code is None else f"failed with {end_name(self.exit_code)}"
        # What the kernel says of a page of a mapped file, as record files are read.
        unread = "a file could not be read (a disk that fails), or was made shorter meanwhile"
        why = self.error or (unread if self.exit_code == -signal.SIGBUS else "")
        return f"{self.task} {self.what or ended}" + (f": {why}" if why else "")

    def document(self) -> dict[str, Any]:
        """As a JSON document."""
        found = {**self.__dict__, "log": str(self.log), "tail": list(self.tail), "where": list(self.where)}
        return {key: value for key, value in found.items() if value or key not in ("what", "refusal", "where", "error")}

    def text(self) -> str:
        """The failure for people."""
        head = "\n".join(
            [self.head if self.head.endswith(".") else f"{self.head}.", *(f"{line}." for line in self.where)]
        )
        if not self.tail:
            return f"{head} Its log is empty: {self.log}"
        said = f"{head}\nThe" if self.where else f"{head} The"
        return "\n".join([f"{said} last lines of {self.log}:", *(f"  {self.task} | {line}" for line in self.tail)])


@dataclass(frozen=True)
class LaunchOutcome:
    """How a launch ended.

    Attributes:
        reason: "done", "failed", "hung", "diverged", "preempted", "interrupted" or "timeout".
        exit_code: What the launcher should exit with: 0; 1 for a failure, a hung task or a time-out; 2 when the task
            that failed said with its own exit code 2 that its input was bad; 3 when training diverged; 75 when a
            task was asked to end by somebody else, and training stands in a checkpoint; 128 plus the signal's number.
        seconds: How long the launch took.
        tasks: How each task ended.
        failure: Where `reason` is "failed", "hung", "diverged" or "preempted".
        result: What the job came to, see :func:`combined_result`; None where no task told anything.
        notes: What the launcher had to say on the way.
        signal: The signal that asked the launcher to end, or that it passed on, if one came.
        attempts: What was tried, under a supervisor; see `history.Attempt`.
        gave_up: Why there was no further attempt, under a supervisor.
    """

    reason: str
    exit_code: int
    seconds: float
    run_id: str
    log_dir: Path
    tasks: tuple[TaskEnd, ...]
    failure: Failure | None = None
    result: dict[str, Any] | None = None
    notes: tuple[str, ...] = field(default=())
    signal: int | None = None
    attempts: tuple[Attempt, ...] = ()
    gave_up: str = ""

    @property
    def ok(self) -> bool:
        """Whether the job did what it should."""
        return self.exit_code == 0

    def document(self) -> dict[str, Any]:
        """As a JSON document."""
        failure = None if self.failure is None else self.failure.document()
        return finite(
            {
                "run_id": self.run_id,
                "reason": self.reason,
                "exit_code": self.exit_code,
                "seconds": round(self.seconds, 3),
                "log_dir": str(self.log_dir),
                "tasks": [task.document() for task in self.tasks],
                "failure": failure,
                "result": self.result,
                "notes": list(self.notes),
                "attempts": [attempt.document() for attempt in self.attempts],
                "gave_up": self.gave_up or None,
            }
        )


def combined_result(states: Sequence[TaskState]) -> dict[str, Any] | None:
    """The job's result from what its tasks told.

    The chief's `result` event counts; without one any other task's; without any, what the tasks' steps and
    evaluations say.

    Args:
        states: What is known of each task.

    Returns:
        None where nothing is known, else a mapping with `global_step`, `metrics`, `exports`, `steps` (of each
        task that trains), `source` ("result" or "log") and whatever else the result event had.
    """
    ordered = sorted(states, key=lambda state: state.task not in _CHIEF_FIRST)
    steps = {
        state.task: own
        for state in states
        if state.trains and (own := state.step if state.steps is None else state.steps) is not None
    }
    told = next((state.result for state in ordered if state.result is not None), None)
    if told is not None:
        exports = told.get("exports") or [path for state in states for path in state.exports]
        # What a task was last seen at may be some steps old.
        reports = told.get("tasks") or {}
        steps = {task: reports.get(task, {}).get("steps", seen) for task, seen in steps.items()}
        return {**told, "exports": exports, "steps": steps, "source": "result"}
    evaluations = [state.evaluation for state in states if state.evaluation is not None]
    if not steps and not evaluations:
        return None
    last: Mapping[str, Any] = max(evaluations, key=lambda one: one["step"] or 0, default={})
    reached = [state.step for state in states if state.step is not None]
    return {
        "global_step": last.get("step") or max(reached, default=None),
        "metrics": last.get("metrics", {}),
        "exports": [path for state in states for path in state.exports],
        "steps": steps,
        "source": "log",
    }


def last_lines(log: Path, *, count: int = 20, offset: int = 0, limit: int = 64 * 1024) -> tuple[str, ...]:
    """The last lines of a log, without what TensorFlow says at its start.

    Args:
        log: The file.
        count: How many lines.
        offset: Where this launch's own part begins, in bytes.
        limit: How many bytes to look at, at most.
    """
    lines = end_of(log, offset=offset, limit=limit).rstrip().splitlines()
    return tuple([line for line in lines if not is_noise(line)][-count:])


def end_of(log: Path, *, offset: int, limit: int) -> str:
    """The end of a log as text, "" where it cannot be read; see :func:`last_lines`."""
    try:
        with open(log, "rb") as source:
            end = source.seek(0, 2)
            source.seek(max(offset, end - limit))
            return source.read().decode("utf-8", "replace")
    except OSError:
        return ""
