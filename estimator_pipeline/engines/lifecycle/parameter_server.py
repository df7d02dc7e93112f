"""A parameter server's wait for the end of training, in which it serves variables."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from estimator_pipeline.cluster.peers import PeerWatch, answers
from estimator_pipeline.engines.lifecycle.rendezvous.chief_status import in_state
from estimator_pipeline.engines.lifecycle.rendezvous.rendezvous import Rendezvous
from estimator_pipeline.errors import TaskFailedError

__all__ = ["end_of_training", "serve"]

_POLL_SECS = 0.5
_STOPPING_POLL_SECS = 0.1


def serve(rendezvous: Rendezvous, *, startup: float, leaving: float) -> Mapping[str, Any]:
    """Until training has ended; gives the chief's word of it. The server runs by itself.

    Args:
        rendezvous: of the run.
        startup: seconds for the chief to appear.
        leaving: after training failed or was asked to end, seconds for the others to leave it.

    Raises:
        TaskFailedError, WaitError, OtherJobError: see :meth:`Rendezvous.wait`.
    """
    cluster = rendezvous.tf_config.cluster
    assert cluster is not None
    watch = PeerWatch(cluster.chief, cluster.address(cluster.chief), startup=startup)
    try:
        found: Mapping[str, Any] = rendezvous.wait(
            "the end of training", end_of_training, timeout=float("inf"), watch=watch, poll=_POLL_SECS
        )
    except TaskFailedError:
        # A chief that is told by another task may be making its session: without its variables it would wait there.
        deadline = time.monotonic() + leaving
        while answers(cluster.address(cluster.chief)) and time.monotonic() < deadline:
            time.sleep(_STOPPING_POLL_SECS)
        raise
    deadline = time.monotonic() + leaving
    while found["state"] == "preempted" and time.monotonic() < deadline:
        reports = [rendezvous.task_report(task) for task in cluster.training_tasks]
        if not any(report is not None and report["state"] == "here" for report in reports):
            break
        time.sleep(_STOPPING_POLL_SECS)
    return found


def end_of_training(said: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The chief's word, where it says that training has ended."""
    return in_state(said, "preempted", "finished")
