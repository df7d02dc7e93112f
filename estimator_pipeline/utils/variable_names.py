"""One name for one thing: variables of an Estimator's graph and of a Keras model, under the names that both can have.

================= ========================================= ======================================
canonical         in an Estimator's graph                   in Keras
================= ========================================= ======================================
`dense/kernel`    `dense/kernel`                            `dense/kernel:0`
`dense/kernel @m` `dense/kernel/Adam` (V1),                 `Adam/dense/kernel/m:0`
                  `Adam/dense/kernel/m` (Keras),            `m/dense/kernel:0`, `Adam/m/dense/kernel:0` (Keras 2's
                  `training/Adam/dense/kernel/m` (a head)   newer optimizers)
`global_step`     `global_step`                             `SGD/iter:0`, `iteration:0`
left out          `beta1_power`, `SGD/learning_rate`,       `SGD/decay:0`, `learning_rate:0`
                  `.../replica_1`
================= ========================================= ======================================

What is left out is a setting, follows from the step, or is a further replica's copy of a variable. Slots may have been
made in a scope of their own: `OptimizeLoss/dense/kernel/Adam`, `training/Adam/dense/kernel/m`. No TensorFlow.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

__all__ = ["AVERAGE", "GLOBAL_STEP", "GRADIENT_SUM", "NEWER_SLOTS", "canonical"]

GLOBAL_STEP = "global_step"
# A slot beside those of the optimizer, see `estimator_pipeline.models.optimizers.gradient_accumulation`; so it is
# called everywhere.
GRADIENT_SUM = "gradient_sum"
# The moving average of a weight is called so after it: it is no slot, for it is evaluated. In Keras it is kept as one,
# see `estimator_pipeline.models.optimizers.moving_averages`.
AVERAGE = "ExponentialMovingAverage"

# Ending of a slot variable of tf.compat.v1.train, after the variable's own name -> the slot's name in Keras.
_V1_SLOTS = {
    "Momentum": "momentum",
    "Adam": "m",
    "Adam_1": "v",
    "Adagrad": "accumulator",
    "ProximalAdagrad": "accumulator",
    "RMSProp": "rms",
    "RMSProp_1": "momentum",
    "Ftrl": "accumulator",
    "Ftrl_1": "linear",
    "Adadelta": "accum_grad",
    "Adadelta_1": "accum_var",
}
# With `centered=True` there is one slot more.
_V1_CENTERED = {"RMSProp": "rms", "RMSProp_1": "mg", "RMSProp_2": "momentum"}
_KERAS_SLOTS = ("momentum", "m", "v", "vhat", "accumulator", "rms", "mg", "linear", "accum_grad", "accum_var",
                GRADIENT_SUM)  # fmt: skip
# The newer optimizers of Keras 2 put the slot's name first, and have names of their own.
NEWER_SLOTS = {
    "m": "m",
    "v": "v",
    "vhat": "vhat",
    "u": "v",
    "momentum": "momentum",
    "velocity": "rms",
    "average_gradient": "mg",
    "accumulator": "accumulator",
    "linear": "linear",
    "accumulated_grad": "accum_grad",
    "accumulated_delta_var": "accum_var",
}
# What they are called, where their slots were made in the first step.
_NEWER = ("SGD", "Adam", "AdamW", "Nadam", "RMSprop", "Adagrad", "Adadelta", "Ftrl")
_NEWER_SETTINGS = ("learning_rate", "current_learning_rate")
_SETTINGS = ("learning_rate", "decay", "momentum", "beta_1", "beta_2", "rho")
# Of FTRL besides, where the last one of them says that it is FTRL: a layer may have a weight `beta` alone.
_OF_FTRL = ("beta", "l1_regularization_strength", "l2_regularization_strength", "learning_rate_power")
# Heads, and so canned Estimators, make the variables of their Keras optimizers below this scope. The linear optimizer
# of two does not count with the global step, and has a count of its own. Of several heads the scope has a number.
_OF_A_HEAD = re.compile(r"training(_\d+)?/")
# A strategy in a graph names the copies of a variable on the replicas after the first one so.
_REPLICA = re.compile(r"replica_\d+")
# With several optimizers those after the first one have numbers.
_FROM_THE_STEP = re.compile(r"beta[12]_power(_\d+)?")


def canonical(names: Iterable[str], kept: Mapping[str, str | None] | None = None) -> Mapping[str, str]:
    """The canonical names of a training's variables.

    Args:
        names: of all variables of one side, weights and slots; with or without ":0".
        kept: what is known of some, without ":0" -> canonical name, or None for one that is left out; see
            :mod:`estimator_pipeline.parity.optimizer_slots`. It counts before the names.

    Returns:
        Canonical name -> the name as given, in the given order.

    Raises:
        ValueError: two variables come to the same name.
    """
    given = {name.partition(":")[0]: name for name in names}
    found: dict[str, str] = {}
    for plain, name in given.items():
        if _is_copy(plain, given):
            continue
        known = kept[plain] if kept and plain in kept else _of(plain, given)
        if known is None:
            continue
        if known in found:
            raise ValueError(f"{found[known]} and {name} are both {known}")
        found[known] = name
    return found


def _is_copy(name: str, all_names: Mapping[str, str]) -> bool:
    """Whether it is a further replica's copy of a variable."""
    head, _, last = name.rpartition("/")
    return bool(_REPLICA.fullmatch(last)) and head in all_names


