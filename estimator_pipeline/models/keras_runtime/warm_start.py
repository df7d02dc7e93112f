"""The weights of a Keras model by the names that an Estimator gave them: read, restored, taken over from another one.

    from estimator_pipeline.models.keras_runtime import warm_start as keras_weights

    keras_weights.warm_start(model, keras_weights.WarmStartSettings("old_model", ".*conv.*"), scope="net")
    print(keras_weights.named_values(model, scope="net")["net/conv1/kernel"])

A layer of a converted program has the scope of its variables before its name, or nothing of it: what was
`net/conv1/kernel` is `net_conv1/kernel` or `conv1/kernel`, and with `scope` it is asked for by the first of the three.
Checkpoints may be an Estimator's, or what `save_weights` wrote.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from estimator_pipeline import compat
from estimator_pipeline.compat.internals.saving import object_graph
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.models import keras_variable_names as keras_names
from estimator_pipeline.models.optimizers import keras2 as keras_optimizers

__all__ = ["WarmStartSettings", "assign", "named_values", "restore", "warm_start", "warm_start_named"]


@dataclass(frozen=True)
class WarmStartSettings:
    """Which weights begin as those of a checkpoint.

    Args:
        ckpt_to_initialize_from: a checkpoint, a folder with checkpoints, or a SavedModel.
        vars_to_warm_start: a pattern that the names of trained weights begin with, or a list of patterns for the names
            of any.
        var_name_to_prev_var_name: name -> the name in the checkpoint, where it is another one.
        scope: that the names in the checkpoint began with, where `save_weights` wrote it.
    """

    ckpt_to_initialize_from: str
    vars_to_warm_start: str | Sequence[str] = ".*"
    var_name_to_prev_var_name: Mapping[str, str] | None = None
    scope: str = ""


def named_values(model: Any, *, scope: str = "") -> dict[str, Any]:
    """Return the values of a model's weights by the names that they had.

    Args:
        scope: the scope of variables that all names began with.
    """
    return {name: weight.numpy() for name, weight in _named(model, scope).items()}


def restore(model: Any, folder: str, *, scope: str = "", required: bool = True) -> bool:
    """Give a model all weights of the last checkpoint of a folder, as an Estimator evaluates what is in its own.

    Args:
        folder: of the model.
        scope: as for `named_values`.
        required: whether there has to be one.

    Returns:
        Whether there was a checkpoint.

    Raises:
        ConfigError: there is none, it lacks a weight, or has one of another shape.
    """
    path = compat.tensorflow().train.latest_checkpoint(folder)
    if path is None and required:
        raise ConfigError(
            f"a model is to be restored from {folder}, and there is no checkpoint",
            code="file/not-found",
            hint="train it first",
        )
    if path is None:
        return False
    assign(_named(model, scope), path, scope=scope)
    return True


def warm_start(model: Any, settings: WarmStartSettings | str | None, *, scope: str = "") -> None:
    """Give weights of a model the values of a checkpoint, before it is trained.

    Args:
        settings: as an Estimator takes them for `warm_start_from`; a path is for all weights that are trained; None:
            nothing is done.
        scope: as for `named_values`.

    Raises:
        ConfigError: the checkpoint lacks a weight, or has one of another shape, or a name is not used.
    """
    warm_start_named(_named(model, scope), model.trainable_weights, settings)


def warm_start_named(
    named: Mapping[str, Any], trained: Iterable[Any], settings: WarmStartSettings | str | None, *, kind: str = "weight"
) -> None:
    """The same for weights that no model has.

    Args:
        named: name -> weight.
        trained: those that a single pattern may mean.
        settings: as for `warm_start`.
        kind: what the weights are called in errors.
    """
    if settings is None:
        return
    if isinstance(settings, str):
        settings = WarmStartSettings(settings)
    patterns = settings.vars_to_warm_start
    asked = {id(weight) for weight in (trained if isinstance(patterns, str) else named.values())}
    wanted = [patterns] if isinstance(patterns, str) else patterns or ()
    chosen = {
        name: weight
        for name, weight in named.items()
        if id(weight) in asked and any(re.match(pattern, f"{name}:0") for pattern in wanted)
    }
    before = dict(settings.var_name_to_prev_var_name or {})
    unused = sorted(before.keys() - chosen.keys())
    if unused:
        raise ConfigError(
            f"a warm start has another name for {unused[0]!r}, and no such weight is started from the checkpoint",
            code="argument/bad-value",
            found=f"weights: {', '.join(chosen) or 'none'}",
            hint="name one of them, or let the patterns match it",
        )
    path = _path(settings.ckpt_to_initialize_from)
    assign(chosen, path, lambda name: before.get(name, name), scope=settings.scope, kind=kind)


def assign(
    named: Mapping[str, Any], path: str, before: Callable[[str], str] = str, *, scope: str = "", kind: str = "weight"
) -> None:
    """Give weights the values of a checkpoint.

    Args:
        named: name -> weight.
        path: of the checkpoint.
        before: the name that the checkpoint has for a name.
        scope: as for `named_values`.
        kind: what the weights are called in errors.

    Raises:
        ConfigError: the checkpoint lacks a weight, or has one of another shape.
    """
    saved, read = _checkpoint(path, scope)
    hint = "it is of another model: choose another folder; a warm start takes other names by var_name_to_prev_var_name"
    for name, weight in named.items():
        old = before(name)
        if old not in saved:
            raise ConfigError(
                f"the checkpoint {path} has no {kind} {old!r}",
                code="model-dir/other-model",
                found=", ".join(sorted(saved)),
                hint=hint,
            )
        value = np.asarray(read(saved[old]))
        if value.shape != tuple(weight.shape):
            raise ConfigError(
                f"the {kind} {name!r} has the shape {tuple(weight.shape)}, and another one in the checkpoint {path}",
                code="model-dir/other-model",
                found=f"{old!r} of {value.shape}",
                hint=hint,
            )
        weight.assign(value)


def _named(model: Any, scope: str) -> dict[str, Any]:
    """Name -> weight of a model, without what its metrics keep."""
    weights = keras_optimizers.weights_of(model)
    names = keras_names.names_of(weights)
    return {_before(names[id(weight)], scope): weight for weight in weights}


def _before(name: str, scope: str) -> str:
    """Return the name that a weight had in its scope."""
    return f"{scope}/{name.removeprefix(scope.replace('/', '_') + '_')}" if scope else name


def _path(source: str) -> str:
    """Return the checkpoint that is meant."""
    tf = compat.tensorflow()
    inside = os.path.join(source, "variables", "variables")
    if tf.io.gfile.exists(f"{inside}.index"):
        return inside
    path = tf.train.latest_checkpoint(source) if tf.io.gfile.isdir(source) else source
    if path is None:
        raise ConfigError(
            f"a warm start from {source}, and there is no checkpoint",
            code="file/not-found",
            hint="train that model first",
        )
    return str(path)


def _checkpoint(path: str, scope: str) -> tuple[dict[str, str], Callable[[str], Any]]:
    """(name of a weight -> its key in a checkpoint, what reads a key)."""
    reader = compat.tensorflow().train.load_checkpoint(path)
    keys = reader.get_variable_to_shape_map()
    if object_graph.KEY not in keys:
        return {name: name for name in keys}, reader.get_tensor
    described = object_graph.variables_in(reader.get_tensor(object_graph.KEY))
    saved = {_before(one.full_name, scope): one.key for one in described if one.full_name and one.slot is None}
    return saved, reader.get_tensor
