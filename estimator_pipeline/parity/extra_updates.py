"""What one side does to its weights beside one update: a second one, a threshold, their averages. NumPy only."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

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
    scale_of,
    told_names,
)  # fmt: skip
from estimator_pipeline.parity.optimizer_updates import slots_of, told_slots

__all__ = ["averages_among", "of_averages", "of_averages_kept", "of_soft_threshold", "of_two_updates"]

# Slots of which each update makes decay * slot + what the gradient adds -> the option that is their decay, and Keras's
# default. An accumulator does not decay.
_DECAYS = {"m": ("beta_1", 0.9), "v": ("beta_2", 0.999), "momentum": ("momentum", 0.9), "rms": ("rho", 0.9),
           "accumulator": ("", 1.0)}  # fmt: skip
# What a threshold is more than, in units in the last place of the weights that it is seen in.
_OF_A_THRESHOLD = 30 * float(np.finfo(np.float32).eps)
# Elements that a line is drawn through.
_ENOUGH = 8
Arrays = Mapping[str, np.ndarray]
# Of a weight, by the newer optimizers of Keras 2.
_AVERAGE = " @average"


def of_two_updates(sides: tuple[str, str], state: Step, weights: tuple[Arrays, Arrays], facts: Facts) -> Finding | None:
    """One side applies its optimizer twice in a step, by the same gradients.

    What an update adds to a slot is seen on the other side: slot' - decay * slot. Two moments that are what they are
    after it was added twice tell it by themselves, one slot and the weights' changes do so together. Of plain gradient
    descent nothing tells it from twice the rate.
    """
    for side in (0, 1):
        names = [name for name, change in weights[1 - side].items() if np.any(change)]
        told = [_made_twice(state, side, name, weights, facts.options[side]) for name in names]
        seen = [one for one in told if one is not None]
        if seen and all(seen):
            kept = [slot for slot in _DECAYS if any(f"{name} @{slot}" in state.after[side] for name in names)]
            return Finding(
                name="optimizer",
                step=state.step,
                side=sides[side],
                message=f"{sides[side]} applies the optimizer twice in the step: {told_slots({*kept})} "
                f"{'is' if len(kept) == 1 else 'are'} what the gradients of {sides[1 - side]} come to in two updates",
                mend="apply_gradients or minimize that is called twice, an update that two parts of a train_op "
                "(tf.group) have in common, a train_step that calls that of Keras and updates by itself",
            )
    return None


def _made_twice(
    state: Step, side: int, name: str, weights: tuple[Arrays, Arrays], options: Mapping[str, Any]
) -> bool | None:
    """Of one weight: whether one side is where the other would be after a second update; None: nothing tells it."""
    after = [
        {slot: values[f"{name} @{slot}"].astype(np.float64) for slot in _DECAYS if f"{name} @{slot}" in values}
        for values in (state.after[1 - side], state.after[side])
    ]
    added: dict[str, np.ndarray] = {}
    telling = []
    for slot in (one for one in after[0] if one in after[1] and f"{name} @{one}" in state.before[1 - side]):
        option, default = _DECAYS[slot]
        decay = float(options.get(option, default))
        added[slot] = after[0][slot] - decay * state.before[1 - side][f"{name} @{slot}"].astype(np.float64)
        twice = decay * after[0][slot] + added[slot]
        if distance({slot: twice}, {slot: after[1][slot]}) > CLOSE:
            return False
        # One that stands still, as of a weight that no gradient comes to, tells nothing.
        if distance({slot: twice}, {slot: after[0][slot]}) >= SCALED:
            telling.append(slot)
    longer = length({name: weights[side][name]}) > (1 + NEAR) * length({name: weights[1 - side][name]})
    if "m" in telling and "v" in added:
        return longer
    if len(telling) != 1:
        return None
    # One slot may as well be that of a longer gradient, which changes the weight otherwise.
    (slot,) = telling
    first, second = after[0][slot], after[1][slot]
    if slot == "momentum":
        mu = float(options.get("momentum", 0.9))
        ways = [(first, second), (added[slot] + mu * first, added[slot] + mu * second)]  # the plain one, Nesterov's
    else:
        roots = [np.sqrt(np.maximum(values, np.finfo(np.float32).tiny)) for values in (first, second)]
        size = np.sqrt(np.maximum(added[slot], 0))
        ways = [(size / roots[0], size / roots[1])]
    for one, more in ways:
        # Squares have no sign: that of the change.
        signed = [values if slot == "momentum" else np.sign(weights[1 - side][name]) * values for values in (one, more)]
        rate, _ = scale_of({name: weights[1 - side][name]}, {name: signed[0]})
        if distance({name: rate * (signed[0] + signed[1])}, {name: weights[side][name]}) < CLOSE:
            return True
    return False


def of_soft_threshold(
    sides: tuple[str, str], state: Step, weights: tuple[Arrays, Arrays], facts: Facts
) -> Finding | None:
    """One side shrinks what the other comes to, as l1 does in the proximal optimizers of tf.compat.v1.train.

    w' = sign(u) max(|u| - t, 0) / (1 + q), where u is what gradient descent alone comes to, t = rate * l1 and
    q = rate * l2. Of ProximalAdagrad the rate is divided by the accumulator's root.
    Source: Duchi and Singer, "Efficient Learning using Forward-Backward Splitting", 2009.
    """
    kept = [slots_of(values, name, options) for name in weights[0]
            for values, options in zip(state.after, facts.options, strict=True)]  # fmt: skip
    if any(slots - {"accumulator"} for slots in kept):
        return None
    for side in (0, 1):
        plain, shrunk, roots = [], [], []
        for name in (name for name, change in weights[1 - side].items() if np.any(change)):
            value = state.after[side][name].astype(np.float64)
            accumulator = state.after[side].get(f"{name} @accumulator")
            root = np.ones_like(value) if accumulator is None else np.sqrt(accumulator.astype(np.float64))
            plain.append(np.ravel(state.after[1 - side][name].astype(np.float64)))
            shrunk.append(np.ravel(value))
            roots.append(np.ravel(root))
        if not plain:
            continue
        u, w, root = (np.concatenate(parts) for parts in (plain, shrunk, roots))
        if not np.all(root > 0):
            continue
        left, gone = w != 0, (w == 0) & (u != 0)
        if np.count_nonzero(left) < _ENOUGH or np.any(np.sign(u[left]) != np.sign(w[left])):
            continue
        size, apart = np.abs(w), np.abs(u) - np.abs(w)
        if np.max(size) < 2 * np.min(size[left]):
            continue  # a share of each is as good as a number for all
        columns = np.stack([1 / root[left], size[left] / root[left]], axis=1)
        (threshold, share), *_ = np.linalg.lstsq(columns, apart[left], rcond=None)
        rounding = 4 * float(np.finfo(np.float32).eps) * np.abs(u)
        off = np.abs(apart[left] - columns @ (threshold, share))
        if threshold < _OF_A_THRESHOLD * float(np.max(np.abs(u) * root)) or share < -SAME:
            continue
        if np.any(off > CLOSE * threshold / root[left] + rounding[left]):
            continue
        if np.any(np.abs(u[gone]) > (1 + CLOSE) * threshold / root[gone] + rounding[gone]):
            continue
        divided = " over the root of @accumulator" if np.any(root != 1) else ""
        told = f"{threshold:.4g}{divided}"
        if not np.any(gone):
            return Finding(
                name="gradient",
                step=state.step,
                side=sides[side],
                message=f"the same loss, and {sides[side]} brings every element of the weights nearer to 0 than "
                f"{sides[1 - side]}, by {told}",
                mend="an L1 regulariser that the loss does not tell, or l1 of a proximal optimizer",
            )
        return Finding(
            name="optimizer",
            step=state.step,
            side=sides[side],
            message=f"{sides[side]} brings the weights nearer to 0 than {sides[1 - side]}, by {told}, and those that "
            f"are no farther from it to 0, {np.count_nonzero(gone)} of {u.size} elements: l1 of a proximal optimizer "
            "(the rate times l1_regularization_strength)",
            mend="l1_regularization_strength of tf.compat.v1.train.ProximalGradientDescentOptimizer and "
            "ProximalAdagradOptimizer: 0 in both, for Keras's SGD and Adagrad have none; FTRL has one in both",
        )
    return None


def of_averages(sides: tuple[str, str], state: Step) -> Finding | None:
    """One side sets its weights to their moving averages, as the newer optimizers of Keras 2 do every so many steps."""
    for side in (0, 1):
        after = [state.after[number] for number in (side, 1 - side)]
        names = [name for name in after[0] if f"{name}{_AVERAGE}" in after[0] and f"{name}{_AVERAGE}" not in after[1]]
        if names and all(np.array_equal(after[0][name], after[0][f"{name}{_AVERAGE}"]) for name in names):
            return Finding(
                name="optimizer",
                step=state.step,
                side=sides[side],
                message=f"{sides[side]} sets its weights to their moving averages (use_ema) after this step, and "
                f"{sides[1 - side]} keeps none",
                mend="use_ema and ema_overwrite_frequency: without the latter the averages stand beside the weights",
            )
    return None


def averages_among(names: Collection[str]) -> set[str]:
    """Of a record's variables the averages, and the weights that they are those of."""
    averages = {name for name in names if name.endswith(_AVERAGE)}
    return averages | {name.removesuffix(_AVERAGE) for name in averages}


def of_averages_kept(sides: tuple[str, str], step: int, states: Sequence[Arrays]) -> Finding | None:
    """One side alone keeps averages of its weights, and these are others: `fit` puts them into the weights' place.

    Args:
        sides: what the two are called.
        step: the last one.
        states: what both have after it, weights and averages.
    """
    for side in (0, 1):
        mine, theirs = states[side], states[1 - side]
        averages = {name: mine[name + _AVERAGE] for name in mine if name + _AVERAGE in mine.keys() - theirs.keys()}
        others = [name for name, value in averages.items()
                  if distance({"": mine[name].astype(np.float64)}, {"": value.astype(np.float64)}) >= SAME]  # fmt: skip
        if others:
            return Finding(
                name="optimizer",
                step=step,
                side=sides[side],
                message=f"{sides[side]} keeps moving averages of its weights ({told_names(others)}) and "
                f"{sides[1 - side]} none: with use_ema these take the weights' place when the training has ended",
                mend="use_ema, in both or in neither",
            )
    return None
