"""One task of a job, from its start to its exit, and what chief, worker, evaluator and parameter server do, in order.

================ ===============================================================================================
task             what it does
================ ===============================================================================================
chief            trains and writes checkpoints; without an evaluator, evaluates the final checkpoint (and, if
                 requested, every checkpoint during training); publishes the result
worker           trains; waits for the result
evaluator        creates no training strategy; evaluates each checkpoint and the final one last, exports; every
                 task returns its result
parameter server serves variables until every training task has left training; waits for the result
single process   a chief that evaluates at each checkpoint
================ ===============================================================================================

A `master` (TensorFlow 1) is a chief that evaluates during training, as in TensorFlow 1.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.cluster import EVALUATOR
from estimator_pipeline.cluster.peers import PeerWatch, answers
from estimator_pipeline.compat.internals import coordination_service as coordination
from estimator_pipeline.compat.patches import lost_peers
from estimator_pipeline.engines.core import failures, startup
from estimator_pipeline.engines.core import result as results
from estimator_pipeline.engines.core.backend import Backend, TrainingOutcome
from estimator_pipeline.engines.core.context import CheckpointEvent, TaskContext
from estimator_pipeline.engines.core.early_stopping import EarlyStopping
from estimator_pipeline.engines.core.evaluation import CheckpointEvaluator, conclude, follow_training
from estimator_pipeline.engines.core.rendezvous.rendezvous import POLL_SECS, in_state
from estimator_pipeline.engines.core.result import TrainResult
from estimator_pipeline.engines.core.stopping import shutdown
from estimator_pipeline.engines.core.stopping.preemption import Reactions
from estimator_pipeline.engines.core.stopping.synchronized_stop import (
    RendezvousChannel,
    SingleProcessStop,
    stopping_for,
)
from estimator_pipeline.engines.model_dir import disk_errors as disk
from estimator_pipeline.engines.model_dir import lock, run_identity
from estimator_pipeline.engines.model_dir.checkpoints import remove_temporary
from estimator_pipeline.engines.model_dir.layout import checkpoint_step
from estimator_pipeline.errors import DivergedError, PreemptedError, TaskFailedError
from estimator_pipeline.progress import progress_file
from estimator_pipeline.progress.error_lines import error_line
from estimator_pipeline.utils import allocator
from estimator_pipeline.utils.deadline import Deadline
from estimator_pipeline.utils.logger import forward_warnings, logger

__all__ = ["run_task"]

# Seconds for tasks to leave after a stop request, whose sender may not wait longer.
PREEMPTED_SECS = 30.0
# Intervals of a parameter server's checks, in training and after a failure or a stop request.
_SERVING_SECS, _LEAVING_SECS = 0.5, 0.1

_BEFORE_RESULT = "training had ended, and the result of its final evaluation was not available yet"


def run_task(context: TaskContext, backend: Backend) -> TrainResult:
    """Run this process's task of a job, with all events for the launcher.

    Args:
        context: The task.
        backend: The engine with the job's model and data.

    Returns:
        The job's result, the same on every task.

    Raises:
        TaskFailedError: This task, or the training that it belongs to, failed.
        PreemptedError: The task was asked to stop; training is saved in a checkpoint.
        OtherJobError: The tasks of the cluster have different jobs.
        WaitError: A wait timed out; the message names the awaited event.
    """
    allocator.keep_memory()
    progress_file.start_heartbeat(context.environ)
    context.preemption.reactions = _reactions(context)
    early = None if context.options.early_stopping is None else EarlyStopping(context, context.options.early_stopping)
    evaluator = CheckpointEvaluator(
        context.eval_spec,
        lambda: backend.evaluator(context),
        checkpoint_steps=context.checkpoint_steps,
        progress=context.progress,
        early=early,
        literal_delays=context.options.literal_delays,
    )
    try:
        with (
            context.preemption.listening(),
            forward_warnings(lambda text: context.progress.emit("warning", text=text)),
        ):
            # Sent after the signal handlers are set: a receiver of this event may send a signal.
            context.events.started(context.max_steps)
            with disk.explaining(context.model_dir), evaluator:
                try:
                    outcome = _run_role(context, backend, evaluator)
                finally:
                    context.rendezvous.end()
    except TaskFailedError as error:
        # If this task exits first, the launcher knows from this which task failed, and whether it is a failure.
        refusal = {"refusal": error.to_dict()} if isinstance(error, DivergedError) else {}
        context.events.ended(error, status=failures.status_of(error), caused_by=error.caused_by, **refusal)
        raise
    except (Exception, KeyboardInterrupt) as error:
        # The caller may continue without the training. A SystemExit would end it in the middle.
        context.events.raised(error, echo=failures.is_echo(error))
        raise
    context.progress.emit("result", **outcome.event_fields())
    return outcome


def _run_role(context: TaskContext, backend: Backend, evaluator: CheckpointEvaluator) -> TrainResult:
    owning = startup.own_model_dir(context) if context.is_chief else contextlib.nullcontext(context)
    with owning as context, _taking_part(context):
        if context.is_chief:
            return _run_chief(context, backend, evaluator)
        if context.tf_config.is_evaluator:
            return _run_evaluator(context, evaluator)
        if context.tf_config.is_ps:
            return _run_parameter_server(context, backend)
        return _run_worker(context, backend)


@contextlib.contextmanager
def _taking_part(context: TaskContext) -> Iterator[None]:
    """Meet the other tasks within the block; report that this task fails, has lost a peer, or leaves because it must.

    Errors of a full disk or of wrong data are converted.
    """
    report_lost_peer = functools.partial(failures.report, context, echo=True)
    job = startup.compared_job(context) if context.is_chief else None
    with failures.explaining(context), context.rendezvous.attending(job):
        lost_peers.before_exit.append(report_lost_peer)
        try:
            yield
        except PreemptedError:
            if context.is_chief:
                _publish_preempted(context)
                _leave_last(context, timeout=PREEMPTED_SECS)
            else:
                with contextlib.suppress(OSError, compat.tensorflow().errors.OpError):
                    context.rendezvous.report("preempted", left=True)
            raise
        except Exception as error:
            plain = failures.explained(context, error)
            failures.report(context, plain or error)
            if plain is not None:
                if context.progress.enabled:
                    # In the log that a launcher keeps. It shows the plain error.
                    logger.info("The original error:", exc_info=error)
                raise plain from error
            raise
        finally:
            lost_peers.before_exit.remove(report_lost_peer)


# -- the roles --------------------------------------------------------------------------------------------------------


def _run_chief(context: TaskContext, backend: Backend, evaluator: CheckpointEvaluator) -> TrainResult:
    """Train, write the checkpoints, and publish the result."""
    context.preemption.reactions = _reactions(context)
    if evaluator.early is not None:
        stopped = evaluator.early.verdict(from_step=context.start_step).reason
        context = dataclasses.replace(context, stopped_early=stopped)
        if stopped:
            logger.info(
                "Training was stopped early at step %d: %s. To train further, change or remove eval.early_stopping",
                *(context.start_step, stopped),
            )
    start, policy = startup.files_of_start(context.model_dir), run_identity.policy_of(context.model_dir)
    _publish_status(context, "running", start=start, policy=policy)
    if context.progress.enabled or context.evaluates_during_training:
        after_checkpoint = functools.partial(_after_checkpoint, context, evaluator)
        context = dataclasses.replace(context, after_checkpoint=after_checkpoint)
    trained, report = _train(context, backend, evaluator.early)
    with context.preemption.interruptible(_BEFORE_RESULT):
        return _publish_result(context, trained, report, evaluator)


def _run_worker(context: TaskContext, backend: Backend) -> TrainResult:
    """Train, and return the result that the chief publishes."""
    context = startup.meet(context)
    if _has_come_too_late(context):
        logger.warning("%s: training had ended before this task started", context.task)
        report = _report_of(context, steps=0)
    else:
        _, report = _train(context, backend)
    context.rendezvous.report("done", **report)
    return _await_result(context)


def _run_evaluator(context: TaskContext, evaluator: CheckpointEvaluator) -> TrainResult:
    """Evaluate each checkpoint, and the final one last."""
    with context.preemption.interruptible("training continues without it"):
        while True:
            training = follow_training(context, evaluator)
            if training is None:
                return context.results.stand_by(context.model_dir)
            outcome = context.results.through_chief(training, functools.partial(conclude, context, evaluator))
            if outcome is not None:
                return outcome


def _run_parameter_server(context: TaskContext, backend: Backend) -> TrainResult:
    """Serve variables until training has ended."""
    rendezvous, cluster = context.rendezvous, context.tf_config.cluster
    assert cluster is not None
    context.preemption.joins(lambda: rendezvous.answered)
    server = backend.server(context)  # in its own threads, as long as this object exists
    chief = cluster.address(cluster.chief)
    watch = PeerWatch(cluster.chief, chief, startup=context.options.startup_timeout)
    try:
        event = "the end of training"
        status = rendezvous.wait(event, _end_of_training, timeout=float("inf"), watch=watch, poll=_SERVING_SECS)
    except TaskFailedError:
        # A chief may still be creating its session: without the variables of this server it would hang.
        _wait_while(lambda: answers(chief))
        raise
    if status["state"] == "preempted":
        _wait_while(
            lambda: any((rendezvous.task_report(t) or {}).get("state") == "here" for t in cluster.training_tasks)
        )
        context.preemption.ask(str(status.get("by")))
        raise context.preemption.error(context.preemption.reactions.saved())
    # The chief publishes the result when every training task has left training; until then variables are served.
    outcome = _await_result(context)
    del server
    return outcome


def _wait_while(condition: Callable[[], bool]) -> None:
    """Wait for other tasks to leave training after it failed or was stopped."""
    for _ in Deadline(PREEMPTED_SECS).polls(_LEAVING_SECS):
        if not condition():
            return


def _end_of_training(status: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    return in_state(status, "preempted", "finished")


def _await_result(context: TaskContext) -> TrainResult:
    with context.preemption.interruptible(_BEFORE_RESULT):
        outcome = context.results.wait()
        context.rendezvous.leave()
        return outcome


# -- training ---------------------------------------------------------------------------------------------------------


def _train(
    context: TaskContext, backend: Backend, early: EarlyStopping | None = None
) -> tuple[TrainingOutcome, dict[str, Any]]:
    """Train to the end, and return the outcome and the report of this task.

    Args:
        context: This task.
        backend: The engine.
        early: Early stopping of the job, which the chief applies.

    Raises:
        PreemptedError: This task was asked to stop, and training is saved.
    """
    rendezvous, preemption = context.rendezvous, context.preemption
    stop = stopping_for(context)
    preemption.reactions = _reactions(context, stop)
    stop.begin()
    try:
        context = startup.start_together(context)
        # A worker that sees the chief's checkpoints gets the step from them.
        if context.stopped_early or (
            (rendezvous.apart and context.tf_config.is_asynchronous)
            and context.max_steps is not None
            and context.start_step >= context.max_steps
        ):
            trained = TrainingOutcome(steps=0, data_ended=False)
        else:
            elsewhere = not context.evaluates_during_training
            with contextlib.nullcontext() if early is None else early.watching(stop.end_early, elsewhere=elsewhere):
                trained = backend.train(context, stop)
    except Exception as error:
        if not preemption.asked or not failures.is_echo(error):
            raise
        # A task that was asked to stop exits as preempted, even if the exit of other tasks raised an error here.
        raise preemption.error(f"{error_line(error)}, while it stopped; {preemption.reactions.saved()}") from error
    finally:
        stop.close()
    # This task runs no further steps. If it has run none, it would still count as waiting for the others.
    preemption.joins(lambda: True)
    context.progress.emit("trained")
    remove_temporary(context.model_dir, context.tf_config, apart=rendezvous.apart)
    report = _report_of(context, steps=trained.steps)
    if preemption.asked:
        rendezvous.report("preempted", **report)
        if not context.is_chief:
            # The chief may still be writing it: an exit of this task could abort the chief.
            rendezvous.wait("the last checkpoint", _end_of_training, timeout=preemption.seconds)
        raise preemption.error(preemption.reactions.saved())
    return trained, report


def _has_come_too_late(context: TaskContext) -> bool:
    """Return whether asynchronous training has ended without this worker."""
    if not context.tf_config.is_asynchronous:
        return False
    while context.rendezvous.is_unanswered() and not context.preemption.asked:
        # The status of an earlier run, whose chief is about to start; or of this run, whose chief has exited.
        time.sleep(POLL_SECS)
    return context.rendezvous.finished() is not None


def _report_of(context: TaskContext, *, steps: int) -> dict[str, Any]:
    """Return the task's steps and the records that it read for them; None if the batch size is unknown."""
    batch, strategy = getattr(context.input_fn, "global_batch_size", None), context.strategy
    records = None if batch is None else int(steps * batch)
    if records is not None and strategy is not None and strategy.num_replicas_in_sync > 1:
        records = records * len(strategy.extended.worker_devices) // strategy.num_replicas_in_sync
    return {"steps": steps, "records": records}


