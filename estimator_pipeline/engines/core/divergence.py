"""The error of a training with a NaN or infinite loss or variable, for every engine."""

from __future__ import annotations

import json
import math

from estimator_pipeline.cluster import TFConfig
from estimator_pipeline.engines.core.rendezvous import same_job
from estimator_pipeline.errors import DivergedError, WaitError

__all__ = ["diverged", "diverged_at"]

# Seconds for the other workers to publish their losses: they read the same sum in the same step.
_LOSSES_SECS = 10.0
# Maximum number of other workers' losses in the message.
_MOST = 4


def diverged(reason: str) -> DivergedError:
    """Return the error of a training that has diverged.

    Args:
        reason: The value that is not finite, and its step.
    """
    return DivergedError(
        f"training has diverged: {reason}",
        hint="lower the learning rate, clip gradients, or look at the records of that step; earlier checkpoints are "
        "kept",
    )


def diverged_at(step: int, loss: float | None, tf_config: TFConfig) -> DivergedError:
    """Return the error of synchronous training whose loss, a sum over the workers, is NaN: on all of them.

    It names the workers whose own loss is NaN or infinite, unless that is so on each, or not known of one.

    Args:
        step: The global step.
        loss: This worker's loss before the sum; None if it is not known.
        tf_config: Cluster and task of this process.
    """
    try:
        texts = same_job.exchange("own loss", json.dumps(loss), tf_config, timeout=_LOSSES_SECS)
    except WaitError:
        texts = {}
    losses = {task: json.loads(text) for task, text in texts.items()}
    known = None not in losses.values()
    wrong = [task for task, value in losses.items() if known and not math.isfinite(value)]
    if not wrong or len(wrong) == len(losses):
        return diverged(f"the loss of step {step} is NaN")
    others = [f"{task}: {value:.4g}" for task, value in losses.items() if task not in wrong]
    more = ["..."] if len(others) > _MOST else []
    error = diverged(
        f"the loss of {' and '.join(wrong)} at step {step} is {'NaN' if math.isnan(losses[wrong[0]]) else 'infinite'} "
        f"({', '.join(others[:_MOST] + more)})"
    )
    error.caused_by = wrong[0] if len(wrong) == 1 else None
    return error
