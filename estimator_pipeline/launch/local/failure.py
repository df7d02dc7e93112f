"""The failure that ends a launch: the task that failed first, and its error."""

from __future__ import annotations

from estimator_pipeline.launch.local.outcome import DIVERGED, Failure, last_lines
from estimator_pipeline.launch.local.task import RunningTask
from estimator_pipeline.launch.supervisor.ranks import MEMORY, NO_ALLOCATION
from estimator_pipeline.progress.error_lines import error_in

__all__ = ["build_failure"]

_DESCRIPTIONS = {"diverged": DIVERGED, "preempted": "was stopped from outside the job"}
# Enough lines for a long traceback.
_LINES = 400


def build_failure(
    task: RunningTask, reason: str, tail: tuple[str, ...], *, caused_by: RunningTask | None = None
) -> Failure:
    """Return the failure of a task that has ended.

    For a command with several tasks it is the failure of the first failed task.

    Args:
        task: The task.
        reason: "failed", "diverged" or "preempted".
        tail: The last lines of its log.
        caused_by: The task that it reports as the cause of its failure. If that task still runs, it is reported as not
            answering.
    """
    code, log = task.process.exit_code or 0, task.plan.log
    description = _DESCRIPTIONS.get(reason, task.early_exit)
    if reason == "failed" and caused_by is not None and caused_by is not task and caused_by.alive:
        lines = last_lines(caused_by.plan.log, offset=caused_by.log_offset)
        return Failure(
            caused_by.name, None, caused_by.plan.log, lines, f"does not answer {task.name}", error=task.state.error
        )
    first = task.ranks.first() if task.ranks is not None and reason == "failed" and not description else None
    if first is not None:
        return Failure(first.task, first.exit_code, log, tail, first.description, task.state.refusal, error=first.error)
    if task.ranks is not None and not task.ranks.has_allocation and reason == "failed":
        return Failure(task.name, code, log, tail, NO_ALLOCATION)
    if task.out_of_memory and not description:
        return Failure(task.name, code, log, tail, MEMORY)
    error = task.state.error if reason == "diverged" else ""
    if reason == "failed" and not description:
        error = task.state.error or error_in(last_lines(log, offset=task.log_offset, count=_LINES))
    return Failure(task.name, code, log, tail, description, task.state.refusal, error=error)
