"""The plan of a checkpoint migration: a value for every variable of the target, or a problem. NumPy only.

A value is taken only if it is known to be correct. All problems are collected, so that one run reports all of them.
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
    """Plan the value of each variable of the target.

    Args:
        source: The state of the checkpoint.
        target: The target's variables with their initial values.
        choices: The options of the migration.
        hyper: Known hyperparameters of the target's optimizer, by Keras's names: learning_rate, beta_1.
        reverse: Whether `choices.mapping` maps names in the checkpoint to names in the target.

    Raises:
        ConfigError: The state does not fit the target. The message lists all problems.
    """
    draft = PlanDraft(source, target, choices)
    step = _step(draft)
    pairs = _plan_weights(draft, explicit=_explicit_pairs(draft, reverse=reverse))
    plan_slots(draft, pairs, hyper)
    plan_settings(draft, step, hyper)
    for name, entry in target.seeds.items():
        if name in source.seeds:
            draft.take(entry, source.seeds[name], how="name")
        else:
            draft.keep(entry, how="new seed")
            draft.notes.append("random layers draw different numbers: the checkpoint has no seeds for them")
    weights = {target.weights[ours].name: source.weights[theirs].name for ours, theirs in pairs.items()}
    draft.notes = list(dict.fromkeys(draft.notes))
    return draft.finish(step, weights)


def _step(draft: PlanDraft) -> int:
    steps, choices = draft.source.steps, draft.choices
    counts = ", ".join(f"{name} {value}" for name, value in steps.items())
    accepted = [value for name, value in steps.items() if draft.allows("accept", name)]
    candidates = set(accepted or steps.values())
    if choices.step is not None:
        if steps and choices.step not in candidates:
            draft.reject(f"--step is {choices.step}, but the checkpoint has {counts}", "omit --step")
        candidates = {choices.step}
    if len(candidates) > 1:
        draft.reject(f"the checkpoint has different step counts: {counts}", "select one: --accept NAME")
    if not candidates:
        draft.reject("the checkpoint has no step (global_step, iter)", "set it: --step 1000")
    step = min(candidates, default=0)
    for name in draft.target.steps:
        draft.values[name] = np.asarray(step, np.int64)
        draft.rows.append(PlanRow(name, next(iter(steps), ""), (), "int64", "step"))
    return step


def _explicit_pairs(draft: PlanDraft, *, reverse: bool) -> dict[str, str]:
    """Resolve `--mapping` to canonical names: target -> checkpoint."""
    pairs: dict[str, str] = {}
    for left, right in draft.choices.mapping.items():
        ours, theirs = (right, left) if reverse else (left, right)
        named = []
        for name, side, label in ((ours, draft.target, "target"), (theirs, draft.source, "checkpoint")):
            known = _known(name, side)
            if known is None:
                draft.reject(
                    f"the mapping names {name}, but the {label} has no such variable",
                    f"name one of: {', '.join(entry.name for entry in list(side.weights.values())[:_SHOWN])}",
                )
            named.append(known)
        if None in named:
            continue
        if named[0] in pairs or named[1] in pairs.values():
            draft.reject(f"the mapping names {ours} or {theirs} twice", "name each variable once")
            continue
        pairs[str(named[0])] = str(named[1])
    return pairs


def _known(name: str, side: TrainingState) -> str | None:
    plain = name.partition(":")[0]
    if plain in side.weights:
        return plain
    return next((known for known, entry in side.weights.items() if entry.name.partition(":")[0] == plain), None)


def _plan_weights(draft: PlanDraft, *, explicit: Mapping[str, str]) -> dict[str, str]:
    """Plan the weights; return their canonical names: target -> checkpoint."""
    source, target = draft.source, draft.target
    theirs = {
        name: entry
        for name, entry in source.weights.items()
        if name in explicit.values() or not draft.allows("allow_leftover", name, entry.name)
    }
    ours = {
        name: entry
        for name, entry in target.weights.items()
        if name in explicit or not draft.allows("initialize", name, entry.name)
    }
    matches = match_variables(_described(theirs), _described(ours), explicit=explicit)
    averages = _averages(draft, {match.source for match in matches.values()})
    for name, entry in target.weights.items():
        match = matches.get(name)
        if match is not None:
            original, how = theirs[match.source], match.how
            if match.source in averages:
                original, how = averages[match.source], f"{how}, moving average"
            draft.take(entry, original, how=how)
        elif name not in ours:
            draft.keep(entry, how="initial value (--initialize)")
    for name, entry in source.weights.items():
        if name not in theirs:
            draft.skip(entry, how="not migrated (--allow-leftover)")
    pairs = {name: match.source for name, match in matches.items()}
    _reject_unmatched(draft, theirs, ours, pairs)
    _target_averages(draft, pairs)
    return pairs


def _described(entries: Mapping[str, StateEntry]) -> dict[str, MappedVariable]:
    return {name: MappedVariable(entry.shape, entry.dtype) for name, entry in entries.items()}


def _reject_unmatched(
    draft: PlanDraft, theirs: Mapping[str, StateEntry], ours: Mapping[str, StateEntry], pairs: Mapping[str, str]
) -> None:
    missing = {name: entry for name, entry in ours.items() if name not in pairs}
    left = {name: entry for name, entry in theirs.items() if name not in pairs.values()}
    reported = set()
    for name, entry in missing.items():
        candidates = [n for n, other in left.items() if other.shape == entry.shape and role_of(n) == role_of(name)]
        reported.update(candidates)
        if candidates:
            names = ", ".join(left[n].name for n in candidates[:_SHOWN])
            draft.reject(
                f"{entry.name} {list(entry.shape)} has no variable of the same name in the checkpoint, and its shape "
                f"is ambiguous: {names}",
                "map the names: --mapping NAMES.yaml",
            )
        else:
            option = f", or --initialize {entry.name.partition(':')[0]} to keep its initial value"
            draft.reject(
                f"{entry.name} {list(entry.shape)} is missing in the checkpoint",
                f"--mapping{option if draft.choices.may_initialize else ' if it has a different name there'}",
            )
    for name, entry in left.items():
        if name not in reported:
            draft.reject(
                f"{entry.name} {list(entry.shape)} of the checkpoint has no counterpart in the target",
                f"--mapping, or --allow-leftover {entry.name} to skip it",
            )


def _averages(draft: PlanDraft, used: Iterable[str]) -> Mapping[str, StateEntry]:
    """Return the averages that replace weights; reject those without a use."""
    source, target = draft.source, draft.target
    if draft.choices.use_ema_weights:
        if not source.averages:
            draft.reject("the checkpoint has no moving averages", "omit --use-ema-weights")
        elif target.slots and not draft.choices.drop_optimizer_state:
            draft.reject(
                "--use-ema-weights replaces the weights that the optimizer's slots belong to",
                "add --drop-optimizer-state",
            )
        without = [name for name in used if name not in source.averages]
        if without and source.averages:
            draft.notes.append(f"{len(without)} weights have no moving average and keep their trained values")
        return source.averages
    if not target.averages:
        for name, entry in source.averages.items():
            if draft.allows("allow_leftover", name, entry.name):
                draft.skip(entry, how="not migrated (--allow-leftover)")
            else:
                draft.reject(
                    f"{entry.name} of the checkpoint has no counterpart in the target",
                    "--use-ema-weights replaces the weights with their moving averages; "
                    f"--allow-leftover {entry.name} skips it",
                )
    return {}


def _target_averages(draft: PlanDraft, pairs: Mapping[str, str]) -> None:
    for name, entry in draft.target.averages.items():
        original = draft.source.averages.get(pairs.get(name, ""))
        if original is not None:
            draft.take(entry, original, how="name")
        elif draft.allows("initialize", entry.name):
            # The initial value of a moving average is the weight.
            weight = draft.values.get(draft.target.weights[name].name, draft.target.weights[name].value)
            draft.give(entry, weight, source=pairs.get(name, ""), how="value of its weight (--initialize)")
        else:
            draft.reject(
                f"{entry.name} {list(entry.shape)} is missing in the checkpoint",
                f"--initialize {entry.name.partition(':')[0]} to start it from its weight"
                if draft.choices.may_initialize
                else "disable moving averages in the model's optimizer: an export has none",
            )
