"""The launches and submissions of a run, with their attempts and tasks, from the folders in its model directory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.launch.batch.runs import runs_of
from estimator_pipeline.launch.batch.submission import RECORD, SCHEDULERS, read_submission
from estimator_pipeline.launch.history import read_events
from estimator_pipeline.launch.local.plan import launches_folder
from estimator_pipeline.launch.local.record import is_launch, read_launch
from estimator_pipeline.launch.stacks.requests import attempts_of
from estimator_pipeline.progress.progress_file import ProgressReader, TaskState

__all__ = ["RunLaunch", "launches_of"]

_FAILURES = ("failed", "hung", "diverged", "preempted")


@dataclass(frozen=True, kw_only=True)
class RunLaunch:
    """A launch, or a run of a submission.

    Attributes:
        name: The launch or the job, as text.
        started: The time in seconds since 1970; 0 if it is not known.
        seconds: Its duration; None if it has not ended, or it is not known.
        end: How it ended; "" if it has not ended, or it is not known.
        attempts: The events of its attempts: number, reason, what failed, from_step, step and seconds.
        tasks: The state of each task in the newest attempt, with its host: (state, host).
    """

    name: str
    started: float
    seconds: float | None
    end: str
    attempts: Sequence[dict[str, Any]]
    tasks: Sequence[tuple[TaskState, str]]


def launches_of(model_dir: Path) -> list[RunLaunch]:
    """Return the launches and submissions of a model directory, the oldest first."""
    return sorted([*_launches(model_dir), *_submissions(model_dir)], key=lambda launch: launch.started)


def _launches(model_dir: Path) -> Iterator[RunLaunch]:
    for folder in launches_folder(str(model_dir)).glob("*"):
        if is_launch(folder):
            launch = read_launch(folder)
            end = launch.end or {}
            yield RunLaunch(
                name=f"launch {launch.run_id or folder.name}",
                started=launch.started,
                seconds=end.get("seconds"),
                end=str(end.get("reason") or ("running" if launch.is_running else "")),
                attempts=_attempts(folder),
                tasks=_tasks(attempts_of(folder)[-1], launch.host),
            )


def _submissions(model_dir: Path) -> Iterator[RunLaunch]:
    for scheduler in SCHEDULERS:
        for record in (model_dir / scheduler).glob(f"*/{RECORD}"):
            try:
                submission = read_submission(record)
            except ConfigError:  # truncated, or of a later version
                continue
            for run in (run for folder in submission.log_folders for run in runs_of(folder)):
                events = read_events(run)
                last = events[-1] if events else {}
                yield RunLaunch(
                    name=f"{scheduler} job {submission.job_id}, {run.relative_to(submission.folder)}",
                    started=events[0].get("time", 0.0) if events else submission.submitted,
                    seconds=last.get("seconds") if "attempts" in last else None,
                    end=str(last.get("event", "")) if "attempts" in last else "",
                    attempts=_attempts(run),
                    tasks=_tasks(attempts_of(run)[-1], ""),
                )


def _attempts(folder: Path) -> list[dict[str, Any]]:
    """Return the attempts of a supervised job, by its events; an empty list without a supervisor."""
    attempts: dict[Any, dict[str, Any]] = {}
    for event in read_events(folder):
        attempt = attempts.setdefault(event.get("attempt"), {"number": event.get("attempt")})
        kind = event.get("event")
        if kind in _FAILURES:
            attempt["failure"] = ": ".join(str(event[name]) for name in ("what", "error") if event.get(name))
        elif kind == "first_step":
            attempt["from_step"] = event.get("from_step")
        elif kind == "attempt_ended":
            attempt |= {name: event.get(name) for name in ("reason", "seconds", "step", "checkpoint")}
    return list(attempts.values())


def _tasks(folder: Path, host: str) -> list[tuple[TaskState, str]]:
    """Return the tasks by their progress files; the host is in the event of a start, if the launcher shares a file."""
    tasks: dict[str, tuple[TaskState, str]] = {}
    for path in sorted(folder.glob("*.progress.jsonl")):
        name = ""
        for event in ProgressReader(path).read():
            name = str(event.get("task") or name or path.name.partition(".")[0].replace("-", ":"))
            state, place = tasks.setdefault(name, (TaskState(name), host))
            state.apply(event)
            if event.get("process"):
                tasks[name] = state, str(event["process"]).rpartition("-")[0] or place
    return list(tasks.values())
