"""What two trainings did otherwise with the gradients of one step: scaling, clipping, rate, optimizer. NumPy only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from estimator_pipeline.parity.findings import CLOSE, SAME, Facts, Finding, Step, distance, length, scale_of

if TYPE_CHECKING:
    from estimator_pipeline.parity.result import Parity

__all__ = ["of_update", "told_rate"]


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


def of_update(parity: Parity, index: int, state: Step, facts: Facts) -> Finding | None:
    """From the same state, loss and records: other gradients, or another use of the same."""
    sides, step = parity.initial.sides, state.step
    weights = [state.changes(side, "weights") for side in (0, 1)]
    if distance(*weights) < SAME:
        return None
    first_moments = [
        state.changes(side, "slots", " @m") or state.changes(side, "slots", " @momentum") for side in (0, 1)
    ]
    slots = [state.changes(side, "slots") for side in (0, 1)]
    if slots[0] and distance(*slots) < SAME:
        return _optimizer(parity, index, state, weights)
    gradients = first_moments if first_moments[0] and first_moments[1] else weights
    scale, rest = scale_of(*gradients)
    lengths = [length(one) for one in gradients]
    if rest < CLOSE:
        # Adam's first moment is without the rate; Keras's velocity has it.
        adam = any(name.endswith(" @m") for name in gradients[0])
        shifted = None if adam else _shifted_rate(parity, index, scale)
        if shifted:
            return _another_rate(
                step, f"every weight's change in {sides[0]} is {scale:.4g} times that in {sides[1]}: {shifted}"
            )
        times = scale if scale > 1 else 1 / scale
        longer = sides[0] if scale > 1 else sides[1]
        if facts.replicas > 1 and abs(times / facts.replicas - 1) < CLOSE:
            return Finding(
                name="loss scaling",
                step=step,
                side=longer,
                message=f"{longer}'s gradient is {times:.4g} times the other's, and there are {facts.replicas} "
                "replicas",
                mend="divide the loss of a replica by the global batch, not by its own part of it",
            )
        return Finding(
            name="loss scaling",
            step=step,
            message=f"the same direction, but {longer}'s change of the weights is {times:.4g} times the other's",
            mend="what the loss is divided by (batch, replicas), and the learning rate",
        )
    shifted = _rate_of_velocities(parity, index, state)
    if shifted:
        return _another_rate(step, f"the velocities differ as far as the rates of two steps do: {shifted}")
    clipped = _clipping(parity, index, lengths, facts)
    if clipped is not None:
        return clipped
    apart = [name for name in gradients[0] if distance({name: gradients[0][name]}, {name: gradients[1][name]}) >= CLOSE]
    return Finding(
        name="gradient",
        step=step,
        message=f"the same loss, other gradients: {len(apart)} of {len(gradients[0])} variables "
        f"({', '.join(name.partition(' @')[0] for name in apart[:3])}{', …' if len(apart) > 3 else ''}), "
        f"{sides[0]}'s length {lengths[0]:.5g}, {sides[1]}'s {lengths[1]:.5g}",
        mend="what is trained, clipped or left out of the gradient; random numbers, such as dropout's seeds",
    )


def _another_rate(step: int, message: str) -> Finding:
    mend = "the schedule, and whether it is asked before or after the step is counted"
    return Finding(name="learning rate", step=step, message=message, mend=mend)


def _optimizer(parity: Parity, index: int, state: Step, weights: list[dict[str, np.ndarray]]) -> Finding:
    sides = parity.initial.sides
    epsilons = [_epsilon(state, side) for side in (0, 1)]
    scale, rest = scale_of(*weights)
    if all(epsilon is not None for epsilon in epsilons) and rest >= SAME:
        told = f"epsilon is about {epsilons[0]:.1e} in {sides[0]} and {epsilons[1]:.1e} in {sides[1]}"
    elif rest < CLOSE:
        shifted = _shifted_rate(parity, index, scale)
        if shifted:
            told = (
                f"the slots are the same, every weight's change is {scale:.4g} times as long in {sides[0]}: {shifted}"
            )
            return _another_rate(state.step, told)
        told = f"every change is {scale:.4g} times as long in {sides[0]}: the learning rate"
    else:
        told = "epsilon, or where it stands"
    return Finding(
        name="optimizer",
        step=state.step,
        message=f"the slots are the same, so the gradients are, and the weights change otherwise: {told}",
        mend="the optimizer's options, named in both; docs/keras.md has what V1 and Keras do otherwise",
    )


def _epsilon(state: Step, side: int) -> float | None:
    """Adam's, from the change d = rate m / (sqrt(v) + epsilon): m / d is a line over sqrt(v), epsilon its offset."""
    after = state.after[side]
    changes = state.changes(side, "weights")
    roots, quotients = [], []
    for name, change in changes.items():
        m, v = after.get(f"{name} @m"), after.get(f"{name} @v")
        if m is None or v is None:
            continue
        # A change that is near the weight's own rounding says little.
        told = np.abs(change) > 1e3 * np.finfo(np.float32).eps * np.abs(after[name].astype(np.float64))
        # With weight decay a weight changes without a gradient too.
        told &= (change != 0) & (m != 0)
        roots.append(np.sqrt(v.astype(np.float64))[told])
        quotients.append(np.abs(m.astype(np.float64)[told] / change[told]))
    x, y = (np.concatenate(parts) if parts else np.zeros(0) for parts in (roots, quotients))
    if x.size < 8:
        return None
    # Relative errors are alike, so each is weighed by its size.
    slope, offset = np.polyfit(x, y, 1, w=1 / y)
    return max(float(offset / slope), 0.0) if slope > 0 else None


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


