"""Outcome of a launch: the end of each task, the failure, and the job's result."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from estimator_pipeline.errors import PipelineError
from estimator_pipeline.launch.history import Attempt
from estimator_pipeline.launch.local.processes import end_name
from estimator_pipeline.launch.logs.noise import is_noise
from estimator_pipeline.progress.progress_file import TaskState
from estimator_pipeline.utils.jsonable import finite

__all__ = ["Failure", "LaunchOutcome", "TaskEnd", "combined_result", "end_of", "last_lines", "lines_of"]

# The description of a failure with exit code 3.
DIVERGED = "diverged"
_CHIEF_FIRST = ("chief:0", "worker:0")


@dataclass(frozen=True)
class TaskEnd:
    """The end of one task. The other fields are those of `progress.TaskState`.

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
        """Return it as a JSON document."""
        return {**self.__dict__, "log": str(self.log)}


@dataclass(frozen=True)
class Failure:
    """The task that failed first, independently of the others.

    Attributes:
        task: Its name.
        exit_code: Its exit code, or minus the number of the signal that ended it, as in `subprocess`. None for a task
            that did not end.
        log: Its log file.
        tail: The last lines of the log.
        description: The failure, where the exit code is not enough: "made no step for 60.1 s". In JSON: `what`.
        refusal: The error of bad input or diverged training that the task reported: code, what, found, hint.
        where: For a hung task, and those that made no step with it: the lines of user code that they were in, see
            `stacks.user_lines`.
        error: The exception in one line, as the task reported it or from the last traceback in its log.
    """

    task: str
    exit_code: int | None
    log: Path
    tail: tuple[str, ...]
    description: str = ""
    refusal: Mapping[str, str | None] | None = None
    where: tuple[str, ...] = ()
    error: str = ""

    @property
    def head(self) -> str:
        """The failure in one line; of a training that diverged, whose loss is a sum over its workers, the error."""
        if self.description == DIVERGED and self.error:
            return self.error
        ended = "failed" if self.exit_code is None else f"failed with {end_name(self.exit_code)}"
        # SIGBUS: a page of a memory-mapped file, such as a record file, cannot be read.
        unread = "a file could not be read (disk error), or was truncated meanwhile"
        why = self.error or (unread if self.exit_code == -signal.SIGBUS else "")
        return f"{self.task} {self.description or ended}" + (f": {why}" if why else "")

    def document(self) -> dict[str, Any]:
        """Return it as a JSON document."""
        document = {
            "task": self.task,
            "exit_code": self.exit_code,
            "log": str(self.log),
            "tail": list(self.tail),
            "what": self.description,
            "refusal": self.refusal,
            "where": list(self.where),
            "error": self.error,
        }
        optional = ("what", "refusal", "where", "error")
        return {key: value for key, value in document.items() if value or key not in optional}

    def text(self) -> str:
        """Format the failure as text: the error that the task reported, otherwise the end of the log."""
        if self.refusal is not None:
            ended = "" if self.exit_code is None else f" failed with {end_name(self.exit_code)}"
            return f"{self.task}{ended}: {PipelineError.from_dict(self.refusal)}\n  log: {self.log}"
        head = "\n".join(
            [self.head if self.head.endswith(".") else f"{self.head}.", *(f"{line}." for line in self.where)]
        )
        if not self.tail:
            return f"{head} Its log is empty: {self.log}"
        title = f"{head}\nThe" if self.where else f"{head} The"
        return "\n".join([f"{title} last lines of {self.log}:", *(f"  {self.task} | {line}" for line in self.tail)])


