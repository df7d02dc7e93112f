"""What the exporters of all engines share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError

__all__ = ["better", "require_features_spec", "served_features", "tensors_by_name"]

# In signatures, TensorFlow gives the parts of a sparse input these names (saved_model/load_v1_in_v2.py).
_SPARSE_PARTS = ("indices", "values", "dense_shape")


def tensors_by_name(features: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors by name that a served model takes: three for each sparse feature.

    Args:
        features: Feature name -> its tensor, or its `tf.TypeSpec` of one record (the specs then get a batch axis).
    """
    tf = compat.tensorflow()
    tensors: dict[str, Any] = {}
    for name, value in features.items():
        if isinstance(value, tf.SparseTensorSpec):
            rank = value.shape.rank
            shapes = {
                "indices": ([None, rank], tf.int64),
                "values": ([None], value.dtype),
                "dense_shape": ([rank], tf.int64),
            }
            tensors |= {f"{name}_{part}": tf.TensorSpec(*shapes[part]) for part in _SPARSE_PARTS}
        elif isinstance(value, tf.SparseTensor):
            tensors |= {f"{name}_{part}": getattr(value, part) for part in _SPARSE_PARTS}
        elif isinstance(value, tf.TensorSpec):
            tensors[name] = tf.TensorSpec([None, *value.shape.as_list()], value.dtype)
        else:
            tensors[name] = value
    return tensors


def served_features(tensors: Mapping[str, Any], features_spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the features of `tensors_by_name`."""
    tf = compat.tensorflow()
    return {
        name: tf.SparseTensor(*(tensors[f"{name}_{part}"] for part in _SPARSE_PARTS))
        if isinstance(spec, tf.SparseTensorSpec)
        else tensors[name]
        for name, spec in features_spec.items()
    }


def require_features_spec(exported: str, features_spec: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the features spec, which an export requires; `exported` names it in messages.

    Raises:
        ConfigError: It is unknown (user-defined input functions).
    """
    if features_spec is None:
        raise ConfigError(
            f"{exported} cannot be exported: the features of a user-defined input function are unknown",
            code="training/unsupported",
            hint="name a function that returns the inputs of the export, input.serving: my.py:features; or export from "
            "Python: ep.load_job(JOB).estimator() or .model()",
        )
    return features_spec


def better(metric: str, mode: str) -> Callable[[Mapping[str, Any], Mapping[str, Any]], bool]:
    """Return a function that compares two results (best, current): whether the current one is better.

    Raises:
        ConfigError: By the function, if a result does not have the metric.
    """

    def compare(best_eval_result: Mapping[str, Any], current_eval_result: Mapping[str, Any]) -> bool:
        for known in (best_eval_result or {}, current_eval_result or {}):
            if metric not in known:
                raise ConfigError(
                    f"eval.exporters: the metric {metric!r} of the best exporter was not evaluated",
                    code="argument/unknown-name",
                    found=f"metrics: {', '.join(sorted(known))}",
                )
        best, current = best_eval_result[metric], current_eval_result[metric]
        if current != current:
            return False  # NaN is never the best, and any number is better
        return bool(best != best or (current < best if mode == "min" else current > best))

    return compare
