"""Canonical variable names, common to an Estimator's graph and a Keras model.

================= ========================================= ======================================
canonical         in an Estimator's graph                   in Keras
================= ========================================= ======================================
`dense/kernel`    `dense/kernel`                            `dense/kernel:0`
`dense/kernel @m` `dense/kernel/Adam` (V1),                 `Adam/dense/kernel/m:0`
                  `Adam/dense/kernel/m` (Keras),            `m/dense/kernel:0`, `Adam/m/dense/kernel:0` (Keras 2's
                  `training/Adam/dense/kernel/m` (a head)   newer optimizers)
`global_step`     `global_step`                             `SGD/iter:0`, `iteration:0`
omitted           `beta1_power`, `SGD/learning_rate`,       `SGD/decay:0`, `learning_rate:0`
                  `.../replica_1`
================= ========================================= ======================================

Omitted variables are hyperparameters, follow from the step, or are copies on further replicas. Slots may have been
created in a separate scope: `OptimizeLoss/dense/kernel/Adam`, `training/Adam/dense/kernel/m`. No TensorFlow.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping

__all__ = ["AVERAGE", "GLOBAL_STEP", "GRADIENT_SUM", "NEWER_SLOTS", "canonical", "canonical_of_layers"]

GLOBAL_STEP = "global_step"
# The slot of `estimator_pipeline.models.optimizers.gradient_accumulation`, with the same name in all engines.
GRADIENT_SUM = "gradient_sum"
# The last part of the name of a weight's moving average. It is a variable of evaluation, not a slot; Keras stores it as
# a slot, see `estimator_pipeline.models.optimizers.moving_averages`.
AVERAGE = "ExponentialMovingAverage"

# The suffix of a slot variable of tf.compat.v1.train, after the variable's name -> the slot's name in Keras.
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
# With `centered=True` there is an additional slot.
_V1_CENTERED = {"RMSProp": "rms", "RMSProp_1": "mg", "RMSProp_2": "momentum"}
_KERAS_SLOTS = ("momentum", "m", "v", "vhat", "accumulator", "rms", "mg", "linear", "accum_grad", "accum_var",
                GRADIENT_SUM)  # fmt: skip
# The newer optimizers of Keras 2 put the slot's name first, and have different names.
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
# The names of these optimizers, in the names of slots that were created in the first step.
_NEWER = ("SGD", "Adam", "AdamW", "Nadam", "RMSprop", "Adagrad", "Adadelta", "Ftrl")
_NEWER_SETTINGS = ("learning_rate", "current_learning_rate")
_SETTINGS = ("learning_rate", "decay", "momentum", "beta_1", "beta_2", "rho")
# Further hyperparameters of FTRL; the last one identifies FTRL, since a layer may have a weight `beta`.
_OF_FTRL = ("beta", "l1_regularization_strength", "l2_regularization_strength", "learning_rate_power")
# Heads, and so canned Estimators, create the variables of their Keras optimizers in this scope. With two optimizers,
# the linear one has a separate step counter. With several heads the scope has a number.
_OF_A_HEAD = re.compile(r"training(_\d+)?/")
# The last part of the name of a variable's copy on further replicas, in the graph of a strategy.
_REPLICA = re.compile(r"replica_\d+")
# With several optimizers, those after the first have numbers.
_FROM_THE_STEP = re.compile(r"beta[12]_power(_\d+)?")


def canonical(names: Iterable[str], kept: Mapping[str, str | None] | None = None) -> Mapping[str, str]:
    """Return the canonical names of a training's variables.

    Args:
        names: The names of all variables of one side, weights and slots, with or without ":0".
        kept: Known names, without ":0" -> canonical name, or None for an omitted variable; see
            `estimator_pipeline.parity.optimizer_slots`. It takes precedence over the rules.

    Returns:
        Canonical name -> the name in `names`, in the same order.

    Raises:
        ValueError: Two variables have the same canonical name.
    """
    by_plain = {name.partition(":")[0]: name for name in names}
    result: dict[str, str] = {}
    for plain, name in by_plain.items():
        if _is_copy(plain, by_plain):
            continue
        known = kept[plain] if kept and plain in kept else _of(plain, by_plain)
        if known is None:
            continue
        if known in result:
            raise ValueError(f"{result[known]} and {name} are both {known}")
        result[known] = name
    return result


def canonical_of_layers(names: Iterable[str]) -> Mapping[str, str]:
    """Return the canonical names of a model's variables, without a scope that encloses all its layers.

    In an Estimator's graph, a model that does not declare its input encloses its layers in a scope of its name, such
    as `sequential/dense/kernel`. In Keras the same variable is `dense/kernel`.

    Args:
        names: As for `canonical`.

    Returns:
        Canonical name -> the name in `names`, in the same order.
    """
    result = canonical(names)
    scopes = [name.split("/")[:-2] for name in result if name != GLOBAL_STEP and " @" not in name]
    enclosing = itertools.takewhile(lambda level: len(set(level)) == 1, zip(*scopes, strict=False))
    length = sum(len(level[0]) + 1 for level in enclosing)
    return {name if name == GLOBAL_STEP else name[length:]: actual for name, actual in result.items()}


def _is_copy(name: str, all_names: Mapping[str, str]) -> bool:
    """Return whether it is a copy of a variable on a further replica."""
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
        # Slots that were created before the first step do not have the optimizer's name.
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
    """Return whether it is a hyperparameter of a head's optimizer.

    A layer in a scope `training` has weights there.
    """
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
    # SGD's momentum and Adam's first moment are both `m`; only Adam has a `v` too.
    momentum = first == "m" and not {f"{before}v/{weight}", f"{before}u/{weight}"} & set(all_names)
    return f"{weight} @{'momentum' if momentum else NEWER_SLOTS[first]}"


def _in_a_scope(name: str, all_names: Mapping[str, str]) -> str | None:
    """Return the canonical name of a slot that was created in a separate scope."""
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
    """Return the names below `head` if it is a layer, which has other variables too."""
    beside = {name for name in all_names if name.startswith(f"{head}/") and "/" not in name[len(head) + 1 :]}
    settings = {f"{head}/{setting}" for setting in (*_SETTINGS, *_OF_FTRL, "iter")}
    settings |= {name for name in beside if _FROM_THE_STEP.fullmatch(name.rpartition("/")[2])}
    return beside if beside - settings else set()
