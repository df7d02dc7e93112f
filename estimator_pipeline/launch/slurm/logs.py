"""Logs and progress of a Slurm job's tasks, over all requeues."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from estimator_pipeline.launch.job_status import read_progress
from estimator_pipeline.launch.logs.readers import JobLogs
from estimator_pipeline.launch.slurm.script import OUTPUT

__all__ = ["SCRIPT_LABEL", "LogReaders", "progress_of", "runs_of"]

SCRIPT_LABEL = "script"


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
