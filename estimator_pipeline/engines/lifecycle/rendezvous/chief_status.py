"""What the chief's word in the model directory means for the other tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from estimator_pipeline.cluster import Task
from estimator_pipeline.errors import PreemptedError, TaskFailedError

__all__ = ["in_state", "raise_if_over"]


def in_state(said: Mapping[str, Any] | None, *states: str) -> Mapping[str, Any] | None:
    """The chief's word, where it is one of these states."""
    return said if said is not None and said["state"] in states else None


def raise_if_over(said: Mapping[str, Any] | None, task: Task) -> None:
    """Ends a task where the chief's word is that training failed or was asked to end.

    Args:
        said: the word.
        task: this task.

    Raises:
        TaskFailedError: training failed. PreemptedError: it was asked to end, and is in a checkpoint.
    """
    if said is not None and said["state"] == "preempted":
        preempted = PreemptedError(
            f"training was asked to end ({said.get('by')}), and {task} ends with it: it stands after step "
            f"{said.get('global_step')}, in {said.get('checkpoint')}",
            hint="give the same command again: it goes on from there",
        )
        preempted.caused_by = said.get("task")
        raise preempted
    if said is not None and said["state"] == "failed":
        error = TaskFailedError(
            f"training failed on {said.get('task', 'the chief')}: {said.get('error', 'no message')}",
            code="cluster/peer-failed",
            hint="see that task's log; this task only ended because of it",
        )
        error.caused_by = said.get("task")
        raise error
