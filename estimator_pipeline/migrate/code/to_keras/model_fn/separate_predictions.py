"""Predictions that are those of another network than that which is trained, of the same layers by their names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import libcst as cst

from estimator_pipeline.migrate.code.to_keras.model_fn import rnn_cells as recurrent
from estimator_pipeline.migrate.code.to_keras.model_fn.slicing import ModelFn, calls_in, needed
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter, indented, names_in

__all__ = ["check", "method"]

_WHY = "predictions of another network, whose layers are not known by the names of variables"


def check(reader: Rewriter, made: ModelFn, predictions: cst.BaseExpression, nodes: Iterable[cst.CSTNode]) -> None:
    """Whether all layers of a network of predictions are known by their names.

    Args:
        nodes: what it is made by.

    Raises:
        NotConvertible: some are not.
    """
    for call in _calls_below(reader, nodes):
        name = reader.called(call)
        of_columns = name.startswith("tf.compat.v1.feature_column.")
        if name.startswith("tf.keras.") or of_columns or name in recurrent.CREATORS or call in reader.embeddings:
            raise NotConvertible(_WHY, call)
    estimators = [call for call in reader.tree.calls if reader.called(call).endswith("estimator.Estimator")]
    if made.models or (not reader.again and len(estimators) > 1):
        raise NotConvertible(_WHY, predictions)


def _calls_below(reader: Rewriter, nodes: Iterable[cst.CSTNode]) -> list[cst.Call]:
    """Return the calls within nodes, and within the functions of the file that these call."""
    found: list[cst.Call] = []
    waiting, seen = list(nodes), set[cst.CSTNode]()
    while waiting:
        calls = list(calls_in(waiting.pop()))
        found += calls
        inner = [one.node for call in calls for one in reader.functions(call.func) if one.node not in seen]
        seen.update(inner)
        waiting += inner
    return found


def method(writer: Any, predictions: cst.BaseExpression) -> str:
    """Return the method `predict` of a model.

    Args:
        writer: of the model.

    Raises:
        NotConvertible: its predictions need more than features.
    """
    steps = needed(writer.model_fn.flows["predict"], set(names_in(predictions)))
    reads = set(names_in(predictions)).union(*(step.reads for step in steps))
    if reads & {"labels", "config", *writer.model_fn.extra}:
        raise NotConvertible("predictions of another network that need more than features", predictions)
    writer.reader.needs |= {"keras_variables", "model_inputs"}
    text = writer.format_expression(predictions)
    if not isinstance(writer.reader.value(predictions), cst.Dict):
        text = f"{{'output': {text}}}"
    inner = [*(["params = self.params"] if "params" in reads else []), *writer.format_steps(steps), f"outputs = {text}"]
    lines = [
        '"""What another network of the same layers gives."""',
        "features = model_inputs(x)",
        "with keras_variables.of(features, self):",
        *(indented(one, writer.unit) for one in inner),
        "return keras_variables.sharing(self, features, outputs).predict(x, **options)",
    ]
    return str(writer.format_method("def predict(self, x, **options):", lines))
