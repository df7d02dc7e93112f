"""Shutdown of a job by its chief: the last steps and the report of each training task, and the order of exits.

With parameter servers each task trains asynchronously, and only the chief saves. If the chief's data ends first, later
steps of the other tasks would not be saved. The chief therefore keeps its session open, saves when a checkpoint is due,
and ends when the last worker has left training. If training ends for a different reason (`max_steps`, a hook), the
other tasks finish their current step, for which the chief waits at most a minute.

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
from estimator_pipeline.compat.internals import session_hooks
from estimator_pipeline.engines.core.context import TaskContext
from estimator_pipeline.engines.core.rendezvous.rendezvous import Rendezvous
from estimator_pipeline.engines.core.result import TaskReport
from estimator_pipeline.engines.core.stopping.synchronized_stop import SingleProcessStop
from estimator_pipeline.errors import WaitError
from estimator_pipeline.utils.deadline import Deadline
from estimator_pipeline.utils.logger import logger
from estimator_pipeline.utils.process_state import STATE

# Time limit for a training task that has not connected in this session.
UNMET_SECS = 30.0
# Time limit for the step that a task is in when training ends for all, and interval of its checks.
_STEP_SECS = 60.0
_LOOK_SECS = 1.0
# Time limit for a task that has the result to exit.
LEAVING_SECS = 300.0
# Seconds that a failed chief waits for the tasks that could not read its status after its exit.
_HEARD_SECS = 10.0
# Time limit from a task's last status to the exit of its process.
_EXIT_SECS = 30.0
_EXIT_POLL_SECS = 0.05
# A server that runs sends its first message to a client at once; a busy machine may delay it.
_WORD_SECS = 5.0


# -- the end of training ----------------------------------------------------------------------------------------------


def last_steps_hook(context: TaskContext, stop: SingleProcessStop) -> Any:
    """Return a hook with which the chief waits for the other tasks' last steps before the last checkpoint.

    It waits as long as any task makes a step within `result_timeout`. After a stop request, `stop.after_step` waits
    until the other tasks have stopped; if the request has ended training, it was called before.
    """
    timeout = context.options.result_timeout
    tf: Any = compat.tensorflow()
    v1 = tf.compat.v1.train
    session_hooks.see_hooks()

    class LastSteps(tf.compat.v1.train.SessionRunHook):
        def __init__(self) -> None:
            self._in_run = self._together = self._over = False
            self._saving: list[Any] = []

        def sees_hooks(self, hooks):
            # This hook runs before the hook that saves. Subclasses with a different after_run may need other values.
            saver = v1.CheckpointSaverHook
            self._saving = [hook for hook in hooks if getattr(type(hook), "after_run", None) is saver.after_run]
            # The token queue of a SyncReplicasOptimizer closes with the chief's session, which ends the other tasks.
            self._together = any(type(hook).__name__ == "_SyncReplicasOptimizerHook" for hook in hooks)

        def begin(self):
            self._global_step = v1.get_global_step()

        def before_run(self, run_context):
            self._in_run = True

        def after_run(self, run_context, run_values):
            self._in_run = False

        def end(self, session):
            if self._together:
                return
            if context.preemption.asked:
                if self._in_run:
                    stop.after_step(0)
                return
            context.progress.emit("trained")
            # A run without an after_run ran out of data.
            if self._in_run:
                logger.info("the chief's data have ended: it writes the last checkpoint when the workers have left")
            self._session, self._since, self._step, self._next = session, time.monotonic(), -1, 0.0
            for task in context.tf_config.training_tasks:
                if task != context.task:
                    _awaited(context.rendezvous, task, f"the last step of {task}", self._has_trained)

        def _has_trained(self, report):
            """Return whether a task has left training, or the chief waits no longer."""
            if report["state"] not in ("here", "failed") or self._over:
                return True
            now = time.monotonic()
            if context.preemption.asked:
                stop.after_step(0)
                self._over = True
            elif now >= self._next:
                self._next = now + _LOOK_SECS
                step = int(self._session.run(self._global_step))
                if self._in_run and step != self._step:
                    self._since, self._step, self._over = now, step, self._saves(step)
                limit = timeout if self._in_run else min(timeout, _STEP_SECS)
                if now - self._since > limit:
                    logger.warning("not all workers have left training: the chief has waited %.0f s for them", limit)
                    self._over = True
            return self._over

        def _saves(self, step):
            """Save if a checkpoint is due, and return whether a listener requested a stop."""
            run = v1.SessionRunContext(v1.SessionRunArgs(None), self._session)
            for hook in self._saving:
                hook.after_run(run, v1.SessionRunValues(results=step, options=None, run_metadata=None))
            return run.stop_requested

    return LastSteps()


def reports_of(rendezvous: Rendezvous, tasks: Iterable[Task], *, timeout: float) -> dict[str, TaskReport]:
    """Return the report of each training task that has connected, for which it waits: task -> report.

    A task that is still in its last step is waited for. A task that failed, has exited or never started is left out,
    with a warning: asynchronous training ends without it.
    """
    reports = {}
    for task in tasks:
        report = _awaited(rendezvous, task, f"the report of {task}", lambda report: "steps" in report, timeout=timeout)
        if report is not None:
            reports[str(task)] = TaskReport(steps=report["steps"], records=report["records"])
    return reports


def wait_until_left(rendezvous: Rendezvous, tasks: Iterable[Task], *, timeout: float = LEAVING_SECS) -> None:
    """Wait until each of these tasks has reported that it is about to exit, has exited, or never started."""
    for task in tasks:
        met = rendezvous.task_report(task)
        if met is None:
            continue
        nonce = met.get("nonce")

        def has_left(report: Mapping[str, Any], nonce: Any = nonce) -> bool:
            # A different nonce: the task is in its next training already.
            return bool(report.get("left")) or report.get("nonce") != nonce

        _awaited(rendezvous, task, f"{task} to end", has_left, timeout=timeout)


def let_hear(context: TaskContext) -> None:
    """Wait a moment until other tasks have read the status of a chief that has failed.

    Tasks with separate model directories read it from its server. The workers of a strategy run, since it connects them
    when it is created; if they come to the rendezvous after the failure, the chief must still answer them.
    """
    rendezvous = context.rendezvous
    connected = context.trains_together and context.strategy is not None
    workers = [task for task in context.tf_config.training_tasks if connected and task != context.task]
    for _ in Deadline(_HEARD_SECS).polls(_EXIT_POLL_SECS):
        rendezvous.attend()
        reports = [rendezvous.task_report(task) for task in rendezvous.apart_tasks()]
        if all(map(rendezvous.has_heard, workers)) and all(
            report is None or report.get("left") or report["state"] == "failed" for report in reports
        ):
            return


def _awaited(
    rendezvous: Rendezvous,
    task: Task,
    event: str,
    done: Callable[[Mapping[str, Any]], Any],
    *,
    timeout: float = math.inf,
) -> Mapping[str, Any] | None:
    """Return a task's report when it is `done`; None, with a warning, if the task has failed, exited or never started.

    The timeout is for a task that has connected; UNMET_SECS for others.
    """
    cluster = rendezvous.tf_config.cluster
    watch = None
    if cluster is not None and task in cluster.tasks and task != rendezvous.tf_config.task:
        watch = PeerWatch(task, cluster.address(task), known=True)
    begun = time.monotonic()

    def check(_: Mapping[str, Any] | None) -> Mapping[str, Any] | str | None:
        report = rendezvous.task_report(task)
        if report is None:
            waited = time.monotonic() - begun
            return f"{task} has not been seen for {waited:.0f} s" if waited > UNMET_SECS else None
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


# -- the exit of the process ------------------------------------------------------------------------------------------


def end_last(addresses: Mapping[str, str]) -> None:
    """Delay the exit of this process until the servers of these tasks (name -> "host:port") have stopped, at most 30 s.

    A task publishes its last status about a second before its exit.
    """
    if not STATE.awaited_exits:
        # Functions registered last run first: this must run before TensorFlow stops its service.
        atexit.register(_wait_for_exits)
    STATE.awaited_exits.update(addresses)


def _wait_for_exits() -> None:
    for _ in Deadline(_EXIT_SECS).polls(_EXIT_POLL_SECS):
        # A child that the task's program has forked keeps its port open, and sends nothing.
        if not any(probe(address, word=_WORD_SECS)[1] for address in STATE.awaited_exits.values()):
            return
