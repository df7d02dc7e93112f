"""Migration of optimizer state: slots with the same meaning are copied, others are converted or rejected.

================ ==================================== ======================================================
slot             content                              differences between V1 and Keras
================ ==================================== ======================================================
m, v (adam)      means of gradients and squares       V1 stores powers of beta; in Keras they follow from
                                                      the step
rms, mg          the same (rmsprop)                   they start at 1 in V1; they do not include epsilon
momentum (rms.)  the last updates                     V1 stores it also if momentum is 0, and does not use it
accumulator      sums of squares (adagrad, ftrl)      none
accum_grad,      adadelta's means of the squares of   none
accum_var        gradients and of updates
linear (ftrl)    FTRL's linear term                   none
gradient_sum     accumulated gradients of the last    none; 0 if only one side has it
                 batches
momentum (sgd)   V1: a = m a + g                      Keras: a = m a - rate g. If the learning rate was
                                                      constant, Keras's is -rate times that of V1
================ ==================================== ======================================================

Sources: the update rules in the documentation of TensorFlow's training operations and of Keras's optimizers, as
implemented in `estimator_pipeline.models.optimizers.keras2`.
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
# Alternative names of settings.
_SAME = {"beta1": "beta_1", "beta2": "beta_2", "current_learning_rate": "learning_rate"}
# Relative tolerance between a stored power of beta, computed in float32, and the power computed from the step.
POWER_TOLERANCE = 1e-4
# Relative tolerance of a setting that was stored as float32.
SETTING_TOLERANCE = 1e-6


def plan_slots(draft: PlanDraft, pairs: Mapping[str, str], hyper: Mapping[str, Any]) -> None:
    """Plan the values of the target's slots.

    Args:
        draft: The plan.
        pairs: Weight of the target -> weight of the checkpoint.
        hyper: Hyperparameters of the target's optimizer.
    """
    source, target = draft.source, draft.target
    if draft.choices.drop_optimizer_state:
        for slots in target.slots.values():
            for entry in slots.values():
                draft.keep(entry, how="initial value (--drop-optimizer-state)")
        count = sum(len(slots) for slots in source.slots.values())
        draft.notes.append(
            f"the optimizer state is reset: {count} slots of the checkpoint are not migrated (--drop-optimizer-state)"
        )
        return
    if _plan_unused_momentum(draft, hyper):
        return
    if source.family != target.family:
        draft.reject(
            f"the checkpoint's optimizer is {_described(source.slots, source.family)}, but the target's is "
            f"{_described(target.slots, target.family)}",
            "give the target the optimizer of the training, or reset its state with --drop-optimizer-state",
        )
        return
    scale, how = _scale_of_momentum(draft, hyper)
    unused = target.family == "rmsprop" and hyper.get("momentum") == 0
    for weight, slots in target.slots.items():
        theirs = source.slots.get(pairs.get(weight, ""), {})
        shape = target.weights[weight].shape
        if weight in pairs and source.weights[pairs[weight]].fitted(shape).shape != shape:
            # The problem is already reported for the weight.
            continue
        if weight not in pairs:
            for entry in slots.values():
                draft.keep(entry, how="initial value (like its weight)")
            continue
        for slot, entry in slots.items():
            original = theirs.get(slot)
            if original is not None:
                _take(draft, entry, original, scale if slot == "momentum" else None, how)
            elif unused and slot == "momentum":
                draft.keep(entry, how="unused: momentum is 0")
            elif slot == GRADIENT_SUM:
                draft.keep(entry, how="0: the checkpoint has no accumulated gradients")
            elif draft.allows("initialize", entry.name):
                draft.keep(entry, how="initial value (--initialize)")
            else:
                draft.reject(
                    f"the slot {entry.name} {list(entry.shape)} is missing in the checkpoint",
                    f"--initialize {entry.name.partition(':')[0]} for this slot, or --drop-optimizer-state for all",
                )
    backwards = {theirs: ours for ours, theirs in pairs.items()}
    for weight, slots in source.slots.items():
        ours = target.slots.get(backwards.get(weight, ""), {})
        for slot, original in slots.items():
            if slot in ours:
                continue
            if weight not in backwards:
                draft.skip(original, how="not migrated, like its weight")
            elif unused and slot == "momentum":
                draft.skip(original, how="not migrated: unused, momentum is 0")
            elif slot == GRADIENT_SUM and not original.value.any():
                draft.skip(original, how="not migrated: 0, between two updates")
            elif draft.allows("allow_leftover", original.name):
                draft.skip(original, how="not migrated (--allow-leftover)")
            else:
                draft.reject(
                    f"the slot {original.name} {list(original.shape)} of the checkpoint has no counterpart in the "
                    "target",
                    f"--allow-leftover {original.name} for this slot, or --drop-optimizer-state for all",
                )


def _plan_unused_momentum(draft: PlanDraft, hyper: Mapping[str, Any]) -> bool:
    """Handle unused momentum slots, which only Keras 2's newer SGD has."""
    source, target = draft.source, draft.target
    if (source.family, target.family) == ("none", "momentum") and hyper.get("momentum") == 0:
        for slots in target.slots.values():
            for entry in slots.values():
                draft.keep(entry, how="unused: momentum is 0")
        return True
    entries = [entry for slots in source.slots.values() for entry in slots.values()]
    if (source.family, target.family) == ("momentum", "none") and not any(entry.value.any() for entry in entries):
        for entry in entries:
            draft.skip(entry, how="not migrated: 0, unused")
        return True
    return False


