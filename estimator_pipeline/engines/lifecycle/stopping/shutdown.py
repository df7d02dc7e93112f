"""The end of a job, seen by its chief: what each training task did, and that the chief ends last.

In synchronous training the chief holds the service through which TensorFlow's servers watch each other, and a task that
loses it before its own end is torn down as if the job had failed.
"""

from __future__ import annotations

import atexit
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.cluster import Task
from estimator_pipeline.cluster.peers import PeerWatch, answers
from estimator_pipeline.engines.lifecycle.rendezvous.rendezvous import Rendezvous
from estimator_pipeline.engines.lifecycle.rendezvous.same_job import OTHER_JOB
from estimator_pipeline.engines.lifecycle.result import TaskReport
from estimator_pipeline.errors import (
    DivergedError,
    OtherJobError,
    PipelineError,
    PreemptedError,
    TaskFailedError,
    WaitError,
)
from estimator_pipeline.utils.logger import logger

__all__ = [
    "LEAVING_SECS",
    "UNMET_SECS",
    "end_last",
    "is_echo",
    "let_hear",
    "reports_of",
    "status_of",
    "text_of",
    "wait_until_left",
    "wait_until_trained",
]

# How long a training task that this session has not seen at all is waited for.
UNMET_SECS = 30.0
# How long one may take that has the result, and has nothing left to do but end.
LEAVING_SECS = 300.0
# What the launcher is told of an end that is no result.
_STATUS: dict[type[BaseException], str] = {
    DivergedError: "diverged",
    PreemptedError: "preempted",
    OtherJobError: OTHER_JOB,
}
# How long a chief that fails stays, for tasks that read of it at its server alone.
_HEARD_SECS = 2.0
# From a task's last word to the end of its process.
_EXIT_SECS = 30.0
_EXIT_POLL_SECS = 0.05

_ending: dict[str, str] = {}


def reports_of(rendezvous: Rendezvous, tasks: Iterable[Task], *, timeout: float) -> dict[str, TaskReport]:
    """What each training task did, as it says itself: task -> its report.

    A task that is still in its last step is waited for. One that failed, has gone or never came is left out, with a
    warning: an asynchronous training ends without it.

    Args:
        rendezvous: of the run.
        tasks: the training tasks.
        timeout: seconds that a task is waited for that is there.
    """
    reports = {}
    for task in tasks:
        what = f"the report of {task}"
        report = _awaited(rendezvous, task, what, lambda report: "steps" in report, timeout=timeout, unmet=UNMET_SECS)
        if report is not None:
            reports[str(task)] = TaskReport(steps=report["steps"], records=report["records"])
    return reports


def wait_until_trained(rendezvous: Rendezvous, tasks: Iterable[Task], *, given_up: Callable[[], bool]) -> None:
    """Until each of these tasks has left training, is gone, or was never there: its steps are made by then.

    Args:
        rendezvous: of the run.
        tasks: the other training tasks.
        given_up: called at each look at one that trains: whether none is waited for any longer.
    """

    def has_trained(report: Mapping[str, Any]) -> bool:
        return report["state"] not in ("here", "failed") or given_up()

    for task in tasks:
        _awaited(rendezvous, task, f"the last step of {task}", has_trained, timeout=math.inf, unmet=UNMET_SECS)


def wait_until_left(rendezvous: Rendezvous, tasks: Iterable[Task], *, timeout: float = LEAVING_SECS) -> None:
    """Until each of these tasks has said that it is about to end, is gone, or was never there.

    Args:
        rendezvous: of the run.
        tasks: the other training tasks.
        timeout: seconds that a task is waited for.
    """
    for task in tasks:
        met = rendezvous.task_report(task)
        if met is None:
            continue
        nonce = met.get("nonce")

        def has_left(report: Mapping[str, Any], nonce: Any = nonce) -> bool:
            # Or it is in its next training already.
            return bool(report.get("left")) or report.get("nonce") != nonce

        _awaited(rendezvous, task, f"{task} to end", has_left, timeout=timeout, unmet=0.0)


def status_of(error: BaseException | str) -> str:
    """What the launcher and the other tasks are told of an end by this error."""
    return "failed" if isinstance(error, str) else _STATUS.get(type(error), "failed")


def text_of(error: BaseException | str) -> str:
    """What they are told of the error itself."""
    return str(error) if isinstance(error, PipelineError | str) else f"{type(error).__name__}: {error}"


def is_echo(error: BaseException | str) -> bool:
    """Whether a task fails by what happened to another one, as far as its error can tell."""
    errors = compat.tensorflow().errors
    if isinstance(error, errors.UnavailableError | errors.AbortedError | errors.CancelledError | WaitError):
        return True
    return isinstance(error, TaskFailedError) and error.caused_by is not None


def let_hear(rendezvous: Rendezvous) -> None:
    """Stays until tasks that are apart have read the chief's last word, which goes with its server; for a moment."""
    deadline = time.monotonic() + _HEARD_SECS
    while time.monotonic() < deadline:
        reports = [rendezvous.task_report(task) for task in rendezvous.apart_tasks()]
        if all(report is None or report.get("left") or report["state"] == "failed" for report in reports):
            return
        time.sleep(_EXIT_POLL_SECS)


def _awaited(
    rendezvous: Rendezvous,
    task: Task,
    what: str,
    done: Callable[[Mapping[str, Any]], Any],
    *,
    timeout: float,
    unmet: float,
) -> Mapping[str, Any] | None:
    cluster = rendezvous.tf_config.cluster
    watch = None
    if cluster is not None and task in cluster.tasks and task != rendezvous.tf_config.task:
        watch = PeerWatch(task, cluster.address(task), known=True)
    begun = time.monotonic()

    def look(_: Mapping[str, Any] | None) -> Mapping[str, Any] | str | None:
        report = rendezvous.task_report(task)
        if report is None:
            waited = time.monotonic() - begun
            return f"{task} has not been seen for {waited:.0f} s" if waited > unmet else None
        if done(report):
            return report
        return f"{task} failed: {report['error']}" if report["state"] == "failed" else None

    try:
        found = rendezvous.wait(what, look, timeout=timeout, watch=watch)
    except WaitError as error:
        found = error.message
    if not isinstance(found, str):
        return found
    logger.warning("%s; the job ends without it", found)
    return None


def end_last(addresses: Mapping[str, str]) -> None:
    """This process ends when those at these addresses have, or after 30 s: a task's last word comes a second before its
    end.

    Args:
        addresses: of the other training tasks: name -> "host:port".
    """
    if not _ending:
        # Before what TensorFlow does then, which is the end of its service: last come, first served.
        atexit.register(_wait_for_exits)
    _ending.update(addresses)


def _wait_for_exits() -> None:
    deadline = time.monotonic() + _EXIT_SECS
    for address in _ending.values():
        while answers(address) and time.monotonic() < deadline:
            time.sleep(_EXIT_POLL_SECS)
