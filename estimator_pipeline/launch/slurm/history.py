"""What has become of a Slurm job's tasks, by what its supervisor wrote: `run-N/events.jsonl` and `output.log`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from estimator_pipeline.launch.history import read_events
from estimator_pipeline.launch.local.outcome import end_of
from estimator_pipeline.launch.slurm.logs import runs_of
from estimator_pipeline.launch.slurm.script import OUTPUT

__all__ = ["JobHistory", "TaskFailure", "history_of", "was_asked"]

_FAILURES = ("failed", "hung", "diverged")
_ENDS = ("done", "gave_up", "interrupted", "timeout")
# What the script says at its end where `scancel` or `cancel` has asked it to.
_ASKED = re.compile(r"job \d+: ended as asked, ")
_LAST_WORDS_BYTES = 4096


@dataclass(frozen=True)
class TaskFailure:
    """The task that failed first in an attempt, and how.

    Attributes:
        task: Its name.
        what: In one line, with the task's name.
        error: The exception that ended it, in one line; "" where none is known.
        reason: "failed", "hung" or "diverged".
        exit_code: As subprocess gives it.
        attempt: Which attempt of the run, from 1.
        run: The folder of the run: "run-0".
        log: The task's log, in the submission's folder; None where it is not known which.
        time: When, in seconds since 1970.
    """

    task: str
    what: str
    error: str
    reason: str
    exit_code: int | None
    attempt: int
    run: str
    log: str | None
    time: float

    def text(self) -> str:
        """For people."""
        said = f"{self.task}: {self.error}" if self.error else self.what
        return f"{said} ({self.log})" if self.log else said

    def document(self) -> dict[str, Any]:
        """As a JSON document."""
        return dict(self.__dict__)


@dataclass(frozen=True)
class JobHistory:
    """What is known of the newest run.

    Attributes:
        restarts: How often its tasks were started again in place.
        failure: The last one.
        end: How the supervisor ended it: "done", "gave_up", "interrupted" or "timeout"; "" where it did not say.
    """

    restarts: int = 0
    failure: TaskFailure | None = None
    end: str = ""


def history_of(folder: Path, tasks: Sequence[str]) -> JobHistory:
    """The history of a job, or of an array's element.

    Args:
        folder: With the runs.
        tasks: Names by rank.
    """
    runs = runs_of(folder)
    if not runs:
        return JobHistory()
    events = read_events(runs[-1])
    failed = [event for event in events if event.get("event") in _FAILURES]
    ends = [str(event["event"]) for event in events if event.get("event") in _ENDS]
    return JobHistory(
        restarts=sum(event.get("event") == "restart_in" for event in events),
        failure=_failure(failed[-1], runs[-1], tasks) if failed else None,
        end=ends[-1] if ends else "",
    )


def _failure(event: dict[str, Any], run: Path, tasks: Sequence[str]) -> TaskFailure:
    told, what = str(event.get("task") or ""), str(event.get("what") or "failed")
    # A task that ended before it could say its name is known by its rank alone.
    found = re.fullmatch(r"rank (\d+)", told)
    rank = int(found[1]) if found else tasks.index(told) if told in tasks else None
    task = tasks[rank] if rank is not None and rank < len(tasks) else told
    log = run / f"task-{rank}.log"
    code, at = event.get("exit_code"), event.get("time")
    return TaskFailure(
        task=task,
        what=what.replace(told, task, 1) if told else what,
        error=str(event.get("error") or ""),
        reason=str(event["event"]),
        exit_code=code if isinstance(code, int) else None,
        attempt=int(event.get("attempt") or 1),
        run=run.name,
        log=f"{run.name}/{log.name}" if rank is not None and log.is_file() else None,
        time=float(at) if isinstance(at, int | float) else 0.0,
    )


def was_asked(folder: Path) -> bool:
    """Whether the script itself was asked to end, and not only srun or a task: it says so as its last word."""
    lines = end_of(folder / OUTPUT, offset=0, limit=_LAST_WORDS_BYTES).rstrip().splitlines()
    return bool(lines and _ASKED.search(lines[-1]))
