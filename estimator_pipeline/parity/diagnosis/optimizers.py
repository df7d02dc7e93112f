"""What two optimizers are: their kind and options, as graph, Keras and records have them. NumPy only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from estimator_pipeline.parity.findings import (
    RATIO_RTOL,
    SAME_GRADIENT_RTOL,
    Facts,
    ParityFinding,
    StepState,
    distance,
    told_names,
    variables,
)
from estimator_pipeline.utils.variable_names import AVERAGE, GRADIENT_SUM

__all__ = ["HINT", "of_epsilon", "of_options", "other_options", "told_options"]

HINT = "the optimizer's options, named in both; docs/guides/keras.md has what V1 and Keras do otherwise"
# What is kept for a weight by something else than the optimizer's rule.
_BESIDE = {AVERAGE, GRADIENT_SUM, "average"}
# A slot that an optimizer keeps by an option alone -> the option.
_BY_OPTION = {"mg": "centered", "vhat": "amsgrad"}


def of_options(sides: tuple[str, str], state: StepState, facts: Facts, *, first: bool) -> ParityFinding | None:
    """Optimizers of other kinds, with other options, or whose slots begin with other values.

    Other epsilons alone are often too small to matter, and are a matter of `of_epsilon`.

    Args:
        sides: what the two are called.
        state: a step.
        facts: what both say of their optimizers.
        first: whether it is the first step of all.
    """
    name, hint = "optimizer options", HINT
    others = {option: pair for option, pair in other_options(facts).items() if option != "epsilon"}
    if told := _kinds(sides, state, facts):
        hint = "the same optimizer in both"
    elif others:
        told = f"the options of the optimizers are not the same: {told_options(sides, others)}"
        if list(others) == ["learning_rate"]:
            name, hint = "learning rate", "the learning rate of both"
    elif first:
        told = _other_start(sides, state)
    return ParityFinding(name=name, step=state.step, message=told, hint=hint) if told else None


def _kinds(sides: tuple[str, str], state: StepState, facts: Facts) -> str | None:
    """In words, that the kinds differ: as both say; else by what both keep for a weight that they train."""
    kinds = [one.get("kind") for one in facts.options]
    if None not in kinds and kinds[0] != kinds[1]:
        return f"they are of different kinds: {kinds[0]} in {sides[0]}, {kinds[1]} in {sides[1]}"
    changes = [state.changes(side, "weights") for side in (0, 1)]
    trained = [name for name in changes[0] if np.any(changes[0][name]) and np.any(changes[1][name])]
    for name in trained:
        kept = [_slots_of(state.after[side], name, facts.options[side]) for side in (0, 1)]
        alone = kept[0] ^ kept[1]
        if None not in kinds:
            alone &= _BY_OPTION.keys()
        if alone:
            told = [f"{side} keeps {_told_slots(slots)}" for side, slots in zip(sides, kept, strict=True)]
            options = [_BY_OPTION[slot] for slot in sorted(alone) if slot in _BY_OPTION]
            return f"for {name} {', '.join(told)}" + (f": {', '.join(options)}" if options else "")
    return None


def _slots_of(values: Mapping[str, np.ndarray], weight: str, options: Mapping[str, Any]) -> set[str]:
    kept = {name.removeprefix(f"{weight} @") for name in values if name.startswith(f"{weight} @")}
    # The newer SGD of Keras 2 keeps a velocity without using it.
    return kept - _BESIDE - ({"momentum"} if options.get("kind") == "sgd" else set())


def _told_slots(slots: set[str]) -> str:
    return ", ".join(f"@{slot}" for slot in sorted(slots)) or "nothing"


def _other_start(sides: tuple[str, str], state: StepState) -> str | None:
    """In words, which slots began with other values."""
    one, other = (variables(side, "slots") for side in state.before)
    for name in (name for name in one if name in other):
        if one[name].shape == other[name].shape and not np.allclose(
            one[name], other[name], rtol=SAME_GRADIENT_RTOL, atol=0
        ):
            ends = [f"{float(np.mean(side[name])):.4g} in {engine}"
                    for side, engine in zip((one, other), sides, strict=True)]  # fmt: skip
            return f"{name} begins with {', '.join(ends)}"
    return None


def of_epsilon(sides: tuple[str, str], state: StepState, facts: Facts) -> ParityFinding | None:
    """Of Adam with the same moments and other epsilons: the finding, if these explain all of the other change.

    It changes a weight by rate * m / (sqrt(v) + epsilon).
    """
    epsilons = [options.get("epsilon") for options in facts.options]
    if None in epsilons or epsilons[0] == epsilons[1] or [one.get("kind") for one in facts.options] != ["adam"] * 2:
        return None
    changes = [state.changes(side, "weights") for side in (0, 1)]
    moved = [name for name in changes[0] if np.any(changes[0][name]) or np.any(changes[1][name])]
    if any(f"{name} @v" not in state.after[side] for name in moved for side in (0, 1)):
        return None
    steps = [
        {name: changes[side][name] * (np.sqrt(state.after[side][f"{name} @v"].astype(np.float64)) + epsilons[side])
         for name in moved}
        for side in (0, 1)
    ]  # fmt: skip
    if any(distance({name: steps[0][name]}, {name: steps[1][name]}) >= 5 * RATIO_RTOL for name in moved):
        return None
    return ParityFinding(
        name="optimizer options",
        step=state.step,
        message=f"epsilon is {epsilons[0]:g} in {sides[0]}, {epsilons[1]:g} in {sides[1]}, and explains the other "
        f"change of {told_names(moved)}",
        hint=HINT,
    )


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
