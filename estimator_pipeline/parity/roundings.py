"""What rounding leaves of one step: of gradients that cancel each other, of 16 bits, at a kink, of other sums.

NumPy only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from estimator_pipeline.parity.findings import CLOSE, SAME, Finding, Step, distance, rms, scale_of, told_names
from estimator_pipeline.parity.tolerances import KINDS

if TYPE_CHECKING:
    from estimator_pipeline.parity.result import Parity

__all__ = ["at_a_kink", "of_rounding_alone", "of_sixteen_bits", "told_rounding", "without_a_cause"]

# A gradient so much smaller than the largest one is what is left of terms that cancel each other: rounding.
_ROUNDING = 3e-5
# Noise is no nearer to other noise than this.
_UNLIKE = 0.02
# Sums in another order leave less than so much of a step's change.
_BY_LITTLE = 0.05
# 8 bits of mantissa leave less than so much of each weight's change, and of a loss.
_OF_16_BITS, _OF_A_LOSS = 0.1, 0.01
# Of so many units of a layer at most one has a value at its kink in a step; more is no chance.
_UNITS_A_KINK = 4
# What records leave at a kink is less than so much of a gradient, in batches of four and more.
_OF_RECORDS = 0.5
# A record's share of a unit's gradient has a direction of its own, by so much of its length at least.
_OWN_DIRECTION = 0.05


def _sizes(state: Step, side: int) -> dict[str, np.ndarray]:
    """Weight -> its gradient up to a factor that all weights have in common: from the slots that tell it best."""
    weights = state.changes(side, "weights")
    slots = state.changes(side, "slots")
    found = {}
    for name, change in weights.items():
        squares = [slots[key] for key in (f"{name} @rms", f"{name} @accumulator") if key in slots]
        plain = [slots[key] for key in (f"{name} @m", f"{name} @momentum") if key in slots]
        found[name] = np.sqrt(np.abs(squares[0])) if squares else plain[0] if plain else change
    return found


def of_rounding_alone(state: Step) -> dict[str, float]:
    """Weight -> how large its gradient is, relative to the largest: where it is rounding, and so not the same."""
    sizes = [_sizes(state, side) for side in (0, 1)]
    largest = max((rms(value) for side in sizes for value in side.values()), default=0.0)
    if not largest:
        return {}
    found = {}
    for name in sizes[0]:
        size = max(rms(side[name]) for side in sizes) / largest
        if size < _ROUNDING and distance({name: sizes[0][name]}, {name: sizes[1][name]}) > _UNLIKE:
            found[name] = size
    rest = [{name: value for name, value in side.items() if name not in found} for side in sizes]
    # Where the large ones differ too, the small ones may well have another cause.
    return found if distance(*rest) < SAME else {}


def told_rounding(state: Step, noise: Mapping[str, float], faults: set[str]) -> Finding:
    names = sorted(faults)
    told = f"the gradient of {told_names(names)} is rounding alone, {max(noise[name] for name in names):.1g} of the "
    told += "largest: what is left of terms that cancel each other comes out otherwise in another order"
    mend = "a bias before BatchNormalization, which takes it away again, does nothing in training: use_bias=False"
    if any(f"{names[0]} @{slot}" in state.after[0] for slot in ("v", "rms", "accumulator")):
        told += "; an optimizer that divides a gradient by its own size moves the weight by it all the same"
        mend += ". The moving mean and the evaluation follow to where it drifts, so that no tolerance is right for long"
    else:
        patterns = ", ".join(f'"{name}*": {{atol: 1e-5, reason: rounding alone}}' for name in names[:3])
        mend += f"; or allow it, in the section parity of a job file or in --tolerances: {patterns}"
    return Finding(name="rounding", step=state.step, message=told, mend=mend)


def of_sixteen_bits(parity: Parity, index: int, state: Step) -> Finding | None:
    """Of layers that compute in 16 bits, where the loss and each weight's change differ by what these leave.

    Measured with the models of `model_fns`: 0.05 of a change at most in 6 steps of the CNN; the DNN is bit-equal.
    """
    step = parity.steps[index]
    one, other = step.losses
    changes = [state.changes(side, "weights") for side in (0, 1)]
    largest = max((rms(value) for side in changes for value in side.values()), default=0.0)
    told = {name: distance({name: changes[0][name]}, {name: changes[1][name]}) for name in changes[0]
            if max(rms(side[name]) for side in changes) > _ROUNDING * largest}  # fmt: skip
    if (
        abs(one - other) > _OF_A_LOSS * max(abs(one), abs(other))
        or not 0 < max(told.values(), default=0.0) < _OF_16_BITS
    ):
        return None
    worst = max(told, key=lambda name: told[name])
    return Finding(
        name="rounding",
        step=state.step,
        message=f"the layers compute in 16 bits, of which 8 are the mantissa: every weight changes alike but for "
        f"{told[worst]:.1%} at most ({worst})",
        mend="float32 in both, which shows what else there is: --set model.mixed_precision=false",
    )


def at_a_kink(
    step: int, gradients: tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]], apart: Sequence[str]
) -> Finding | None:
    """Of the same loss and other gradients, where a record's share of them is there or not in a few units of a layer.

    A ReLU's value that is 0 but for rounding, or the larger of two in a max pooling that are one, may come out on the
    other side of it: the forward pass hardly changes, and the gradient of that unit for that record is there or not.
    In the layer, so in the variables of it, those of a few units differ (the last axis), and not by a factor as where
    a unit is masked; other units do not. What comes before it differs too, and what comes after does not: as the order
    of layers is not known here, it is asked that some weights have the same gradient.

    How large the share is tells little: one record of a small batch may be a third of a gradient. A unit that no other
    record reaches is not told from one that is left out, and counts as that.

    Args:
        step: the step's number.
        gradients: of both sides, weight -> its gradient.
        apart: the weights whose gradients differ.
    """
    one, other = gradients
    share = distance(one, other)
    if not 0 < share < _OF_RECORDS or len(apart) == len(one):
        return None
    few, elements = {}, 0
    for name in apart:
        pair = [_by_unit(side[name]) for side in gradients]
        off = np.abs(pair[0] - pair[1]) > CLOSE * np.max(np.abs(pair[0]))
        elements += int(np.count_nonzero(off))
        units = off.any(axis=0)
        if 0 < np.count_nonzero(units) * _UNITS_A_KINK <= units.size and _is_in_units_alone(pair, units):
            few[name] = units
    # A unit has a bias and several inputs; one element alone is a matter of its own, such as a clipping by value.
    if not few or elements < 2:
        return None
    # That of the layer itself has the fewest; of the layers below all differ, some but by little.
    name = min(few, key=lambda name: np.mean(few[name]))
    units = few[name]
    layer = [other for other in few if np.array_equal(few[other], units)]
    pair = [np.concatenate([_by_unit(side[other]) for other in layer])[:, units] for side in gradients]
    if _differ_by_factors(*pair):
        return None
    return Finding(
        name="rounding",
        step=step,
        message=f"the same loss at step {step}, and gradients that differ by {share:.1g} of their length: "
        f"{len(apart)} of {len(one)} variables ({told_names(apart)}), {name} in {np.count_nonzero(units)} of "
        f"{units.size} units alone, as where a value at a ReLU's kink, or two that are alike in a max pooling, come "
        "out on the other side",
        mend="a smooth activation in both (tanh, elu), to compare the rest; or the tolerance amplified for "
        f"{', '.join(kind for kind in KINDS if kind != 'learning_rate')}, in the section parity of a job file or in "
        "--tolerances",
    )


def _by_unit(values: np.ndarray) -> np.ndarray:
    """Of a layer's variable, one column for each of its units."""
    return values.reshape(-1, values.shape[-1] if values.ndim else 1)


