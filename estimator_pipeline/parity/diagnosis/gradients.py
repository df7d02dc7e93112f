"""Differences in how two trainings updated equal weights in one step. NumPy only.

A cause is named only where arithmetic proves it: one factor for all gradients, or for all changes from the same
gradients. The gradient g follows from what an update adds to a slot or a weight:

========== ==================================================================================
plain SGD  the weight changes by -rate * g
momentum   v' - momentum * v is g (tf.compat.v1.train), or -rate * g (Keras)
Adam       m' - beta_1 * m is (1 - beta_1) * g
========== ==================================================================================

For other optimizers, and where options are unknown, the gradient is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from estimator_pipeline.parity.diagnosis.optimizers import of_epsilon
from estimator_pipeline.parity.findings import (
    RATIO_RTOL,
    SAME_GRADIENT_RTOL,
    SCALE_RTOL,
    Facts,
    ParityFinding,
    StepState,
    distance,
    factor_of,
    format_names,
    length,
)

if TYPE_CHECKING:
    from estimator_pipeline.parity.result import Parity

__all__ = ["factor_of_changes", "of_loss", "of_update"]

# Gradients with the same norm in this many steps do not have it by chance.
_STEADY = 3
# First and second moments have the same gradient, except for rounding of the slowly decaying moment.
_EXACTLY = 0.01
Arrays = Mapping[str, np.ndarray]


def of_loss(parity: Parity, index: int, state: StepState, facts: Facts) -> ParityFinding | None:
    """Return the finding for different losses from equal weights: a scaled loss scales all gradients alike."""
    first, second = parity.steps[index].losses
    gradients = _gradients(parity, index, state, facts)
    factor = None if gradients is None else factor_of(*gradients)
    if factor is None or not second or abs(factor - 1) <= SCALE_RTOL or abs(first / second / factor - 1) >= RATIO_RTOL:
        return None
    return _scaled(parity, state, factor, facts, "loss and gradient are")


def of_update(parity: Parity, index: int, state: StepState, facts: Facts) -> ParityFinding | None:
    """Return the finding for weights that change differently after the same loss, where it is certain."""
    if mixed_up := _mixed_up(parity.initial.sides, state):
        return mixed_up
    gradients = _gradients(parity, index, state, facts)
    if gradients is None:
        return _of_a_neighbouring_rate(parity, index, state, facts)
    if distance(*gradients) < SAME_GRADIENT_RTOL:
        return _of_a_rate(parity, index, state, facts) or of_epsilon(parity.initial.sides, state, facts)
    factor = factor_of(*gradients)
    if factor is None or abs(factor - 1) <= SCALE_RTOL:
        return None
    return _of_lengths(parity, index, state, gradients, factor, facts)


def factor_of_changes(state: StepState) -> float | None:
    """Return the ratio of all weight changes, first / second; None: no common factor, or near 1."""
    factor = factor_of(state.changes(0, "weights"), state.changes(1, "weights"))
    return None if factor is None or abs(factor - 1) <= SCALE_RTOL else factor


def _mixed_up(sides: tuple[str, str], state: StepState) -> ParityFinding | None:
    """Return the finding for two variables that have each other's gradients and slots."""
    weights = state.changes(0, "weights"), state.changes(1, "weights")
    apart = sorted(n for n in weights[0] if distance({n: weights[0][n]}, {n: weights[1][n]}) >= RATIO_RTOL)

    def state_of(side: int, weight: str) -> dict[str, np.ndarray]:
        slots = {name: value for name, value in state.after[side].items() if name.startswith(f"{weight} @")}
        return {"": weights[side][weight]} | {
            name.removeprefix(weight): value.astype(np.float64) for name, value in slots.items()
        }

    def same(weight: str, second_weight: str) -> bool:
        first, second = state_of(0, weight), state_of(1, second_weight)
        return first.keys() == second.keys() and all(
            value.shape == second[name].shape and distance({"": value}, {"": second[name]}) < SAME_GRADIENT_RTOL
            for name, value in first.items()
        )

    pairs = [
        f"{weight} and {second_weight}"
        for number, weight in enumerate(apart)
        for second_weight in apart[number + 1 :]
        if same(weight, second_weight) and same(second_weight, weight)
    ]
    if not pairs:
        return None
    return ParityFinding(
        name="variables",
        step=state.step,
        message=f"{format_names(pairs)} are swapped: what changes the first in {sides[0]} changes the second in "
        f"{sides[1]}",
        hint="the mapping of variables",
    )


