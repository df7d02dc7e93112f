"""What two trainings did otherwise with the weights in one step that they began alike. NumPy only.

A cause is named only where arithmetic proves it: one factor for all gradients, or for all changes behind the same
gradients. What an update adds to a slot or a weight tells the gradient g:

========== ==================================================================================
plain SGD  the weight changes by -rate * g
momentum   v' - momentum * v is g (tf.compat.v1.train), or -rate * g (Keras)
Adam       m' - beta_1 * m is (1 - beta_1) * g
========== ==================================================================================

Of other optimizers, and where their options are not known, it is not known.
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
    length,
    told_names,
)

if TYPE_CHECKING:
    from estimator_pipeline.parity.result import Parity

__all__ = ["factor_of_changes", "of_loss", "of_update"]

# Gradients of one length in so many steps do not have it by chance.
_STEADY = 3
# First and second moments have the same gradient: what they differ by is rounding of what decays slowly.
_EXACTLY = 0.01
Arrays = Mapping[str, np.ndarray]


def of_loss(parity: Parity, index: int, state: StepState, facts: Facts) -> ParityFinding | None:
    """Of other losses from the same weights and records: the loss is scaled if all gradients have the same factor."""
    one, other = parity.steps[index].losses
    gradients = _gradients(parity, index, state, facts)
    factor = None if gradients is None else factor_of(*gradients)
    if factor is None or not other or abs(factor - 1) <= SCALE_RTOL or abs(one / other / factor - 1) >= RATIO_RTOL:
        return None
    return _scaled(parity, state, factor, facts, "loss and gradient are")


def of_update(parity: Parity, index: int, state: StepState, facts: Facts) -> ParityFinding | None:
    """Of weights that change otherwise after the same loss: the cause where it is certain."""
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
    """How many times the second side's changes the first side's are, of all weights; None: it is none, or near 1."""
    factor = factor_of(state.changes(0, "weights"), state.changes(1, "weights"))
    return None if factor is None or abs(factor - 1) <= SCALE_RTOL else factor


def _mixed_up(sides: tuple[str, str], state: StepState) -> ParityFinding | None:
    """Two variables of which each has the other's gradient: it changes as the other one, and so do its slots."""
    weights = state.changes(0, "weights"), state.changes(1, "weights")
    apart = sorted(n for n in weights[0] if distance({n: weights[0][n]}, {n: weights[1][n]}) >= RATIO_RTOL)

    def told(side: int, weight: str) -> dict[str, np.ndarray]:
        slots = {name: value for name, value in state.after[side].items() if name.startswith(f"{weight} @")}
        return {"": weights[side][weight]} | {
            name.removeprefix(weight): value.astype(np.float64) for name, value in slots.items()
        }

    def same(one: str, other: str) -> bool:
        first, second = told(0, one), told(1, other)
        return first.keys() == second.keys() and all(
            value.shape == second[name].shape and distance({"": value}, {"": second[name]}) < SAME_GRADIENT_RTOL
            for name, value in first.items()
        )

    pairs = [
        f"{one} and {other}"
        for number, one in enumerate(apart)
        for other in apart[number + 1 :]
        if same(one, other) and same(other, one)
    ]
    if not pairs:
        return None
    return ParityFinding(
        name="variables",
        step=state.step,
        message=f"{told_names(pairs)} are mixed up: what changes the one in {sides[0]} changes the other in {sides[1]}",
        hint="the mapping of variables",
    )


