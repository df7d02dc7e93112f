"""The error of a training with a NaN or infinite loss or variable, for every engine."""

from __future__ import annotations

from estimator_pipeline.errors import DivergedError

__all__ = ["diverged"]


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
