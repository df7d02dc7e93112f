"""Failures of a task: their reports to the other tasks and to the launcher, and errors in terms of the job."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from estimator_pipeline import compat
from estimator_pipeline.cluster import TFConfig
from estimator_pipeline.engines.core import data_errors
from estimator_pipeline.engines.core.rendezvous import same_job
from estimator_pipeline.engines.core.stopping import shutdown
from estimator_pipeline.engines.model_dir import disk_errors as disk
from estimator_pipeline.errors import (
    DivergedError,
    InputError,
    OtherJobError,
    PipelineError,
    PreemptedError,
    TaskFailedError,
    WaitError,
)
from estimator_pipeline.inputs import tf_dataset as blocks
from estimator_pipeline.job.user_code import refusal_in
from estimator_pipeline.models import label_checks
from estimator_pipeline.utils.logger import logger

if TYPE_CHECKING:
    from estimator_pipeline.engines.core.context import TaskContext

__all__ = ["diverged", "diverged_at", "explained", "explaining", "is_echo", "report", "status_of", "text_of"]

# Seconds for the other workers to publish their losses: they read the same sum in the same step.
_LOSSES_SECS = 10.0
# Maximum number of other workers' losses in the message.
_MOST = 4
# In a failure of gRPC, such as after a different task has failed in the middle of a collective.
_FROM_PEER = "GRPC error information from remote target"
# The status of an error, for the launcher.
_STATUS: dict[type[BaseException], str] = {
    DivergedError: "diverged",
    PreemptedError: "preempted",
    OtherJobError: same_job.OTHER_JOB,
}


@contextlib.contextmanager
def explaining(context: TaskContext) -> Iterator[None]:
    """Convert errors of a full disk or of wrong data, and report them to the other tasks."""
    try:
        yield
    except Exception as error:
        plain = explained(context, error)
        if plain is None:
            raise
        report(context, plain)
        raise plain from error


def explained(context: TaskContext, error: BaseException) -> PipelineError | None:
    """Return the error of this package for an error of TensorFlow or of the system; None for any other."""
    # Errors of the input come first: they name the file with the disk error.
    others = label_checks.explained(error) or blocks.explained(error) or refusal_in(error)
    others = others or data_errors.explained(context, error)
    return others or disk.explained(error, model_dir=context.model_dir)


def report(context: TaskContext, error: BaseException | str, *, echo: bool = False) -> None:
    """Report a failure to the other tasks, which would otherwise wait for this task.

    Args:
        context: This task.
        error: The error, or its description.
        echo: Whether it is known to be a consequence of a different task's failure.
    """
    rendezvous = context.rendezvous
    echo = echo or is_echo(error)
    if not echo:
        # The other tasks exit now, and the launcher may then stop this one too: it must still count as failed.
        context.events.raised(error)
        context.preemption.refuse()
    text, status = text_of(error)[:2000], status_of(error)
    try:
        if context.is_chief:
            rendezvous.publish_failure(text, status=status, echo=echo, from_step=context.start_step)
            shutdown.let_hear(context)
        else:
            rendezvous.report_failed(text, status=status, echo=echo)
    except (OSError, compat.tensorflow().errors.OpError) as second:
        # Usually a full disk: the first error must be raised.
        logger.warning("%s could not be written to either: %s", rendezvous.directory, second)


def status_of(error: BaseException | str) -> str:
    """Return the status of this error, for the launcher and the other tasks."""
    if isinstance(error, InputError) and error.code == "data/not-finite":
        return _STATUS[DivergedError]  # The next start examines the checkpoints for NaN.
    return "failed" if isinstance(error, str) else _STATUS.get(type(error), "failed")


def text_of(error: BaseException | str) -> str:
    """Return the text of this error, for the launcher and the other tasks."""
    return str(error) if isinstance(error, PipelineError | str) else f"{type(error).__name__}: {error}"


def is_echo(error: BaseException | str) -> bool:
    """Return whether an error is only a consequence of a different task's failure, as far as known."""
    errors = compat.tensorflow().errors
    if isinstance(error, errors.UnavailableError | errors.AbortedError | errors.CancelledError | WaitError):
        return True
    if isinstance(error, errors.InternalError) and _FROM_PEER in str(error):
        return True
    if isinstance(error, DivergedError):
        return False  # each worker sees it, and names the one whose loss it was
    return isinstance(error, TaskFailedError) and error.caused_by is not None


def diverged(reason: str, *, step: int) -> DivergedError:
    """Return the error of a training that has diverged: which value is not finite, at which step."""
    error = DivergedError(
        f"training has diverged: {reason}",
        hint="lower the learning rate, clip gradients, or look at the records of that step; earlier checkpoints are "
        "kept",
    )
    error.step = step
    return error


def diverged_at(step: int, loss: float | None, tf_config: TFConfig) -> DivergedError:
    """Return the error of synchronous training whose loss, a sum over the workers, is NaN: on all of them.

    It names the workers whose own loss is NaN or infinite, unless that is so on each, or not known of one. `loss` is
    this worker's before the sum; None if it is not known.
    """
    try:
        losses = same_job.exchange("own loss", loss, tf_config, timeout=_LOSSES_SECS)
    except WaitError:
        losses = {}
    known = None not in losses.values()
    wrong = [task for task, value in losses.items() if known and not math.isfinite(value)]
    if not wrong or len(wrong) == len(losses):
        return diverged(f"the loss of step {step} is NaN", step=step)
    others = [f"{task}: {value:.4g}" for task, value in losses.items() if task not in wrong]
    others[_MOST:] = ["..."] if len(others) > _MOST else []
    kind = "NaN" if math.isnan(losses[wrong[0]]) else "infinite"
    error = diverged(f"the loss of {' and '.join(wrong)} at step {step} is {kind} ({', '.join(others)})", step=step)
    error.caused_by = wrong[0] if len(wrong) == 1 else None
    return error
