"""An optimizer's state between conventions: slots that mean the same are copied, what differs is converted or refused.

================ ==================================== ======================================================
slot             what it holds, in all conventions    where a convention differs
================ ==================================== ======================================================
m, v (adam)      means of gradients and squares       V1 keeps powers of beta beside them; elsewhere they
                                                      follow from the step
rms, mg          the same (rmsprop)                   they start at 1 in V1; epsilon is no part of them
momentum (rms.)  the last steps                       V1 keeps it without momentum too, and does not use it
accumulator      sums of squares (adagrad, ftrl)      nothing
accum_grad,      adadelta's means of the squares of   nothing
accum_var        gradients and of steps
linear (ftrl)    FTRL's linear term                   nothing
gradient_sum     gradients of the last batches, where nothing; 0 where the one has it and the other not
                 several make a change
momentum (sgd)   V1: a = m a + g                      Keras: a = m a - rate g. The one is the other times
                                                      -rate as long as the rate was the same at all steps
================ ==================================== ======================================================

Sources: the update rules in the documentation of TensorFlow's training operations and of Keras's optimizers, as
`estimator_pipeline.models.optimizers.keras2` has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from estimator_pipeline.migrate.checkpoints.state import StateEntry
from estimator_pipeline.utils.variable_names import GRADIENT_SUM

if TYPE_CHECKING:
    from estimator_pipeline.migrate.checkpoints.draft import PlanDraft

__all__ = ["differences_of_stock", "plan_settings", "plan_slots", "power_after"]

_POWERS = {"beta1_power": "beta_1", "beta2_power": "beta_2"}
# Names of the same setting.
_SAME = {"beta1": "beta_1", "beta2": "beta_2", "current_learning_rate": "learning_rate"}
# A power of beta, multiplied up in float32 by either engine, and that of the step.
POWER_TOLERANCE = 1e-4
# A setting that went through float32.
SETTING_TOLERANCE = 1e-6


def plan_slots(draft: PlanDraft, pairs: Mapping[str, str], hyper: Mapping[str, Any]) -> None:
    """Give the target's slots their values.

    Args:
        draft: the plan.
        pairs: the target's weight -> the checkpoint's.
        hyper: numbers of the target's optimizer.
    """
    source, target = draft.source, draft.target
    if draft.choices.drop_optimizer_state:
        for slots in target.slots.values():
            for entry in slots.values():
                draft.keep(entry, how="its first value (--drop-optimizer-state)")
        count = sum(len(slots) for slots in source.slots.values())
        draft.notes.append(
            f"the optimizer begins anew: {count} slots of the checkpoint are left behind (--drop-optimizer-state)"
        )
        return
    if _keeps_what_it_does_not_use(draft, hyper):
        return
    if source.family != target.family:
        draft.refuse(
            f"the checkpoint has the slots of {_told(source.slots, source.family)}, and the target's optimizer those "
            f"of {_told(target.slots, target.family)}",
            "give the target the optimizer that was trained with, or let it begin anew with --drop-optimizer-state",
        )
        return
    scale, how = _scale_of_momentum(draft, hyper)
    unused = target.family == "rmsprop" and hyper.get("momentum") == 0
    for weight, slots in target.slots.items():
        theirs = source.slots.get(pairs.get(weight, ""), {})
        shape = target.weights[weight].shape
        if weight in pairs and source.weights[pairs[weight]].fitted(shape).shape != shape:
            # The weight's own line says it.
            continue
        if weight not in pairs:
            for entry in slots.values():
                draft.keep(entry, how="its first value (its weight begins anew)")
            continue
        for slot, entry in slots.items():
            given = theirs.get(slot)
            if given is not None:
                _take(draft, entry, given, scale if slot == "momentum" else None, how)
            elif unused and slot == "momentum":
                draft.keep(entry, how="not used: momentum is 0")
            elif slot == GRADIENT_SUM:
                draft.keep(entry, how="0: the checkpoint's gradients were not added up")
            elif draft.may("initialize", entry.given):
                draft.keep(entry, how="its first value (--initialize)")
            else:
                draft.refuse(
                    f"the slot {entry.given} {list(entry.shape)} is missing in the checkpoint",
                    f"--initialize {entry.given.partition(':')[0]} for this one, or --drop-optimizer-state for all",
                )
    backwards = {theirs: ours for ours, theirs in pairs.items()}
    for weight, slots in source.slots.items():
        ours = target.slots.get(backwards.get(weight, ""), {})
        for slot, given in slots.items():
            if slot in ours:
                continue
            if weight not in backwards:
                draft.leave(given, how="left behind with its weight")
            elif unused and slot == "momentum":
                draft.leave(given, how="left behind: not used, momentum is 0")
            elif slot == GRADIENT_SUM and not given.value.any():
                draft.leave(given, how="left behind: 0, between two changes")
            elif draft.may("allow_leftover", given.given):
                draft.leave(given, how="left behind (--allow-leftover)")
            else:
                draft.refuse(
                    f"the slot {given.given} {list(given.shape)} of the checkpoint is nothing in the target",
                    f"--allow-leftover {given.given} for this one, or --drop-optimizer-state for all of them",
                )


def _keeps_what_it_does_not_use(draft: PlanDraft, hyper: Mapping[str, Any]) -> bool:
    """Keras 2's newer SGD has a momentum for each weight without using it; V1's, and Keras 3's, have none."""
    source, target = draft.source, draft.target
    if (source.family, target.family) == ("none", "momentum") and hyper.get("momentum") == 0:
        for slots in target.slots.values():
            for entry in slots.values():
                draft.keep(entry, how="not used: momentum is 0")
        return True
    entries = [entry for slots in source.slots.values() for entry in slots.values()]
    if (source.family, target.family) == ("momentum", "none") and not any(entry.value.any() for entry in entries):
        for entry in entries:
            draft.leave(entry, how="left behind: 0, not used")
        return True
    return False


