"""The failure that ends a launch: which task it is of, and what that task says of it."""

from __future__ import annotations

from estimator_pipeline.launch.local.outcome import Failure, last_lines
from estimator_pipeline.launch.local.task import RunningTask
from estimator_pipeline.launch.supervisor.ranks import MEMORY
from estimator_pipeline.progress.error_lines import error_in

__all__ = ["failure_of"]

_WHAT = {"diverged": "diverged", "preempted": "was asked to end by somebody else"}
# As much of a log as a long traceback takes.
_LINES = 400


def failure_of(
    one: RunningTask, reason: str, tail: tuple[str, ...], *, caused_by: RunningTask | None = None
) -> Failure:
    """The failure of a task that has ended; of one that started several, that of the first of them that failed.

    Args:
        one: The task.
        reason: "failed", "diverged" or "preempted".
        tail: The last lines of its log.
        caused_by: The task that it names as the reason of its own end. One that still runs does not answer the others.
    """
    code, log = one.process.exit_code or 0, one.plan.log
    what = _WHAT.get(reason, one.left_early)
    if reason == "failed" and caused_by is not None and caused_by is not one and caused_by.alive:
        said = last_lines(caused_by.plan.log, offset=caused_by.log_offset)
        return Failure(
            caused_by.name, None, caused_by.plan.log, said, f"does not answer {one.name}", error=one.state.error
        )
    first = one.ranks.first() if one.ranks is not None and reason == "failed" and not what else None
    if first is not None:
        return Failure(first.task, first.exit_code, log, tail, first.what, one.state.refusal, error=first.error)
    if one.out_of_memory and not what:
        return Failure(one.name, code, log, tail, MEMORY)
    error = ""
    if reason == "failed" and not what:
        error = one.state.error or error_in(last_lines(log, offset=one.log_offset, count=_LINES))
    return Failure(one.name, code, log, tail, what, one.state.refusal, error=error)
