"""The metrics of a model_fn: what makes each in Keras, and what it is told."""

from __future__ import annotations

import re

import libcst as cst

from estimator_pipeline.migrate.code.to_keras.model_fn import losses_and_optimizers as arithmetic
from estimator_pipeline.migrate.code.to_keras.model_fn.slicing import ModelFn
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter

__all__ = ["Metrics", "attribute_of", "beside_the_head", "of_evaluation"]

Metrics = dict[str, tuple[str, str, list[cst.BaseExpression]]]
"""Name -> (what makes it, what it is told, the expressions in that)."""


def of_evaluation(reader: Rewriter, made: ModelFn) -> Metrics:
    """Return the metrics of the EstimatorSpec for evaluation.

    Raises:
        NotConvertible: they cannot be told, or Keras has no equal of one.
    """
    node = made.field("eval", "eval_metric_ops")
    if node is None:
        return {}
    node = reader.value(node)
    if not isinstance(node, cst.Dict):
        raise NotConvertible("eval_metric_ops that are no dict of literals", node)
    found = {}
    for element in node.elements:
        if not isinstance(element, cst.DictElement) or not isinstance(element.key, cst.SimpleString):
            raise NotConvertible("eval_metric_ops that are no dict of literals", node)
        key = str(element.key.evaluated_value)
        found[key] = _metric(reader, key, element.value)
    return found


def beside_the_head(reader: Rewriter, made: ModelFn) -> Metrics:
    """Return the metrics that a model_fn adds to those of its head."""
    return {key: _metric(reader, key, node) for key, node in made.added_metrics.items()}


def attribute_of(key: str) -> str:
    """Return the attribute of the model that a metric is."""
    return re.sub(r"\W+", "_", key) + "_metric"


def _metric(reader: Rewriter, key: str, node: cst.BaseExpression) -> tuple[str, str, list[cst.BaseExpression]]:
    call = reader.value(node)
    if not isinstance(call, cst.Call):
        raise NotConvertible(f"the metric {key}", node)
    if reader.called(call).startswith("tf.keras.metrics."):
        return _of_keras(reader, key, node, call)
    return arithmetic.metric(reader, call, key)


def _of_keras(
    reader: Rewriter, key: str, name: cst.BaseExpression, call: cst.Call
) -> tuple[str, str, list[cst.BaseExpression]]:
    updates = [
        one for one in reader.tree.calls
        if isinstance(one.func, cst.Attribute) and one.func.attr.value == "update_state"
        and reader.value(one.func.value) is call
    ]  # fmt: skip
    if len(updates) != 1 or not isinstance(name, cst.Name):
        raise NotConvertible(f"the metric {key}, which is not updated in one place", name)
    kept = [reader.text(arg.value) if not arg.keyword else f"{arg.keyword.value}={reader.text(arg.value)}"
            for arg in call.args if not (arg.keyword and arg.keyword.value == "name")]  # fmt: skip
    made = f"{reader.text(call.func)}({', '.join([*kept, f'name={key!r}'])})"
    given = [f"{arg.keyword.value}={reader.text(arg.value)}" if arg.keyword else reader.text(arg.value)
             for arg in updates[0].args]  # fmt: skip
    return made, ", ".join(given), [arg.value for arg in updates[0].args]
