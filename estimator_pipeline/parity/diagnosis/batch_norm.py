"""What BatchNormalization does otherwise in one of two trainings. NumPy only."""

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
    told_names,
)
from estimator_pipeline.utils.arrays import Difference

if TYPE_CHECKING:
    from estimator_pipeline.parity.result import Parity

__all__ = ["of_evaluation", "of_statistics"]

# Losses of the two modes differ by more than this, relative; a loss is that of a mode if it is so much nearer to it.
_OF_SUMS, _NEARER = 1e-5, 0.2


def of_statistics(sides: tuple[str, str], state: StepState, faults: Sequence[Difference]) -> ParityFinding:
    """Of moving means and variances that differ after a step with the same loss, which both began alike.

    Args:
        sides: what the two are called.
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
                f"variances ({told_names(still)})",
                hint="the model's update operations: a model_fn has to run them with its train_op",
            )
    worst = max(faults, key=lambda fault: fault.relative)
    told = f"{len(faults)} of {len(changes[0])} moving means and variances differ "
    told += f"({told_names(fault.name for fault in faults)}): {worst.message}"
    factor = factor_of(*changes)
    if factor is not None and abs(factor - 1) > SCALE_RTOL:
        more = 0 if factor > 1 else 1
        told = f"every moving mean and variance moves {max(factor, 1 / factor):.4g} times as far in {sides[more]} as "
        told += f"in {sides[1 - more]}"
    return ParityFinding(
        name="BatchNorm",
        step=state.step,
        message=told,
        hint="BatchNormalization's momentum (0.99 by default in Keras and tf.layers, 0.999 in tf.contrib), axis and "
        "fused kernel (Keras 2's corrects the variance for its sample, fused=False and Keras 3 do not); over which "
        "records it averages (those of a replica, or of all); updates that are run twice in a step",
    )


def of_evaluation(parity: Parity, facts: Facts, step: int) -> ParityFinding | None:
    """Of the same training and other metrics: one side alone has the loss of layers in training mode."""
    sides = parity.initial.sides
    if not any(kind_of(name) == "statistics" for name in parity.initial.names):
        return None
    for name, (inferred, trained) in facts.losses.items():
        if not all(name in parity.finals[engine] for engine in sides):
            continue
        pair = [float(parity.finals[engine][name]) for engine in sides]
        for side in (0, 1):
            if _is_of(pair[side], trained, inferred) and not _is_of(pair[1 - side], trained, inferred):
                values = _told_apart(pair[side], trained, inferred)
                return ParityFinding(
                    name="BatchNorm",
                    step=step,
                    side=sides[side],
                    message=f"{sides[side]} evaluates in training mode: its {name} {values[0]} is that of layers that "
                    f"train ({values[1]}), not that of layers that infer ({values[2]})",
                    hint="`training` is True only where mode is TRAIN",
                )
    return None


def _is_of(value: float, mode: float, other: float) -> bool:
    """Whether a loss is that of one mode, and not that of the other, however little lies between the two."""
    largest = max(abs(mode), abs(other))
    if abs(mode - other) <= _OF_SUMS * largest or abs(value - mode) > RATIO_RTOL * largest:
        return False
    return abs(value - mode) < _NEARER * abs(value - other)


def _told_apart(*values: float) -> list[str]:
    """Values with as many digits as it takes to tell the last two apart."""
    six = [f"{value:.6g}" for value in values]
    return six if six[-1] != six[-2] else [f"{value:.9g}" for value in values]
