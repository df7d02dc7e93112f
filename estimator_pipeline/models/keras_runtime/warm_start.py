"""Warm starts and restores of a Keras model's weights by the names of an Estimator's variables.

    from estimator_pipeline.models.keras_runtime import warm_start as keras_weights

    keras_weights.warm_start(model, keras_weights.WarmStartSettings("old_model", ".*conv.*"), scope="net")
    print(keras_weights.named_values(model, scope="net")["net/conv1/kernel"])

A layer of a converted program has the variable scope as a prefix of its name, or no scope: `net/conv1/kernel` becomes
`net_conv1/kernel` or `conv1/kernel`. With `scope="net"`, the names here are those of the Estimator, `net/conv1/kernel`.
Checkpoints may come from an Estimator or from `save_weights`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from estimator_pipeline import compat
from estimator_pipeline.compat.internals.saving import object_graph
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.models import keras_variable_names as keras_names
from estimator_pipeline.models.optimizers import keras2 as keras_optimizers

__all__ = ["WarmStartSettings", "named_values", "restore", "warm_start"]


@dataclass(frozen=True)
class WarmStartSettings:
    """The weights to initialize from a checkpoint.

    Args:
        ckpt_to_initialize_from: A checkpoint, a folder with checkpoints, or a SavedModel.
        vars_to_warm_start: A pattern that matches the start of the names of trainable weights, or a list of patterns
            for the names of any weights.
        var_name_to_prev_var_name: Name -> name in the checkpoint, where they differ.
        scope: The scope of the names in a checkpoint that `save_weights` wrote.
    """

    ckpt_to_initialize_from: str
    vars_to_warm_start: str | Sequence[str] = ".*"
    var_name_to_prev_var_name: Mapping[str, str] | None = None
    scope: str = ""


def named_values(model: Any, *, scope: str = "") -> dict[str, Any]:
    """Return the values of a model's weights by the names of the Estimator's variables.

    Args:
        model: A Keras model.
        scope: The variable scope of all names in the Estimator.
    """
    return {name: weight.numpy() for name, weight in _named(model, scope).items()}


def restore(model: Any, folder: str, *, scope: str = "", required: bool = True) -> bool:
    """Restore all weights of a model from the latest checkpoint of a folder.

    Args:
        model: A Keras model.
        folder: The folder with the checkpoints.
        scope: As for `named_values`.
        required: Whether to raise if there is no checkpoint.

    Returns:
        Whether there was a checkpoint.

    Raises:
        ConfigError: There is no checkpoint, it lacks a weight, or a weight has a different shape.
    """
    path = compat.tensorflow().train.latest_checkpoint(folder)
    if path is None and required:
        raise ConfigError(
            f"the model cannot be restored: there is no checkpoint in {folder}",
            code="file/not-found",
            hint="train the model first",
        )
    if path is None:
        return False
    _assign(_named(model, scope), path, scope=scope)
    return True


def warm_start(model: Any, settings: WarmStartSettings | str | None, *, scope: str = "") -> None:
    """Initialize weights of a model from a checkpoint before training.

    Args:
        model: A Keras model.
        settings: As for an Estimator's `warm_start_from`; a path means all trainable weights; None: no warm start.
        scope: As for `named_values`.

    Raises:
        ConfigError: The checkpoint lacks a weight, a weight has a different shape, or a name is not used.
    """
    if settings is None:
        return
    if isinstance(settings, str):
        settings = WarmStartSettings(settings)
    named, patterns = _named(model, scope), settings.vars_to_warm_start
    asked = {id(weight) for weight in (model.trainable_weights if isinstance(patterns, str) else named.values())}
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
            f"var_name_to_prev_var_name has {unused[0]!r}, and no such weight is initialized from the checkpoint",
            code="argument/bad-value",
            found=f"weights: {', '.join(chosen) or 'none'}",
            hint="use one of these names, or change the patterns to match it",
        )
    path = _path(settings.ckpt_to_initialize_from)
    _assign(chosen, path, lambda name: before.get(name, name), scope=settings.scope)


def _assign(named: Mapping[str, Any], path: str, before: Callable[[str], str] = str, *, scope: str = "") -> None:
    """Assign weights from a checkpoint.

    Args:
        named: Name -> weight.
        path: The path of the checkpoint.
        before: Converts a name to the name in the checkpoint.
        scope: As for `named_values`.

    Raises:
        ConfigError: The checkpoint lacks a weight, or a weight has a different shape.
    """
    saved, read = _checkpoint(path, scope)
    hint = (
        "the checkpoint belongs to a different model: choose a different folder; for a warm start, map the names with "
        "var_name_to_prev_var_name"
    )
    for name, weight in named.items():
        old = before(name)
        if old not in saved:
            raise ConfigError(
                f"the checkpoint {path} has no weight {old!r}",
                code="model-dir/other-model",
                found=", ".join(sorted(saved)),
                hint=hint,
            )
        value = np.asarray(read(saved[old]))
        if value.shape != tuple(weight.shape):
            raise ConfigError(
                f"the weight {name!r} has the shape {tuple(weight.shape)}, but not in the checkpoint {path}",
                code="model-dir/other-model",
                found=f"{old!r} of {value.shape}",
                hint=hint,
            )
        weight.assign(value)


def _named(model: Any, scope: str) -> dict[str, Any]:
    """Return a model's weights by name, without the variables of its metrics."""
    weights = keras_optimizers.weights_of(model)
    names = keras_names.names_of(weights)
    return {_before(names[id(weight)], scope): weight for weight in weights}


def _before(name: str, scope: str) -> str:
    """Return the Estimator's name of a weight in a scope."""
    return f"{scope}/{name.removeprefix(scope.replace('/', '_') + '_')}" if scope else name


def _path(source: str) -> str:
    """Return the path of a checkpoint from a checkpoint, a folder or a SavedModel."""
    tf = compat.tensorflow()
    inside = os.path.join(source, "variables", "variables")
    if tf.io.gfile.exists(f"{inside}.index"):
        return inside
    path = tf.train.latest_checkpoint(source) if tf.io.gfile.isdir(source) else source
    if path is None:
        raise ConfigError(
            f"a warm start is not possible: there is no checkpoint in {source}",
            code="file/not-found",
            hint="train that model first",
        )
    return str(path)


def _checkpoint(path: str, scope: str) -> tuple[dict[str, str], Callable[[str], Any]]:
    """Return the key in a checkpoint of each weight name, and a function that reads a key."""
    reader = compat.tensorflow().train.load_checkpoint(path)
    keys = reader.get_variable_to_shape_map()
    if object_graph.KEY not in keys:
        return {name: name for name in keys}, reader.get_tensor
    described = object_graph.variables_in(reader.get_tensor(object_graph.KEY))
    saved = {_before(item.full_name, scope): item.key for item in described if item.full_name and item.slot is None}
    return saved, reader.get_tensor