def differences_of_stock(family: str, hyper: Mapping[str, Any]) -> str | None:
    """Describe how a Keras optimizer differs from that of V1; None: it does not.

    For optimizers of Keras 3 and the newer ones of Keras 2. Their formulas differ only in epsilon.

    Args:
        family: The family of the slots.
        hyper: Hyperparameters of the target's optimizer.
    """
    name, of_v1 = _EPSILONS.get(family, ("", 0.0))
    epsilon = hyper.get("epsilon")
    if not name or not isinstance(epsilon, float | int) or np.isclose(epsilon, of_v1, rtol=1e-3, atol=1e-20):
        return None
    there = f"tf.compat.v1.train.{name}Optimizer defaults to {of_v1:g}" if family != "adagrad" else "V1 has none"
    return f"its epsilon is {epsilon:g}, {there}: use keras.optimizers.{_CLASSES.get(name, name)}(epsilon={of_v1:g})"


# The epsilon of V1, added at the same place as in Keras. Adagrad of V1 has none, and 1e-30 has no effect.
_EPSILONS = {
    "adam": ("Adam", 1e-8),
    "adagrad": ("Adagrad", 1e-30),
    "rmsprop": ("RMSProp", 1e-10),
    "adadelta": ("Adadelta", 1e-8),
}
_CLASSES = {"RMSProp": "RMSprop"}


def _described(slots: Mapping[str, Mapping[str, StateEntry]], family: str) -> str:
    names = sorted({slot for of_weight in slots.values() for slot in of_weight})
    return f"{family} ({', '.join(names)})" if names else "an optimizer without slots"


def _take(draft: PlanDraft, entry: StateEntry, original: StateEntry, scale: float | None, how: str) -> None:
    if scale is None:
        draft.take(entry, original, how=how)
        return
    value = original.fitted(entry.shape)
    if tuple(value.shape) != entry.shape or value.dtype != entry.value.dtype:
        draft.take(entry, original, how=how)  # rejects it
        return
    scaled = (value.astype(np.float64) * scale).astype(value.dtype)
    draft.give(entry, scaled, source=original.name, how=f"{how}, times {scale:g}, rounded to {entry.dtype}")


def _scale_of_momentum(draft: PlanDraft, hyper: Mapping[str, Any]) -> tuple[float | None, str]:
    """Return the factor for the checkpoint's momentum; None: copy it."""
    source, target, choices = draft.source, draft.target, draft.choices
    if target.family != "momentum":
        return None, "name"
    by_run = source.optimizer[1] if source.optimizer and source.optimizer[0] in ("momentum", "nesterov") else None
    theirs, ours = choices.momentum or by_run or source.style, target.style
    known = by_run or source.style
    if choices.momentum and known and choices.momentum != known:
        draft.reject(
            f"--momentum is {choices.momentum}, but the momentum of the checkpoint is {known}", "omit --momentum"
        )
    if theirs is None or ours is None:
        draft.reject(
            "the names in the checkpoint do not show whether its momentum sums up gradients (tf.compat.v1.train) or "
            "updates (Keras)",
            "set it: --momentum v1, or --momentum keras",
        )
        return None, "name"
    if theirs == ours:
        return None, "name"
    rate = hyper.get("learning_rate")
    why = f"the checkpoint's momentum sums up {_SUMS[theirs]}, the target's {_SUMS[ours]}"
    if rate is not None and not isinstance(rate, float | int):
        draft.reject(
            f"{why}, and with a learning-rate schedule no constant factor converts between them",
            f"continue with the optimizer of the training (api: {theirs}), or add --drop-optimizer-state",
        )
        return None, "name"
    if choices.learning_rate is None:
        draft.reject(
            f"{why}: they differ by the factor of the learning rate, if it was constant",
            f"set it: --learning-rate {0.1 if rate is None else rate:g}; or continue with the same optimizer, or add "
            "--drop-optimizer-state",
        )
        return None, "name"
    if choices.learning_rate <= 0:
        draft.reject(f"--learning-rate is {choices.learning_rate:g}", "set a number above 0")
        return None, "name"
    if rate is not None and not np.isclose(rate, choices.learning_rate, rtol=SETTING_TOLERANCE, atol=0):
        draft.reject(
            f"{why}, and the target's learning rate is {rate:g}, but the checkpoint's is {choices.learning_rate:g}",
            "continue with the same learning rate, or add --drop-optimizer-state",
        )
    return (-choices.learning_rate if theirs == "v1" else -1.0 / choices.learning_rate), "name"


