"""Why a Keras model cannot be called on a job's features: looked at after it has failed, to tell it in a few words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from estimator_pipeline.errors import ConfigError

__all__ = ["mismatch", "refuse_text"]


def mismatch(model: Any, features: Any) -> ConfigError | None:
    """Return what does not fit between a model's inputs and the features that it was called on.

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
            code="model/features-mismatch",
            found=f"features: {given}; inputs of the model: {told}",
            hint="call the model's inputs and the features by the same names, or give one feature as a tensor",
        )
    if len(wanted) > 1 and not isinstance(features, list | tuple):
        return ConfigError(
            f"the model wants {len(wanted)} inputs by name, and the data give one tensor",
            code="model/features-mismatch",
            found=f"features: {_shape(features)}; inputs of the model: {told}",
            hint="give the features as a dictionary with these names",
        )
    return None


def refuse_text(model: Any, features: Any) -> None:
    """Raise where the data have text for an input of numbers: TensorFlow says so in the first step, in 40 lines.

    Args:
        model: of Keras; one that does not say what its inputs are, fits anything.
        features: as above.

    Raises:
        ConfigError: such an input, by name.
    """
    if model is None or not getattr(model, "inputs", None):
        return
    wanted = _wanted(model)
    given = features if isinstance(features, Mapping) else dict.fromkeys(wanted, features)
    text = [
        name
        for name, one in wanted.items()
        if _is_text(given.get(name)) and hasattr(one, "dtype") and not _is_text(one)
    ]
    if text:
        raise ConfigError(
            f"the data have text for {', '.join(map(repr, text))}, and the model takes numbers there",
            code="model/features-mismatch",
            found=", ".join(f"{name} of {getattr(wanted[name].dtype, 'name', wanted[name].dtype)}" for name in text),
            hint="read the column as numbers; or give the model tf.keras.Input(..., dtype='string') and a StringLookup",
        )


def _is_text(value: Any) -> bool:
    dtype = getattr(value, "dtype", None)
    return getattr(dtype, "name", dtype) == "string"


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
