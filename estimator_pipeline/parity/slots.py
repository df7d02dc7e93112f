"""Which variables an optimizer keeps, and for which weight: told by what updates them, whatever they are called.

A `tf.compat.v1.train` optimizer names its slots by its own name, which a program may give, and by the scope that it is
minimised in. The operation that makes the update is given the weight and each slot under the names of its arguments,
so an Estimator's graph tells exactly. A Keras optimizer is asked.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from estimator_pipeline import keras_optimizers
from estimator_pipeline.parity.names import AVERAGE, GLOBAL_STEP, NEWER_SLOTS

__all__ = ["Kept", "kept_in_graph", "kept_by_keras"]

_ADAM = {"m": "m", "v": "v"}
_ACCUMULATOR = {"accum": "accumulator"}
_RMSPROP = {"ms": "rms", "mom": "momentum"}
_FTRL = {**_ACCUMULATOR, "linear": "linear"}
_DUAL = {"gradient_accumulator": "gradient_accumulator", "gradient_squared_accumulator": "gradient_squared_accumulator"}
# Operation (without `Resource` or `Sparse` before it) -> its argument -> the slot's name in Keras.
_UPDATES: Mapping[str, Mapping[str, str]] = {
    "ApplyMomentum": {"accum": "momentum"},
    "ApplyKerasMomentum": {"accum": "momentum"},
    "ApplyAdam": _ADAM,
    "ApplyAdamWithAmsgrad": {**_ADAM, "vhat": "vhat"},
    "ApplyAdaMax": _ADAM,
    "ApplyAdagrad": _ACCUMULATOR,
    "ApplyAdagradV2": _ACCUMULATOR,
    "ApplyProximalAdagrad": _ACCUMULATOR,
    "ApplyAdagradDA": _DUAL,
    "ApplyAdadelta": {"accum": "accum_grad", "accum_update": "accum_var"},
    "ApplyRMSProp": _RMSPROP,
    "ApplyCenteredRMSProp": {**_RMSPROP, "mg": "mg"},
    "ApplyFtrl": _FTRL,
    "ApplyFtrlV2": _FTRL,
    "ApplyAddSign": {"m": "m"},
    "ApplyPowerSign": {"m": "m"},
}
# The operation of a tf.compat.v1.train optimizer -> what ends its slots' names where it is given no name.
_BY_DEFAULT = {"ApplyMomentum": "Momentum", "ApplyAdam": "Adam", "ApplyAdagrad": "Adagrad", "ApplyRMSProp": "RMSProp",
               "ApplyCenteredRMSProp": "RMSProp"}  # fmt: skip
_POWERS = ("beta1_power", "beta2_power")
_PASSED_ON = ("Identity", "ReadVariableOp", "Switch", "Enter", "Cast")
_VARIABLES = ("VarHandleOp", "VariableV2", "Variable")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kept:
    """What optimizers keep.

    Attributes:
        names: variable, without ":0" -> its canonical name, `weight @slot`; None: it belongs to the optimizer alone.
        optimizers: the names that tf.compat.v1.train gives by default to those in a graph.
    """

    names: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    optimizers: frozenset[str] = frozenset()


def kept_in_graph(graph: Any) -> Kept:
    """Of the optimizers in an Estimator's graph.

    Args:
        graph: of its training, with the update operations.
    """
    found: dict[str, str | None] = {}
    endings: dict[tuple[str, str], set[str]] = {}
    optimizers = set()
    for operation in graph.get_operations():
        kind = operation.type.replace("Resource", "").replace("Sparse", "")
        if kind not in _UPDATES:
            continue
        inputs = dict(zip((one.name for one in operation.op_def.input_arg), operation.inputs, strict=True))
        weight = _variable(inputs["var"])
        if weight is None:
            continue
        for argument, slot in _UPDATES[kind].items():
            name = _variable(inputs[argument])
            if name is None:
                continue
            found[name] = f"{weight} @{slot}"
            before, at, after = name.rpartition(f"{weight}/")
            if at:
                endings.setdefault((before, f"/{after}"), set()).add(slot)
            # Keras's own, in a graph, are called by the slot.
            if kind in _BY_DEFAULT and name.rpartition("/")[2] not in _UPDATES[kind].values():
                optimizers.add(_BY_DEFAULT[kind])
        for argument in _POWERS:
            power = _variable(inputs[argument]) if argument in inputs else None
            if power is not None and power != GLOBAL_STEP:
                found[power] = None
    collected = graph.get_collection("variables")  # GraphKeys.GLOBAL_VARIABLES
    named = {variable.name.partition(":")[0] for variable in collected}
    # V1's Adam updates the rows of an embedding by operations of other kinds, and names those slots as the others.
    for (before, after), slots in endings.items():
        for weight in named:
            name = f"{before}{weight}{after}"
            if len(slots) == 1 and name in named and name not in found:
                found[name] = f"{weight} @{next(iter(slots))}"
    return Kept(names=found, optimizers=frozenset(optimizers))


def _variable(tensor: Any) -> str | None:
    """The variable that a tensor is, or is the value of."""
    operation = tensor.op
    while operation.type in _PASSED_ON and operation.inputs:
        operation = operation.inputs[0].op
    return str(operation.name) if operation.type in _VARIABLES else None


def kept_by_keras(model: Any) -> Kept:
    """Of a compiled model's optimizer, whose slots are made.

    Args:
        model: a model of Keras 2.
    """
    optimizer = model.optimizer
    variables = keras_optimizers.variables_of(optimizer)
    found: dict[str, str | None] = {}
    if keras_optimizers.is_legacy(optimizer):
        for slot in optimizer.get_slot_names():
            for weight in model.trainable_variables:
                # The average of a weight is no slot, see `names.AVERAGE`; not every weight has every slot.
                with contextlib.suppress(KeyError, TypeError):
                    if slot != AVERAGE:
                        found[_plain(optimizer.get_slot(weight, slot))] = f"{_plain(weight)} @{slot}"
    else:
        found.update(_newer(map(_plain, variables), [_plain(weight) for weight in model.trainable_variables]))
    for variable in variables:
        if variable is optimizer.iterations or _plain(variable) == _plain(optimizer.iterations):
            found[_plain(variable)] = GLOBAL_STEP
        elif variable.shape.rank == 0 and _plain(variable) not in found:
            found[_plain(variable)] = None
    return Kept(names=found)


def _newer(names: Iterable[str], weights: list[str]) -> dict[str, str]:
    """The slots of the newer optimizers of Keras 2, whose names begin with the slot's and end with the weight's."""
    found = {}
    for name in names:
        # Of two weights of which one is called as the other one's end, the longer name.
        weight = max((one for one in weights if name.endswith(f"/{one}")), key=len, default=None)
        if weight is not None:
            found[name] = (weight, name.removesuffix(f"/{weight}").rpartition("/")[2])
    slots = set(found.values())

    def slot_of(weight: str, slot: str) -> str:
        # SGD calls its momentum `m`, as Adam its first moment; Adam alone has a second one.
        if slot == "m" and not {(weight, "v"), (weight, "u")} & slots:
            return "momentum"
        return NEWER_SLOTS.get(slot, slot)

    return {name: f"{weight} @{slot_of(weight, slot)}" for name, (weight, slot) in found.items()}


def _plain(variable: Any) -> str:
    return str(variable.name).partition(":")[0]
