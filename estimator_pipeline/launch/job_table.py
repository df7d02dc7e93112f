"""Table of jobs, one line per job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from estimator_pipeline.launch.remaining_time import percent, seconds_left, time_text

__all__ = ["JobRow", "job_table"]

_HEADER = ("JOB", "NAME", "STATE", "STEP", "%", "STEPS/S", "LEFT", "RESTARTS", "MODEL DIR", "LAST FAILURE")


class JobRow(NamedTuple):
    """A job in the table.

    Attributes:
        job: Its id, as `status` takes it.
        name: Its name, if its id does not contain it.
        state: The scheduler's name of its state.
        running: Whether it is training.
        progress: The progress that its tasks reported: step, max_steps, steps_per_sec, result.
        restarts: The number of restarts of the job or of its tasks.
        failure: The last failure.
        model_dir: Its model directory, if it is known.
    """

    job: str
    name: str
    state: str
    running: bool
    progress: Mapping[str, Any]
    restarts: int
    failure: str
    model_dir: str = ""


def job_table(jobs: Sequence[JobRow]) -> list[str]:
    """Format the lines of the table, with a header.

    Unknown cells are blank. The columns NAME and MODEL DIR are omitted if no job has a name or a model directory.
    """
    columns = zip(_HEADER, *(_cells(job) for job in jobs), strict=True)
    shown = [column for column in columns if column[0] not in ("NAME", "MODEL DIR") or any(column[1:])]
    rows = list(zip(*shown, strict=True))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _cells(row: JobRow) -> tuple[str, ...]:
    step, last, rate = (row.progress.get(name) for name in ("step", "max_steps", "steps_per_sec"))
    unfinished = row.running and "result" not in row.progress
    left = seconds_left(step, last, rate) if unfinished else None
    share = percent(step, last)
    return (
        row.job,
        row.name,
        row.state,
        "" if step is None else str(step),
        "" if share is None else str(share),
        f"{rate:.4g}" if rate is not None and unfinished else "",
        "" if left is None else time_text(left),
        str(row.restarts) if row.restarts else "",
        row.model_dir,
        row.failure,
    )