def differences_of_stock(family: str, hyper: Mapping[str, Any]) -> str | None:
    """Why a stock optimizer of Keras goes on otherwise than that of `tf.compat.v1.train`; None where it does not.

    Of Keras 3 and the newer ones of Keras 2; the formulas are the same, but for where epsilon is added and its default.

    Args:
        family: of the slots.
        hyper: numbers of the target's optimizer.
    """
    name, of_v1 = _EPSILONS.get(family, ("", 0.0))
    epsilon = hyper.get("epsilon")
    if not name or not isinstance(epsilon, float | int) or np.isclose(epsilon, of_v1, rtol=1e-3, atol=1e-20):
        return None
    there = f"tf.compat.v1.train.{name}Optimizer has {of_v1:g} by default" if family != "adagrad" else "V1 has none"
    return f"its epsilon is {epsilon:g}, {there}: keras.optimizers.{_CLASSES.get(name, name)}(epsilon={of_v1:g})"


# The epsilon of V1, added where Keras adds its own; Adagrad has none, and 1e-30 is as good as none.
_EPSILONS = {
    "adam": ("Adam", 1e-8),
    "adagrad": ("Adagrad", 1e-30),
    "rmsprop": ("RMSProp", 1e-10),
    "adadelta": ("Adadelta", 1e-8),
}
_CLASSES = {"RMSProp": "RMSprop"}


def _told(slots: Mapping[str, Mapping[str, StateEntry]], family: str) -> str:
    names = sorted({slot for of_weight in slots.values() for slot in of_weight})
    return f"{family} ({', '.join(names)})" if names else "an optimizer that keeps none"


def _take(draft: PlanDraft, entry: StateEntry, given: StateEntry, scale: float | None, how: str) -> None:
    if scale is None:
        draft.take(entry, given, how=how)
        return
    value = given.fitted(entry.shape)
    if tuple(value.shape) != entry.shape or value.dtype != entry.value.dtype:
        draft.take(entry, given, how=how)  # which refuses it
        return
    scaled = (value.astype(np.float64) * scale).astype(value.dtype)
    draft.give(entry, scaled, source=given.given, how=f"{how}, times {scale:g}, rounded to {entry.dtype}")


def _scale_of_momentum(draft: PlanDraft, hyper: Mapping[str, Any]) -> tuple[float | None, str]:
    """By what the checkpoint's momentum is multiplied; None where it is the same thing in both."""
    source, target, choices = draft.source, draft.target, draft.choices
    if target.family != "momentum":
        return None, "name"
    by_run = source.optimizer[1] if source.optimizer and source.optimizer[0] in ("momentum", "nesterov") else None
    theirs, ours = choices.momentum or by_run or source.style, target.style
    known = by_run or source.style
    if choices.momentum and known and choices.momentum != known:
        draft.refuse(
            f"--momentum is {choices.momentum}, and the checkpoint's is that of {known}", "leave --momentum out"
        )
    if theirs is None or ours is None:
        draft.refuse(
            "what the checkpoint's momentum is a sum of is not told by its names: gradients (tf.compat.v1.train), or "
            "steps (Keras)",
            "say it: --momentum v1, or --momentum keras",
        )
        return None, "name"
    if theirs == ours:
        return None, "name"
    rate = hyper.get("learning_rate")
    why = f"the checkpoint's momentum sums up {_SUMS[theirs]}, the target's {_SUMS[ours]}"
    if rate is not None and not isinstance(rate, float | int):
        draft.refuse(
            f"{why}, and the learning rate follows a schedule: no number turns the one into the other",
            f"train on with the optimizer that was trained with (api: {theirs}), or --drop-optimizer-state",
        )
        return None, "name"
    if choices.learning_rate is None:
        draft.refuse(
            f"{why}: the learning rate lies between them, if it was the same at all steps",
            f"say it: --learning-rate {0.1 if rate is None else rate:g}; or train on with the same optimizer, or "
            "--drop-optimizer-state",
        )
        return None, "name"
    if choices.learning_rate <= 0:
        draft.refuse(f"--learning-rate is {choices.learning_rate:g}", "a number above 0")
        return None, "name"
    if rate is not None and not np.isclose(rate, choices.learning_rate, rtol=SETTING_TOLERANCE, atol=0):
        draft.refuse(
            f"{why}, and the target's learning rate is {rate:g}, that of the checkpoint {choices.learning_rate:g}",
            "train on with the same rate, or --drop-optimizer-state",
        )
    return (-choices.learning_rate if theirs == "v1" else -1.0 / choices.learning_rate), "name"


