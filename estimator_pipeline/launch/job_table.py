"""Jobs as a table: one line a job, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from estimator_pipeline.launch.remaining_time import percent, seconds_left, time_text

__all__ = ["JobRow", "job_table"]

_HEADER = ("JOB", "NAME", "STATE", "STEP", "%", "STEPS/S", "LEFT", "RESTARTS", "LAST FAILURE")


class JobRow(NamedTuple):
    """A job in the table.

    Attributes:
        job: Its id, as `status` takes it.
        name: Its name, where its id does not have it.
        state: The scheduler's word.
        running: Whether it trains now.
        progress: What its tasks told: step, max_steps, steps_per_sec, result.
        restarts: How often it, or a task of it, was started again.
        failure: The last failure.
    """

    job: str
    name: str
    state: str
    running: bool
    progress: Mapping[str, Any]
    restarts: int
    failure: str


def job_table(jobs: Sequence[JobRow]) -> list[str]:
    """The lines of the table, with a header. What is not known is left blank, and NAME out where no job has one."""
    rows = [_HEADER, *(_cells(one) for one in jobs)]
    if not any(one.name for one in jobs):
        rows = [(row[0], *row[2:]) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _cells(one: JobRow) -> tuple[str, ...]:
    step, last, rate = (one.progress.get(name) for name in ("step", "max_steps", "steps_per_sec"))
    goes_on = one.running and "result" not in one.progress
    left = seconds_left(step, last, rate) if goes_on else None
    share = percent(step, last)
    return (
        one.job,
        one.name,
        one.state,
        "" if step is None else str(step),
        "" if share is None else str(share),
        f"{rate:.4g}" if rate is not None and goes_on else "",
        "" if left is None else time_text(left),
        str(one.restarts) if one.restarts else "",
        one.failure,
    )
