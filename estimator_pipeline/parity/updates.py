"""What two trainings did otherwise with the gradients of one step: what is trained, scaling, clipping. NumPy only.

What their optimizers did otherwise with the same gradients is in :mod:`estimator_pipeline.parity.optimizer_updates`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from estimator_pipeline.parity import extra_updates, optimizer_updates, rows
from estimator_pipeline.parity.findings import (
    CLOSE,
    NEAR,
    SAME,
    SCALED,
    Facts,
    Finding,
    Step,
    distance,
    length,
    rms,
    scale_of,
    told_by_part,
    told_names,
)  # fmt: skip
from estimator_pipeline.parity.rates import Later, another_rate, rate_of_velocities, shifted_rate
from estimator_pipeline.parity.roundings import at_a_kink, of_rounding_alone, told_rounding

if TYPE_CHECKING:
    from estimator_pipeline.parity.result import Parity, StepParity

__all__ = ["of_update", "told_random"]

# What is left of a change of float32 weights by their own rounding is less than so much of them.
_OF_WEIGHTS = 1e-5
# Look-ups of the same rows make the norm that is clipped another one than that of their sum, by less than this.
_OF_LOOK_UPS = 0.3
# Gradients of one length in so many steps do not have it by chance.
_STEADY = 3
_ALL_RANDOM = "set the rates of what draws random numbers to 0, and compare the rest"
Arrays = Mapping[str, np.ndarray]


def of_update(parity: Parity, index: int, state: Step, facts: Facts, later: Later) -> Finding | None:
    """From the same state, loss and records: other gradients, or another use of the same; None: all but the same."""
    noise = of_rounding_alone(state)
    faults = {fault.name.partition(" @")[0] for fault in parity.steps[index].variables.faults}
    if noise and faults <= noise.keys():
        return told_rounding(state, noise, faults)
    state = state.without(noise)
    weights = state.changes(0, "weights"), state.changes(1, "weights")
    slots_part = any(" @" in fault.name for fault in parity.steps[index].variables.faults)
    sides = parity.initial.sides
    if distance(*weights) < SAME and not slots_part:
        # Little, and yet it may have a cause that is known, or be all that there is of one output.
        return (optimizer_updates.of_options(sides, state, facts) or _of_a_column(sides, state)) if faults else None
    return (
        optimizer_updates.of_options(sides, state, facts)
        or extra_updates.of_averages(sides, state)
        or extra_updates.of_soft_threshold(sides, state, weights, facts)
        or _not_trained(sides, state, weights, facts)
        or _mixed_up(sides, state, weights)
        or rows.of_rows(sides, state, weights)
        or extra_updates.of_two_updates(sides, state, weights, facts)
        or optimizer_updates.of_slots(parity, index, state, weights, facts, later)
        or _of_gradients(parity, index, state, weights, facts, later)
    )


def _of_a_column(sides: tuple[str, str], state: Step) -> Finding | None:
    """A part of a weight, such as that of one output, which does not show beside another one of larger numbers."""
    changes = [state.changes(side, "weights") for side in (0, 1)]
    for name, change in changes[0].items():
        if change.ndim < 2:
            continue
        axes = tuple(range(change.ndim - 1))
        lengths = [np.sqrt(np.sum(one[name] ** 2, axis=axes)) for one in changes]
        apart = np.sqrt(np.sum((changes[0][name] - changes[1][name]) ** 2, axis=axes))
        whole = np.sqrt(np.sum(state.before[0][name].astype(np.float64) ** 2, axis=axes))
        odd = (apart > NEAR * np.maximum(*lengths)) & (apart > _OF_WEIGHTS * whole)
        if np.any(odd):
            worst = int(np.argmax(np.where(odd, apart, -1.0)))
            return Finding(
                name="gradient",
                step=state.step,
                message=f"the same loss, but for little, and other gradients of a part: column {worst} of {name} "
                f"changes by {lengths[0][worst]:.5g} in {sides[0]}, by {lengths[1][worst]:.5g} in {sides[1]}",
                mend="what is trained: an output that one side leaves out of the loss, or weighs otherwise",
            )
    return None


def _not_trained(sides: tuple[str, str], state: Step, weights: Sequence[Arrays], facts: Facts) -> Finding | None:
    largest = max(rms(value) for side in weights for value in side.values())
    for side in (0, 1):
        still = [
            name
            for name, change in weights[side].items()
            if not np.any(change) and rms(weights[1 - side][name]) > CLOSE * largest
        ]
        if still and not any(np.any(change) for change in weights[side].values()):
            return Finding(
                name="gradient",
                step=state.step,
                side=sides[side],
                message=f"{sides[side]} changes none of its {len(weights[side])} variables",
                mend="a learning rate of 0, a train_op that leaves the update out, gradients that are added up over "
                "several steps",
            )
        if still:
            mend = "what is trained: trainable=False, the variables that minimize is given, a gradient that is stopped "
            mend += "or left out"
            # The other side's optimizer keeps something for what a gradient moves.
            known = facts.untrained is not None or all(
                optimizer_updates.slots_of(state.after[1 - side], name, facts.options[1 - side]) for name in still
            )
            told = "a frozen layer" if known else "a frozen layer, or variables that no gradient moves (averages, ...)"
            mend += "" if known else "; operations that update variables, and that one side does not run"
            return Finding(
                name="gradient",
                step=state.step,
                side=sides[side],
                message=f"{told}: {sides[side]} does not change {len(still)} of {len(weights[side])} variables "
                f"({told_names(still)}), {sides[1 - side]} does",
                mend=mend,
            )
    return None


def _mixed_up(sides: tuple[str, str], state: Step, weights: Sequence[Arrays]) -> Finding | None:
    """Two variables of which each has the other's gradient."""
    apart = sorted(n for n in weights[0] if distance({n: weights[0][n]}, {n: weights[1][n]}) >= CLOSE)

    def same(one: str, other: str) -> bool:
        pair = weights[0][one], weights[1][other]
        return pair[0].shape == pair[1].shape and distance({"": pair[0]}, {"": pair[1]}) < SAME

    pairs = [
        f"{one} and {other}"
        for number, one in enumerate(apart)
        for other in apart[number + 1 :]
        if same(one, other) and same(other, one)
    ]
    if not pairs:
        return None
    return Finding(
        name="variables",
        step=state.step,
        message=f"{told_names(pairs)} are mixed up: what changes the one in {sides[0]} changes the other in {sides[1]}",
        mend="the mapping of variables",
    )