def _added(
    state: StepState, side: int, options: Mapping[str, Any], rate: float | None
) -> tuple[dict[str, np.ndarray], bool] | None:
    """What the gradient adds to each weight or its slot, and whether -rate is a factor of it; None: it is not known.

    Whether the rest of the step is that of one such update is checked: of two of them these would be no gradients.
    """
    changes = [state.changes(number, "weights") for number in (side, 1 - side)]
    change = {name: value for name, value in changes[0].items() if np.any(value) or np.any(changes[1][name])}
    kind = options.get("kind")
    if kind == "sgd":
        return change, True
    moments = {"momentum": (("momentum", "momentum"),), "adam": (("m", "beta_1"), ("v", "beta_2"))}.get(kind or "", ())
    found = (_moment(state, side, change, slot, options.get(option)) for slot, option in moments)
    parts = [one for one in found if one is not None]
    if not parts or len(parts) < len(moments):
        return None
    after, added, decay = parts[0]
    if kind == "adam":
        gradient = {name: value / (1 - decay) for name, value in added.items()}
        squares = {name: value / (1 - parts[1][2]) for name, value in parts[1][1].items()}
        alike = distance({name: value**2 for name, value in gradient.items()}, squares) < _EXACTLY
        return (gradient, False) if alike else None
    # Keras's velocity is what the weight changes by, V1's has to be multiplied by -rate.
    by = {name: decay * after[name] + added[name] for name in after} if options.get("nesterov") else after
    if distance(change, by) < RATIO_RTOL:
        return added, True
    by_v1 = {name: -float(rate or 0) * value for name, value in by.items()}
    return (added, False) if distance(change, by_v1) < RATIO_RTOL else None


def _moment(
    state: StepState, side: int, weights: Iterable[str], slot: str, decay: float | None
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], float] | None:
    """Weight -> its slot after the step, and what that has more than its decayed value before; the decay."""
    keys = {name: f"{name} @{slot}" for name in weights}
    if decay is None or any(key not in state.before[side] or key not in state.after[side] for key in keys.values()):
        return None
    after = {name: state.after[side][key].astype(np.float64) for name, key in keys.items()}
    added = {name: after[name] - decay * state.before[side][key].astype(np.float64) for name, key in keys.items()}
    return after, added, decay


def _gradients(parity: Parity, index: int, state: StepState, facts: Facts) -> tuple[Arrays, Arrays] | None:
    """Weight -> its gradient in this step, by either side; None: of one or both it is not known."""
    found = []
    for side, rate in enumerate(facts.rates(parity.steps[index].learning_rates)):
        told = _added(state, side, facts.options[side], rate)
        if told is None or (told[1] and not rate):
            return None
        found.append({name: value / -float(rate or 0) for name, value in told[0].items()} if told[1] else told[0])
    return found[0], found[1]


def _of_a_neighbouring_rate(parity: Parity, index: int, state: StepState, facts: Facts) -> ParityFinding | None:
    """One side alone tells its rates, and the other has that of the step before or after it, as all it adds shows.

    Of the first step this would not be certain: a scaled loss shows there as well.
    """
    rates = facts.rates(parity.steps[index].learning_rates)
    one, other = (_added(state, side, facts.options[side], rates[side]) for side in (0, 1))
    if not index or one is None or other is None or not (one[1] and other[1]):
        return None
    factor = factor_of(one[0], other[0])
    shift = None if factor is None else _neighbour(parity, index, factor)
    if factor is None or shift is None:
        return None
    return _another_rate(parity, state, "what the gradients add", factor, shift)


def _of_a_rate(parity: Parity, index: int, state: StepState, facts: Facts) -> ParityFinding | None:
    """Of the same gradients: every weight's change has the same factor, and the rates are not known to be the same."""
    factor = factor_of_changes(state)
    one, other = facts.rates(parity.steps[index].learning_rates)
    if factor is None or (one is not None and other is not None and abs(one - other) <= SAME_GRADIENT_RTOL * abs(one)):
        return None
    one, other = (options.get("epsilon") for options in facts.options)
    if one and other and one != other and abs(other / one / factor - 1) < SCALE_RTOL:
        return None  # they may be larger than all that they are added to
    what = "the gradients are the same, and every weight's change"
    return _another_rate(parity, state, what, factor, _neighbour(parity, index, factor) or "")