def _of(name: str, all_names: Mapping[str, str]) -> str | None:
    head, _, last = name.rpartition("/")
    if name in (GLOBAL_STEP, "iteration") or (last == "iter" and "/" not in head):
        return GLOBAL_STEP
    if _FROM_THE_STEP.fullmatch(last) or name in _NEWER_SETTINGS:
        return None
    if _is_a_heads_setting(name, all_names):
        return None
    newer = _newer_slot(name, "", all_names)
    first, _, rest = name.partition("/")
    if newer is None and first in _NEWER:
        newer = _newer_slot(rest, f"{first}/", all_names)
    if newer is not None:
        return newer
    if head in all_names and (slot := _v1_slot(head, last, all_names)):
        return f"{head} @{slot}"
    if head in all_names and last in _KERAS_SLOTS:
        # Slots that were made before the first step do not bear the optimizer's name.
        return f"{head} @{last}"
    _, _, weight = head.partition("/")
    if weight in all_names and last == AVERAGE and head not in all_names:
        return f"{weight}/{AVERAGE}"
    if weight in all_names and last in _KERAS_SLOTS:
        return f"{weight} @{last}"
    if (scoped := _in_a_scope(name, all_names)) is not None:
        return scoped
    if "/" not in head and last in _OF_FTRL and f"{head}/{_OF_FTRL[-1]}" in all_names:
        return None
    if "/" not in head and last in _SETTINGS and name not in _weights_like(head, all_names):
        return None
    return name


def _is_a_heads_setting(name: str, all_names: Mapping[str, str]) -> bool:
    """Whether a head's optimizer keeps it as a setting; not so the weights of a layer in a scope `training`."""
    scope = _OF_A_HEAD.match(name)
    if scope is None:
        return False
    optimizer, _, last = name[scope.end() :].partition("/")
    is_ftrl = f"{scope[0]}{optimizer}/{_OF_FTRL[-1]}" in all_names
    return last in (*_SETTINGS, "iter") or (is_ftrl and last in _OF_FTRL)


def _newer_slot(name: str, before: str, all_names: Mapping[str, str]) -> str | None:
    first, _, weight = name.partition("/")
    if first not in NEWER_SLOTS or weight not in all_names:
        return None
    # SGD calls its momentum `m`, as Adam its first moment; Adam alone has a `v` as well.
    momentum = first == "m" and not {f"{before}v/{weight}", f"{before}u/{weight}"} & set(all_names)
    return f"{weight} @{'momentum' if momentum else NEWER_SLOTS[first]}"


def _in_a_scope(name: str, all_names: Mapping[str, str]) -> str | None:
    """A slot that was made in a variable scope, which its name begins with and its variable's does not."""
    *parts, last = name.split("/")
    for start in range(1, len(parts)):
        weight = "/".join(parts[start:])
        if weight in all_names:
            slot = _v1_slot("/".join(parts), last, all_names) or (last if last in _KERAS_SLOTS else None)
            return None if slot is None else f"{weight} @{slot}"
    return None


def _v1_slot(weight: str, ending: str, all_names: Mapping[str, str]) -> str | None:
    centered = f"{weight}/RMSProp_2" in all_names
    return (_V1_CENTERED if centered else _V1_SLOTS).get(ending)


def _weights_like(head: str, all_names: Mapping[str, str]) -> set[str]:
    """Names of a layer `head` where it is one: a setting stands beside other settings and slots alone."""
    beside = {name for name in all_names if name.startswith(f"{head}/") and "/" not in name[len(head) + 1 :]}
    settings = {f"{head}/{setting}" for setting in (*_SETTINGS, *_OF_FTRL, "iter")}
    settings |= {name for name in beside if _FROM_THE_STEP.fullmatch(name.rpartition("/")[2])}
    return beside if beside - settings else set()
