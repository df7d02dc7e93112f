"""Differences that come from BatchNormalization. NumPy only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from estimator_pipeline.job.tolerances import kind_of
from estimator_pipeline.parity.findings import (
    RATIO_RTOL,
    SCALE_RTOL,
    Facts,
    ParityFinding,
    StepState,
    factor_of,
    format_names,
)
from estimator_pipeline.utils.arrays import Difference

if TYPE_CHECKING:
    from estimator_pipeline.parity.result import Parity

__all__ = ["of_evaluation", "of_statistics"]

# Losses of the two modes differ by more than this, relative; a loss belongs to a mode if it is this much nearer to it.
_OF_SUMS, _NEARER = 1e-5, 0.2


def of_statistics(sides: tuple[str, str], state: StepState, faults: Sequence[Difference]) -> ParityFinding:
    """Return the finding for moving statistics that differ after a step with equal start and loss.

    Args:
        sides: names of the two sides.
        state: the step.
        faults: the differences of moving statistics after it.
    """
    changes = [state.changes(side, "statistics") for side in (0, 1)]
    for side in (0, 1):
        still = [name for name, change in changes[side].items()
                 if not np.any(change) and np.any(changes[1 - side][name])]  # fmt: skip
        if still:
            return ParityFinding(
                name="BatchNorm",
                step=state.step,
                side=sides[side],
                message=f"{sides[side]} does not update {len(still)} of {len(changes[side])} moving means and "
                f"variances ({format_names(still)})",
                hint="the model's update operations: a model_fn must run them with its train_op",
            )
    worst = max(faults, key=lambda fault: fault.relative)
    message = f"{len(faults)} of {len(changes[0])} moving means and variances differ "
    message += f"({format_names(fault.name for fault in faults)}): {worst.message}"
    factor = factor_of(*changes)
    if factor is not None and abs(factor - 1) > SCALE_RTOL:
        more = 0 if factor > 1 else 1
        times = max(factor, 1 / factor)
        message = f"every moving mean and variance moves {times:.4g} times as far in {sides[more]} as "
        message += f"in {sides[1 - more]}"
    return ParityFinding(
        name="BatchNorm",
        step=state.step,
        message=message,
        hint="BatchNormalization's momentum (0.99 by default in Keras and tf.layers, 0.999 in tf.contrib), axis and "
        "fused kernel (Keras 2's corrects the variance for its sample, fused=False and Keras 3 do not); over which "
        "records it averages (those of a replica, or of all); updates that run twice in a step",
    )


def of_evaluation(parity: Parity, facts: Facts, step: int) -> ParityFinding | None:
    """Return the finding for equal training and different metrics: one side evaluates in training mode."""
    sides = parity.initial.sides
    if not any(kind_of(name) == "statistics" for name in parity.initial.names):
        return None
    for name, (inferred, trained) in facts.losses.items():
        if not all(name in parity.finals[engine] for engine in sides):
            continue
        pair = [float(parity.finals[engine][name]) for engine in sides]
        for side in (0, 1):
            if _is_of(pair[side], trained, inferred) and not _is_of(pair[1 - side], trained, inferred):
                values = _format_distinct(pair[side], trained, inferred)
                return ParityFinding(
                    name="BatchNorm",
                    step=step,
                    side=sides[side],
                    message=f"{sides[side]} evaluates in training mode: its {name} {values[0]} matches layers in "
                    f"training mode ({values[1]}), not in inference mode ({values[2]})",
                    hint="`training` is True only where mode is TRAIN",
                )
    return None


def _is_of(value: float, mode: float, other: float) -> bool:
    """Whether a loss belongs to one mode and not to the other."""
    largest = max(abs(mode), abs(other))
    if abs(mode - other) <= _OF_SUMS * largest or abs(value - mode) > RATIO_RTOL * largest:
        return False
    return abs(value - mode) < _NEARER * abs(value - other)


def _format_distinct(*values: float) -> list[str]:
    """Return values with enough digits to distinguish the last two."""
    six = [f"{value:.6g}" for value in values]
    return six if six[-1] != six[-2] else [f"{value:.9g}" for value in values]