def _added(
    state: StepState, side: int, options: Mapping[str, Any], rate: float | None
) -> tuple[dict[str, np.ndarray], bool] | None:
    """Return the gradient's contribution to each weight or slot, and whether it includes -rate; None: unknown.

    Checks that the rest of the step comes from a single update: with two, the values would not be gradients.
    """
    changes = [state.changes(number, "weights") for number in (side, 1 - side)]
    change = {name: value for name, value in changes[0].items() if np.any(value) or np.any(changes[1][name])}
    kind = options.get("kind")
    if kind == "sgd":
        return change, True
    moments = {"momentum": (("momentum", "momentum"),), "adam": (("m", "beta_1"), ("v", "beta_2"))}.get(kind or "", ())
    moments_of_slots = (_moment(state, side, change, slot, options.get(option)) for slot, option in moments)
    parts = [moment for moment in moments_of_slots if moment is not None]
    if not parts or len(parts) < len(moments):
        return None
    after, added, decay = parts[0]
    if kind == "adam":
        gradient = {name: value / (1 - decay) for name, value in added.items()}
        squares = {name: value / (1 - parts[1][2]) for name, value in parts[1][1].items()}
        alike = distance({name: value**2 for name, value in gradient.items()}, squares) < _EXACTLY
        return (gradient, False) if alike else None
    # Keras's velocity is the change of the weight; V1's must be multiplied by -rate.
    by = {name: decay * after[name] + added[name] for name in after} if options.get("nesterov") else after
    if distance(change, by) < RATIO_RTOL:
        return added, True
    by_v1 = {name: -float(rate or 0) * value for name, value in by.items()}
    return (added, False) if distance(change, by_v1) < RATIO_RTOL else None


def _moment(
    state: StepState, side: int, weights: Iterable[str], slot: str, decay: float | None
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], float] | None:
    """Return weight -> its slot after the step, weight -> the increase over the decayed slot, and the decay."""
    keys = {name: f"{name} @{slot}" for name in weights}
    if decay is None or any(key not in state.before[side] or key not in state.after[side] for key in keys.values()):
        return None
    after = {name: state.after[side][key].astype(np.float64) for name, key in keys.items()}
    added = {name: after[name] - decay * state.before[side][key].astype(np.float64) for name, key in keys.items()}
    return after, added, decay


def _gradients(parity: Parity, index: int, state: StepState, facts: Facts) -> tuple[Arrays, Arrays] | None:
    """Return weight -> its gradient in this step, for both sides; None: a side's gradients are unknown."""
    gradients = []
    for side, rate in enumerate(facts.rates(parity.steps[index].learning_rates)):
        added = _added(state, side, facts.options[side], rate)
        if added is None or (added[1] and not rate):
            return None
        gradients.append(
            {name: value / -float(rate or 0) for name, value in added[0].items()} if added[1] else added[0]
        )
    return gradients[0], gradients[1]


def _of_a_neighbouring_rate(parity: Parity, index: int, state: StepState, facts: Facts) -> ParityFinding | None:
    """Return the finding for a side that uses the learning rate of the previous or next step.

    Applies where only one side records its rates. In the first step a scaled loss would look the same.
    """
    rates = facts.rates(parity.steps[index].learning_rates)
    first, second = (_added(state, side, facts.options[side], rates[side]) for side in (0, 1))
    if not index or first is None or second is None or not (first[1] and second[1]):
        return None
    factor = factor_of(first[0], second[0])
    shift = None if factor is None else _neighbour(parity, index, factor)
    if factor is None or shift is None:
        return None
    return _other_rate(parity, state, "what the gradients add", factor, shift)


def _of_a_rate(parity: Parity, index: int, state: StepState, facts: Facts) -> ParityFinding | None:
    """Return the finding for equal gradients with weight changes that differ by one factor."""
    factor = factor_of_changes(state)
    first, second = facts.rates(parity.steps[index].learning_rates)
    if factor is None or (
        first is not None and second is not None and abs(first - second) <= SAME_GRADIENT_RTOL * abs(first)
    ):
        return None
    first, second = (options.get("epsilon") for options in facts.options)
    if first and second and first != second and abs(second / first / factor - 1) < SCALE_RTOL:
        return None  # the epsilons may dominate the terms that they are added to
    subject = "the gradients are the same, and every weight's change"
    return _other_rate(parity, state, subject, factor, _neighbour(parity, index, factor) or "")


