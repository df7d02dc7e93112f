"""Models derived from a ModelFnModel: with further metrics, or with features in the predictions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from estimator_pipeline.models.keras_runtime.model_fn.model import ModelFnModel
from estimator_pipeline.models.keras_runtime.model_fn.settings import PredictOutput

__all__ = ["add_metrics", "forward_features"]


def add_metrics(model: Any, metric_fn: Callable[..., Mapping[str, Any]]) -> Any:
    """Return a model with further metrics.

    Args:
        model: A ModelFnModel.
        metric_fn: A function of any of features, labels, predictions and config that returns metrics by name.

    Returns:
        A new model with the same folder.
    """
    names = inspect.signature(metric_fn).parameters

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        spec = model.call_model_fn(features, labels, mode)
        if mode != "eval":
            return spec
        arguments = {"features": features, "labels": labels, "predictions": spec.predictions, "config": model.config}
        further = metric_fn(**{name: value for name, value in arguments.items() if name in names})
        return spec._replace(eval_metric_ops={**(spec.eval_metric_ops or {}), **further})

    return _like(model, model_fn)


def forward_features(model: Any, keys: Sequence[str] | str | None = None) -> Any:
    """Return a model that adds features to its predictions.

    Args:
        model: A ModelFnModel.
        keys: The features to add; None: all.

    Returns:
        A new model with the same folder.
    """
    names = [keys] if isinstance(keys, str) else keys

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        original = dict(features)
        spec = model.call_model_fn(features, labels, mode)
        if mode != "infer":
            return spec
        added = {name: original[name] for name in names or original}
        exports = dict(spec.export_outputs or {})
        for key, output in exports.items():
            if isinstance(output, PredictOutput):
                exports[key] = PredictOutput({**output.outputs, **added})
        return spec._replace(predictions={**spec.predictions, **added}, export_outputs=exports or None)

    return _like(model, model_fn)


def _like(model: Any, model_fn: Callable[..., Any]) -> Any:
    """Return a copy of a model with a different model_fn."""
    copy = ModelFnModel(model_fn, None, model.config, model.params, model.checkpoints.warm_start_from)
    copy.checkpoints.part_of_scope, copy.batch_sizes = model.checkpoints.part_of_scope, model.batch_sizes
    return copy
