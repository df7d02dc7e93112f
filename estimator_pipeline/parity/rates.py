"""Learning rates that are others, or those of another step: as they are told, and as changes tell them. NumPy only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from estimator_pipeline.parity.findings import CLOSE, Finding, Step, scale_of

if TYPE_CHECKING:
    from estimator_pipeline.parity.result import Parity

__all__ = ["Later", "another_rate", "rate_of_velocities", "shifted_rate", "told_rate"]

# Changes that are alike but for their lengths.
_ALIKE = 0.2
# The step after it, as both have recorded it; None: there is none.
Later = Callable[[], Step | None]


def told_rate(parity: Parity, index: int) -> Finding:
    step, sides = parity.steps[index], parity.initial.sides
    told = f"{sides[0]} {step.learning_rates[0]:.6g}, {sides[1]} {step.learning_rates[1]:.6g}"
    shift = _shift_of_rates(parity, index)
    return Finding(
        name="learning rate",
        step=step.step,
        message=f"at step {step.step} it is {told}" + (f": {shift}" if shift else ""),
        mend="the schedule, and whether it is asked before or after the step is counted" if shift else "the schedule",
    )


def _shift_of_rates(parity: Parity, index: int) -> str:
    """In words, where one side has the rate of the other's step before."""
    sides, rates = parity.initial.sides, [step.learning_rates for step in parity.steps]
    for side in (0, 1):
        known = [
            (mine[side], theirs[1 - side]) for mine, theirs in zip(rates[index + 1 :], rates[index:], strict=False)
        ]
        pairs = [(mine, theirs) for mine, theirs in known if mine is not None and theirs is not None]
        if len(pairs) >= 2 and all(np.isclose(mine, theirs, rtol=1e-6) for mine, theirs in pairs):
            return f"{sides[side]} is one step late"
    return ""


def another_rate(step: int, message: str) -> Finding:
    mend = "the schedule, and whether it is asked before or after the step is counted"
    return Finding(name="learning rate", step=step, message=message, mend=mend)


def _neighbouring_rates(parity: Parity, index: int) -> Iterator[tuple[tuple[float, float], str]]:
    """The rates of both sides at a step, if one had that of the step before or after; and that in words."""
    sides = parity.initial.sides
    rates = [step.learning_rates for step in parity.steps]
    for side in (0, 1):
        for shift, word in ((-1, "late"), (1, "early")):
            if not 0 <= index + shift < len(rates):
                continue
            own, near = rates[index][side], rates[index + shift][side]
            if own and near and own != near:
                told = f"{sides[1 - side]} has the learning rate of another step; it is one step {word}"
                yield ((own, near) if side == 0 else (near, own)), told


def shifted_rate(parity: Parity, index: int, scale: float, later: Later) -> str | None:
    """In words, where the changes' ratio is that of the rates of two neighbouring steps, as one side tells them."""
    for (one, other), told in _neighbouring_rates(parity, index):
        if abs(scale * other / one - 1) < CLOSE and _stays_shifted(parity, index, told, later):
            return told
    return None


def _stays_shifted(parity: Parity, index: int, told: str, later: Later) -> bool:
    """Whether the step after it says the same, near enough: from other weights the gradients are a little apart."""
    following = later()
    pairs = [pair for pair, words in _neighbouring_rates(parity, index + 1) if words == told] if following else []
    if following is None or not pairs:
        return True
    scale, rest = scale_of(following.changes(0, "weights"), following.changes(1, "weights"))
    one, other = pairs[0]
    return rest > _ALIKE or abs(scale * other / one - 1) < abs(one / other - 1) / 2


def rate_of_velocities(parity: Parity, index: int, state: Step) -> str | None:
    """The same of velocities that have the rate in them, momentum * v - rate * gradient, as Keras keeps them.

    Two rates that are known and the difference of the two give the gradient; without it, what is left of a velocity
    is the one before, shortened by the momentum.
    """
    before = {name: v.astype(np.float64) for name, v in state.before[0].items() if name.endswith(" @momentum")}
    after = [{name: values[name].astype(np.float64) for name in before if name in values} for values in state.after]
    if any(len(values) < len(before) for values in after):
        return None
    for (one, other), told in _neighbouring_rates(parity, index):
        kept = {name: v - (v - after[1][name]) * one / (one - other) for name, v in after[0].items()}
        momentum, rest = scale_of(kept, before)
        if rest < CLOSE and 0 < momentum <= 1:
            return told
    return None