def _of_gradients(
    parity: Parity, index: int, state: Step, weights: tuple[Arrays, Arrays], facts: Facts, later: Later
) -> Finding | None:
    """None of the options: the gradients themselves are not the same; Adam's changes may well be."""
    sides, step = parity.initial.sides, state.step
    rates = facts.rates(parity.steps[index].learning_rates)
    gradients, word = _gradients(state, weights, facts, rates)
    has_rate = word != "gradient"
    if distance(*gradients) < SAME:
        return _of_a_rate_alone(sides, step, weights)
    scale, rest = scale_of(*gradients)
    lengths = [length(one) for one in gradients]
    if rest < CLOSE and scale > 0:
        shifted = shifted_rate(parity, index, scale, later) if has_rate else None
        if shifted:
            return another_rate(
                step, f"every weight's change in {sides[0]} is {scale:.4g} times that in {sides[1]}: {shifted}"
            )
        if abs(scale - 1) > SCALED:
            looked_up = rows.has_look_ups(gradients[0])
            return _of_lengths(parity, index, scale, lengths, facts, has_rate=has_rate, looked_up=looked_up)
    shifted = rate_of_velocities(parity, index, state)
    if shifted:
        return another_rate(step, f"the velocities differ as far as the rates of two steps do: {shifted}")
    clipped = _clipping(parity, index, lengths, facts, has_rate=has_rate)
    clipped = clipped or _clipped_by_value(sides, step, gradients, word)
    if clipped is not None:
        return clipped
    return _of_other_gradients(sides, state, gradients, word, facts, opposite=rest < CLOSE and scale < 0)


