"""Why a Keras model cannot be called on a job's features: looked at after it has failed, to tell it in a few words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from estimator_pipeline.errors import ConfigError

__all__ = ["mismatch"]


def mismatch(model: Any, features: Any) -> ConfigError | None:
    """What does not fit between a model's inputs and the features that it was called on.

    Args:
        model: of Keras; one that does not say what its inputs are, fits anything.
        features: tensors or their specs: one, or by name.

    Returns:
        The error to raise in the place of Keras's; None where names and numbers fit.
    """
    if model is None or features is None or not getattr(model, "inputs", None):
        return None
    wanted = _wanted(model)
    told = ", ".join(f"{name} {_shape(one)}" for name, one in wanted.items())
    if isinstance(features, Mapping):
        missing = [name for name in wanted if name not in features]
        given = ", ".join(f"{name} {_shape(one)}" for name, one in sorted(features.items()))
        if not missing:
            return None
        return ConfigError(
            f"the model wants {'inputs' if len(missing) > 1 else 'an input'} of the name "
            f"{', '.join(map(repr, missing))}, and the data have no such feature",
            found=f"features: {given}; inputs of the model: {told}",
            mend="call the model's inputs and the features by the same names, or give one feature as a tensor",
        )
    if len(wanted) > 1 and not isinstance(features, list | tuple):
        return ConfigError(
            f"the model wants {len(wanted)} inputs by name, and the data give one tensor",
            found=f"features: {_shape(features)}; inputs of the model: {told}",
            mend="give the features as a dictionary with these names",
        )
    return None


def _wanted(model: Any) -> dict[str, Any]:
    """Input name -> what it takes, by the names that Keras looks for in a dictionary."""
    for attribute in ("_nested_inputs", "_inputs_struct"):  # of Keras 2, of Keras 3
        nested = getattr(model, attribute, None)
        if isinstance(nested, Mapping):
            return dict(nested)
    names = getattr(model, "input_names", None) or [one.name for one in model.inputs]
    return dict(zip(names, model.inputs, strict=True))


def _shape(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return "of an unknown shape" if shape is None else str(tuple(shape) if shape.__class__ is tuple else shape)