def _after_checkpoint(context: TaskContext, evaluator: CheckpointEvaluator, event: CheckpointEvent) -> None:
    """Report a checkpoint of the chief to the launcher, and evaluate it if checkpoints are evaluated in training."""
    context.progress.emit("checkpoint", step=event.step, path=event.path)
    if not context.evaluates_during_training:
        return
    if event.metrics:
        evaluator.take(event.path, event.metrics)
    # The final checkpoint is evaluated when training has ended.
    if event.metrics is None and not event.last and evaluator.seconds_to_wait() == 0:
        # A stop request does not wait for an evaluation; the checkpoint is written.
        with contextlib.suppress(PreemptedError), context.preemption.interruptible("it evaluated a checkpoint"):
            evaluator.evaluate(event.path, final=False)


# -- a stop request ---------------------------------------------------------------------------------------------------


def _reactions(context: TaskContext, stop: SingleProcessStop | None = None) -> Reactions:
    """Return what a task does when it is asked to stop.

    Args:
        context: This task.
        stop: Stops its training; None: it does not train yet.
    """

    def asked(by: str) -> None:
        # The launcher allows this task that many seconds.
        context.progress.emit("heartbeat", preempting=by, seconds=context.preemption.seconds)
        if context.tf_config.is_ps:  # It serves variables until the chief has written the checkpoint.
            RendezvousChannel(context.rendezvous).post("ask", str(context.task))
        elif stop is not None:
            stop.ask()

    def saved() -> str:
        if context.rendezvous.apart:
            return "training is saved in the chief's last checkpoint"
        latest, step = _latest(context)
        place = "there is no checkpoint yet" if latest is None else f"training is saved after step {step}, in {latest}"
        # The chief may still save steps that would count as lost in another task.
        lost = stop.reached() - step if stop is not None and context.is_chief else 0
        return place if lost <= 0 else f"{place}; {lost} later {'step is' if lost == 1 else 'steps are'} lost"

    def last_word(error: PreemptedError) -> None:
        # A peer is gone, or the task takes too long.
        context.progress.emit("end", status="preempted", caused_by=error.caused_by)
        # A chief that still waits for the lock must not publish: the status is that of the job that holds it.
        if context.is_chief and lock.is_held(context.model_dir):
            _publish_preempted(context)

    return Reactions(asked=asked, saved=saved, last_word=last_word)


