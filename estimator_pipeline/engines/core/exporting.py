"""What the exporters of all engines share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError

__all__ = ["better", "parsed_examples", "require_features_spec"]


def parsed_examples(records: Any, features_spec: Mapping[str, Any], *, optional: bool = False) -> dict[str, Any]:
    """Return the features of serialized examples. An example has float32, int64 and strings; other types are cast.

    Args:
        records: Serialized examples, string [B].
        features_spec: Feature name -> `tf.TensorSpec` of one record.
        optional: Whether an example may lack features; their numbers are then NaN and their texts "".
    """
    tf = compat.tensorflow()

    def stored(spec: Any) -> Any:
        dtype = spec.dtype if spec.dtype == tf.string else tf.float32 if spec.dtype.is_floating else tf.int64
        missing = None if not optional else "" if dtype == tf.string else float("nan")
        return tf.io.FixedLenFeature(spec.shape.as_list(), dtype, missing)

    parsed = tf.io.parse_example(records, {name: stored(spec) for name, spec in features_spec.items()})
    return {name: tf.cast(parsed[name], spec.dtype) for name, spec in features_spec.items()}


def require_features_spec(section: Any, features_spec: Mapping[str, Any] | None, *, hint: str) -> Mapping[str, Any]:
    """Return the features spec, which an exporter requires.

    Raises:
        ConfigError: It is unknown (user-defined input functions).
    """
    if features_spec is None:
        raise ConfigError(
            f"eval.exporters: {section.folder} cannot be exported: the features of a user-defined input function are "
            "unknown",
            code="training/unsupported",
            hint=hint,
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
