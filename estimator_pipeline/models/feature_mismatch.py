"""Error messages for a Keras model that cannot be called on a job's features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from estimator_pipeline.errors import ConfigError

__all__ = ["mismatch", "refuse_text"]


def mismatch(model: Any, features: Any) -> ConfigError | None:
    """Compare a model's inputs with the features that it was called on.

    Args:
        model: A Keras model; one without defined inputs matches any features.
        features: Tensors or their specs: one, or by name.

    Returns:
        The error to raise instead of Keras's; None if names and number of inputs match, and sparse ones.
    """
    if model is None or features is None or not getattr(model, "inputs", None):
        return None
    wanted = _wanted(model)
    inputs = ", ".join(f"{name} {_shape(value)}" for name, value in wanted.items())
    if isinstance(features, Mapping):
        missing = [name for name in wanted if name not in features]
        names = ", ".join(f"{name} {_shape(value)}" for name, value in sorted(features.items()))
        if not missing:
            return _sparse(wanted, features)
        return ConfigError(
            f"the model has {'inputs' if len(missing) > 1 else 'an input'} named "
            f"{', '.join(map(repr, missing))}, and the data have no such feature",
            code="model/features-mismatch",
            found=f"features: {names}; inputs of the model: {inputs}",
            hint="use the same names for the model's inputs and the features, or give one feature as a tensor",
        )
    if len(wanted) > 1 and not isinstance(features, list | tuple):
        return ConfigError(
            f"the model has {len(wanted)} named inputs, and the data have one tensor",
            code="model/features-mismatch",
            found=f"features: {_shape(features)}; inputs of the model: {inputs}",
            hint="give the features as a dictionary with these names",
        )
    return _sparse(wanted, dict.fromkeys(wanted, features))


def _sparse(wanted: Mapping[str, Any], features: Mapping[str, Any]) -> ConfigError | None:
    """Return the error for sparse features of dense inputs, which only Keras 3 converts."""
    names = [name for name, value in wanted.items() if _is_sparse(features[name]) and not _is_sparse(value)]
    if not names:
        return None
    return ConfigError(
        f"the data have a sparse tensor for {', '.join(map(repr, names))}, and the model takes a dense tensor",
        code="model/features-mismatch",
        found=", ".join(f"{name} {_shape(features[name])}" for name in names),
        hint="give the model tf.keras.Input(..., sparse=True), and convert it in a layer with tf.sparse.to_dense; or "
        "use run.engine: keras3, which converts it",
    )


def _is_sparse(value: Any) -> bool:
    return "Sparse" in type(value).__name__ or bool(getattr(value, "sparse", False))


def refuse_text(model: Any, features: Any) -> None:
    """Raise if the data have text for a numeric input; TensorFlow would report 40 lines in the first step.

    Args:
        model: A Keras model; one without defined inputs matches any features.
        features: Tensors or their specs: one, or by name.

    Raises:
        ConfigError: A numeric input gets text.
    """
    if model is None or not getattr(model, "inputs", None):
        return
    wanted = _wanted(model)
    values = features if isinstance(features, Mapping) else dict.fromkeys(wanted, features)
    text = [
        name
        for name, value in wanted.items()
        if _is_text(values.get(name)) and hasattr(value, "dtype") and not _is_text(value)
    ]
    if text:
        raise ConfigError(
            f"the data have text for {', '.join(map(repr, text))}, and these inputs of the model take numbers",
            code="model/features-mismatch",
            found=", ".join(f"{name} of {getattr(wanted[name].dtype, 'name', wanted[name].dtype)}" for name in text),
            hint="read the column as numbers; or give the model tf.keras.Input(..., dtype='string') and a StringLookup",
        )


def _is_text(value: Any) -> bool:
    dtype = getattr(value, "dtype", None)
    return getattr(dtype, "name", dtype) == "string"


def _wanted(model: Any) -> dict[str, Any]:
    """Return the model's inputs by the names that Keras looks up in a dictionary."""
    for attribute in ("_nested_inputs", "_inputs_struct"):  # of Keras 2, of Keras 3
        nested = getattr(model, attribute, None)
        if isinstance(nested, Mapping):
            return dict(nested)
    names = getattr(model, "input_names", None) or [tensor.name for tensor in model.inputs]
    return dict(zip(names, model.inputs, strict=True))


def _shape(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return "of an unknown shape" if shape is None else str(tuple(shape) if shape.__class__ is tuple else shape)
