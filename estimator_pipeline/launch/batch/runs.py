"""Logs, progress and failures of a batch job's tasks, over all requeues, from the files of its submission.

The supervisor writes `run-N/events.jsonl` and progress files, the script `output.log` and `run-N/setup.log`, and each
task `run-N/task-RANK.log`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.launch.history import last_failed, read_events
from estimator_pipeline.launch.job_status import TaskFailure, read_progress
from estimator_pipeline.launch.local.outcome import end_of, lines_of
from estimator_pipeline.launch.logs.readers import JobLogs

__all__ = [
    "OUTPUT",
    "SCRIPT_LABEL",
    "JobHistory",
    "LogReaders",
    "failed_element",
    "failed_log",
    "history_of",
    "progress_of",
    "runs_of",
    "was_asked_to_stop",
]

OUTPUT = "output.log"
SCRIPT_LABEL = "script"
_ENDS = ("done", "gave_up", "interrupted", "timeout")
# The last line of the script after it was cancelled.
_ASKED = re.compile(r"job \S+: ended as asked, ")
_LAST_LINE_BYTES = 4096
_SETUP_LOG = "setup.log"
_WARNING = "warning: "


def runs_of(folder: Path) -> list[Path]:
    """Return the folders run-0, run-1, ... in their order."""
    runs = [(int(match[1]), path) for path in folder.glob("run-*") if (match := re.fullmatch(r"run-(\d+)", path.name))]
    return [path for _, path in sorted(runs)]


def progress_of(folder: Path) -> dict[str, Any]:
    """Return the progress that the tasks of the newest run with a step have reported.

    `warning` is the last warning of a newer run without steps: mostly about tasks that do not start.
    """
    # By number: attempt-10 comes after attempt-9.
    return read_progress(
        [file]
        for run in reversed(runs_of(folder))
        for file in sorted(
            run.glob("attempt-*/*.progress.jsonl"), key=lambda path: (len(path.parent.name), str(path)), reverse=True
        )
    )


# Failures and restarts ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JobHistory:
    """The history of the newest run.

    Attributes:
        restarts: The number of restarts in the same allocation.
        failure: The last failure.
        end: The supervisor's last event: "done", "gave_up", "interrupted" or "timeout"; "" without one.
        setup_warnings: The warnings of the script: lines of `setup` that failed.
        requeues: The number of runs before.
        setup_end: Why the script did not start the tasks: a signal, or `setup` ended the script; "" otherwise.
    """

    restarts: int = 0
    failure: TaskFailure | None = None
    end: str = ""
    setup_warnings: tuple[str, ...] = ()
    setup_end: str = ""
    requeues: int = 0

    @property
    def setup_lines(self) -> tuple[str, ...]:
        """All failures of `setup`."""
        return (*self.setup_warnings, self.setup_end) if self.setup_end else self.setup_warnings


def history_of(folder: Path, tasks: Sequence[str]) -> JobHistory:
    """Read the history of a job, or of an array element.

    Args:
        folder: The folder of the runs.
        tasks: The task names by rank.
    """
    runs = runs_of(folder)
    if not runs:
        return JobHistory()
    events = read_events(runs[-1])
    failed = last_failed(events)
    ends = [str(event["event"]) for event in events if event.get("event") in _ENDS]
    setup: list[str] = []
    with contextlib.suppress(OSError):  # scripts of earlier versions write none
        setup = (runs[-1] / _SETUP_LOG).read_text(encoding="utf-8", errors="replace").splitlines()
    return JobHistory(
        restarts=sum(event.get("event") == "restart_in" for event in events),
        failure=None if failed is None else _failure(failed, runs[-1], tasks),
        end=ends[-1] if ends else "",
        setup_warnings=tuple(line for line in setup if line.startswith(_WARNING)),
        requeues=len(runs) - 1,
        setup_end=next((line for line in reversed(setup) if not line.startswith(_WARNING)), ""),
    )


def _failure(event: Mapping[str, Any], run: Path, tasks: Sequence[str]) -> TaskFailure:
    name = str(event.get("task") or "")
    # Only the rank is known of a task that ended before it reported its name.
    match = re.fullmatch(r"rank (\d+)", name)
    rank = int(match[1]) if match else tasks.index(name) if name in tasks else None
    task = tasks[rank] if rank is not None and rank < len(tasks) else name
    return TaskFailure.of_event(event, task=task, log=run / f"task-{rank}.log", below=run.parent, run=run.name)


def was_asked_to_stop(folder: Path) -> bool:
    """Return whether the script was asked to stop, according to its last line."""
    lines = end_of(folder / OUTPUT, offset=0, limit=_LAST_LINE_BYTES).rstrip().splitlines()
    return bool(lines and _ASKED.search(lines[-1]))


def failed_element(folders: Sequence[Path], tasks: Sequence[str]) -> int:
    """Return the element of an array that failed first; one that has ended counts before one that still runs.

    Args:
        folders: The folders of the elements' runs.
        tasks: The task names by rank.

    Raises:
        ConfigError: No element has failed.
    """
    failures = []
    for element, folder in enumerate(folders):
        history = history_of(folder, tasks)
        if history.failure is not None and history.end != "done":
            failures.append((history.end != "gave_up", history.failure.time, element))
        elif history.setup_end:
            failures.append((False, (folder / OUTPUT).stat().st_mtime, element))
    if not failures:
        raise ConfigError(
            "no task has failed in the newest run of any element, as far as the supervisors know.",
            code="jobs/not-found",
            found=f"{len(folders)} elements",
            hint="see `status` for their states; --element N prints the logs of one.",
        )
    return min(failures)[-1]


def failed_log(folder: Path, tasks: Sequence[str], *, lines: int) -> Iterator[str]:
    """Iterate over the failure in one line, and the last lines of that task's log, 0 for all lines.

    TensorFlow's startup messages are left out. If `setup` did not end, the log is the script's.

    Raises:
        ConfigError: No task has failed.
    """
    history = history_of(folder, tasks)
    failure, log = history.failure, None
    if failure is not None:
        text, log = failure.text(), failure.log
    elif history.setup_end:
        text, log = f"{history.setup_end} ({OUTPUT})", OUTPUT
    else:
        raise ConfigError(
            "no task has failed in the newest run, as far as its supervisor knows.",
            code="jobs/not-found",
            found="; ".join(history.setup_warnings) or None,
        )
    yield from (text, *history.setup_warnings)
    if log is not None:
        yield from lines_of(folder / log, lines)


# Logs ------------------------------------------------------------------------------------------------------------


class LogReaders(JobLogs):
    """Reader of a job's logs: the script's, and each task's in every run.

    Args:
        folder: The folder of output.log and of the runs.
        tasks: The task names by rank.
        wanted: The task to show; None for all tasks and the script.
        last: See `JobLogs`.
    """

    def __init__(
        self, folder: Path, tasks: Sequence[str], *, wanted: str | None = None, last: int | None = None
    ) -> None:
        super().__init__(last=last)
        self._folder, self._tasks, self._wanted = folder, tuple(tasks), wanted

    def files(self) -> Iterator[tuple[Path, str, bool]]:
        runs = runs_of(self._folder)
        if self._wanted in (None, SCRIPT_LABEL):
            yield self._folder / OUTPUT, SCRIPT_LABEL, True
        for run in runs:
            for rank, task in enumerate(self._tasks):
                if self._wanted in (None, task):
                    yield run / f"task-{rank}.log", task, run == runs[-1]
