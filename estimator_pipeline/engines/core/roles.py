"""The roles of a task: what chief, worker, evaluator and parameter server do, in order.

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
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from estimator_pipeline import compat
from estimator_pipeline.cluster import EVALUATOR
from estimator_pipeline.compat.internals import coordination_service as coordination
from estimator_pipeline.compat.patches import lost_peers
from estimator_pipeline.engines.core import failures, parameter_server, startup
from estimator_pipeline.engines.core import result as results
from estimator_pipeline.engines.core.backend import Backend, TrainingOutcome
from estimator_pipeline.engines.core.context import CheckpointAction, CheckpointEvent, TaskContext
from estimator_pipeline.engines.core.evaluation import CheckpointEvaluator, conclude, follow_training
from estimator_pipeline.engines.core.rendezvous.rendezvous import POLL_SECS
from estimator_pipeline.engines.core.result import TrainResult
from estimator_pipeline.engines.core.stopping import shutdown
from estimator_pipeline.engines.core.stopping.preemption import Reactions
from estimator_pipeline.engines.core.stopping.synchronized_stop import (
    RendezvousChannel,
    SingleProcessStop,
    stopping_for,
)
from estimator_pipeline.engines.model_dir import run_identity
from estimator_pipeline.engines.model_dir.checkpoints import remove_temporary
from estimator_pipeline.engines.model_dir.layout import checkpoint_step
from estimator_pipeline.errors import PreemptedError
from estimator_pipeline.progress.error_lines import error_line
from estimator_pipeline.utils.logger import logger

__all__ = ["reactions_of", "run_chief", "run_evaluator", "run_parameter_server", "run_worker"]

# Seconds for tasks to leave after a stop request, whose sender may not wait longer.
PREEMPTED_SECS = 30.0

_BEFORE_RESULT = "training had ended, and the result of its final evaluation was not available yet"


# -- the roles --------------------------------------------------------------------------------------------------------


def run_chief(context: TaskContext, backend: Backend, evaluator: CheckpointEvaluator) -> TrainResult:
    """Train, write the checkpoints, and publish the result."""
    with (
        startup.own_model_dir(context) as context,
        failures.explaining(context),
        context.rendezvous.attending(startup.compared_job(context)),
    ):
        context.preemption.reactions = reactions_of(context)
        start, policy = startup.files_of_start(context.model_dir), run_identity.policy_of(context.model_dir)
        _publish_status(context, "running", start=start, policy=policy)
        context = dataclasses.replace(context, after_checkpoint=tuple(_checkpoint_actions(context, evaluator)))
        with _reporting_failures(context):
            trained, report = _train(context, backend)
            with context.preemption.interruptible(_BEFORE_RESULT):
                return _publish_result(context, trained, report, evaluator)


def run_worker(context: TaskContext, backend: Backend) -> TrainResult:
    """Train, and return the result that the chief publishes."""
    context = startup.meet(context)
    context.preemption.reactions = reactions_of(context)
    if _has_come_too_late(context):
        logger.warning("%s: training had ended before this task started", context.task)
        report = _report_of(context, steps=0)
    else:
        with _reporting_failures(context):
            _, report = _train(context, backend)
    context.rendezvous.report("done", **report)
    try:
        with context.preemption.interruptible(_BEFORE_RESULT):
            outcome = context.results.wait()
            context.rendezvous.leave()
            return outcome
    except PreemptedError:
        context.rendezvous.leave()
        raise


def run_evaluator(context: TaskContext, evaluator: CheckpointEvaluator) -> TrainResult:
    """Evaluate each checkpoint, and the final one last."""
    with context.preemption.interruptible("training continues without it"):
        while True:
            training = follow_training(
                evaluator,
                rendezvous=context.rendezvous,
                model_dir=context.model_dir,
                checkpoint_timeout=context.options.checkpoint_timeout,
            )
            if training is None:
                return context.results.stand_by(context.model_dir)
            outcome = context.results.through_chief(training, functools.partial(_conclude, context, evaluator))
            if outcome is not None:
                return outcome


def run_parameter_server(context: TaskContext, backend: Backend) -> TrainResult:
    """Serve variables until training has ended."""
    context.preemption.joins(lambda: context.rendezvous.answered)
    server = backend.server(context)
    timeout = context.options.startup_timeout
    training = parameter_server.serve(context.rendezvous, startup=timeout, leaving=PREEMPTED_SECS)
    if training["state"] == "preempted":
        context.preemption.ask(str(training.get("by")))
        raise context.preemption.error(context.preemption.reactions.saved())
    with context.preemption.interruptible(_BEFORE_RESULT):
        # The chief publishes it when every training task has left training; until then variables are served.
        outcome = context.results.wait()
        context.rendezvous.leave()
        del server
        return outcome


# -- training ---------------------------------------------------------------------------------------------------------


def _train(context: TaskContext, backend: Backend) -> tuple[TrainingOutcome, dict[str, Any]]:
    """Train to the end, and return the outcome and the report of this task.

    Raises:
        PreemptedError: This task was asked to stop, and training is saved.
    """
    stop = stopping_for(context.preemption, tf_config=context.tf_config, rendezvous=context.rendezvous)
    context.preemption.reactions = reactions_of(context, stop)
    stop.begin()
    try:
        trained = _train_if_needed(context, backend, stop)
    except Exception as error:
        if not context.preemption.asked or not shutdown.is_echo(error):
            raise
        # A task that was asked to stop exits as preempted, even if the exit of other tasks raised an error here.
        saved = context.preemption.reactions.saved()
        raise context.preemption.error(f"{error_line(error)}, while it stopped; {saved}") from error
    finally:
        stop.close()
    # This task runs no further steps.
    context.progress.emit("trained")
    remove_temporary(context.model_dir, context.tf_config, apart=context.rendezvous.apart)
    report = _report_of(context, steps=trained.steps)
    if context.preemption.asked:
        _end_with_checkpoint(context, report)
    return trained, report


def _train_if_needed(context: TaskContext, backend: Backend, stop: SingleProcessStop) -> TrainingOutcome:
    context = startup.start_together(context)
    # A worker that sees the chief's checkpoints gets the step from them.
    apart = context.rendezvous.apart and context.tf_config.is_asynchronous
    if apart and context.max_steps is not None and context.start_step >= context.max_steps:
        return TrainingOutcome(steps=0, data_ended=False)
    return backend.train(context, stop)


def _has_come_too_late(context: TaskContext) -> bool:
    """Return whether asynchronous training has ended without this worker."""
    if not context.tf_config.is_asynchronous:
        return False
    while context.rendezvous.is_unanswered() and not context.preemption.asked:
        # The status of an earlier run, whose chief is about to start; or of this run, whose chief has exited.
        time.sleep(POLL_SECS)
    return context.rendezvous.finished() is not None


@contextlib.contextmanager
def _reporting_failures(context: TaskContext) -> Iterator[None]:
    """Report within the block that this training task has failed, has lost a peer, or leaves because it must stop."""

    def report_lost_peer(message: str) -> None:
        failures.report(context, message, echo=True)

    lost_peers.before_exit.append(report_lost_peer)
    try:
        yield
    except PreemptedError:
        if context.is_chief:
            _publish_preempted(context)
            _leave_last(context, timeout=PREEMPTED_SECS)
        else:
            context.rendezvous.leave()
        raise
    except Exception as error:
        plain = failures.explained(context, error)
        failures.report(context, plain or error)
        if plain is not None:
            raise plain from error
        raise
    finally:
        lost_peers.before_exit.remove(report_lost_peer)


def _report_of(context: TaskContext, *, steps: int) -> dict[str, Any]:
    return {"steps": steps, "records": results.records_of(context.input_fn, context.strategy, steps)}


# -- after a checkpoint -----------------------------------------------------------------------------------------------


def _checkpoint_actions(context: TaskContext, evaluator: CheckpointEvaluator) -> Iterator[CheckpointAction]:
    """Yield what the chief does after each checkpoint."""
    if context.progress.enabled:
        yield lambda event: context.progress.emit("checkpoint", step=event.step, path=event.path)
    if context.evaluates_during_training:
        yield functools.partial(_evaluate, context, evaluator)


def _evaluate(context: TaskContext, evaluator: CheckpointEvaluator, event: CheckpointEvent) -> None:
    if event.metrics:
        evaluator.take(event.path, event.metrics)
    # The final checkpoint is evaluated when training has ended.
    if event.metrics is not None or event.last or evaluator.seconds_to_wait() != 0:
        return
    with contextlib.suppress(PreemptedError), context.preemption.interruptible("it evaluated a checkpoint"):
        # A stop request does not wait for an evaluation; the checkpoint is written.
        evaluator.evaluate(event.path, final=False)


# -- a stop request ---------------------------------------------------------------------------------------------------


def reactions_of(context: TaskContext, stop: SingleProcessStop | None = None) -> Reactions:
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
        # The chief may still save steps that would count as lost here.
        reached = stop.reached() if stop is not None and context.is_chief else 0
        return _saved_progress(context.model_dir, reached=reached)

    def last_word(error: PreemptedError) -> None:
        # A peer is gone, or the task takes too long.
        context.progress.emit("end", status="preempted", caused_by=error.caused_by)
        if context.is_chief:
            _publish_preempted(context)

    return Reactions(asked=asked, saved=saved, last_word=last_word)


def _saved_progress(model_dir: str, *, reached: int) -> str:
    """Describe the latest checkpoint, and the number of lost steps.

    Args:
        model_dir: Model directory of the task that writes the checkpoints.
        reached: The global step that training had reached.
    """
    latest = compat.tensorflow().train.latest_checkpoint(model_dir)
    step = 0 if latest is None else max(0, checkpoint_step(latest))
    place = "there is no checkpoint yet" if latest is None else f"training is saved after step {step}, in {latest}"
    lost = reached - step
    return place if lost <= 0 else f"{place}; {lost} later {'step is' if lost == 1 else 'steps are'} lost"


def _end_with_checkpoint(context: TaskContext, report: Mapping[str, Any]) -> NoReturn:
    context.rendezvous.report("preempted", **report)
    if not context.is_chief:
        # The chief may still be writing it: an exit of this task could abort the chief.
        ended, seconds = parameter_server.end_of_training, context.preemption.seconds
        context.rendezvous.wait("the last checkpoint", ended, timeout=seconds)
    raise context.preemption.error(context.preemption.reactions.saved())


def _publish_preempted(context: TaskContext) -> None:
    latest = compat.tensorflow().train.latest_checkpoint(context.model_dir)
    step = checkpoint_step(latest) if latest else 0
    _publish_status(context, "preempted", by=context.preemption.by, checkpoint=latest, global_step=step)


# -- the end of training ----------------------------------------------------------------------------------------------


def _publish_result(
    context: TaskContext, trained: TrainingOutcome, report: Mapping[str, Any], evaluator: CheckpointEvaluator
) -> TrainResult:
    """Publish the result of the final evaluation, which the evaluator or this chief makes, and leave last."""
    checkpoint = compat.tensorflow().train.latest_checkpoint(context.model_dir)
    training = {
        "checkpoint": checkpoint,
        "global_step": checkpoint_step(checkpoint) if checkpoint else 0,
        "ended": _why_ended(context, trained, checkpoint),
    }
    context.rendezvous.report("done", **report)
    by_evaluator = context.results.is_evaluators()
    _publish_status(context, "finished", result_by=str(EVALUATOR if by_evaluator else context.task), **training)
    outcome = context.results.from_evaluator() if by_evaluator else None
    if outcome is None:
        if by_evaluator:
            _publish_status(context, "finished", result_by=str(context.task), **training)
        outcome = _conclude(context, evaluator, training)
    timeout = context.options.result_timeout
    reports = shutdown.reports_of(context.rendezvous, context.tf_config.training_tasks, timeout=timeout)
    trained.conclude()
    outcome = dataclasses.replace(outcome, tasks=reports, task=str(context.task))
    context.rendezvous.publish(outcome.to_dict())
    _leave_last(context)
    return outcome


def _why_ended(context: TaskContext, trained: TrainingOutcome, checkpoint: str | None) -> str:
    last = context.max_steps
    if last is not None and checkpoint is not None and checkpoint_step(checkpoint) >= last:
        return results.REACHED
    return results.DATA_ENDED if trained.data_ended else results.STOPPED


def _conclude(context: TaskContext, evaluator: CheckpointEvaluator, training: Mapping[str, Any]) -> TrainResult:
    return conclude(evaluator, training, model_dir=context.model_dir, task=str(context.task))


def _publish_status(context: TaskContext, state: str, **more: Any) -> None:
    # Checkpoints after this step belong to this run, for an evaluator that starts late.
    context.rendezvous.publish_status(state, from_step=context.start_step, **more)


def _leave_last(context: TaskContext, timeout: float = shutdown.LEAVING_SECS) -> None:
    others = [task for task in context.tf_config.training_tasks if task != context.task]
    # Tasks with separate model directories read the result from this task.
    leaving = dict.fromkeys([*others, *context.rendezvous.apart_tasks()])
    shutdown.wait_until_left(context.rendezvous, leaving, timeout=timeout)
    cluster = context.tf_config.cluster
    if cluster is not None and cluster.num_ps == 0 and others and coordination.available():
        shutdown.end_last({str(task): cluster.address(task) for task in others if context.rendezvous.has_met(task)})