def _of_a_rate_alone(sides: tuple[str, str], step: int, weights: tuple[Arrays, Arrays]) -> Finding | None:
    """Of the same gradients: every weight's change so many times the other's.

    V1's velocities are without the rate, which shows in the change alone; in Keras's it shows by itself.
    """
    scale, rest = scale_of(*weights)
    if rest >= CLOSE or scale <= 0 or abs(scale - 1) <= SCALED:
        return None
    told = f"every weight's change in {sides[0]} is {scale:.4g} times that in {sides[1]}"
    return another_rate(step, f"the gradients are the same, and {told}")


def _of_other_gradients(
    sides: tuple[str, str], state: Step, gradients: tuple[Arrays, Arrays], word: str, facts: Facts, *, opposite: bool
) -> Finding:
    lengths = [length(one) for one in gradients]
    apart = [name for name in gradients[0] if distance({name: gradients[0][name]}, {name: gradients[1][name]}) >= SAME]
    told = f"the same loss, other gradients: {len(apart)} of {len(gradients[0])} variables ({told_names(apart)}), "
    told += f"{sides[0]}'s {word} has the length {lengths[0]:.5g}, {sides[1]}'s {lengths[1]:.5g}"
    mend = "what is trained, clipped or left out of the gradient; weights of losses; regularisers that the loss lacks; "
    mend += "constraints of weights; the mapping of variables"
    if opposite:
        told += ", in the opposite direction"
        mend = f"the sign of the loss; {mend}"
    elif word == "gradient" and (share := _share_of_weights(state, gradients, apart)):
        more = sides[0] if share > 0 else sides[1]
        told += f"; {more}'s is larger by {abs(share):.4g} times the weights themselves, as a decay of them adds"
        mend = "a weight decay, or an L2 regulariser (half its factor) that the loss does not tell"
    elif parts := told_by_part(*gradients, sides):
        told += f"; {parts}"
        if told_by_part(*gradients, sides, beyond=SCALED):
            mend = "what is clipped by variable (clipnorm), and rates or weights by layer"
    elif held := _held(sides, apart, facts):
        told += f"; {held}"
        mend = "constraints of weights, in both"
    elif not any(facts.random) and (kink := at_a_kink(state.step, gradients, apart)):
        return kink
    if any(facts.random):
        told += f"; {told_random(sides, facts)}"
        mend = f"{_ALL_RANDOM}; {mend}"
    return Finding(name="gradient", step=state.step, message=told, mend=mend)


def _share_of_weights(state: Step, gradients: tuple[Arrays, Arrays], apart: Sequence[str]) -> float:
    """What share of the weights the first side's gradients hold beside the other's; 0: it is something else."""
    more = {name: gradients[0][name] - gradients[1][name] for name in apart}
    before = {name: state.before[0][name].astype(np.float64) for name in apart}
    share, rest = scale_of(more, before)
    return share if rest < CLOSE else 0.0


def _held(sides: tuple[str, str], apart: Sequence[str], facts: Facts) -> str:
    """In words, which of those that differ are held to something by one side alone."""
    told = []
    for side in (0, 1):
        found = [name for name in apart if facts.constrained[side].get(name) != facts.constrained[1 - side].get(name)]
        named = [f"{name} ({facts.constrained[side][name]})" for name in found if name in facts.constrained[side]]
        if named:
            told.append(f"{sides[side]} constrains {told_names(named)}")
    return "; ".join(told)


