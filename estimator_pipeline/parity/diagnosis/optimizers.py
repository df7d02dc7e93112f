"""Differences of two optimizers: their kinds, options and slots. NumPy only."""

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
    format_names,
    variables,
)
from estimator_pipeline.utils.variable_names import AVERAGE, GRADIENT_SUM

__all__ = ["HINT", "of_epsilon", "of_options", "other_options", "format_options"]

HINT = "the optimizer's options, set explicitly in both; docs/guides/keras.md lists what V1 and Keras do differently"
# Slots of a weight that do not belong to the optimizer's rule.
_BESIDE = {AVERAGE, GRADIENT_SUM, "average"}
# A slot that exists only with an option -> the option.
_BY_OPTION = {"mg": "centered", "vhat": "amsgrad"}


def of_options(sides: tuple[str, str], state: StepState, facts: Facts, *, first: bool) -> ParityFinding | None:
    """Return the finding for optimizers of different kinds, options or initial slots.

    Different epsilons often do not matter; see `of_epsilon`.

    Args:
        sides: names of the two sides.
        state: a step.
        facts: metadata of both optimizers.
        first: whether it is the first step.
    """
    name, hint = "optimizer options", HINT
    others = {option: pair for option, pair in other_options(facts).items() if option != "epsilon"}
    if message := _kinds(sides, state, facts):
        hint = "the same optimizer in both"
    elif others:
        message = f"the optimizer options differ: {format_options(sides, others)}"
        if list(others) == ["learning_rate"]:
            name, hint = "learning rate", "the learning rate of both"
    elif first:
        message = _other_start(sides, state)
    return ParityFinding(name=name, step=state.step, message=message, hint=hint) if message else None


def _kinds(sides: tuple[str, str], state: StepState, facts: Facts) -> str | None:
    """Return a message if the kinds differ, by name or by the slots of a trained weight."""
    kinds = [options.get("kind") for options in facts.options]
    if None not in kinds and kinds[0] != kinds[1]:
        return f"the optimizers are of different kinds: {kinds[0]} in {sides[0]}, {kinds[1]} in {sides[1]}"
    changes = [state.changes(side, "weights") for side in (0, 1)]
    trained = [name for name in changes[0] if np.any(changes[0][name]) and np.any(changes[1][name])]
    for name in trained:
        kept = [_slots_of(state.after[side], name, facts.options[side]) for side in (0, 1)]
        alone = kept[0] ^ kept[1]
        if None not in kinds:
            alone &= _BY_OPTION.keys()
        if alone:
            kept_by_sides = [f"{side} keeps {_format_slots(slots)}" for side, slots in zip(sides, kept, strict=True)]
            options = [_BY_OPTION[slot] for slot in sorted(alone) if slot in _BY_OPTION]
            return f"for {name} {', '.join(kept_by_sides)}" + (f": {', '.join(options)}" if options else "")
    return None


def _slots_of(values: Mapping[str, np.ndarray], weight: str, options: Mapping[str, Any]) -> set[str]:
    kept = {name.removeprefix(f"{weight} @") for name in values if name.startswith(f"{weight} @")}
    # The newer SGD of Keras 2 has a velocity slot that it does not use.
    return kept - _BESIDE - ({"momentum"} if options.get("kind") == "sgd" else set())


def _format_slots(slots: set[str]) -> str:
    return ", ".join(f"@{slot}" for slot in sorted(slots)) or "no slot"


def _other_start(sides: tuple[str, str], state: StepState) -> str | None:
    """Return a message if slots start with different values."""
    first, second = (variables(side, "slots") for side in state.before)
    for name in (name for name in first if name in second):
        if first[name].shape == second[name].shape and not np.allclose(
            first[name], second[name], rtol=SAME_GRADIENT_RTOL, atol=0
        ):
            ends = [f"{float(np.mean(side[name])):.4g} in {engine}"
                    for side, engine in zip((first, second), sides, strict=True)]  # fmt: skip
            return f"{name} starts with {', '.join(ends)}"
    return None


def of_epsilon(sides: tuple[str, str], state: StepState, facts: Facts) -> ParityFinding | None:
    """Return the finding for Adam with equal moments, if different epsilons explain the different changes.

    Adam changes a weight by rate * m / (sqrt(v) + epsilon).
    """
    epsilons = [options.get("epsilon") for options in facts.options]
    if (
        None in epsilons
        or epsilons[0] == epsilons[1]
        or [options.get("kind") for options in facts.options] != ["adam"] * 2
    ):
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
        message=f"epsilon is {epsilons[0]:g} in {sides[0]}, {epsilons[1]:g} in {sides[1]}, which explains the "
        f"different change of {format_names(moved)}",
        hint=HINT,
    )


def other_options(facts: Facts) -> dict[str, tuple[Any, Any]]:
    """Return option -> both values, for options that are known on both sides and differ."""
    first, second = facts.options
    return {
        name: (first[name], second[name])
        for name in first
        if name in second and name != "kind" and not np.isclose(first[name], second[name], rtol=1e-5, atol=0)
    }


def format_options(sides: tuple[str, str], options: Mapping[str, tuple[Any, Any]]) -> str:
    def plain(value: Any) -> str:
        return str(value) if isinstance(value, bool) else f"{value:g}"

    return "; ".join(
        f"{name} {plain(first)} in {sides[0]}, {plain(second)} in {sides[1]}"
        for name, (first, second) in options.items()
    )
