"""Built-in models by name, one per file, for job files and for Python.

    import model_fns

    fn = model_fns.model_fn("cnn", optimizer={"name": "momentum", "learning_rate": 0.05})   # for tf.estimator
    model = model_fns.keras_model("cnn", classes=10)                               # the same layers, plain Keras

In a job file, the input shape and the number of classes default to those of the data (`for_data`).

Each file has `keras_model(params)`, which builds the layers and returns logits, `DEFAULTS` (its parameters), `LOSS`
and `METRICS`; a model with named columns has `columns(params)`, which returns their names. The models use only the
public API of estimator_pipeline: custom models have the same structure.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from types import ModuleType
from typing import Any

from estimator_pipeline.errors import ConfigError

NAMES = ("cnn", "dnn", "linear", "resnet", "wide_deep")

_LOSSES_OF_CLASSES = ("sparse_categorical_crossentropy", "categorical_crossentropy")

__all__ = ["NAMES", "for_data", "get", "keras_model", "model_fn"]


def get(name: str) -> ModuleType:
    """Return the module of the model `name`.

    Raises:
        ConfigError: There is no such model.
    """
    if name not in NAMES:
        raise ConfigError(
            f"the model {name!r} is unknown",
            code="argument/unknown-name",
            found=f"models in model_fns/: {', '.join(NAMES)}",
            hint="use one of these, or set model.function to a custom model",
        )
    return importlib.import_module(f"model_fns.{name}")


def keras_model(name: str, **params: Any) -> Any:
    """Return the plain Keras model, which maps a batch of features to logits."""
    module = get(name)
    return module.keras_model(complete(name, params))


def model_fn(name: str, *, params: Mapping[str, Any] | None = None, **options: Any) -> Callable[..., Any]:
    """Return the `model_fn` of the model `name`.

    Args:
        name: One of `NAMES`.
        params: Parameters of the layers, which override the model's `DEFAULTS`.
        **options: Options of `estimator_pipeline.build_model_fn`; loss and metrics default to the model's.
    """
    import estimator_pipeline

    layers = get(name).keras_model
    return estimator_pipeline.build_model_fn(layers, params=complete(name, params or {}), **with_loss(name, options))


def with_loss(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return `options` with the model's default loss, and with its default metrics for that loss."""
    module = get(name)
    merged = {"loss": module.LOSS, **options}
    if merged["loss"] == module.LOSS:
        merged.setdefault("metrics", module.METRICS)
    return merged


def for_data(
    name: str,
    params: Mapping[str, Any],
    *,
    shapes: Mapping[str, Sequence[int | None] | None] | None = None,
    classes: int | None = None,
    loss: str | None = None,
    text: Collection[str] = (),
) -> dict[str, Any]:
    """Return `params` with the data's input shape and number of classes as defaults.

    Args:
        name: One of `NAMES`.
        params: The explicit parameters.
        shapes: Shapes of one record's features by name, without the batch axis; None if unknown.
        classes: The number of classes of the labels; None if unknown.
        loss: The loss; None for the model's default.
        text: The names of text features.

    Raises:
        ConfigError: The parameters do not match the data, or the data do not match the model.
    """
    module = get(name)
    defaults: dict[str, Any] = {}
    columns = module.columns(complete(name, params)) if hasattr(module, "columns") else ()
    if shapes and "input_shape" in module.DEFAULTS and not columns:
        if len(shapes) > 1:
            raise ConfigError(
                f"the model {name!r} takes one tensor, but the data have several features",
                code="model/features-mismatch",
                found=", ".join(sorted(shapes)),
                hint="set input.features_key to one of them, or use a different model, such as wide_deep",
            )
        shape = next(iter(shapes.values()))
        if shape is not None:
            defaults["input_shape"] = _input_shape(name, params, shape)
    if columns:
        _check_columns(name, columns, shapes or {})
        text = [column for column in columns if column in text]
    if text:
        raise ConfigError(
            f"the model {name!r} takes numbers, but the data have text: {', '.join(sorted(text))}",
            code="model/features-mismatch",
            hint="in a job for a CSV or Parquet file leave input.columns and the columns in model.params out: texts "
            "become ids (docs/guides/tables.md); or use a numeric type, or custom layers with a lookup",
        )
    # With other losses, `classes` is the number of outputs: one for the columns of a table.
    if columns and module.DEFAULTS["classes"] != 1 and (loss or module.LOSS) not in _LOSSES_OF_CLASSES:
        defaults["classes"] = 1
    if classes is not None and (loss or module.LOSS) == "sparse_categorical_crossentropy":
        defaults["classes"] = classes
        explicit = _sizes(name, params, "classes", noun="number of classes", many=False)
        if explicit is not None and explicit[0] < classes:
            raise ConfigError(
                f"the model {name!r} has {explicit[0]} classes, but the data have more",
                code="model/features-mismatch",
                found=f"labels from 0 to {classes - 1}",
                hint=f"leave model.params.classes out, or set it to at least {classes}",
            )
    return {**defaults, **params}