_SUMS = {"v1": "gradients (tf.compat.v1.train)", "keras": "updates (Keras)"}


def plan_settings(draft: PlanDraft, step: int, hyper: Mapping[str, Any]) -> None:
    """Plan the powers of beta, and compare other settings."""
    source, target = draft.source, draft.target
    theirs: dict[str, list[StateEntry]] = {}
    for original in source.settings.values():
        theirs.setdefault(_kind(original), []).append(original)
    of_target = {_kind(entry): entry for entry in target.settings.values()}
    for entry in target.settings.values():
        kind = _kind(entry)
        if kind not in _POWERS:
            draft.keep(entry, how="the target's setting")
        elif draft.choices.drop_optimizer_state:
            draft.keep(entry, how="initial value (--drop-optimizer-state)")
        elif kind in theirs:
            _check_power(draft, theirs[kind], entry.value, step)
            draft.take(entry, theirs[kind][0], how="name")
        else:
            value = power_after(entry.value, step)
            draft.give(entry, value, source="", how=f"computed: the power at step {step}")
    for kind, entries in theirs.items():
        if kind in _POWERS and kind not in of_target and not draft.choices.drop_optimizer_state:
            beta = hyper.get(_POWERS[kind])
            if beta is not None:
                _check_power(draft, entries, np.asarray(beta, entries[0].value.dtype), step)
            for original in entries:
                draft.skip(original, how="follows from the step")
        elif kind not in _POWERS:
            ours = of_target[kind].value if kind in of_target else hyper.get(kind)
            for original in entries:
                _check_setting(draft, original, ours)


def power_after(beta: np.ndarray, step: int) -> np.ndarray:
    """Compute the power of beta after a number of steps, rounded as in V1.

    Args:
        beta: A scalar in the dtype of the variable; the power before the first step.
        step: The number of steps.
    """
    power = beta = np.asarray(beta)
    tiny = np.finfo(beta.dtype).tiny
    for _ in range(step):
        power = (power * beta).astype(beta.dtype)
        if power < tiny:
            # TensorFlow's threads flush denormals to 0.
            return np.zeros((), beta.dtype)
    return np.asarray(power)


def _check_power(draft: PlanDraft, entries: list[StateEntry], beta: np.ndarray, step: int) -> None:
    expected = float(power_after(beta, step))
    for entry in entries:
        power = float(entry.value)
        if np.isclose(power, expected, rtol=POWER_TOLERANCE, atol=1e-30) or draft.allows("accept", entry.name):
            continue
        draft.reject(
            f"{entry.name} is {power:g}, but at step {step} with {_POWERS[_kind(entry)]} {float(beta):g} it would be "
            f"{expected:g}",
            f"set the step and the optimizer of the checkpoint, or --accept {entry.name}",
        )


def _check_setting(draft: PlanDraft, entry: StateEntry, ours: Any) -> None:
    if not isinstance(ours, float | int | np.ndarray) or entry.value.shape != () or entry.value.dtype.kind != "f":
        return
    theirs = float(entry.value)
    if not np.isclose(theirs, float(ours), rtol=SETTING_TOLERANCE, atol=1e-12) and not draft.allows(
        "accept", entry.name
    ):
        draft.reject(
            f"{entry.name} is {theirs:g} in the checkpoint, but {float(ours):g} in the target",
            f"give the target the same value, or --accept {entry.name} to continue with the target's",
        )


def _kind(entry: StateEntry) -> str:
    last = entry.name.partition(":")[0].rpartition("/")[2]
    return _SAME.get(last, last)
