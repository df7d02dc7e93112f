"""Shutdown of a job by its chief: the report of each training task, and the order of exits.

In synchronous training the chief runs the coordination service through which TensorFlow's servers monitor each other. A
task that loses it before its exit is aborted as if the job had failed, so the chief exits last.
"""

from __future__ import annotations

import atexit
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.cluster import Task
from estimator_pipeline.cluster.peers import PeerWatch, probe
from estimator_pipeline.engines.core.rendezvous.rendezvous import Rendezvous
from estimator_pipeline.engines.core.rendezvous.same_job import OTHER_JOB
from estimator_pipeline.engines.core.result import TaskReport
from estimator_pipeline.errors import (
    DivergedError,
    OtherJobError,
    PipelineError,
    PreemptedError,
    TaskFailedError,
    WaitError,
)
from estimator_pipeline.utils.deadline import Deadline
from estimator_pipeline.utils.logger import logger
from estimator_pipeline.utils.process_state import STATE

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

# Time limit for a training task that has not connected in this session.
UNMET_SECS = 30.0
# Time limit for a task that has the result to exit.
LEAVING_SECS = 300.0
# The status of an error, for the launcher.
_STATUS: dict[type[BaseException], str] = {
    DivergedError: "diverged",
    PreemptedError: "preempted",
    OtherJobError: OTHER_JOB,
}
# Seconds that a failed chief waits for tasks that can read its status only from its server.
_HEARD_SECS = 2.0
# Time limit from a task's last status to the exit of its process.
_EXIT_SECS = 30.0
_EXIT_POLL_SECS = 0.05
# A server that runs sends its first message to a client at once; a busy machine may delay it.
_WORD_SECS = 5.0


def reports_of(rendezvous: Rendezvous, tasks: Iterable[Task], *, timeout: float) -> dict[str, TaskReport]:
    """Return the report of each training task: task -> report.

    A task that is still in its last step is waited for. A task that failed, has exited or never started is left out,
    with a warning: asynchronous training ends without it.

    Args:
        rendezvous: Rendezvous of the run.
        tasks: The training tasks.
        timeout: Seconds to wait for a task that has connected.
    """
    reports = {}
    for task in tasks:
        event = f"the report of {task}"
        report = _awaited(rendezvous, task, event, lambda report: "steps" in report, timeout=timeout, unmet=UNMET_SECS)
        if report is not None:
            reports[str(task)] = TaskReport(steps=report["steps"], records=report["records"])
    return reports


def wait_until_trained(rendezvous: Rendezvous, tasks: Iterable[Task], *, given_up: Callable[[], bool]) -> None:
    """Wait until each of these tasks has left training, has exited, or never started.

    Args:
        rendezvous: Rendezvous of the run.
        tasks: The other training tasks.
        given_up: Called at each check of a task that still trains; returns whether to stop waiting.
    """

    def has_trained(report: Mapping[str, Any]) -> bool:
        return report["state"] not in ("here", "failed") or given_up()

    for task in tasks:
        _awaited(rendezvous, task, f"the last step of {task}", has_trained, timeout=math.inf, unmet=UNMET_SECS)


def wait_until_left(rendezvous: Rendezvous, tasks: Iterable[Task], *, timeout: float = LEAVING_SECS) -> None:
    """Wait until each of these tasks has reported that it is about to exit, has exited, or never started.

    Args:
        rendezvous: Rendezvous of the run.
        tasks: The other training tasks.
        timeout: Seconds to wait for a task.
    """
    for task in tasks:
        met = rendezvous.task_report(task)
        if met is None:
            continue
        nonce = met.get("nonce")

        def has_left(report: Mapping[str, Any], nonce: Any = nonce) -> bool:
            # A different nonce: the task is in its next training already.
            return bool(report.get("left")) or report.get("nonce") != nonce

        _awaited(rendezvous, task, f"{task} to end", has_left, timeout=timeout, unmet=0.0)


def status_of(error: BaseException | str) -> str:
    """Return the status of this error, for the launcher and the other tasks."""
    return "failed" if isinstance(error, str) else _STATUS.get(type(error), "failed")


def text_of(error: BaseException | str) -> str:
    """Return the text of this error, for the launcher and the other tasks."""
    return str(error) if isinstance(error, PipelineError | str) else f"{type(error).__name__}: {error}"


def is_echo(error: BaseException | str) -> bool:
    """Return whether an error is only a consequence of a different task's failure, as far as known."""
    errors = compat.tensorflow().errors
    if isinstance(error, errors.UnavailableError | errors.AbortedError | errors.CancelledError | WaitError):
        return True
    if isinstance(error, DivergedError):
        return False  # each worker sees it, and names the one whose loss it was
    return isinstance(error, TaskFailedError) and error.caused_by is not None


def let_hear(rendezvous: Rendezvous) -> None:
    """Wait a moment until tasks with separate model directories have read the chief's status from its server."""
    for _ in Deadline(_HEARD_SECS).polls(_EXIT_POLL_SECS):
        reports = [rendezvous.task_report(task) for task in rendezvous.apart_tasks()]
        if all(report is None or report.get("left") or report["state"] == "failed" for report in reports):
            return


def _awaited(
    rendezvous: Rendezvous,
    task: Task,
    event: str,
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

    def check(_: Mapping[str, Any] | None) -> Mapping[str, Any] | str | None:
        report = rendezvous.task_report(task)
        if report is None:
            waited = time.monotonic() - begun
            return f"{task} has not been seen for {waited:.0f} s" if waited > unmet else None
        if done(report):
            return report
        return f"{task} failed: {report['error']}" if report["state"] == "failed" else None

    try:
        result = rendezvous.wait(event, check, timeout=timeout, watch=watch)
    except WaitError as error:
        result = error.message
    if not isinstance(result, str):
        return result
    logger.warning("%s; the job ends without it", result)
    return None


def end_last(addresses: Mapping[str, str]) -> None:
    """Delay the exit of this process until the servers at these addresses have stopped, at most 30 s.

    A task publishes its last status about a second before its exit.

    Args:
        addresses: Addresses of the other training tasks: name -> "host:port".
    """
    if not STATE.awaited_exits:
        # Functions registered last run first: this must run before TensorFlow stops its service.
        atexit.register(_wait_for_exits)
    STATE.awaited_exits.update(addresses)


def _wait_for_exits() -> None:
    deadline = time.monotonic() + _EXIT_SECS
    for address in STATE.awaited_exits.values():
        # A child that the task's program has forked keeps its port open, and sends nothing.
        while probe(address, word=_WORD_SECS)[1] and time.monotonic() < deadline:
            time.sleep(_EXIT_POLL_SECS)
