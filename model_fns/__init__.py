"""Models, one a file, by name: for job files, and as Python.

    import model_fns

    fn = model_fns.model_fn("cnn", optimizer={"name": "momentum", "learning_rate": 0.05})   # for tf.estimator
    model = model_fns.keras_model("cnn", classes=10)                               # the same layers, plain Keras

A job file's model takes the shape of its input and its number of classes from the data (:func:`for_data`).

Each file has `keras_model(params)`, which builds the layers and gives logits, `DEFAULTS` (its parameters), `LOSS` and
`METRICS`; one that takes named columns has `columns(params)`, which gives their names. They use the public API of
estimator_pipeline alone: a model of your own looks the same.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from types import ModuleType
from typing import Any

from estimator_pipeline.errors import ConfigError

NAMES = ("cnn", "dnn", "linear", "resnet", "wide_deep")

__all__ = ["NAMES", "for_data", "get", "keras_model", "model_fn"]


def get(name: str) -> ModuleType:
    """The module of the model `name`.

    Raises:
        ConfigError: there is no such model.
    """
    if name not in NAMES:
        raise ConfigError(
            f"the model {name!r} is not known",
            code="argument/unknown-name",
            found=f"models in model_fns/: {', '.join(NAMES)}",
            hint="name one of these, or point model.function at your own",
        )
    return importlib.import_module(f"model_fns.{name}")


def keras_model(name: str, **params: Any) -> Any:
    """The plain Keras model: call it on a batch of features, it gives logits."""
    module = get(name)
    return module.keras_model(complete(name, params))


def model_fn(name: str, *, params: Mapping[str, Any] | None = None, **options: Any) -> Callable[..., Any]:
    """The `model_fn` of the model `name`.

    Args:
        name: one of :data:`NAMES`.
        params: parameters of the layers, over the model's `DEFAULTS`.
        **options: of :func:`estimator_pipeline.build_model_fn`; loss and metrics default to the model's own.
    """
    import estimator_pipeline

    layers = get(name).keras_model
    return estimator_pipeline.build_model_fn(layers, params=complete(name, params or {}), **with_loss(name, options))


def with_loss(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """`options` with the model's own loss where they name none, and its metrics where the loss is its own."""
    module = get(name)
    found = {"loss": module.LOSS, **options}
    if found["loss"] == module.LOSS:
        found.setdefault("metrics", module.METRICS)
    return found


def for_data(
    name: str,
    params: Mapping[str, Any],
    *,
    shapes: Mapping[str, Sequence[int | None] | None] | None = None,
    classes: int | None = None,
    loss: str | None = None,
    text: Collection[str] = (),
) -> dict[str, Any]:
    """`params` with what the data tell of those that are not given: the shape of the input, the number of classes.

    Args:
        name: one of :data:`NAMES`.
        params: what is given.
        shapes: of one record's features by name, without the batch axis; None: not known.
        classes: how many the labels have; None: not known.
        loss: the loss; None: the model's own.
        text: the names of the features that are text.

    Raises:
        ConfigError: what is given does not fit the data, or the data do not fit the model.
    """
    module = get(name)
    told: dict[str, Any] = {}
    if shapes and "input_shape" in module.DEFAULTS:
        if len(shapes) > 1:
            raise ConfigError(
                f"the model {name!r} takes one tensor, and the data give several features",
                code="model/features-mismatch",
                found=", ".join(sorted(shapes)),
                hint="name one of them as input.features_key, or take another model, such as wide_deep",
            )
        shape = next(iter(shapes.values()))
        if shape is not None:
            told["input_shape"] = _input_shape(name, params, shape)
    if hasattr(module, "columns"):
        columns = module.columns(complete(name, params))
        _check_columns(name, columns, shapes or {})
        text = [column for column in columns if column in text]
    if text:
        raise ConfigError(
            f"the model {name!r} takes numbers, and the data give text: {', '.join(sorted(text))}",
            code="model/features-mismatch",
            hint="give the column a type of numbers, write ids in its place, or take a model.function that looks it up",
        )
    # With another loss, `classes` are outputs.
    if classes is not None and (loss or module.LOSS) == "sparse_categorical_crossentropy":
        told["classes"] = classes
        given = _sizes(name, params, "classes", what="number of classes", many=False)
        if given is not None and given[0] < classes:
            raise ConfigError(
                f"the model {name!r} has {given[0]} classes, and the data more",
                code="model/features-mismatch",
                found=f"labels from 0 to {classes - 1}",
                hint=f"leave model.params.classes out, or set it to {classes} at least",
            )
    return {**told, **params}


def _check_columns(name: str, columns: Sequence[str], shapes: Mapping[str, Sequence[int | None] | None]) -> None:
    missing = [column for column in columns if column not in shapes] if shapes else []
    if missing:
        raise ConfigError(
            f"the model {name!r} takes columns that the data do not give: {', '.join(missing)}",
            code="model/features-mismatch",
            found=f"features of the data: {', '.join(sorted(shapes))}",
            hint="correct the names in model.params, or take another model for these data, such as dnn",
        )
    for column in columns:
        shape = shapes.get(column)
        if shape is not None and (len(shape) > 1 or (len(shape) == 1 and shape[0] not in (1, None))):
            raise ConfigError(
                f"the model {name!r} takes one value a record of its column {column!r}, and the data give more",
                code="model/features-mismatch",
                found=f"records of the shape {_shape_text(shape)}",
                hint="leave it out of model.params, or take another model for these data, such as dnn",
            )


def _input_shape(name: str, params: Mapping[str, Any], shape: Sequence[int | None]) -> tuple[int | None, ...]:
    if None in shape:
        raise ConfigError(
            f"the model {name!r} needs inputs of one shape, and the data have none",
            code="model/features-mismatch",
            found=f"records of the shape {_shape_text(shape)}",
            hint="bring them to one size first: in the files, or in an own input function (input.source: function)",
        )
    given = _sizes(name, params, "input_shape", what="shape", many=True)
    # Keras adds or drops a last axis of 1 by itself.
    if given is not None and _without_ones(given) != _without_ones(shape):
        raise ConfigError(
            f"the input_shape {_shape_text(given)} of the model {name!r} is not that of the data",
            code="model/features-mismatch",
            found=f"records of the shape {_shape_text(shape)}",
            hint="leave model.params.input_shape out: the model takes it from the data",
        )
    return tuple(shape)


def _sizes(name: str, params: Mapping[str, Any], key: str, *, what: str, many: bool) -> Sequence[int] | None:
    """A parameter that is one whole number from 1 on, or several; None: it is not given."""
    given = params.get(key)
    if given is None:
        return None
    sizes = given if many else [given]
    if not isinstance(sizes, list | tuple) or not sizes or any(type(size) is not int or size < 1 for size in sizes):
        raise ConfigError(
            f"{key} {given!r} of the model {name!r} is no {what}",
            code="argument/bad-value",
            hint=f"leave model.params.{key} out: the model takes it from the data",
        )
    return sizes


def _without_ones(shape: Sequence[int | None]) -> tuple[int | None, ...]:
    found = tuple(shape)
    while found and found[-1] == 1:
        found = found[:-1]
    return found


def _shape_text(shape: Sequence[int | None]) -> str:
    return "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"


def complete(name: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """The model's defaults with `params` over them.

    Raises:
        ConfigError: a parameter that the model does not have.
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