def _neighbour(parity: Parity, index: int, factor: float) -> str | None:
    """In words, where a factor is that of the rates of two neighbouring steps, which one side alone tells."""
    sides, rates = parity.initial.sides, [step.learning_rates for step in parity.steps]
    for side in (0, 1):
        for shift, word in ((-1, "before"), (1, "after")):
            if not 0 <= index + shift < len(rates) or rates[index][1 - side] is not None:
                continue
            own, near = rates[index][side], rates[index + shift][side]
            if not own or not near or abs(near / own - 1) < 2 * RATIO_RTOL:
                continue
            ratio = near / own if side == 1 else own / near
            if abs(factor / ratio - 1) < RATIO_RTOL:
                return f": {sides[1 - side]} has the learning rate of the step {word}"
    return None


def _another_rate(parity: Parity, state: StepState, what: str, factor: float, shift: str) -> ParityFinding:
    sides = parity.initial.sides
    return ParityFinding(
        name="learning rate",
        step=state.step,
        message=f"{what} in {sides[0]} is {factor:.4g} times that in {sides[1]}{shift}",
        hint="the schedule, and whether it is asked before or after the step is counted",
    )


def _of_lengths(
    parity: Parity, index: int, state: StepState, gradients: tuple[Arrays, Arrays], factor: float, facts: Facts
) -> ParityFinding | None:
    """Of gradients of one direction: the shorter one is clipped to its length, or the longer one is scaled."""
    sides, lengths = parity.initial.sides, [length(one) for one in gradients]
    short = 0 if factor < 1 else 1
    steady = [_is_steady(parity, index, side, facts) for side in (0, 1)]
    bound = facts.clip_norm is not None and abs(lengths[short] / facts.clip_norm - 1) < RATIO_RTOL
    if bound or (steady[short] and not steady[1 - short]):
        return ParityFinding(
            name="clipping",
            step=state.step,
            side=sides[1 - short],
            message=f"{sides[short]}'s gradient has the length {lengths[short]:.5g} to which it is clipped; "
            f"{sides[1 - short]}'s has the same direction and the length {lengths[1 - short]:.5g}",
            hint="clip in both, to the same length, after the gradients are summed",
        )
    # Plain SGD that is applied several times in a step looks like a loss that is scaled by a whole number.
    whole = max(factor, 1 / factor)
    several = abs(whole - round(whole)) < RATIO_RTOL * whole and round(whole) != facts.replicas
    if all(steady) or (several and "sgd" in (one.get("kind") for one in facts.options)):
        return None
    return _scaled(parity, state, factor, facts, "gradient is")


def _is_steady(parity: Parity, index: int, side: int, facts: Facts) -> bool:
    """Whether gradients of plain SGD have the same length in several steps: that to which they are clipped."""
    steps = parity.steps[index : index + 2 * _STEADY]
    rates = [facts.rates(step.learning_rates)[side] for step in steps]
    if facts.options[side].get("kind") != "sgd" or len(steps) < _STEADY or not all(rates):
        return False
    norms = [step.update_norms[side] / float(rate or 0) for step, rate in zip(steps, rates, strict=True)]
    return max(norms) - min(norms) < SAME_GRADIENT_RTOL * max(norms)


def _scaled(parity: Parity, state: StepState, factor: float, facts: Facts, what: str) -> ParityFinding:
    more, times = (0, factor) if factor > 1 else (1, 1 / factor)
    sides = parity.initial.sides
    told = f"{sides[more]}'s {what} {times:.4g} times {sides[1 - more]}'s, for all weights"
    if facts.replicas > 1 and abs(times / facts.replicas - 1) < RATIO_RTOL:
        told += f", and there are {facts.replicas} replicas"
    return ParityFinding(
        name="loss scaling",
        step=state.step,
        side=sides[more],
        message=told,
        hint="how the loss is reduced (its sum or its mean over the batch), weights of records, and what the loss or "
        "its gradient is divided by: the global batch, not a replica's part of it",
    )