_SUMS = {"v1": "gradients (tf.compat.v1.train)", "keras": "steps (Keras)"}


def plan_settings(draft: PlanDraft, step: int, hyper: Mapping[str, Any]) -> None:
    """Powers of beta are taken or worked out; other settings are the target's own, held against the checkpoint's."""
    source, target = draft.source, draft.target
    theirs: dict[str, list[StateEntry]] = {}
    for one in source.settings.values():
        theirs.setdefault(_kind(one), []).append(one)
    of_target = {_kind(one): one for one in target.settings.values()}
    for entry in target.settings.values():
        kind = _kind(entry)
        if kind not in _POWERS:
            draft.keep(entry, how="the target's own")
        elif draft.choices.drop_optimizer_state:
            draft.keep(entry, how="its first value (--drop-optimizer-state)")
        elif kind in theirs:
            _check_power(draft, theirs[kind], entry.value, step)
            draft.take(entry, theirs[kind][0], how="name")
        else:
            value = power_after(entry.value, step)
            draft.give(entry, value, source="", how=f"worked out: the power of step {step}")
    for kind, entries in theirs.items():
        if kind in _POWERS and kind not in of_target and not draft.choices.drop_optimizer_state:
            beta = hyper.get(_POWERS[kind])
            if beta is not None:
                _check_power(draft, entries, np.asarray(beta, entries[0].value.dtype), step)
            for one in entries:
                draft.leave(one, how="follows from the step")
        elif kind not in _POWERS:
            ours = of_target[kind].value if kind in of_target else hyper.get(kind)
            for one in entries:
                _check_setting(draft, one, ours)


def power_after(beta: np.ndarray, step: int) -> np.ndarray:
    """A power of beta as `tf.compat.v1.train.AdamOptimizer` has it after some steps: multiplied up, one step at a time.

    Args:
        beta: a scalar, of the type that it is kept in; the power before the first step.
        step: steps made.
    """
    power = beta = np.asarray(beta)
    tiny = np.finfo(beta.dtype).tiny
    for _ in range(step):
        power = (power * beta).astype(beta.dtype)
        if power < tiny:
            # TensorFlow's threads take numbers as small as that for 0.
            return np.zeros((), beta.dtype)
    return np.asarray(power)


def _check_power(draft: PlanDraft, entries: list[StateEntry], beta: np.ndarray, step: int) -> None:
    wanted = float(power_after(beta, step))
    for one in entries:
        found = float(one.value)
        if np.isclose(found, wanted, rtol=POWER_TOLERANCE, atol=1e-30) or draft.may("accept", one.given):
            continue
        draft.refuse(
            f"{one.given} is {found:g}, and at step {step} with {_POWERS[_kind(one)]} {float(beta):g} it would be "
            f"{wanted:g}",
            f"give the step and the optimizer of the checkpoint, or --accept {one.given}",
        )


def _check_setting(draft: PlanDraft, one: StateEntry, ours: Any) -> None:
    if not isinstance(ours, float | int | np.ndarray) or one.value.shape != () or one.value.dtype.kind != "f":
        return
    theirs = float(one.value)
    if not np.isclose(theirs, float(ours), rtol=SETTING_TOLERANCE, atol=1e-12) and not draft.may("accept", one.given):
        draft.refuse(
            f"{one.given} is {theirs:g} in the checkpoint, and {float(ours):g} in the target",
            f"give the target the same, or --accept {one.given} to train on with the target's",
        )


def _kind(one: StateEntry) -> str:
    last = one.given.partition(":")[0].rpartition("/")[2]
    return _SAME.get(last, last)
