"""Unique names for the variables of a Keras 2 model and its optimizer.

Keras 2 can give several variables the same name: weights of a layer that is built within another layer's `build()` have
the outer layer's name, and each `tf.Variable` without a name is called `Variable`. In the graph of an Estimator with
the same layers, the second variable is called `n/kernel_1`. The names here are the same, so both engines match.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

from estimator_pipeline.models.optimizers import keras2 as keras_optimizers

__all__ = ["named", "names_of", "plain_of"]


def named(model: Any) -> list[tuple[str, Any]]:
    """Return (name without ":0", variable) of the model's weights and of a compiled model's optimizer.

    The name of a slot contains the weight's unique name, `Adam/n/kernel_1/m` or `Adam/m/n/kernel_1`. Other optimizer
    variables keep their names, so two optimizers may each have a step counter of the same name.

    Args:
        model: A built model. Slots that do not exist yet are missing, see `keras_optimizers.create_slots`.
    """
    weights = keras_optimizers.weights_of(model)
    names = names_of(weights)
    pairs = [(names[id(weight)], weight) for weight in weights]
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return pairs
    trained = [(names[id(weight)], weight) for weight in model.trainable_variables]
    inner = getattr(optimizer, "inner_optimizer", optimizer)  # of a loss scale
    by = _slots_by_weight if keras_optimizers.is_legacy(inner) else _slots_in_order
    slots = by(inner, trained)
    variables = keras_optimizers.variables_of(optimizer)
    return pairs + [(slots.get(id(variable), plain_of(variable)), variable) for variable in variables]


def names_of(weights: Iterable[Any]) -> dict[int, str]:
    """Return the unique name, without ":0", by the `id` of each variable.

    The names are those of a graph in which the variables are created in the same order.
    """
    weights = list(weights)
    plain = {plain_of(weight) for weight in weights}
    taken: set[str] = set()
    names: dict[int, str] = {}
    # The weights are sorted by layer, which may differ from the order of creation.
    for _, weight in sorted(enumerate(weights), key=lambda pair: (_creation_number(pair[1]), pair[0])):
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
    """Return the variable's own name, without ":0"."""
    return str(variable.name).partition(":")[0]


def _slots_by_weight(optimizer: Any, trained: Iterable[tuple[str, Any]]) -> dict[int, str]:
    """Return the slot names of a legacy optimizer, which can look up the slot of a weight."""
    names = {}
    for name, weight in trained:
        for slot in optimizer.get_slot_names():
            with contextlib.suppress(KeyError, TypeError):  # not every weight has every slot
                variable = optimizer.get_slot(weight, slot)
                # Slots that are created before the first step lack the optimizer's name.
                before, _, _ = plain_of(variable).rpartition(f"{plain_of(weight)}/{slot}")
                names[id(variable)] = f"{before}{name}/{slot}"
    return names


def _slots_in_order(optimizer: Any, trained: Iterable[tuple[str, Any]]) -> dict[int, str]:
    """Return the slot names of a newer optimizer, which creates slots in the order of its weights."""
    weights: dict[str, list[str]] = {}
    for name, weight in trained:
        if optimizer._var_key(weight) in getattr(optimizer, "_index_dict", ()):  # created together with the slots
            weights.setdefault(plain_of(weight), []).append(name)
    slots: dict[str, list[Any]] = {}
    for variable in keras_optimizers.variables_of(optimizer):
        slots.setdefault(plain_of(variable), []).append(variable)
    names = {}
    for name, several in slots.items():
        plain = max((plain_name for plain_name in weights if name.endswith(f"/{plain_name}")), key=len, default="")
        if plain and len(weights[plain]) == len(several):
            for variable, known in zip(several, weights[plain], strict=True):
                names[id(variable)] = name.removesuffix(plain) + known
    return names


def _creation_number(variable: Any) -> int:
    """Return a number that increases in the order of creation; 0 if unknown."""
    number = str(getattr(variable, "_unique_id", "")).rpartition("_")[2]
    return int(number) if number.isdigit() else 0
