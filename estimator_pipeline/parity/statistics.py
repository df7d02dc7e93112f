"""What two trainings did otherwise with their moving means and variances in one step. NumPy only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from estimator_pipeline.parity.findings import (
    CLOSE,
    NEAR,
    SAME,
    SCALED,
    Finding,
    Step,
    distance,
    length,
    scale_of,
    told_names,
)
from estimator_pipeline.parity.tolerances import kind_of

if TYPE_CHECKING:
    from estimator_pipeline.parity.result import Parity

__all__ = ["of_statistics"]

_MOMENTUM = (
    "BatchNormalization's momentum (decay), named in both: it is 0.99 by default in Keras and tf.layers, 0.999 in "
    "tf.contrib and tf_slim; updates that are run twice for a step"
)
# Another share of the way is one by more than this, and by more than so many times what else differs.
_LEAST, _BESIDE_ROUNDING = 1e-3, 10


def of_statistics(parity: Parity, index: int, state: Step, first: Step, *, same_loss: bool) -> Finding | None:
    """What they do otherwise, by name; None: they move alike, but for rounding.

    Args:
        parity: the comparison.
        index: of the step among its steps.
        state: the step.
        first: the first step of all.
        same_loss: whether both have the same loss in it; of another one statistics may well follow.
    """
    sides = parity.initial.sides
    found = _moving_statistics(state, sides) or _other_momentum(state, sides)
    if found is None and not parity.steps[index].variables.equal:
        found = _corrected_variance(first, sides)
    if found is None and same_loss:
        found = _of_some_momentum(parity, index, state) or _other_statistics(parity, index, state)
    return found


def _moving_statistics(state: Step, sides: tuple[str, str]) -> Finding | None:
    changes = [state.changes(side, "statistics") for side in (0, 1)]
    for side in (0, 1):
        still = [
            name for name, change in changes[side].items() if not np.any(change) and np.any(changes[1 - side][name])
        ]
        if still:
            return Finding(
                name="moving statistics",
                step=state.step,
                side=sides[side],
                message=f"{sides[side]} does not update {len(still)} of {len(changes[side])} moving means and "
                f"variances ({', '.join(still[:3])}{', …' if len(still) > 3 else ''})",
                mend="the model's update operations: a model_fn has to run them with its train_op",
            )
    return None


def _other_momentum(state: Step, sides: tuple[str, str]) -> Finding | None:
    """Every moving mean and variance moves in the same direction, by another share of the way."""
    means, variances = (
        [state.changes(side, "statistics", f"moving_{what}") for side in (0, 1)] for what in ("mean", "variance")
    )
    told = [scale_of(*pair) for pair in (means, variances) if length(pair[0]) and length(pair[1])]
    if not told or any(rest > CLOSE or abs(scale / told[0][0] - 1) > CLOSE for scale, rest in told):
        return None
    scale = told[0][0]
    if scale <= 0 or abs(scale - 1) <= SCALED:
        return None
    more, times = (0, scale) if scale > 1 else (1, 1 / scale)
    return Finding(
        name="moving statistics",
        step=state.step,
        side=sides[more],
        message=f"every moving mean and variance moves {times:.4g} times as far in {sides[more]} as in "
        f"{sides[1 - more]}: 1 - momentum is as many times as large",
        mend=_MOMENTUM,
    )


def _of_some_momentum(parity: Parity, index: int, state: Step) -> Finding | None:
    """The same of some layers, or by so little that it shows beside their own rounding alone."""
    sides = parity.initial.sides
    faults = {fault.name for fault in parity.steps[index].variables.faults if kind_of(fault.name) == "statistics"}
    changes = [state.changes(side, "statistics") for side in (0, 1)]
    layers: dict[str, list[str]] = {}
    for name in changes[0]:
        if all(np.any(side[name]) for side in changes):
            layers.setdefault(name.rpartition("/")[0], []).append(name)
    other: dict[str, float] = {}
    for layer, names in layers.items():
        told = [scale_of(*({name: side[name]} for side in changes)) for name in names]
        scale, least = told[0][0], max(_LEAST, *(_BESIDE_ROUNDING * rest for _, rest in told))
        if scale > 0 and abs(scale - 1) > least and all(abs(one - scale) < abs(scale - 1) / 4 for one, _ in told):
            other[layer] = scale
    if not other or not faults <= {name for layer in other for name in layers[layer]}:
        return None
    more = 0 if next(iter(other.values())) > 1 else 1
    times = {layer: scale if more == 0 else 1 / scale for layer, scale in other.items()}
    factors = ", ".join(f"{layer} {scale:.4g}" for layer, scale in list(times.items())[:3])
    return Finding(
        name="moving statistics",
        step=state.step,
        side=sides[more],
        message=f"the moving means and variances of {len(other)} of {len(layers)} layers move by another share of the "
        f"way: of {factors} times as far in {sides[more]} as in {sides[1 - more]}",
        mend=_MOMENTUM,
    )


def _other_statistics(parity: Parity, index: int, state: Step) -> Finding | None:
    """None of these, but by more than rounding: from the same state they move otherwise."""
    faults = [fault for fault in parity.steps[index].variables.faults if kind_of(fault.name) == "statistics"]
    changes = [state.changes(side, "statistics") for side in (0, 1)]
    apart = [fault for fault in faults if distance(*({fault.name: side[fault.name]} for side in changes)) >= NEAR]
    if not apart:
        return None
    worst = max(apart, key=lambda fault: fault.relative)
    return Finding(
        name="moving statistics",
        step=state.step,
        message=f"{len(apart)} of {len(changes[0])} moving means and variances move otherwise "
        f"({told_names([fault.name for fault in apart])}): {worst.message}",
        mend="BatchNormalization: its momentum, axis, fused kernel, and over which records it averages (those of a "
        "replica, or of all); updates that are run twice for a step, or by a condition; and the mapping of variables",
    )


def _corrected_variance(state: Step, sides: tuple[str, str]) -> Finding | None:
    """Bessel's correction: the same means, and variances that one side moves towards n / (n - 1) times the other's.

    With momentum m, batch variance b and moving variance v one side's change is (1 - m)(b - v) and the other's
    (1 - m)(b n / (n - 1) - v): the first is n - 1 times their difference, less (1 - m) v. It is looked for in the first
    step, which both begin with the same v; it may take more of them to go beyond a tolerance.
    """
    means = [state.changes(side, "statistics", "moving_mean") for side in (0, 1)]
    if distance(*means) >= SAME:
        return None
    changes = [state.changes(side, "statistics", "moving_variance") for side in (0, 1)]
    samples: list[float] = []
    corrects = set()
    for name, change in changes[0].items():
        moved = [change.ravel(), changes[1][name].ravel()]
        apart = float(np.sum(moved[0] - moved[1]))
        if not apart:
            continue
        more = 0 if apart > 0 else 1
        less, before = moved[1 - more], state.before[0][name].astype(np.float64).ravel()
        columns = np.stack([moved[more] - less, -before], axis=1)
        (size, rate), *_ = np.linalg.lstsq(columns, less, rcond=None)
        rest = length({name: less - columns @ (size, rate)}) / length({name: size * columns[:, 0]})
        if rest > NEAR or size < 1 or not 0 < rate <= 1:
            return None
        corrects.add(more)
        samples.append(size + 1)
    if len(corrects) != 1:
        return None
    side = sides[corrects.pop()]
    return Finding(
        name="moving statistics",
        step=state.step,
        side=side,
        message=f"the moving means are the same; {side}'s moving variances are corrected for their sample (Bessel: "
        f"times n / (n - 1), n about {min(samples):.0f}), the other's are not",
        mend="Keras 2's fused kernel of BatchNormalization corrects the variance, Keras 3 and fused=False of Keras 2 "
        "do not: name fused=False, or give moving variances a tolerance",
    )