def _check_columns(name: str, columns: Sequence[str], shapes: Mapping[str, Sequence[int | None] | None]) -> None:
    missing = [column for column in columns if column not in shapes] if shapes else []
    if missing:
        raise ConfigError(
            f"the model {name!r} takes columns that the data do not have: {', '.join(missing)}",
            code="model/features-mismatch",
            found=f"features of the data: {', '.join(sorted(shapes))}",
            hint="correct the names in model.params, or use a different model for these data, such as dnn",
        )
    for column in columns:
        shape = shapes.get(column)
        if shape is not None and (len(shape) > 1 or (len(shape) == 1 and shape[0] not in (1, None))):
            raise ConfigError(
                f"the model {name!r} takes one value per record from the column {column!r}, but the data have more",
                code="model/features-mismatch",
                found=f"records of the shape {_shape_text(shape)}",
                hint="leave it out of model.params, or use a different model for these data, such as dnn",
            )


def _input_shape(name: str, params: Mapping[str, Any], shape: Sequence[int | None]) -> tuple[int | None, ...]:
    if None in shape:
        raise ConfigError(
            f"the model {name!r} needs inputs of one shape, but the shapes of the data differ",
            code="model/features-mismatch",
            found=f"records of the shape {_shape_text(shape)}",
            hint="convert them to one size: in the files, or in a user input function (input.source: function)",
        )
    explicit = _sizes(name, params, "input_shape", noun="shape", many=True)
    # Keras automatically adds or drops a last axis of size 1.
    if explicit is not None and _without_ones(explicit) != _without_ones(shape):
        raise ConfigError(
            f"the input_shape {_shape_text(explicit)} of the model {name!r} does not match the data",
            code="model/features-mismatch",
            found=f"records of the shape {_shape_text(shape)}",
            hint="leave model.params.input_shape out: the model takes it from the data",
        )
    return tuple(shape)


def _sizes(name: str, params: Mapping[str, Any], key: str, *, noun: str, many: bool) -> Sequence[int] | None:
    """Return a parameter of one or several whole numbers from 1 on, or None if it is not set."""
    value = params.get(key)
    if value is None:
        return None
    sizes = value if many else [value]
    if not isinstance(sizes, list | tuple) or not sizes or any(type(size) is not int or size < 1 for size in sizes):
        raise ConfigError(
            f"{key} {value!r} of the model {name!r} is not a {noun}",
            code="argument/bad-value",
            hint=f"leave model.params.{key} out: the model takes it from the data",
        )
    return sizes


def _without_ones(shape: Sequence[int | None]) -> tuple[int | None, ...]:
    sizes = tuple(shape)
    while sizes and sizes[-1] == 1:
        sizes = sizes[:-1]
    return sizes


def _shape_text(shape: Sequence[int | None]) -> str:
    return "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"


def complete(name: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model's defaults with the overrides `params`.

    Raises:
        ConfigError: An unknown parameter.
    """
    defaults = get(name).DEFAULTS
    unknown = sorted(set(params) - set(defaults))
    if unknown:
        raise ConfigError(
            f"the model {name!r} has no parameter {', '.join(unknown)}",
            code="argument/unknown-name",
            found=f"parameters: {', '.join(defaults)}",
            hint="correct it in model.params, or leave it out",
        )
    return {**defaults, **params}
