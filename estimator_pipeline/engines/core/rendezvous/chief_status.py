"""The meaning of the chief's status in the model directory for the other tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from estimator_pipeline.cluster import Task
from estimator_pipeline.errors import PreemptedError, TaskFailedError

__all__ = ["in_state", "raise_if_over"]


def in_state(status: Mapping[str, Any] | None, *states: str) -> Mapping[str, Any] | None:
    """Return the chief's status if it is one of these states, else None."""
    return status if status is not None and status["state"] in states else None


def raise_if_over(status: Mapping[str, Any] | None, task: Task) -> None:
    """Raise an error if training has failed or was stopped, according to the chief's status.

    Args:
        status: The chief's status.
        task: This task.

    Raises:
        TaskFailedError: Training failed.
        PreemptedError: Training was asked to stop, and is saved in a checkpoint.
    """
    if status is not None and status["state"] == "preempted":
        preempted = PreemptedError(
            f"training was asked to stop ({status.get('by')}), and {task} stops with it: training is saved after step "
            f"{status.get('global_step')}, in {status.get('checkpoint')}",
            hint="run the same command again: it resumes from there",
        )
        preempted.caused_by = status.get("task")
        raise preempted
    if status is not None and status["state"] == "failed":
        error = TaskFailedError(
            f"training failed on {status.get('task', 'the chief')}: {status.get('error', 'no message')}",
            code="cluster/peer-failed",
            hint="read that task's log; this task only stopped because of it",
        )
        error.caused_by = status.get("task")
        raise error
