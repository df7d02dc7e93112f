"""Weight updates in a graph, and optimizer slots with the weights that they belong to, whatever their names.

A `tf.compat.v1.train` optimizer names its slots by its name, which a program may set, and by the scope of `minimize`.
The update operation takes the weight and each slot as named arguments, so an Estimator's graph identifies them exactly.
A Keras optimizer lists its slots.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from estimator_pipeline.models import keras_variable_names as keras_names
from estimator_pipeline.models.optimizers import keras2 as keras_optimizers
from estimator_pipeline.utils.variable_names import AVERAGE, GLOBAL_STEP, NEWER_SLOTS

__all__ = ["VARIABLES", "OptimizerSlots", "WeightUpdate", "behind", "kept_by_keras", "kept_in_graph", "updates_in"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightUpdate:
    """An operation that updates a weight: its arguments, by Keras's names.

    Attributes:
        kind: kind of the optimizer; None: its options are not compared.
        options: argument -> option.
        slots: argument -> slot.
        by_default: suffix of the slots of a tf.compat.v1.train optimizer with its default name.
    """

    kind: str | None = None
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    slots: Mapping[str, str] = dataclasses.field(default_factory=dict)
    by_default: str | None = None


_RATE = {"lr": "learning_rate"}
_OF_ADAM = {**_RATE, "beta1": "beta_1", "beta2": "beta_2", "epsilon": "epsilon"}
_OF_MOMENTUM = {**_RATE, "momentum": "momentum"}
_OF_RMSPROP = {**_RATE, "rho": "rho", "momentum": "momentum", "epsilon": "epsilon"}
_OF_FTRL = {**_RATE, "l1": "l1", "l2": "l2", "lr_power": "learning_rate_power"}
_ADAM = {"m": "m", "v": "v"}
_ACCUMULATOR = {"accum": "accumulator"}
_RMSPROP = {"ms": "rms", "mom": "momentum"}
_FTRL = {**_ACCUMULATOR, "linear": "linear"}
_DUAL = {"gradient_accumulator": "gradient_accumulator", "gradient_squared_accumulator": "gradient_squared_accumulator"}
# Operation, without `Resource` or `Sparse` before it.
_UPDATES: Mapping[str, WeightUpdate] = {
    "ApplyGradientDescent": WeightUpdate(kind="sgd", options={"alpha": "learning_rate"}),
    "ApplyMomentum": WeightUpdate(
        kind="momentum", options=_OF_MOMENTUM, slots={"accum": "momentum"}, by_default="Momentum"
    ),
    "ApplyKerasMomentum": WeightUpdate(kind="momentum", options=_OF_MOMENTUM, slots={"accum": "momentum"}),
    "ApplyAdam": WeightUpdate(kind="adam", options=_OF_ADAM, slots=_ADAM, by_default="Adam"),
    "ApplyAdamWithAmsgrad": WeightUpdate(kind="adam", options=_OF_ADAM, slots={**_ADAM, "vhat": "vhat"}),
    "ApplyAdaMax": WeightUpdate(kind="adamax", options=_OF_ADAM, slots=_ADAM),
    "ApplyAdagrad": WeightUpdate(kind="adagrad", options=_RATE, slots=_ACCUMULATOR, by_default="Adagrad"),
    "ApplyAdagradV2": WeightUpdate(kind="adagrad", options={**_RATE, "epsilon": "epsilon"}, slots=_ACCUMULATOR),
    "ApplyProximalAdagrad": WeightUpdate(slots=_ACCUMULATOR),
    "ApplyAdagradDA": WeightUpdate(slots=_DUAL),
    "ApplyAdadelta": WeightUpdate(
        kind="adadelta", options={**_RATE, "rho": "rho", "epsilon": "epsilon"},
        slots={"accum": "accum_grad", "accum_update": "accum_var"},
    ),
    "ApplyRMSProp": WeightUpdate(kind="rmsprop", options=_OF_RMSPROP, slots=_RMSPROP, by_default="RMSProp"),
    "ApplyCenteredRMSProp": WeightUpdate(
        kind="rmsprop", options=_OF_RMSPROP, slots={**_RMSPROP, "mg": "mg"}, by_default="RMSProp"
    ),
    "ApplyFtrl": WeightUpdate(kind="ftrl", options=_OF_FTRL, slots=_FTRL),
    "ApplyFtrlV2": WeightUpdate(kind="ftrl", options={**_OF_FTRL, "l2_shrinkage": "l2_shrinkage"}, slots=_FTRL),
    "ApplyAddSign": WeightUpdate(slots={"m": "m"}),
    "ApplyPowerSign": WeightUpdate(slots={"m": "m"}),
}  # fmt: skip
_POWERS = ("beta1_power", "beta2_power")
_PASSED_ON = ("Identity", "ReadVariableOp", "Switch", "Enter", "Cast")
# Operations that are variables.
VARIABLES = ("VarHandleOp", "VariableV2", "Variable")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerSlots:
    """The variables of optimizers.

    Attributes:
        names: variable, without ":0" -> its canonical name, `weight @slot`; None: it belongs to no single weight.
        optimizers: default names of the tf.compat.v1.train optimizers in a graph.
    """

    names: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    optimizers: frozenset[str] = frozenset()


def updates_in(graph: Any) -> Iterator[tuple[Any, WeightUpdate, dict[str, Any]]]:
    """Yield each operation that updates a weight, its kind, and argument -> tensor."""
    for operation in graph.get_operations():
        update = _UPDATES.get(operation.type.replace("Resource", "").replace("Sparse", ""))
        if update is not None:
            names = (argument.name for argument in operation.op_def.input_arg)
            yield operation, update, dict(zip(names, operation.inputs, strict=True))


def behind(tensors: Iterable[Any]) -> list[Any]:
    """Return the operations that tensors are computed from."""
    operations: dict[str, Any] = {}
    rest = [tensor.op for tensor in tensors]
    while rest:
        operation = rest.pop()
        if operation.name not in operations:
            operations[operation.name] = operation
            rest += [tensor.op for tensor in operation.inputs]
    return list(operations.values())


def kept_in_graph(graph: Any) -> OptimizerSlots:
    """Return the slots of the optimizers in an Estimator's graph.

    Args:
        graph: the training graph, with the update operations.
    """
    slot_names: dict[str, str | None] = {}
    endings: dict[tuple[str, str], set[str]] = {}
    optimizers = set()
    for _, update, inputs in updates_in(graph):
        weight = _variable(inputs["var"])
        if weight is None:
            continue
        for argument, slot in update.slots.items():
            name = _variable(inputs[argument])
            if name is None:
                continue
            slot_names[name] = f"{weight} @{slot}"
            before, at, after = name.rpartition(f"{weight}/")
            if at:
                endings.setdefault((before, f"/{after}"), set()).add(slot)
            # Keras optimizers in a graph name the variable by the slot.
            if update.by_default is not None and name.rpartition("/")[2] not in update.slots.values():
                optimizers.add(update.by_default)
        for argument in _POWERS:
            power = _variable(inputs[argument]) if argument in inputs else None
            if power is not None and power != GLOBAL_STEP:
                slot_names[power] = None
    collected = graph.get_collection("variables")  # GraphKeys.GLOBAL_VARIABLES
    named = {variable.name.partition(":")[0] for variable in collected}
    # V1's Adam updates embedding rows by different operations, and names those slots in the same way.
    for (before, after), slots in endings.items():
        for weight in named:
            name = f"{before}{weight}{after}"
            if len(slots) == 1 and name in named and name not in slot_names:
                slot_names[name] = f"{weight} @{next(iter(slots))}"
    return OptimizerSlots(names=slot_names, optimizers=frozenset(optimizers))


def _variable(tensor: Any) -> str | None:
    """Return the variable that a tensor refers to or reads."""
    operation = tensor.op
    while operation.type in _PASSED_ON and operation.inputs:
        operation = operation.inputs[0].op
    return str(operation.name) if operation.type in VARIABLES else None


def kept_by_keras(model: Any) -> OptimizerSlots:
    """Return the slots of a compiled model's optimizer, which must exist.

    Args:
        model: a model of Keras 2.
    """
    optimizer = model.optimizer
    named = keras_names.named(model)
    known_as = {id(variable): name for name, variable in named}
    variables = [(known_as[id(variable)], variable) for variable in keras_optimizers.variables_of(optimizer)]
    slot_names: dict[str, str | None] = {}
    if keras_optimizers.is_legacy(optimizer):
        for slot in optimizer.get_slot_names():
            for weight in model.trainable_variables:
                # The average of a weight does not count as a slot, see `AVERAGE`; not every weight has every slot.
                with contextlib.suppress(KeyError, TypeError):
                    if slot != AVERAGE:
                        slot_names[known_as[id(optimizer.get_slot(weight, slot))]] = f"{known_as[id(weight)]} @{slot}"
    else:
        trained = [known_as[id(weight)] for weight in model.trainable_variables]
        slot_names.update(_newer((name for name, _ in variables), trained))
    for name, variable in variables:
        if variable is optimizer.iterations or name == keras_names.plain_of(optimizer.iterations):
            slot_names[name] = GLOBAL_STEP
        elif variable.shape.rank == 0 and name not in slot_names:
            slot_names[name] = None
    return OptimizerSlots(names=slot_names)


def _newer(names: Iterable[str], weights: list[str]) -> dict[str, str]:
    """Return the slots of the newer optimizers of Keras 2, named `.../slot/weight`."""
    pairs = {}
    for name in names:
        # If one weight's name is a suffix of another weight's, the longer name counts.
        weight = max((candidate for candidate in weights if name.endswith(f"/{candidate}")), key=len, default=None)
        if weight is not None:
            pairs[name] = (weight, name.removesuffix(f"/{weight}").rpartition("/")[2])
    slots = set(pairs.values())

    def slot_of(weight: str, slot: str) -> str:
        # SGD calls its momentum `m`, as Adam its first moment; only Adam has a second one.
        if slot == "m" and not {(weight, "v"), (weight, "u")} & slots:
            return "momentum"
        return NEWER_SLOTS.get(slot, slot)

    return {name: f"{weight} @{slot_of(weight, slot)}" for name, (weight, slot) in pairs.items()}
