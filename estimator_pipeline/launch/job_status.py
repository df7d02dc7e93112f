"""Status of submitted jobs, whichever scheduler runs them: lines, table, and JSON document."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from estimator_pipeline.launch.pace import Paces, Straggler
from estimator_pipeline.progress.progress_file import ProgressReader, TaskState
from estimator_pipeline.utils.remaining_time import percent, seconds_left, step_text, time_text

__all__ = [
    "JobEntry",
    "JobRow",
    "JobStatus",
    "TaskFailure",
    "job_progress",
    "job_table",
    "progress_text",
    "read_progress",
    "status_json",
    "status_lines",
]

_HEADER = ("JOB", "NAME", "STATE", "STEP", "%", "STEPS/S", "LEFT", "RESTARTS", "MODEL DIR", "LAST FAILURE")
_OLD_SECS = 120.0


# Progress and failures -------------------------------------------------------------------------------------------


def job_progress(state: TaskState, **others: Any) -> dict[str, Any]:
    """Return the progress of a job: a JSON document without the fields that are not known.

    Args:
        state: What its tasks have reported: step, max_steps, loss, steps_per_sec, checkpoint, evaluation.
        others: Further fields, or others than those of `state`: result, straggler, warning; `time` of the last report.
    """
    names = ("step", "max_steps", "steps_per_sec", "checkpoint", "evaluation")
    progress = {name: getattr(state, name) for name in names} | {"loss": state.step_loss} | others
    return {name: value for name, value in progress.items() if value is not None}


def read_progress(attempts: Iterable[Sequence[Path]]) -> dict[str, Any]:
    """Read the progress that the tasks of a job have reported in the newest attempt with a step.

    Of a newer attempt without steps, `warning` is the last warning, mostly about tasks that do not start, and `stage`
    what its chief does.

    Args:
        attempts: The progress files of each attempt, the newest attempt first.
    """
    newer: dict[str, Any] = {}
    for files in attempts:
        state, step, paces, at = TaskState("all"), -1, Paces(), None
        texts: dict[str, str] = {}
        events = [event for file in files for event in ProgressReader(file).read()]
        for event in sorted(events, key=_time_of) if len(files) > 1 else events:
            state.apply(event)
            at = event.get("time", at)
            if event["event"] == "pace":
                paces.update(event)
            step = max(step, state.step if state.step is not None else -1)
            if event["event"] in ("warning", "stage") and event.get("text"):
                texts[event["event"]] = str(event["text"])
        if step >= 0:
            return job_progress(
                state,
                step=step,
                result=state.result,
                straggler=None if paces.slow is None else paces.slow.document(),
                time=at if isinstance(at, int | float) else None,
                **newer,
            )
        newer = newer or texts
    return newer


def _time_of(event: Mapping[str, Any]) -> float:
    at = event.get("time")
    return float(at) if isinstance(at, int | float) else 0.0


def progress_text(progress: Mapping[str, Any], *, ended: bool = False, now: float | None = None) -> str:
    """Format progress (see `job_progress`) as text; of a job that has ended without warnings and its age."""
    step, last, rate = (progress.get(name) for name in ("step", "max_steps", "steps_per_sec"))
    parts = [] if step is None else [step_text(step, last)]
    if "loss" in progress:
        parts.append(f"loss {progress['loss']:.4g}")
    if rate is not None and "result" not in progress:
        parts.append(f"{rate:.4g} steps/s")
    left = None if ended or "result" in progress else seconds_left(step, last, rate)
    if left and left >= 1:
        parts.append(f"{time_text(left)} left")
    if "checkpoint" in progress:
        parts.append(f"checkpoint {progress['checkpoint']}")
    evaluation = progress.get("evaluation")
    if evaluation:
        metrics = {name: value for name, value in evaluation["metrics"].items() if name != "global_step"}
        shown = " ".join(f"{name} {value:.4g}" for name, value in metrics.items() if isinstance(value, int | float))
        parts.append(f"evaluated at step {evaluation['step']}: {shown}")
    slow = progress.get("straggler")
    if slow and "result" not in progress:
        parts.append(Straggler(**{name: slow[name] for name in ("task", "wait_ms", "step_ms", "input_ms")}).text())
    parts += [progress[name] for name in ("stage", "warning") if name in progress and not ended]
    age = 0.0 if ended or "time" not in progress else (time.time() if now is None else now) - progress["time"]
    if age > _OLD_SECS:
        parts.append(f"reported {time_text(age)} ago")
    return ", ".join(parts)


@dataclass(frozen=True)
class TaskFailure:
    """The task that failed first in an attempt.

    Attributes:
        task: Its name.
        description: The failure in one line, with the task's name. In JSON: `what`.
        error: The exception in one line; "" if unknown, or if `description` has it.
        reason: "failed", "hung" or "diverged".
        exit_code: The exit code as in `subprocess`.
        attempt: The number of the attempt in the run, from 1.
        run: The run in which it failed, such as its folder "run-0"; "" if the scheduler does not number runs.
        log: The place of the task's log: a file relative to the submission's folder, or a pod; None if unknown.
        time: The time in seconds since 1970.
    """

    task: str
    description: str
    error: str = ""
    reason: str = "failed"
    exit_code: int | None = None
    attempt: int = 1
    run: str = ""
    log: str | None = None
    time: float = 0.0

    @classmethod
    def of_event(cls, event: Mapping[str, Any], *, task: str, log: Path, below: Path, run: str = "") -> TaskFailure:
        """Return the failure that an event in a history describes.

        Args:
            event: See `history.last_failed`.
            task: The task's name, which the event may not have.
            log: Its log, which may not exist.
            below: The folder to which `TaskFailure.log` is relative.
            run: See `TaskFailure.run`.
        """
        name, description = str(event.get("task") or ""), str(event.get("what") or "failed")
        code = event.get("exit_code")
        return cls(
            task=task,
            description=description.replace(name, task, 1) if name else description,
            error=str(event.get("error") or ""),
            reason=str(event["event"]),
            exit_code=code if isinstance(code, int) else None,
            attempt=int(event.get("attempt") or 1),
            run=run,
            log=str(log.relative_to(below)) if log.is_file() else None,
            time=_time_of(event),
        )

    def text(self) -> str:
        """Format the failure in one line."""
        names_task = self.reason != "diverged"  # the error names the worker whose loss it was, if it is known
        text = (f"{self.task}: {self.error}" if names_task else self.error) if self.error else self.description
        return f"{text} ({self.log})" if self.log else text

    def document(self) -> dict[str, Any]:
        """Return the failure as a JSON document."""
        return {"what" if name == "description" else name: value for name, value in self.__dict__.items()}


# Status of a job -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Presentation:
    """What the JSON document of a status does not contain.

    Attributes:
        phase: "over": it is done or has failed, and some of its tasks are still stopping; "ended": none of them runs.
        details: Further parts of the first line, such as nodes and restarts.
        tasks: The state of each task as text, if the scheduler reports it.
        more: Further fields of the JSON document, and those of `JobStatus` that have a different value in it.
    """

    phase: Literal["waiting", "running", "over", "ended"] = "waiting"
    details: tuple[str, ...] = ()
    tasks: Mapping[str, str] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class JobStatus(_Presentation):
    """The status of a job, or of one element of an array.

    Attributes:
        job_id: Its id as `status` takes it: "17", "17_2", "job/digits".
        state: The scheduler's name of its state, such as "RUNNING"; for a job that the scheduler has forgotten, the one
            that follows from its files, or "UNKNOWN"; "NO_ANSWER" if the scheduler does not answer.
        text: The state as text.
        name: Its name, if `job_id` does not contain it.
        restarts: The number of its restarts by the scheduler.
        reason: Why it is pending, or the scheduler's reason of its end.
        hint: What to change, if it can never start for that reason.
        nodes: Its nodes, in the scheduler's notation.
        run_time: Its run time, likewise.
        time_limit: Its time limit, likewise.
        exit_code: Its exit code, if it has ended.
        progress: See `job_progress`.
        failure: The last failure of a task in the newest run.
        task_restarts: The number of restarts of the tasks in that run, without one by the scheduler.
        setup: Lines of its setup that failed in that run, and why it did not start the tasks, if it did not.
        failed: Whether it ended without being done or cancelled, can never start, or its state is unknown.
        model_dir: Its model directory, if it is known.
    """

    job_id: str
    state: str
    text: str
    name: str = ""
    restarts: int = 0
    reason: str = ""
    hint: str = ""
    nodes: str = ""
    run_time: str = ""
    time_limit: str = ""
    exit_code: int | None = None
    progress: Mapping[str, Any] = field(default_factory=dict)
    failure: TaskFailure | None = None
    task_restarts: int = 0
    setup: tuple[str, ...] = ()
    failed: bool = False
    model_dir: str = ""

    @property
    def over(self) -> bool:
        """Whether it is done or has failed, and will not be restarted, as far as is known."""
        return self.phase in ("over", "ended")

    @property
    def ended(self) -> bool:
        """Whether it is over, and none of its tasks runs."""
        return self.phase == "ended"

    def row(self) -> JobRow:
        """Return the row for the table of jobs."""
        step, last, rate = (self.progress.get(name) for name in ("step", "max_steps", "steps_per_sec"))
        unfinished = self.phase == "running" and "result" not in self.progress
        left = seconds_left(step, last, rate) if unfinished else None
        share, restarts = percent(step, last), self.restarts + self.task_restarts
        is_below_here = self.model_dir.startswith(f"{os.getcwd()}/")
        return JobRow(
            job=self.job_id,
            name=self.name,
            # Slurm reports a job as failed that was asked to stop.
            state="STOPPED" if self.state == "FAILED" and not self.failed else self.state,
            step="" if step is None else str(step),
            percent="" if share is None else str(share),
            rate=f"{rate:.4g}" if rate is not None and unfinished else "",
            left="" if left is None else time_text(left),
            restarts=str(restarts) if restarts else "",
            model_dir=os.path.relpath(self.model_dir) if is_below_here else self.model_dir,
            failure=self.text if self.hint else "; ".join(self.setup) if self.failure is None else self.failure.text(),
        )

    def document(self) -> dict[str, Any]:
        """Return the status as a JSON document."""
        failure = None if self.failure is None else self.failure.document()
        return {name: self.__dict__[name] for name in JobStatus.__annotations__} | {"failure": failure, **self.more}

    def lines(self) -> list[str]:
        """Format the status as text."""
        job = self.job_id if "/" in self.job_id else f"job {self.job_id}"
        job += f" ({self.name})" if self.name else ""
        lines = [", ".join([f"{job}: {self.text}", *self.details])]
        lines += [f"  {text}" for text in (self.reason, *self.setup) if text not in self.text]
        if self.hint:
            lines.append(f"  hint: {self.hint}, then cancel the job and submit it again")
        if self.progress:
            lines.append("  " + progress_text(self.progress, ended=self.over))
        if self.failure is not None and not self.over and not self.tasks:
            lines.append(f"  last failure: {self.failure.text()}")
        width = max(map(len, self.tasks), default=0)
        return [*lines, *(f"  {task:{width}}  {text}" for task, text in self.tasks.items())]


# Several jobs ----------------------------------------------------------------------------------------------------


class JobEntry(NamedTuple):
    """One submission, and the status of its job or of each element of its array.

    Attributes:
        submission: A JSON document that names the scheduler, and the `folder` of script and logs if there is one.
        jobs: The status of the job or of the elements.
    """

    submission: Mapping[str, Any]
    jobs: Sequence[JobStatus]


def status_json(entries: Sequence[JobEntry], *, single: bool) -> str:
    """Format a list of jobs, or a single one, as a JSON document."""
    documents = [
        {"submission": entry.submission, "jobs": [status.document() for status in entry.jobs]} for entry in entries
    ]
    return json.dumps(documents[0] if single else documents, indent=2)


def status_lines(entries: Sequence[JobEntry], *, single: bool) -> list[str]:
    """Format a table of jobs, or the status of a single one, as text."""
    if not single:
        return job_table([status.row() for entry in entries for status in entry.jobs])
    ((submission, jobs),) = entries
    lines = [line for status in jobs for line in status.lines()]
    return [*lines, f"script and logs: {submission['folder']}"] if "folder" in submission else lines


class JobRow(NamedTuple):
    """The cells of a job in the table, in the order of its columns."""

    job: str
    name: str
    state: str
    step: str
    percent: str
    rate: str
    left: str
    restarts: str
    model_dir: str
    failure: str


def job_table(jobs: Sequence[JobRow]) -> list[str]:
    """Format the lines of the table, with a header.

    Unknown cells are blank. The columns NAME and MODEL DIR are omitted if no job has a name or a model directory.
    """
    if not jobs:
        return ["no jobs"]
    columns = zip(_HEADER, *jobs, strict=True)
    shown = [column for column in columns if column[0] not in ("NAME", "MODEL DIR") or any(column[1:])]
    rows = list(zip(*shown, strict=True))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
