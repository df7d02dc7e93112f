"""What two trainings did otherwise with their moving means and variances in one step. NumPy only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from estimator_pipeline.parity.compare import Difference
from estimator_pipeline.parity.findings import (
    CLOSE,
    NEAR,
    SAME,
    SCALED,
    Finding,
    Step,
    distance,
    length,
    rms,
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
    """What they do otherwise, by name; None: they move alike, but for rounding, or are within their tolerance.

    Args:
        parity: the comparison.
        index: of the step among its steps.
        state: the step.
        first: the first step of all.
        same_loss: whether both have the same loss in it; of another one statistics may well follow.
    """
    sides = parity.initial.sides
    faults = [fault for fault in parity.steps[index].variables.faults if kind_of(fault.name) == "statistics"]
    if not faults:
        return None
    found = _moving_statistics(state, sides) or _other_momentum(state, sides, faults, same_loss=same_loss)
    if found is None:
        found = _corrected_variance(first, sides)
    if found is None and same_loss:
        found = _other_statistics(state, faults)
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


def _other_momentum(
    state: Step, sides: tuple[str, str], faults: Sequence[Difference], *, same_loss: bool
) -> Finding | None:
    """The means and variances of a layer move in the same direction, by another share of the way."""
    changes = [state.changes(side, "statistics") for side in (0, 1)]
    layers = _moving_layers(changes)
    other = {layer: scale for layer, names in layers.items() if (scale := _share_of_the_way(names, changes))}
    if not other:
        return None
    first = next(iter(other.values()))
    all_alike = len(other) == len(layers) and all(abs(scale / first - 1) <= CLOSE for scale in other.values())
    if same_loss:
        explained = all(_layer_of(fault.name) in other for fault in faults)
    else:
        # What a layer averages may well differ then: all have to say the same, and by more than a little.
        explained = all_alike and abs(first - 1) > SCALED
    if not explained:
        return None
    more = 0 if first > 1 else 1
    times = {layer: scale if more == 0 else 1 / scale for layer, scale in other.items()}
    if all_alike:
        told = f"every moving mean and variance moves {next(iter(times.values())):.4g} times as far"
    else:
        factors = ", ".join(f"{layer} {scale:.4g}" for layer, scale in list(times.items())[:3])
        told = f"the moving means and variances of {len(other)} of {len(layers)} layers move by another share of the "
        told += f"way: of {factors}{', …' if len(times) > 3 else ''} times as far"
    return Finding(
        name="moving statistics",
        step=state.step,
        side=sides[more],
        message=f"{told} in {sides[more]} as in {sides[1 - more]}: 1 - momentum is as many times as large",
        mend=_MOMENTUM,
    )


def _layer_of(name: str) -> str:
    return name.rpartition("/")[0]


def _moving_layers(changes: Sequence[Mapping[str, np.ndarray]]) -> dict[str, list[str]]:
    """Layer -> its statistics that move on both sides; one that stays where it is, but for noise, says nothing."""
    kinds: dict[str, dict[str, float]] = {}
    for name in changes[0]:
        kinds.setdefault(name.rpartition("/")[2], {})[name] = min(rms(side[name]) for side in changes)
    layers: dict[str, list[str]] = {}
    for sizes in kinds.values():
        least = SAME * max(sizes.values())
        for name, size in sizes.items():
            if size > least:
                layers.setdefault(_layer_of(name), []).append(name)
    return layers


def _share_of_the_way(names: Sequence[str], changes: Sequence[Mapping[str, np.ndarray]]) -> float:
    """How many times as far a layer's statistics move in the first side; 0: as far, or not in the same direction."""
    told = [scale_of(*({name: side[name]} for side in changes)) for name in names]
    scale, most = told[0][0], max(rest for _, rest in told)
    apart = abs(scale - 1)
    alike = all(abs(one - scale) <= min(CLOSE * scale, apart / 4) for one, _ in told)
    return scale if alike and scale > 0 and apart > _LEAST and most <= min(CLOSE, apart / _BESIDE_ROUNDING) else 0.0


def _other_statistics(state: Step, faults: Sequence[Difference]) -> Finding | None:
    """None of these, but by more than rounding: from the same state they move otherwise."""
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