def _latest(context: TaskContext) -> tuple[str | None, int]:
    """Return the path of the latest checkpoint and its step, 0 without one."""
    latest = compat.tensorflow().train.latest_checkpoint(context.model_dir)
    return latest, 0 if latest is None else max(0, checkpoint_step(latest))


def _publish_preempted(context: TaskContext) -> None:
    latest, step = _latest(context)
    _publish_status(context, "preempted", by=context.preemption.by, checkpoint=latest, global_step=step)


# -- the end of training ----------------------------------------------------------------------------------------------


def _publish_result(
    context: TaskContext, trained: TrainingOutcome, report: Mapping[str, Any], evaluator: CheckpointEvaluator
) -> TrainResult:
    """Publish the result of the final evaluation, which the evaluator or this chief makes, and leave last."""
    checkpoint, step = _latest(context)
    ended = results.DATA_ENDED if trained.data_ended else results.STOPPED
    if context.max_steps is not None and checkpoint is not None and step >= context.max_steps:
        ended = results.REACHED
    training = {"checkpoint": checkpoint, "global_step": step, "ended": ended}
    reason = "" if evaluator.early is None else evaluator.early.verdict().reason
    if reason and ended == results.STOPPED:
        training |= {"ended": results.STOPPED_EARLY, "reason": reason}
        logger.info("Training is stopped early at step %d: %s", step, reason)
    context.rendezvous.report("done", **report)
    by_evaluator = context.results.is_evaluators()
    _publish_status(context, "finished", result_by=str(EVALUATOR if by_evaluator else context.task), **training)
    outcome = context.results.from_evaluator() if by_evaluator else None
    if outcome is None:
        if by_evaluator:
            _publish_status(context, "finished", result_by=str(context.task), **training)
        outcome = conclude(context, evaluator, training)
    timeout = context.options.result_timeout
    reports = shutdown.reports_of(context.rendezvous, context.tf_config.training_tasks, timeout=timeout)
    trained.conclude()
    outcome = dataclasses.replace(outcome, tasks=reports, task=str(context.task))
    context.rendezvous.publish(outcome.to_dict())
    _leave_last(context)
    return outcome


def _publish_status(context: TaskContext, state: str, **more: Any) -> None:
    # Checkpoints after this step belong to this run, for an evaluator that starts late.
    stopped = {"stopped_early": context.stopped_early} if context.stopped_early else {}
    context.rendezvous.publish_status(state, from_step=context.start_step, **stopped, **more)


def _leave_last(context: TaskContext, timeout: float = shutdown.LEAVING_SECS) -> None:
    others = [task for task in context.tf_config.training_tasks if task != context.task]
    # Tasks with separate model directories read the result from this task.
    leaving = dict.fromkeys([*others, *context.rendezvous.apart_tasks()])
    shutdown.wait_until_left(context.rendezvous, leaving, timeout=timeout)
    cluster = context.tf_config.cluster
    if cluster is not None and cluster.num_ps == 0 and others and coordination.available():
        shutdown.end_last({str(task): cluster.address(task) for task in others if context.rendezvous.has_met(task)})