def _clipped_by_value(sides: tuple[str, str], step: int, gradients: tuple[Arrays, Arrays], word: str) -> Finding | None:
    """One side's elements are the other's, up to a value that none is beyond and several have."""
    flat = [np.concatenate([np.ravel(value) for value in one.values()]) for one in gradients]
    for side in (0, 1):
        limit = float(np.max(np.abs(flat[side])))
        at_it = np.isclose(np.abs(flat[side]), limit, rtol=CLOSE)
        if np.count_nonzero(at_it) < 2 or not limit:
            continue
        clipped = np.clip(flat[1 - side], -limit, limit)
        beyond = np.count_nonzero(np.abs(flat[1 - side]) > limit * (1 + CLOSE))
        if beyond and distance({"": clipped}, {"": flat[side]}) < CLOSE:
            return Finding(
                name="clipping",
                step=step,
                side=sides[1 - side],
                message=f"{sides[side]}'s {word} is clipped by value, to {limit:.5g}, where {beyond} of "
                f"{flat[side].size} elements of {sides[1 - side]}'s are beyond it",
                mend="clip in both, to the same value (clipvalue), after the gradients are summed",
            )
    return None


def told_random(sides: tuple[str, str], facts: Facts) -> str:
    if list(facts.random[0]) == list(facts.random[1]):
        return f"both draw random numbers in {told_names(facts.random[0])}"
    told = [f"{side} draws random numbers in {told_names(names)}"
            for side, names in zip(sides, facts.random, strict=True) if names]  # fmt: skip
    return ", ".join(told)


def _gradients(
    state: Step, weights: tuple[Arrays, Arrays], facts: Facts, rates: Sequence[float | None]
) -> tuple[tuple[Arrays, Arrays], str]:
    """What the step tells of both gradients, and what that is: "gradient", or something that has the rate in it."""
    (one, of_one), (other, of_other) = (_gradient(state, side, weights[side], facts, rates[side]) for side in (0, 1))
    if one.keys() == other.keys() == weights[0].keys() and of_one == of_other:
        return (one, other), of_one
    if all(rates) and not any(" @" in name and not name.endswith(" @momentum") for name in state.after[0]):
        # Plain gradient descent tells it by its changes.
        plain = [not any(f"{name} @momentum" in state.after[side] for name in weights[side])
                 or facts.options[side].get("kind") == "sgd" for side in (0, 1)]  # fmt: skip
        if all(plain):
            found = [{name: value / -float(rate or 1.0) for name, value in side.items()}
                     for side, rate in zip(weights, rates, strict=True)]  # fmt: skip
            return (found[0], found[1]), "gradient"
    return weights, "change of the weights"


def _gradient(
    state: Step, side: int, weights: Arrays, facts: Facts, rate: float | None
) -> tuple[dict[str, np.ndarray], str]:
    """From the slots that both sides keep: weight -> its gradient, without a sign where they keep squares."""
    options, both = facts.options[side], state.after[0].keys() & state.after[1].keys()

    def added(name: str, slot: str, decay: float) -> np.ndarray:
        key = f"{name} @{slot}"
        return state.after[side][key].astype(np.float64) - decay * state.before[side][key].astype(np.float64)

    beta, rho = float(options.get("beta_1", 0.9)), float(options.get("rho", 0.9))
    found, velocities = {}, {}
    for name, change in weights.items():
        if f"{name} @m" in both:
            found[name] = added(name, "m", beta) / (1 - beta)
        elif f"{name} @rms" in both:
            found[name] = np.sqrt(np.maximum(added(name, "rms", rho), 0) / (1 - rho))
        elif f"{name} @accumulator" in both:
            found[name] = np.sqrt(np.maximum(added(name, "accumulator", 1.0), 0))
        elif f"{name} @momentum" in both and options.get("kind") != "sgd":
            velocities[name] = (added(name, "momentum", float(options.get("momentum", 0.9))), change)
    # V1's velocities are sums of gradients, Keras's are changes of weights; a gradient points the other way.
    with_rate = sum(float(np.sum(velocity * change)) for velocity, change in velocities.values()) > 0
    scale = -float(rate) if with_rate and rate else 1.0
    found |= {name: velocity / scale for name, (velocity, _) in velocities.items()}
    return found, "velocity" if with_rate and not rate else "gradient"


