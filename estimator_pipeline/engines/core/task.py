"""One task of a job, from its start to its exit: the events for the launcher, the role, and how the task leaves."""

from __future__ import annotations

import contextlib

from estimator_pipeline import compat
from estimator_pipeline.engines.core import failures, roles
from estimator_pipeline.engines.core.backend import Backend
from estimator_pipeline.engines.core.context import TaskContext
from estimator_pipeline.engines.core.evaluation import CheckpointEvaluator
from estimator_pipeline.engines.core.result import TrainResult
from estimator_pipeline.engines.core.stopping import shutdown
from estimator_pipeline.engines.model_dir import disk_errors as disk
from estimator_pipeline.errors import PreemptedError, TaskFailedError
from estimator_pipeline.progress import progress_file
from estimator_pipeline.utils import allocator
from estimator_pipeline.utils.logger import forward_warnings

__all__ = ["run_task"]


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
    context.preemption.reactions = roles.reactions_of(context)
    try:
        with (
            context.preemption.listening(),
            forward_warnings(lambda text: context.progress.emit("warning", text=text)),
        ):
            # Sent after the signal handlers are set: a receiver of this event may send a signal.
            context.events.started(context.max_steps)
            outcome = _run_role(context, backend)
    except TaskFailedError as error:
        # If this task exits first, the launcher knows from this which task failed, and whether it is a failure.
        context.events.ended(error, status=shutdown.status_of(error), caused_by=error.caused_by)
        raise
    except (Exception, KeyboardInterrupt) as error:
        # The caller may continue without the training. A SystemExit would end it in the middle.
        context.events.raised(error, echo=shutdown.is_echo(error))
        raise
    context.progress.emit("result", **outcome.event_fields())
    return outcome


def _run_role(context: TaskContext, backend: Backend) -> TrainResult:
    evaluator = CheckpointEvaluator(
        context.eval_spec,
        lambda: backend.evaluator(context),
        checkpoint_steps=context.checkpoint_steps,
        progress=context.progress,
        literal_delays=context.options.literal_delays,
    )
    with disk.explaining(context.model_dir):
        try:
            if context.is_chief:
                return roles.run_chief(context, backend, evaluator)
            with failures.explaining(context), context.rendezvous.attending():
                return _run_other_role(context, backend, evaluator)
        finally:
            context.rendezvous.end()
            evaluator.close()


def _run_other_role(context: TaskContext, backend: Backend, evaluator: CheckpointEvaluator) -> TrainResult:
    try:
        with failures.explaining(context):
            if context.tf_config.is_evaluator:
                return roles.run_evaluator(context, evaluator)
            if context.tf_config.is_ps:
                return roles.run_parameter_server(context, backend)
            return roles.run_worker(context, backend)
    except PreemptedError:
        with contextlib.suppress(OSError, compat.tensorflow().errors.OpError):
            context.rendezvous.report("preempted", left=True)
        raise
    except Exception as error:
        failures.report(context, error)
        raise