@dataclass(frozen=True)
class LaunchOutcome:
    """The outcome of a launch.

    Attributes:
        reason: "done", "failed", "hung", "diverged", "preempted", "interrupted" or "timeout".
        exit_code: The exit code for the launcher: 0; 1 for a failure, a hung task or a timeout; 2 if the failed task
            reported bad input by its exit code 2; 3 if training diverged; 75 if a task was stopped from outside the
            job and training is saved in a checkpoint; 128 plus the signal's number.
        seconds: The duration of the launch.
        tasks: The end of each task.
        failure: Set if `reason` is "failed", "hung", "diverged" or "preempted".
        result: The job's result, see `combined_result`; None if no task reported anything.
        notes: The launcher's messages.
        warnings: The warnings of the tasks, each once.
        signal: The signal that stopped the launcher, or that it forwarded, if any.
        attempts: The attempts under a supervisor; see `history.Attempt`.
        gave_up: Under a supervisor, why there was no further attempt.
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
    warnings: tuple[str, ...] = ()
    signal: int | None = None
    attempts: tuple[Attempt, ...] = ()
    gave_up: str = ""

    @classmethod
    def of_error(cls, error: BaseException, run_id: str, log_dir: Path, seconds: float) -> LaunchOutcome:
        """Return the outcome of an error in the launcher, or of a second Ctrl-C."""
        reason, code, why = "failed", 1, " ".join(f"{type(error).__name__}: {error}".split())
        if isinstance(error, KeyboardInterrupt):
            reason, code, why = "interrupted", 128 + signal.SIGINT, "stopped by SIGINT"
        elif isinstance(error, PipelineError):
            code = error.exit_code
        return cls(reason, code, seconds, run_id, log_dir, tasks=(), gave_up=why)

    @property
    def ok(self) -> bool:
        """Whether the job succeeded."""
        return self.exit_code == 0

    def document(self) -> dict[str, Any]:
        """Return it as a JSON document."""
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
                "warnings": list(self.warnings),
                "attempts": [attempt.document() for attempt in self.attempts],
                "gave_up": self.gave_up or None,
            }
        )


def combined_result(states: Sequence[TaskState]) -> dict[str, Any] | None:
    """Combine the job's result from its tasks' events; None if nothing is known.

    The chief's `result` event counts, else any other task's, else the tasks' steps and evaluations. The result is a
    mapping with `global_step`, `metrics`, `exports`, `steps` (of each training task), `source` ("result" or "log")
    and the other fields of the event.
    """
    ordered = sorted(states, key=lambda state: state.task not in _CHIEF_FIRST)
    steps = {
        state.task: count
        for state in states
        if state.trains and (count := state.step if state.steps is None else state.steps) is not None
    }
    result = next((state.result for state in ordered if state.result is not None), None)
    if result is not None:
        exports = result.get("exports") or [path for state in states for path in state.exports]
        # The last step event of a task may be some steps old.
        reports = result.get("tasks") or {}
        steps = {task: reports.get(task, {}).get("steps", seen) for task, seen in steps.items()}
        return {**result, "exports": exports, "steps": steps, "source": "result"}
    evaluations = [state.evaluation for state in states if state.evaluation is not None]
    if not steps and not evaluations:
        return None
    last: Mapping[str, Any] = max(evaluations, key=lambda evaluation: evaluation["step"] or 0, default={})
    reached = [state.step for state in states if state.step is not None]
    return {
        "global_step": last.get("step") or max(reached, default=None),
        "metrics": last.get("metrics", {}),
        "exports": [path for state in states for path in state.exports],
        "steps": steps,
        "source": "log",
    }


def last_lines(log: Path, *, count: int = 20, offset: int = 0, limit: int = 64 * 1024) -> tuple[str, ...]:
    """Return the last `count` lines of a log, without TensorFlow's startup messages.

    At most `limit` bytes are read, from the byte `offset` at which this launch's part of the file begins.
    """
    lines = end_of(log, offset=offset, limit=limit).rstrip().splitlines()
    return tuple([line for line in lines if not is_noise(line)][-count:])


def lines_of(log: Path, count: int) -> tuple[str, ...]:
    """Return the last lines of a log that `logs --failed` shows, 0 for all; see `last_lines`."""
    return last_lines(log, count=count, limit=1024 * 1024 if count else sys.maxsize)


def end_of(log: Path, *, offset: int, limit: int) -> str:
    """Return the end of a log as text, "" if it cannot be read; see `last_lines`."""
    try:
        with open(log, "rb") as source:
            end = source.seek(0, 2)
            source.seek(max(offset, end - limit))
            return source.read().decode("utf-8", "replace")
    except OSError:
        return ""