def _shifted_rate(parity: Parity, index: int, scale: float) -> str | None:
    """In words, where the changes' ratio is that of the rates of two neighbouring steps, as one side tells them."""
    for (one, other), told in _neighbouring_rates(parity, index):
        if abs(scale * other / one - 1) < CLOSE:
            return told
    return None


def _rate_of_velocities(parity: Parity, index: int, state: Step) -> str | None:
    """The same of velocities that have the rate in them, momentum * v - rate * gradient, as Keras keeps them.

    Two rates that are known and the difference of the two give the gradient; without it, what is left of a velocity
    is the one before, shortened by the momentum.
    """
    before = {name: v.astype(np.float64) for name, v in state.before[0].items() if name.endswith(" @momentum")}
    after = [{name: values[name].astype(np.float64) for name in before if name in values} for values in state.after]
    if not length(before) or any(len(values) < len(before) for values in after):
        return None
    for (one, other), told in _neighbouring_rates(parity, index):
        kept = {name: v - (v - after[1][name]) * one / (one - other) for name, v in after[0].items()}
        momentum, rest = scale_of(kept, before)
        if rest < CLOSE and 0 < momentum <= 1:
            return told
    return None


def _clipping(parity: Parity, index: int, lengths: list[float], facts: Facts) -> Finding | None:
    if facts.clip_norm is None or facts.replicas < 2 or index > 0:
        return None
    sides, step = parity.initial.sides, parity.steps[index]
    # At the first step a slot or a change is the gradient times one of these: 1 is V1's velocity, the learning rate
    # SGD's change and Keras's velocity, the last Adam's first moment.
    units = [1.0, *(rate for rate in step.learning_rates if rate), 1 - facts.beta_1]
    for unit in units:
        norms = [length / unit for length in lengths]
        for side in (0, 1):
            if abs(norms[1 - side] / facts.clip_norm - 1) < CLOSE and norms[side] < norms[1 - side] * (1 - CLOSE):
                return Finding(
                    name="clipping",
                    step=step.step,
                    side=sides[side],
                    message=f"{sides[1 - side]}'s gradient has the length {norms[1 - side]:.5g} that it is clipped to, "
                    f"{sides[side]}'s {norms[side]:.5g} and another direction: it was clipped on each of "
                    f"{facts.replicas} replicas, before the sum",
                    mend="clip after the gradients are summed",
                )
    return None
