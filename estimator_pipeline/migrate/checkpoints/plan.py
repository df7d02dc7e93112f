"""What every variable of the target is given, or why it cannot be: no value is taken that is not known to be right.

All that stands against it is collected, so that one run tells all of it. NumPy only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from estimator_pipeline.migrate.checkpoints.draft import _SHOWN, Choices, MigrationPlan, PlanDraft, PlanRow
from estimator_pipeline.migrate.checkpoints.mapping import MappedVariable, match_variables, role_of
from estimator_pipeline.migrate.checkpoints.optimizer_slots import plan_settings, plan_slots
from estimator_pipeline.migrate.checkpoints.state import StateEntry, TrainingState

__all__ = ["plan"]


def plan(
    source: TrainingState, target: TrainingState, choices: Choices, *, hyper: Mapping[str, Any], reverse: bool
) -> MigrationPlan:
    """Return what each variable of the target is given.

    Args:
        source: the checkpoint.
        target: the target as it begins: its variables with their first values.
        choices: what a person has said.
        hyper: numbers of the target's optimizer by Keras's names, as far as they are known: learning_rate, beta_1.
        reverse: whether `choices.mapping` has the checkpoint's names on its left.

    Raises:
        ConfigError: something stands against it; the message names all of it.
    """
    draft = PlanDraft(source, target, choices)
    step = _step(draft)
    pairs = _weights(draft, by_hand=_by_hand(draft, reverse=reverse))
    plan_slots(draft, pairs, hyper)
    plan_settings(draft, step, hyper)
    for name, entry in target.seeds.items():
        if name in source.seeds:
            draft.take(entry, source.seeds[name], how="name")
        else:
            draft.keep(entry, how="drawn anew")
            draft.notes.append("random layers draw other numbers from here on: the checkpoint has no state of theirs")
    weights = {target.weights[ours].given: source.weights[theirs].given for ours, theirs in pairs.items()}
    draft.notes = list(dict.fromkeys(draft.notes))
    return draft.finish(step, weights)


def _step(draft: PlanDraft) -> int:
    steps, choices = draft.source.steps, draft.choices
    told = ", ".join(f"{name} {value}" for name, value in steps.items())
    accepted = [value for name, value in steps.items() if draft.may("accept", name)]
    candidates = set(accepted or steps.values())
    if choices.step is not None:
        if steps and choices.step not in candidates:
            draft.refuse(f"--step is {choices.step}, and the checkpoint says {told}", "leave --step out")
        candidates = {choices.step}
    if len(candidates) > 1:
        draft.refuse(f"the checkpoint has counts of steps that differ: {told}", "say which one counts: --accept NAME")
    if not candidates:
        draft.refuse("the checkpoint has no step (global_step, iter)", "say it: --step 1000")
    step = min(candidates, default=0)
    for name in draft.target.steps:
        draft.values[name] = np.asarray(step, np.int64)
        draft.rows.append(PlanRow(name, next(iter(steps), ""), (), "int64", "step"))
    return step


def _by_hand(draft: PlanDraft, *, reverse: bool) -> dict[str, str]:
    """Target's canonical name -> the checkpoint's, as the mapping has them."""
    found: dict[str, str] = {}
    for left, right in draft.choices.mapping.items():
        ours, theirs = (right, left) if reverse else (left, right)
        named = []
        for name, side, what in ((ours, draft.target, "target"), (theirs, draft.source, "checkpoint")):
            known = _known(name, side)
            if known is None:
                draft.refuse(
                    f"the mapping names {name}, and the {what} has no such variable",
                    f"one of: {', '.join(one.given for one in list(side.weights.values())[:_SHOWN])}",
                )
            named.append(known)
        if None in named:
            continue
        if named[0] in found or named[1] in found.values():
            draft.refuse(f"the mapping names {ours} or {theirs} twice", "name each variable once")
            continue
        found[str(named[0])] = str(named[1])
    return found


def _known(name: str, side: TrainingState) -> str | None:
    plain = name.partition(":")[0]
    if plain in side.weights:
        return plain
    return next((known for known, one in side.weights.items() if one.given.partition(":")[0] == plain), None)


def _weights(draft: PlanDraft, *, by_hand: Mapping[str, str]) -> dict[str, str]:
    """Give the weights their values; the target's canonical name -> the checkpoint's."""
    source, target = draft.source, draft.target
    theirs = {
        name: one
        for name, one in source.weights.items()
        if name in by_hand.values() or not draft.may("allow_leftover", name, one.given)
    }
    ours = {
        name: one
        for name, one in target.weights.items()
        if name in by_hand or not draft.may("initialize", name, one.given)
    }
    matches = match_variables(_described(theirs), _described(ours), by_hand=by_hand)
    averages = _averages(draft, {match.source for match in matches.values()})
    for name, entry in target.weights.items():
        match = matches.get(name)
        if match is not None:
            given, how = theirs[match.source], match.how
            if match.source in averages:
                given, how = averages[match.source], f"{how}, its moving average"
            draft.take(entry, given, how=how)
        elif name not in ours:
            draft.keep(entry, how="its first value (--initialize)")
    for name, one in source.weights.items():
        if name not in theirs:
            draft.leave(one, how="left behind (--allow-leftover)")
    pairs = {name: match.source for name, match in matches.items()}
    _refuse_unmatched(draft, theirs, ours, pairs)
    _target_averages(draft, pairs)
    return pairs


def _described(entries: Mapping[str, StateEntry]) -> dict[str, MappedVariable]:
    return {name: MappedVariable(one.shape, one.dtype) for name, one in entries.items()}


def _refuse_unmatched(
    draft: PlanDraft, theirs: Mapping[str, StateEntry], ours: Mapping[str, StateEntry], pairs: Mapping[str, str]
) -> None:
    missing = {name: one for name, one in ours.items() if name not in pairs}
    left = {name: one for name, one in theirs.items() if name not in pairs.values()}
    told = set()
    for name, one in missing.items():
        candidates = [n for n, other in left.items() if other.shape == one.shape and role_of(n) == role_of(name)]
        told.update(candidates)
        if candidates:
            names = ", ".join(left[n].given for n in candidates[:_SHOWN])
            draft.refuse(
                f"{one.given} {list(one.shape)} has no variable of its name in the checkpoint, and its shape does not "
                f"tell which one it is: {names}",
                "say which is which: --mapping NAMES.yaml",
            )
        else:
            anew = f", or --initialize {one.given.partition(':')[0]} to begin it anew"
            draft.refuse(
                f"{one.given} {list(one.shape)} is missing in the checkpoint",
                f"--mapping{anew if draft.choices.may_initialize else ' where it has another name there'}",
            )
    for name, one in left.items():
        if name not in told:
            draft.refuse(
                f"{one.given} {list(one.shape)} of the checkpoint is nothing in the target",
                f"--mapping, or --allow-leftover {one.given} to leave it behind",
            )


def _averages(draft: PlanDraft, used: Iterable[str]) -> Mapping[str, StateEntry]:
    """Return the averages that take their weights' places, if they are to; those that nothing asks for are refused."""
    source, target = draft.source, draft.target
    if draft.choices.use_ema_weights:
        if not source.averages:
            draft.refuse("the checkpoint has no moving averages", "leave --use-ema-weights out")
        elif target.slots and not draft.choices.drop_optimizer_state:
            draft.refuse(
                "--use-ema-weights puts other weights in the place of those that the optimizer's slots belong to",
                "give --drop-optimizer-state as well",
            )
        without = [name for name in used if name not in source.averages]
        if without and source.averages:
            draft.notes.append(f"{len(without)} weights have no moving average, and are as they were trained")
        return source.averages
    if not target.averages:
        for name, one in source.averages.items():
            if draft.may("allow_leftover", name, one.given):
                draft.leave(one, how="left behind (--allow-leftover)")
            else:
                draft.refuse(
                    f"{one.given} of the checkpoint is nothing in the target",
                    "--use-ema-weights puts moving averages in their weights' places; "
                    f"--allow-leftover {one.given} leaves it behind",
                )
    return {}


def _target_averages(draft: PlanDraft, pairs: Mapping[str, str]) -> None:
    for name, entry in draft.target.averages.items():
        given = draft.source.averages.get(pairs.get(name, ""))
        if given is not None:
            draft.take(entry, given, how="name")
        elif draft.may("initialize", entry.given):
            # What a moving average begins with is the weight itself.
            weight = draft.values.get(draft.target.weights[name].given, draft.target.weights[name].value)
            draft.give(entry, weight, source=pairs.get(name, ""), how="its weight (--initialize)")
        else:
            draft.refuse(
                f"{entry.given} {list(entry.shape)} is missing in the checkpoint",
                f"--initialize {entry.given.partition(':')[0]} to begin it with its weight"
                if draft.choices.may_initialize
                else "leave moving averages out of the model's optimizer: an export has none",
            )
