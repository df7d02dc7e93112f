"""A name for each variable of a Keras 2 model and of its optimizer, where Keras calls several alike.

A layer that another one makes and builds within its `build()` gives its weights that layer's name, and a `tf.Variable`
without a name is called `Variable`: of each a model may have several. A graph, in which an Estimator makes the same
layers, calls the second one `n/kernel_1`; so do these names, and so both know the same variables by them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

from estimator_pipeline.models.optimizers import keras2 as keras_optimizers

__all__ = ["named", "names_of", "plain_of"]


def named(model: Any) -> list[tuple[str, Any]]:
    """(name without ":0", variable) of the model's weights, and of a compiled model's optimizer.

    A slot is called after its weight's name here, `Adam/n/kernel_1/m` or `Adam/m/n/kernel_1`. What an optimizer has
    beside slots keeps its name: of two optimizers each may count the steps.

    Args:
        model: built; slots that were not made yet are not there, see `keras_optimizers.create_slots`.
    """
    weights = keras_optimizers.weights_of(model)
    names = names_of(weights)
    found = [(names[id(weight)], weight) for weight in weights]
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return found
    trained = [(names[id(weight)], weight) for weight in model.trainable_variables]
    slots: dict[int, str] = {}
    inner = getattr(optimizer, "inner_optimizer", optimizer)  # of a loss scale
    for part in getattr(inner, "parts", [inner]):  # of `keras_variables.by_variables`
        if keras_optimizers.is_legacy(part):
            slots.update(_slots_by_weight(part, trained))
        else:
            slots.update(_slots_in_order(part, trained))
    variables = keras_optimizers.variables_of(optimizer)
    return found + [(slots.get(id(variable), plain_of(variable)), variable) for variable in variables]


def names_of(weights: Iterable[Any]) -> dict[int, str]:
    """The `id` of a variable -> its name, without ":0", as a graph would call it in which they were made in turn."""
    weights = list(weights)
    plain = {plain_of(weight) for weight in weights}
    taken: set[str] = set()
    names: dict[int, str] = {}
    # They stand by layers, which need not be the turn in which they were made.
    for _, weight in sorted(enumerate(weights), key=lambda pair: (_made(pair[1]), pair[0])):
        if id(weight) in names:
            continue
        name, number = plain_of(weight), 0
        while name in taken or (number and name in plain):
            number += 1
            name = f"{plain_of(weight)}_{number}"
        taken.add(name)
        names[id(weight)] = name
    return names


def plain_of(variable: Any) -> str:
    """Return the name that it has, without ":0"."""
    return str(variable.name).partition(":")[0]


def _slots_by_weight(optimizer: Any, trained: Iterable[tuple[str, Any]]) -> dict[int, str]:
    """Of a legacy optimizer, which tells the slot of a weight."""
    found = {}
    for name, weight in trained:
        for slot in optimizer.get_slot_names():
            with contextlib.suppress(KeyError, TypeError):  # not every weight has every slot
                variable = optimizer.get_slot(weight, slot)
                # Those that were made before the first step do not bear the optimizer's name.
                before, _, _ = plain_of(variable).rpartition(f"{plain_of(weight)}/{slot}")
                found[id(variable)] = f"{before}{name}/{slot}"
    return found


def _slots_in_order(optimizer: Any, trained: Iterable[tuple[str, Any]]) -> dict[int, str]:
    """Of a newer optimizer, whose slots are made in the order of its weights, and end with their names."""
    weights: dict[str, list[str]] = {}
    for name, weight in trained:
        if optimizer._var_key(weight) in getattr(optimizer, "_index_dict", ()):  # made with the slots
            weights.setdefault(plain_of(weight), []).append(name)
    slots: dict[str, list[Any]] = {}
    for variable in keras_optimizers.variables_of(optimizer):
        slots.setdefault(plain_of(variable), []).append(variable)
    found = {}
    for name, several in slots.items():
        plain = max((one for one in weights if name.endswith(f"/{one}")), key=len, default="")
        if plain and len(weights[plain]) == len(several):
            for variable, known in zip(several, weights[plain], strict=True):
                found[id(variable)] = name.removesuffix(plain) + known
    return found


def _made(variable: Any) -> int:
    """Return a number that grows with the variables that are made; 0 where it is not known."""
    number = str(getattr(variable, "_unique_id", "")).rpartition("_")[2]
    return int(number) if number.isdigit() else 0
