"""Jobs as a table: one line a job, for people."""

from __future__ import annotations

from collections.abc import Sequence

from estimator_pipeline.launch.remaining import percent, seconds_left, time_text
from estimator_pipeline.launch.slurm_status import JobStatus

__all__ = ["job_table"]

_HEADER = ("JOB", "NAME", "STATE", "STEP", "%", "STEPS/S", "LEFT", "RESTARTS", "LAST FAILURE")


def job_table(jobs: Sequence[JobStatus]) -> list[str]:
    """The lines of the table, with a header. What is not known is left blank."""
    rows = [_HEADER, *(_row(one) for one in jobs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _row(one: JobStatus) -> tuple[str, ...]:
    told = one.progress
    step, last, rate = (told.get(name) for name in ("step", "max_steps", "steps_per_sec"))
    goes_on = one.state == "RUNNING" and "result" not in told
    left = seconds_left(step, last, rate) if goes_on else None
    share = percent(step, last)
    restarts = one.restarts + one.task_restarts
    return (
        one.job_id,
        one.name,
        one.state,
        "" if step is None else str(step),
        "" if share is None else str(share),
        f"{rate:.4g}" if rate is not None and goes_on else "",
        "" if left is None else time_text(left),
        str(restarts) if restarts else "",
        "" if one.failure is None else one.failure.text(),
    )
