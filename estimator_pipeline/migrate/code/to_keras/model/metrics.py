"""Conversion of metrics of a model_fn to Keras metrics and their updates."""

from __future__ import annotations

import re

import libcst as cst

from estimator_pipeline.migrate.code.to_keras.model_fn import losses_and_optimizers as arithmetic
from estimator_pipeline.migrate.code.to_keras.model_fn.slicing import ModelFn
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter

__all__ = ["Metrics", "metric_attribute", "read_further_metrics", "read_metrics"]

Metrics = dict[str, tuple[str, str, list[cst.BaseExpression]]]
"""Name -> (constructor, arguments of update_state, the expressions in these arguments)."""


def read_metrics(reader: Rewriter, model_fn: ModelFn) -> Metrics:
    """Return the metrics of the EstimatorSpec for evaluation.

    Raises:
        NotConvertible: the metrics cannot be determined, or a metric has no counterpart in Keras.
    """
    node = model_fn.field("eval", "eval_metric_ops")
    if node is None:
        return {}
    node = reader.value(node)
    if not isinstance(node, cst.Dict):
        raise NotConvertible("eval_metric_ops that are not a dict with literal keys", node)
    metrics = {}
    for element in node.elements:
        if not isinstance(element, cst.DictElement) or not isinstance(element.key, cst.SimpleString):
            raise NotConvertible("eval_metric_ops that are not a dict with literal keys", node)
        key = str(element.key.evaluated_value)
        metrics[key] = _convert_metric(reader, key, element.value)
    return metrics


def read_further_metrics(reader: Rewriter, model_fn: ModelFn) -> Metrics:
    """Return the metrics that a model_fn adds to those of its head."""
    return {key: _convert_metric(reader, key, node) for key, node in model_fn.added_metrics.items()}


def metric_attribute(key: str) -> str:
    """Return the name of the model's attribute for a metric."""
    return re.sub(r"\W+", "_", key) + "_metric"


def _convert_metric(reader: Rewriter, key: str, node: cst.BaseExpression) -> tuple[str, str, list[cst.BaseExpression]]:
    call = reader.value(node)
    if not isinstance(call, cst.Call):
        raise NotConvertible(f"the metric {key}", node)
    if reader.called(call).startswith("tf.keras.metrics."):
        return _convert_keras_metric(reader, key, node, call)
    return arithmetic.metric(reader, call, key)


def _convert_keras_metric(
    reader: Rewriter, key: str, name: cst.BaseExpression, call: cst.Call
) -> tuple[str, str, list[cst.BaseExpression]]:
    updates = [
        update for update in reader.tree.calls
        if isinstance(update.func, cst.Attribute) and update.func.attr.value == "update_state"
        and reader.value(update.func.value) is call
    ]  # fmt: skip
    if len(updates) != 1 or not isinstance(name, cst.Name):
        raise NotConvertible(f"the metric {key}, which is not updated exactly once", name)
    kept = [reader.text(arg.value) if not arg.keyword else f"{arg.keyword.value}={reader.text(arg.value)}"
            for arg in call.args if not (arg.keyword and arg.keyword.value == "name")]  # fmt: skip
    metric = f"{reader.text(call.func)}({', '.join([*kept, f'name={key!r}'])})"
    texts = [f"{arg.keyword.value}={reader.text(arg.value)}" if arg.keyword else reader.text(arg.value)
             for arg in updates[0].args]  # fmt: skip
    return metric, ", ".join(texts), [arg.value for arg in updates[0].args]
