"""Failures of a task: their reports to the other tasks and to the launcher, and errors in terms of the job."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from estimator_pipeline import compat
from estimator_pipeline.engines.core.stopping import shutdown
from estimator_pipeline.engines.model_dir import disk_errors as disk
from estimator_pipeline.errors import PipelineError
from estimator_pipeline.inputs import tf_dataset as blocks
from estimator_pipeline.job.user_code import refusal_in
from estimator_pipeline.models import label_checks
from estimator_pipeline.utils.logger import logger

if TYPE_CHECKING:
    from estimator_pipeline.engines.core.context import TaskContext

__all__ = ["explained", "explaining", "report"]


@contextlib.contextmanager
def explaining(context: TaskContext) -> Iterator[None]:
    """Convert errors of a full disk or of mismatching labels, and report them to the other tasks."""
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
    return others or disk.explained(error, model_dir=context.model_dir)


def report(context: TaskContext, error: BaseException | str, *, echo: bool = False) -> None:
    """Report a failure to the other tasks, which would otherwise wait for this task.

    Args:
        context: This task.
        error: The error, or its description.
        echo: Whether it is known to be a consequence of a different task's failure.
    """
    rendezvous = context.rendezvous
    echo = echo or shutdown.is_echo(error)
    if not echo:
        # The other tasks exit now, and the launcher may then stop this one too: it must still count as failed.
        context.events.raised(error)
        context.preemption.refuse()
    text, status = shutdown.text_of(error)[:2000], shutdown.status_of(error)
    try:
        if context.is_chief:
            rendezvous.publish_failure(text, status=status, echo=echo, from_step=context.start_step)
            shutdown.let_hear(rendezvous)
        else:
            rendezvous.report_failed(text, status=status, echo=echo)
    except (OSError, compat.tensorflow().errors.OpError) as second:
        # Usually a full disk: the first error must be raised.
        logger.warning("%s could not be written to either: %s", rendezvous.directory, second)
