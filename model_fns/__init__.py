"""Models, one a file, by name: for job files, and as Python.

    import model_fns

    fn = model_fns.model_fn("cnn", optimizer={"name": "momentum", "learning_rate": 0.05})   # for tf.estimator
    model = model_fns.keras_model("cnn", classes=10)                               # the same layers, plain Keras

Each file has `keras_model(params)`, which builds the layers and gives logits, `DEFAULTS` (its parameters), `LOSS` and
`METRICS`. They use the public API of estimator_pipeline alone: a model of your own looks the same.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from estimator_pipeline.errors import ConfigError

NAMES = ("cnn", "dnn", "linear", "resnet", "wide_deep")

__all__ = ["NAMES", "get", "keras_model", "model_fn"]


def get(name: str) -> ModuleType:
    """The module of the model `name`.

    Raises:
        ConfigError: there is no such model.
    """
    if name not in NAMES:
        raise ConfigError(
            f"the model {name!r} is not known",
            found=f"models in model_fns/: {', '.join(NAMES)}",
            mend="name one of these, or point model.function at your own",
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


def complete(name: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """The model's defaults with `params` over them.

    Raises:
        ConfigError: a parameter that the model does not have.
    """
    defaults = get(name).DEFAULTS
    unknown = sorted(set(params) - set(defaults))
    if unknown:
        raise ConfigError(
            f"the model {name!r} has no parameter {', '.join(unknown)}", found=f"parameters: {', '.join(defaults)}"
        )
    return {**defaults, **params}
