"""A parameter server's wait for the end of training, in which it serves variables."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from estimator_pipeline.cluster.peers import PeerWatch, answers
from estimator_pipeline.engines.core.rendezvous.rendezvous import Rendezvous, in_state
from estimator_pipeline.errors import TaskFailedError

__all__ = ["end_of_training", "serve"]

_POLL_SECS = 0.5
_STOPPING_POLL_SECS = 0.1


def serve(rendezvous: Rendezvous, *, startup: float, leaving: float) -> Mapping[str, Any]:
    """Wait for the end of training, and return the chief's status. The server runs in its own threads.

    Args:
        rendezvous: Rendezvous of the run.
        startup: Seconds for the chief to start.
        leaving: Seconds for the other tasks to leave training after it failed or was stopped.

    Raises:
        TaskFailedError, WaitError, OtherJobError: See `Rendezvous.wait`.
    """
    cluster = rendezvous.tf_config.cluster
    assert cluster is not None
    watch = PeerWatch(cluster.chief, cluster.address(cluster.chief), startup=startup)
    try:
        status: Mapping[str, Any] = rendezvous.wait(
            "the end of training", end_of_training, timeout=float("inf"), watch=watch, poll=_POLL_SECS
        )
    except TaskFailedError:
        # A chief may still be creating its session: without the variables of this server it would hang.
        deadline = time.monotonic() + leaving
        while answers(cluster.address(cluster.chief)) and time.monotonic() < deadline:
            time.sleep(_STOPPING_POLL_SECS)
        raise
    deadline = time.monotonic() + leaving
    while status["state"] == "preempted" and time.monotonic() < deadline:
        reports = [rendezvous.task_report(task) for task in cluster.training_tasks]
        if not any(report is not None and report["state"] == "here" for report in reports):
            break
        time.sleep(_STOPPING_POLL_SECS)
    return status


def end_of_training(status: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the chief's status if training has ended, else None."""
    return in_state(status, "preempted", "finished")
