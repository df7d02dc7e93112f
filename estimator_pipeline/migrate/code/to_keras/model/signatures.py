"""Signatures of the export_outputs of a model_fn."""

from __future__ import annotations

import libcst as cst

from estimator_pipeline.migrate.code.to_keras.model_fn.slicing import ModelFn
from estimator_pipeline.migrate.code.to_keras.rewriter import Rewriter

__all__ = ["read_signatures"]


def read_signatures(reader: Rewriter, model_fn: ModelFn, predictions: cst.BaseExpression) -> dict[str, str]:
    """Return signature key -> expression of its outputs, in terms of `predictions`."""
    node = model_fn.field("predict", "export_outputs")
    if node is None:
        return {"serving_default": "predictions"}
    node, signatures = reader.value(node), {}
    if not isinstance(node, cst.Dict):
        return {}
    resolved = reader.value(predictions)
    for element in node.elements:
        call = reader.value(element.value) if isinstance(element, cst.DictElement) else None
        if not isinstance(element, cst.DictElement) or not isinstance(call, cst.Call):
            return {}
        key = "serving_default"
        if isinstance(element.key, cst.SimpleString):
            key = str(element.key.evaluated_value)
        elif not reader.source(element.key).endswith("DEFAULT_SERVING_SIGNATURE_DEF_KEY"):
            return {}
        output = _format_output(reader, call, predictions, resolved)
        if output is None:
            return {}
        signatures[key] = output
    if "serving_default" not in signatures:
        signatures["serving_default"] = next(iter(signatures.values()))
    if any(text == "predictions" for text in signatures.values()):
        signatures.setdefault("predict", "predictions")
    return signatures


def _format_output(
    reader: Rewriter, call: cst.Call, predictions: cst.BaseExpression, resolved: cst.BaseExpression
) -> str | None:
    kind = reader.called(call).rpartition(".")[2]
    if len(call.args) != 1:
        return None
    arg = call.args[0]
    source = reader.source(arg.value)
    if kind == "PredictOutput":
        same = source == reader.source(predictions) or _has_all_predictions(reader, arg.value, predictions, resolved)
        return "predictions" if same else None
    item = _format_item(reader, arg.value, predictions, resolved)
    if item and kind == "RegressionOutput":
        return f"{{'outputs': {item}}}"
    if item and kind == "ClassificationOutput" and arg.keyword is not None:
        return f"{{{arg.keyword.value!r}: {item}}}"
    return None


def _has_all_predictions(
    reader: Rewriter, node: cst.BaseExpression, predictions: cst.BaseExpression, resolved: cst.BaseExpression
) -> bool:
    """Return whether a dict of outputs has all predictions under the same keys."""
    outputs = reader.value(node)
    if not isinstance(outputs, cst.Dict) or not isinstance(resolved, cst.Dict):
        return False
    return len(outputs.elements) == len(resolved.elements) and all(
        isinstance(element, cst.DictElement)
        and isinstance(element.key, cst.SimpleString)
        and _format_item(reader, element.value, predictions, resolved)
        == f"predictions[{element.key.evaluated_value!r}]"
        for element in outputs.elements
    )


def _format_item(
    reader: Rewriter, node: cst.BaseExpression, predictions: cst.BaseExpression, resolved: cst.BaseExpression
) -> str:
    """Return an expression as an item of `predictions`; "" if it is not one of them."""
    source = reader.source(node)
    for element in resolved.elements if isinstance(resolved, cst.Dict) else ():
        if not isinstance(element, cst.DictElement) or not isinstance(element.key, cst.SimpleString):
            continue
        if source in (reader.source(element.value), f"{reader.source(predictions)}[{element.key.value}]"):
            return f"predictions[{element.key.evaluated_value!r}]"
    return ""