def _neighbour(parity: Parity, index: int, factor: float) -> str | None:
    """Return, in words, the neighbouring step whose learning rate explains a factor."""
    sides, rates = parity.initial.sides, [step.learning_rates for step in parity.steps]
    for side in (0, 1):
        for shift, word in ((-1, "before"), (1, "after")):
            if not 0 <= index + shift < len(rates) or rates[index][1 - side] is not None:
                continue
            at_step, near = rates[index][side], rates[index + shift][side]
            if not at_step or not near or abs(near / at_step - 1) < 2 * RATIO_RTOL:
                continue
            ratio = near / at_step if side == 1 else at_step / near
            if abs(factor / ratio - 1) < RATIO_RTOL:
                return f": {sides[1 - side]} has the learning rate of the step {word}"
    return None


def _other_rate(parity: Parity, state: StepState, subject: str, factor: float, shift: str) -> ParityFinding:
    sides = parity.initial.sides
    return ParityFinding(
        name="learning rate",
        step=state.step,
        message=f"{subject} in {sides[0]} is {factor:.4g} times that in {sides[1]}{shift}",
        hint="the schedule, and whether it is evaluated before or after the step is counted",
    )


def _of_lengths(
    parity: Parity, index: int, state: StepState, gradients: tuple[Arrays, Arrays], factor: float, facts: Facts
) -> ParityFinding | None:
    """Return the finding for parallel gradients: the shorter one is clipped, or the longer one is scaled."""
    sides, lengths = parity.initial.sides, [length(gradient) for gradient in gradients]
    short = 0 if factor < 1 else 1
    steady = [_is_steady(parity, index, side, facts) for side in (0, 1)]
    bound = facts.clip_norm is not None and abs(lengths[short] / facts.clip_norm - 1) < RATIO_RTOL
    if bound or (steady[short] and not steady[1 - short]):
        return ParityFinding(
            name="clipping",
            step=state.step,
            side=sides[1 - short],
            message=f"{sides[short]}'s gradient has the norm {lengths[short]:.5g} to which it is clipped; "
            f"{sides[1 - short]}'s has the same direction and the norm {lengths[1 - short]:.5g}",
            hint="clip in both, to the same norm, after the gradients are summed",
        )
    # Plain SGD that is applied several times in a step looks like a loss scaled by an integer.
    whole = max(factor, 1 / factor)
    several = abs(whole - round(whole)) < RATIO_RTOL * whole and round(whole) != facts.replicas
    if all(steady) or (several and "sgd" in (options.get("kind") for options in facts.options)):
        return None
    return _scaled(parity, state, factor, facts, "gradient is")


def _is_steady(parity: Parity, index: int, side: int, facts: Facts) -> bool:
    """Whether gradients of plain SGD have the same norm in several steps, which shows clipping."""
    steps = parity.steps[index : index + 2 * _STEADY]
    rates = [facts.rates(step.learning_rates)[side] for step in steps]
    if facts.options[side].get("kind") != "sgd" or len(steps) < _STEADY or not all(rates):
        return False
    norms = [step.update_norms[side] / float(rate or 0) for step, rate in zip(steps, rates, strict=True)]
    return max(norms) - min(norms) < SAME_GRADIENT_RTOL * max(norms)


def _scaled(parity: Parity, state: StepState, factor: float, facts: Facts, subject: str) -> ParityFinding:
    more, times = (0, factor) if factor > 1 else (1, 1 / factor)
    sides = parity.initial.sides
    message = f"{sides[more]}'s {subject} {times:.4g} times {sides[1 - more]}'s, for all weights"
    if facts.replicas > 1 and abs(times / facts.replicas - 1) < RATIO_RTOL:
        message += f", and there are {facts.replicas} replicas"
    return ParityFinding(
        name="loss scaling",
        step=state.step,
        side=sides[more],
        message=message,
        hint="how the loss is reduced (its sum or its mean over the batch), weights of records, and the divisor of the "
        "loss or its gradient: the global batch size, not that of a replica",
    )