def _is_in_units_alone(pair: Sequence[np.ndarray], units: np.ndarray) -> bool:
    """Whether both have the same but for these columns."""
    return distance(*({"": np.where(units, 0.0, side)} for side in pair)) < SAME


def _differ_by_factors(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether each column is so many times the other side's, such as none of it."""
    for mine, theirs in zip(one.T, other.T, strict=True):
        longer = max(mine, theirs, key=np.linalg.norm)
        if scale_of({"": mine - theirs}, {"": longer})[1] >= _OWN_DIRECTION:
            return False
    return True


def without_a_cause(state: Step, sides: tuple[str, str]) -> Finding:
    """Of a step in which the two part, and nothing shows by what.

    Args:
        state: the step.
        sides: what the two are called.
    """
    known = state.without(of_rounding_alone(state))
    apart = distance(*(known.changes(side, "weights") for side in (0, 1)))
    if apart < _BY_LITTLE:
        return Finding(
            name="rounding",
            step=state.step,
            message=f"they part at step {state.step} by little, as sums in another order do: no single cause shows",
            mend="the job's tolerances; TF_DETERMINISTIC_OPS=1; random numbers, such as dropout's seeds",
        )
    told = f"the weights change otherwise, by {apart:.2g} of the step's length, which is more than sums in another "
    told += "order leave"
    scale, rest = scale_of(*(known.changes(side, "weights") for side in (0, 1)))
    if rest < _BY_LITTLE and scale > 0:
        told += f"; {sides[0]}'s change is about {scale:.4g} times {sides[1]}'s, as other learning rates make it"
    return Finding(
        name="weights",
        step=state.step,
        message=f"{told}: no single cause shows",
        mend="the optimizer's options and the schedule of its rate; what is trained; random numbers, such as dropout's "
        "seeds; the mapping of variables",
    )
