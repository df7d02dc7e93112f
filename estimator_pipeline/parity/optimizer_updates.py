"""What two optimizers did otherwise with the gradients of one step: kind, options, rate, epsilon. NumPy only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from estimator_pipeline.parity.findings import (
    CLOSE,
    SAME,
    SCALED,
    Facts,
    Finding,
    Step,
    distance,
    length,
    scale_of,
    told_by_part,
    told_names,
)
from estimator_pipeline.parity.names import AVERAGE, GRADIENT_SUM
from estimator_pipeline.parity.rates import Later, another_rate, shifted_rate

if TYPE_CHECKING:
    from estimator_pipeline.parity.result import Parity

__all__ = ["of_options", "of_slots", "other_options", "slots_of", "told_options", "told_slots"]

_OPTIONS = "the optimizer's options, named in both; docs/keras.md has what V1 and Keras do otherwise"
_SLOTS = ("m", "v", "vhat", "momentum", "rms", "mg", "accumulator", "linear", "accum_grad", "accum_var")
# What is kept for a weight by something else than the optimizer's rule.
_BESIDE = (AVERAGE, GRADIENT_SUM, "average")
# Slots that every optimizer of a kind keeps -> the kind; the first that fits.
_KINDS: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"m", "v"}), "adam"),
    (frozenset({"rms"}), "rmsprop"),
    (frozenset({"linear"}), "ftrl"),
    (frozenset({"accumulator"}), "adagrad"),
    (frozenset({"momentum"}), "momentum"),
    (frozenset({"accum_grad", "accum_var"}), "adadelta"),
)
_WORDS = {"adam": "Adam", "adamax": "Adamax", "nadam": "Nadam", "rmsprop": "RMSprop", "ftrl": "FTRL",
          "adagrad": "Adagrad", "adadelta": "Adadelta", "momentum": "SGD with momentum",
          "lion": "Lion", "adafactor": "Adafactor", "sgd": "plain SGD"}  # fmt: skip
# A slot that an optimizer keeps by an option alone -> the option.
_BY_OPTION = {"mg": "centered", "vhat": "amsgrad"}
# What a decay of little more than the weights' own rounding leaves of it.
_OF_A_DECAY = 0.05
_HAVE_EPSILON = ("v", "rms", "accumulator")
# They add up squares, which do not tell a gradient from the opposite one.
_SQUARES = frozenset({"v", "vhat", "rms", "accumulator"})
Arrays = Mapping[str, np.ndarray]


# What is known before any arithmetic ------------------------------------------------------------------------------


def of_options(sides: tuple[str, str], state: Step, facts: Facts) -> Finding | None:
    """Optimizers of other kinds, or with other options than epsilon, which may well be too small to matter."""
    found = _of_kinds(sides, state, facts)
    if found is not None:
        return found
    others = {name: pair for name, pair in other_options(facts).items() if name != "epsilon"}
    if not others:
        return None
    rate = list(others) == ["learning_rate"]
    return Finding(
        name="learning rate" if rate else "optimizer",
        step=state.step,
        message=f"the options of the optimizers are not the same: {told_options(sides, others)}",
        mend="the learning rate of both" if rate else _OPTIONS,
    )


def _of_kinds(sides: tuple[str, str], state: Step, facts: Facts) -> Finding | None:
    """By what the graph and the Keras optimizer say, or by the slots of the weights that both sides train."""
    changes = [state.changes(side, "weights") for side in (0, 1)]
    trained = [name for name in changes[0] if np.any(changes[0][name]) and np.any(changes[1][name])]
    kept = [{name: slots_of(state.after[side], name, facts.options[side]) for name in trained} for side in (0, 1)]
    known = [one.get("kind") for one in facts.options]
    if None in known:
        kinds = [{name: _kind(slots) for name, slots in one.items()} for one in kept]
        other = [name for name in trained if kinds[0][name] != kinds[1][name]]
    else:
        kinds = [dict.fromkeys(trained, str(kind)) for kind in known]
        other = trained if known[0] != known[1] else []
    mend = "the same optimizer in both"
    if other:
        whose = "" if len(other) == len(trained) else f"for {told_names(other)} "
        told = [f"{side} keeps {told_slots(kept[number][other[0]])} for each weight"
                + (f", as {_WORDS[kind]} does" if (kind := kinds[number][other[0]]) in _WORDS else "")
                for number, side in enumerate(sides)]  # fmt: skip
        message = f"{whose}they are of different kinds: {', '.join(told)}"
    else:
        apart = [(name, slots) for name in trained if (slots := kept[0][name] ^ kept[1][name]) & _BY_OPTION.keys()]
        if not apart:
            return None
        name, slots = apart[0]
        options = [_BY_OPTION[slot] for slot in sorted(slots & _BY_OPTION.keys())]
        more = sides[0] if slots & kept[0][name] else sides[1]
        message = f"{more} keeps {told_slots(slots)} for each weight, and the other does not: {', '.join(options)}"
        mend = f"{', '.join(options)}, named in both"
    return Finding(name="optimizer", step=state.step, message=message, mend=mend)


def slots_of(values: Arrays, weight: str, options: Mapping[str, Any]) -> set[str]:
    # The newer SGD of Keras 2 keeps a velocity without using it.
    unused = {"momentum"} if options.get("kind") == "sgd" else set()
    kept = {name.removeprefix(f"{weight} @") for name in values if name.startswith(f"{weight} @")}
    return kept - unused - {*_BESIDE}


def _kind(slots: set[str]) -> str:
    """The kind that keeps these; what no known one does is a kind of its own."""
    return next((kind for needs, kind in _KINDS if needs <= slots), told_slots(slots) if slots else "sgd")


def told_slots(slots: set[str]) -> str:
    return ", ".join(f"@{slot}" for slot in sorted(slots)) or "nothing"


def other_options(facts: Facts) -> dict[str, tuple[Any, Any]]:
    """Option -> both values, of those that are known of both sides and are not the same."""
    one, other = facts.options
    return {
        name: (one[name], other[name])
        for name in one
        if name in other and name != "kind" and not np.isclose(one[name], other[name], rtol=1e-5, atol=0)
    }


def told_options(sides: tuple[str, str], options: Mapping[str, tuple[Any, Any]]) -> str:
    def plain(value: Any) -> str:
        return str(value) if isinstance(value, bool) else f"{value:g}"

    return "; ".join(
        f"{name} {plain(one)} in {sides[0]}, {plain(other)} in {sides[1]}" for name, (one, other) in options.items()
    )


# What the slots tell ----------------------------------------------------------------------------------------------


def of_slots(
    parity: Parity, index: int, state: Step, weights: tuple[Arrays, Arrays], facts: Facts, later: Later
) -> Finding | None:
    """What the slots say of optimizers that are given the same gradients; None: nothing, or the gradients differ."""
    sides = parity.initial.sides
    slots = [
        {
            slot: {name: value.astype(np.float64) for name, value in values.items() if name.endswith(f" @{slot}")
                   and name in state.after[0] and name in state.after[1] and value.dtype.kind == "f"}
            for slot in _SLOTS
        }
        for values in (*state.before, *state.after)
    ]  # fmt: skip
    before, after = slots[:2], slots[2:]
    # The newer SGD of Keras 2 keeps velocities without using them: they say nothing.
    unused = {"momentum"} if "sgd" in (one.get("kind") for one in facts.options) else set()
    kept = [slot for slot in _SLOTS if after[0][slot] and slot not in unused]
    if not kept:
        return None
    for slot in kept:
        if distance(before[0][slot], before[1][slot]) >= SAME:
            return _other_before(parity, index, state, slot, before[0][slot], before[1][slot], facts)
    # Weights whose optimizer keeps nothing say nothing here.
    having = {key.partition(" @")[0] for slot in kept for key in after[0][slot]}
    one, other = ({name: value for name, value in side.items() if name in having} for side in weights)
    same = {slot: _each_the_same(after[0][slot], after[1][slot]) for slot in kept}
    turned = [name for name in one if float(np.sum(one[name] * other[name])) < 0]
    if turned and all(same.values()) and set(kept) <= _SQUARES and distance(one, other) >= SAME:
        return Finding(
            name="gradient",
            step=state.step,
            message=f"{told_slots({*kept})} {'is' if len(kept) == 1 else 'are'} the same, which add up squares; the "
            f"gradients are not: {len(turned)} of {len(one)} variables ({told_names(turned)}) change in "
            "another direction",
            mend="the sign of the loss; weights of losses; the mapping of variables",
        )
    if all(same.values()):
        return _of_same_slots(parity, index, state, (one, other), kept, later) if distance(one, other) >= SAME else None
    found = _other_decay(sides, state, before, after, same, (one, other))
    return found or _of_other_slots(sides, state, before, after, facts)


def _each_the_same(one: Arrays, other: Arrays) -> bool:
    """Array by array, for a small one does not show in the length of all."""
    return all(distance({name: one[name]}, {name: other[name]}) < SAME for name in one)


def _other_before(
    parity: Parity, index: int, state: Step, slot: str, one: Arrays, other: Arrays, facts: Facts
) -> Finding | None:
    """The weights were the same so far, and what the optimizers keep beside them was not."""
    sides = parity.initial.sides
    if not index:
        ends = [f"{float(np.mean([np.mean(value) for value in values.values()])):.4g}" for values in (one, other)]
        told = f"@{slot} begins with {ends[0]} in {sides[0]} and with {ends[1]} in {sides[1]}"
        return Finding(
            name="optimizer",
            step=state.step,
            message=f"what they keep beside the weights is not the same: {told}",
            mend=_OPTIONS,
        )
    factor, rest = scale_of(one, other)
    told = f"what they keep beside the weights was not the same before this step: @{slot} in {sides[0]} "
    mend = _OPTIONS
    if rest >= CLOSE:
        told += f"is another one than in {sides[1]}"
    elif factor < 0 and _rate_stays(parity, index, facts):
        return None  # they still come to the same
    elif factor < 0:
        told += f"is {factor:.4g} times that in {sides[1]}: a velocity with the learning rate in it (Keras) against "
        told += "one without (tf.compat.v1.train), which come to the same until the rate changes"
        mend = "a rate that stays the same, or velocities that mean the same: api: v1 on both engines"
    else:
        told += f"is {factor:.4g} times that in {sides[1]}"
        mend = {"m": f"beta_1; {_OPTIONS}", "v": f"beta_2; {_OPTIONS}"}.get(slot, _OPTIONS)
    return Finding(name="optimizer", step=state.step, message=told, mend=mend)


def _rate_stays(parity: Parity, index: int, facts: Facts) -> bool:
    """Whether the learning rate of a step is that of the step before, as far as either side tells it."""
    rates = [facts.rates(parity.steps[number].learning_rates) for number in (index - 1, index)]
    known = [(before, now) for before, now in zip(*rates, strict=True) if before is not None and now is not None]
    return bool(known) and all(np.isclose(before, now, rtol=1e-6) for before, now in known)


def _other_decay(
    sides: tuple[str, str],
    state: Step,
    before: list[Any],
    after: list[Any],
    same: Mapping[str, bool],
    weights: tuple[Arrays, Arrays],
) -> Finding | None:
    """Of the same gradients other moving averages."""
    if not same.get("rms", True):
        # Gradients that are s times as long have mean squares s^2 times as large, and the same changes of weights.
        factor, rest = scale_of(after[0]["rms"], after[1]["rms"])
        scale, left = scale_of(*weights)
        if max(rest, left) < CLOSE and factor > 0 and abs(scale * np.sqrt(factor) - 1) < 5 * CLOSE:
            return Finding(
                name="optimizer",
                step=state.step,
                message=f"every @rms is {factor:.4g} times as large in {sides[0]} as in {sides[1]}, and the weights "
                f"change by as much less: 1 - rho is as many times as large",
                mend=f"rho (decay); {_OPTIONS}",
            )
    if set(same) >= {"m", "v"} and same["m"] != same["v"]:
        slot, decay = ("m", "beta_1") if same["v"] else ("v", "beta_2")
        factor, rest = scale_of(after[0][slot], after[1][slot])
        if rest < CLOSE and factor > 0:
            return Finding(
                name="optimizer",
                step=state.step,
                message=f"@{'v' if slot == 'm' else 'm'} is the same, so the gradients are, and every @{slot} is "
                f"{factor:.4g} times as long in {sides[0]} as in {sides[1]}: 1 - {decay} is as many times as large",
                mend=f"{decay}; {_OPTIONS}",
            )
    velocities = before[0].get("momentum")
    if velocities and length(velocities):
        apart = {name: after[0]["momentum"][name] - after[1]["momentum"][name] for name in velocities}
        factor, rest = scale_of(apart, velocities)
        if rest < CLOSE:
            return Finding(
                name="optimizer",
                step=state.step,
                message=f"the velocities differ by {factor:.4g} times those before the step: the momentum is larger "
                f"by as much in {sides[0]}",
                mend=f"momentum; {_OPTIONS}",
            )
    return None


def _of_other_slots(
    sides: tuple[str, str], state: Step, before: list[Any], after: list[Any], facts: Facts
) -> Finding | None:
    """Of the same gradients, as some slots tell, other ones besides: by an option, or another kind."""

    def apart(slot: str) -> float:
        return distance(after[0][slot], after[1][slot])

    kept = [slot for slot in _SLOTS if after[0][slot]]
    # One that stands still tells no gradient.
    moved = [slot for slot in kept if distance(before[0][slot], after[0][slot]) >= SAME]
    same, other = [slot for slot in moved if apart(slot) < SAME], [slot for slot in kept if apart(slot) >= SAME]
    if not same or not other:
        return None
    worst = max(other, key=apart)
    sizes = [length(side[worst]) for side in after]
    options = other_options(facts)
    return Finding(
        name="optimizer",
        step=state.step,
        message=f"{told_slots({*same})} {'is' if len(same) == 1 else 'are'} the same, so the gradients are, and "
        f"{told_slots({*other})} {'is' if len(other) == 1 else 'are'} not: @{worst} has the length {sizes[0]:.5g} in "
        f"{sides[0]}, {sizes[1]:.5g} in {sides[1]}" + (f"; {told_options(sides, options)}" if options else ""),
        mend=f"the kind of optimizer; {_OPTIONS}",
    )


def _of_same_slots(
    parity: Parity, index: int, state: Step, weights: tuple[Arrays, Arrays], kept: Sequence[str], later: Later
) -> Finding:
    sides = parity.initial.sides
    nesterov = [_is_nesterov(state, side, later) for side in (0, 1)]
    scale, rest = scale_of(*weights)
    epsilons = _other_epsilons(state)
    decay = _weight_decay(sides, state, weights)
    mend = _OPTIONS
    if None not in nesterov and nesterov[0] != nesterov[1]:
        told = f"{sides[0] if nesterov[0] else sides[1]} takes Nesterov's momentum, the other the plain one"
        mend = "nesterov (use_nesterov), named in both"
    elif rest >= SAME and epsilons is not None:
        told = f"epsilon is about {epsilons[0]:.1e} in {sides[0]} and {epsilons[1]:.1e} in {sides[1]}"
    elif decay:
        told, mend = decay, "weight decay: how much, of which variables, and whether the rate is a factor of it"
    elif rest < CLOSE and (shifted := shifted_rate(parity, index, scale, later)):
        told = f"the slots are the same, every weight's change is {scale:.4g} times as long in {sides[0]}"
        return another_rate(state.step, f"{told}: {shifted}")
    elif rest < CLOSE and abs(scale - 1) > SCALED:
        told = f"the slots are the same, every weight's change is {scale:.4g} times as long in {sides[0]}"
        return Finding(name="learning rate", step=state.step, message=told, mend="the learning rate of both")
    elif parts := told_by_part(*weights, sides, beyond=SCALED):
        told = f"the slots are the same, and the weights change as far as another rate takes them: {parts}"
        return Finding(
            name="learning rate",
            step=state.step,
            message=told,
            mend="rates by layer: an optimizer for each part, or factors of rates",
        )
    elif any(slot in kept for slot in _HAVE_EPSILON):
        told = "epsilon, or where it stands"
    else:
        told = "an option that does not show by itself"
    return Finding(
        name="optimizer",
        step=state.step,
        message=f"the slots are the same, so the gradients are, and the weights change otherwise: {told}",
        mend=mend,
    )


def _is_nesterov(state: Step, side: int, later: Later) -> bool | None:
    """Whether one side looks ahead; None: it has no velocities, or they do not tell.

    Without, a change is the velocity v' times 1 (Keras) or the rate (V1); with Nesterov's momentum m it is so of
    (1 + m) v' - m v. From a velocity of 0 the two have the same direction.
    """
    velocities = [
        {name.removesuffix(" @momentum"): value.astype(np.float64) for name, value in values.items()
         if name.endswith(" @momentum")}
        for values in (state.before[side], state.after[side])
    ]  # fmt: skip
    changes = state.changes(side, "weights")
    names = [name for name in changes if name in velocities[0] and name in velocities[1]]
    if not names or any(f"{name} @rms" in state.after[side] for name in names):
        return None
    flat = [np.concatenate([np.ravel(values[name]) for name in names]) for values in (*velocities, changes)]
    before, after, change = flat
    if not np.any(before):
        following = later()
        return None if following is None else _is_nesterov(following, side, lambda: None)
    columns = np.stack([after, before], axis=1)
    (of_after, of_before), *_ = np.linalg.lstsq(columns, change, rcond=None)
    rest = float(np.linalg.norm(change - columns @ (of_after, of_before)))
    if rest > CLOSE * float(np.linalg.norm(change)) or not of_after:
        return None
    return bool(-of_before / of_after > CLOSE)


def _weight_decay(sides: tuple[str, str], state: Step, weights: tuple[Arrays, Arrays]) -> str:
    """In words, where the changes differ by a share of the weights themselves."""
    before = {name: state.before[0][name].astype(np.float64) for name in weights[0]}
    moved = {name: value for name, value in before.items() if np.any(value)}
    apart = {name: weights[1][name] - weights[0][name] for name in moved}
    # What decays need not be all of them: biases are often left out.
    decays = {name for name in moved if distance({name: weights[0][name]}, {name: weights[1][name]}) >= SAME}
    apart, moved = ({name: values[name] for name in decays} for values in (apart, moved))
    share, rest = scale_of(apart, moved)
    if not decays or rest > _OF_A_DECAY:
        return ""
    more = sides[0] if share > 0 else sides[1]
    return f"{more}'s weights lose {abs(share):.4g} of themselves more ({told_names(sorted(decays))}): a weight decay"


def _other_epsilons(state: Step) -> tuple[float, float] | None:
    """Those of both sides, where they are farther apart than they can be told."""
    one, other = (_epsilon(state, side) for side in (0, 1))
    if one is None or other is None:
        return None
    apart, error = abs(one[0] - other[0]), one[1] + other[1]
    return (one[0], other[0]) if apart > max(5 * error, 0.2 * max(one[0], other[0])) else None


def _epsilon(state: Step, side: int) -> tuple[float, float] | None:
    """Adam's, and its error, from the change d = rate m / (sqrt(v) + epsilon).

    m / d is a line over sqrt(v), and epsilon its offset over its slope. None: it is no line.
    """
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
    (slope, offset), spread = np.polyfit(x, y, 1, w=1 / y, cov=True)
    off = np.sqrt(np.mean((1 - (slope * x + offset) / y) ** 2))
    if slope <= 0 or off > 0.02:
        return None
    return max(float(offset / slope), 0.0), float(np.sqrt(spread[1, 1]) / slope)