def _of_lengths(
    parity: Parity,
    index: int,
    scale: float,
    lengths: Sequence[float],
    facts: Facts,
    *,
    has_rate: bool,
    looked_up: bool,
) -> Finding:
    """Of gradients of one direction, and other lengths."""
    sides, step = parity.initial.sides, parity.steps[index].step
    times = scale if scale > 1 else 1 / scale
    side = 0 if scale > 1 else 1
    longer, shorter = sides[side], sides[1 - side]
    if facts.replicas > 1 and abs(times / facts.replicas - 1) < CLOSE:
        return Finding(
            name="loss scaling",
            step=step,
            side=longer,
            message=f"{longer}'s gradient is {times:.4g} times the other's, and there are {facts.replicas} replicas",
            mend="divide the loss of a replica by the global batch, not by its own part of it",
        )
    clipped = _clipped_to(parity, index, lengths, 1 - side, facts, has_rate=has_rate, looked_up=looked_up)
    if clipped is not None:
        how, mend = clipped
        return Finding(
            name="clipping",
            step=step,
            side=longer,
            message=f"{shorter}'s gradient has the length {how}; {longer}'s has the same direction and is {times:.4g} "
            "times as long: it is not clipped, or to more",
            mend=mend,
        )
    if has_rate:
        return Finding(
            name="learning rate",
            step=step,
            message=f"the same direction, but {longer}'s change of the weights is {times:.4g} times the other's",
            mend="the learning rate, which one side does not tell; or else how the loss is reduced (its sum or its "
            "mean over the batch), weights of records, what it is divided by (replicas), and updates that are made "
            "twice in a step",
        )
    return Finding(
        name="loss scaling",
        step=step,
        message=f"the same direction, but {longer}'s gradient is {times:.4g} times the other's",
        mend="how the loss is reduced (its sum or its mean over the batch), weights of records, what it, or its "
        "gradient, is divided by (replicas), and updates that are made twice in a step",
    )


def _units(step: StepParity, facts: Facts, *, has_rate: bool) -> list[float]:
    # A change by plain gradient descent, and what is added to a velocity of Keras, is the gradient times a rate, which
    # one side alone may tell.
    return [rate for rate in facts.rates(step.learning_rates) if rate] if has_rate else [1.0]


def _clipped_to(
    parity: Parity, index: int, lengths: Sequence[float], side: int, facts: Facts, *, has_rate: bool, looked_up: bool
) -> tuple[str, str] | None:
    """In words, that one side's gradients are clipped to their length, and what to look at; None: nothing says so."""
    norm, mend = facts.clip_norm, "clip in both, to the same length, after the gradients are summed"
    if norm is not None:
        for unit in _units(parity.steps[index], facts, has_rate=has_rate):
            if abs(lengths[side] / unit / norm - 1) < CLOSE:
                return f"{norm:.5g} in each step, to which it is clipped", mend
    # Of plain gradient descent, what the steps before and after it say.
    steps = parity.steps[index : index + 6]
    rates = [facts.rates(step.learning_rates)[side] for step in steps]
    if None not in rates and facts.options[side].get("kind") == "sgd":
        norms = [step.update_norms[side] / float(rate) for step, rate in zip(steps, rates, strict=True) if rate]
        if len(norms) >= _STEADY and max(norms) - min(norms) < SAME * max(norms):
            return f"{float(np.mean(norms)):.5g} in each step, to which it is clipped", mend
    # A norm of gradients of embeddings counts each look-up of a row by itself, and is not that of their sum.
    near = norm is not None and abs(lengths[side] / norm - 1) < _OF_LOOK_UPS and lengths[1 - side] > norm
    if norm is not None and near and looked_up and not has_rate:
        how = f"{lengths[side]:.5g}, near {norm:.5g}, to which it is clipped (a row of an embedding that is looked up "
        mend += "; or else how the loss is reduced (its sum or its mean), and what it, or its gradient, is divided by"
        return f"{how}twice counts twice there)", mend
    return None


def _clipping(parity: Parity, index: int, lengths: Sequence[float], facts: Facts, *, has_rate: bool) -> Finding | None:
    if facts.clip_norm is None or facts.replicas < 2 or index > 0:
        return None
    sides, step = parity.initial.sides, parity.steps[index]
    for unit in _units(step, facts, has_rate=has_rate):
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
