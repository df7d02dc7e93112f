"""The error of a training whose loss or variables are no numbers any more; every engine raises it."""

from __future__ import annotations

from estimator_pipeline.errors import DivergedError

__all__ = ["diverged"]


def diverged(what: str) -> DivergedError:
    """The error of a training whose loss or variables are no numbers any more.

    Args:
        what: what was found, and at which step.
    """
    return DivergedError(
        f"training has diverged: {what}",
        hint="lower the learning rate, clip gradients, or look at the records of that step; the checkpoints from "
        "before are kept",
    )
