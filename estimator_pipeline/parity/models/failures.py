"""Failures of a compared training: errors of the program's functions, and divergence."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

import numpy as np

from estimator_pipeline.errors import DivergedError, TaskFailedError
from estimator_pipeline.job.user_code import own_code
from estimator_pipeline.parity.result import ENGINES
from estimator_pipeline.parity.step_records import StepReader

__all__ = ["at_work", "check_divergence", "divergence_of"]


def at_work(activity: str, record: Path | None = None) -> contextlib.AbstractContextManager[None]:
    """Report what functions of the program raise at run time.

    Args:
        activity: what runs, for messages.
        record: step record of the training.
    """

    def fails() -> str:
        steps = len(StepReader(record).losses) if record is not None and any(record.iterdir()) else 0
        return f"failed{f' after step {steps}' if steps else ''}"

    hint = "correct the function, or the data that it reads"
    return own_code(activity, kind=lambda error: TaskFailedError, fails=fails, hint=hint)


def divergence_of(record: Path) -> str | None:
    """Return where a training has values that are not finite, in words; None: nowhere."""
    reader = StepReader(record)
    for step, loss in reader.losses.items():
        if not math.isfinite(loss):
            return f"the loss of step {step} is {loss}"
    for step in reader.steps[-1:]:
        for name, value in reader.variables(step).items():
            if value.dtype.kind == "f" and not np.isfinite(value).all():
                return f"after step {step} the variable {name} is not finite"
    return None


def check_divergence(base: Path) -> None:
    """Raise a DivergedError if the recorded loss or weights of either side are not finite."""
    places = {engine: divergence_of(base / engine / "record") for engine in ENGINES}
    diverged = [f"{engine}: {place}" for engine, place in places.items() if place is not None]
    if diverged:
        finite = [f"the numbers of {engine} are finite" for engine, place in places.items() if place is None]
        raise DivergedError(
            f"training has diverged: {'; '.join(diverged)}",
            found="; ".join([*finite, f"runs and records: {base}"]),
            hint="lower the learning rate, clip gradients, or check the records of that step; run fewer steps "
            "(--steps) to compare the two until then",
        )
