"""The signatures of a model_fn's export outputs."""

from __future__ import annotations

import libcst as cst

from estimator_pipeline.migrate.code.to_keras.model_fn.slicing import ModelFn
from estimator_pipeline.migrate.code.to_keras.rewriter import Rewriter

__all__ = ["signatures_of"]


def signatures_of(reader: Rewriter, made: ModelFn, predictions: cst.BaseExpression) -> dict[str, str]:
    """Key of a signature -> what it answers, of `found`, the predictions."""
    node = made.field("predict", "export_outputs")
    if node is None:
        return {"serving_default": "found"}
    node, found = reader.value(node), {}
    if not isinstance(node, cst.Dict):
        return {}
    said = reader.value(predictions)
    for element in node.elements:
        call = reader.value(element.value) if isinstance(element, cst.DictElement) else None
        if not isinstance(element, cst.DictElement) or not isinstance(call, cst.Call):
            return {}
        key = "serving_default"
        if isinstance(element.key, cst.SimpleString):
            key = str(element.key.evaluated_value)
        elif not reader.source(element.key).endswith("DEFAULT_SERVING_SIGNATURE_DEF_KEY"):
            return {}
        output = _output(reader, call, predictions, said)
        if output is None:
            return {}
        found[key] = output
    if "serving_default" not in found:
        found["serving_default"] = next(iter(found.values()))
    if any(text == "found" for text in found.values()):
        found.setdefault("predict", "found")
    return found


def _output(reader: Rewriter, call: cst.Call, predictions: cst.BaseExpression, said: cst.BaseExpression) -> str | None:
    kind = reader.called(call).rpartition(".")[2]
    if len(call.args) != 1:
        return None
    arg = call.args[0]
    source = reader.source(arg.value)
    if kind == "PredictOutput":
        same = source == reader.source(predictions) or _is_all(reader, arg.value, predictions, said)
        return "found" if same else None
    item = _item(reader, arg.value, predictions, said)
    if item and kind == "RegressionOutput":
        return f"{{'outputs': {item}}}"
    if item and kind == "ClassificationOutput" and arg.keyword is not None:
        return f"{{{arg.keyword.value!r}: {item}}}"
    return None


def _is_all(
    reader: Rewriter, node: cst.BaseExpression, predictions: cst.BaseExpression, said: cst.BaseExpression
) -> bool:
    """Whether a dict of outputs is that of all predictions by the same keys."""
    outputs = reader.value(node)
    if not isinstance(outputs, cst.Dict) or not isinstance(said, cst.Dict):
        return False
    return len(outputs.elements) == len(said.elements) and all(
        isinstance(one, cst.DictElement)
        and isinstance(one.key, cst.SimpleString)
        and _item(reader, one.value, predictions, said) == f"found[{one.key.evaluated_value!r}]"
        for one in outputs.elements
    )


def _item(reader: Rewriter, node: cst.BaseExpression, predictions: cst.BaseExpression, said: cst.BaseExpression) -> str:
    """Return an expression as one of the predictions; "" where it is none."""
    source = reader.source(node)
    for element in said.elements if isinstance(said, cst.Dict) else ():
        if not isinstance(element, cst.DictElement) or not isinstance(element.key, cst.SimpleString):
            continue
        if source in (reader.source(element.value), f"{reader.source(predictions)}[{element.key.value}]"):
            return f"found[{element.key.evaluated_value!r}]"
    return ""
