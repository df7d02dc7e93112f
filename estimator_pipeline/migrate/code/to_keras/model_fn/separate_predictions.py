"""Prediction networks that differ from the trained network and share its layers by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import libcst as cst

from estimator_pipeline.migrate.code.to_keras.model_fn import rnn_cells
from estimator_pipeline.migrate.code.to_keras.model_fn.slicing import ModelFn, calls_in, needed
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter, indented, names_in

__all__ = ["check", "predict_method"]

_REASON = "a different network for PREDICT, whose layers cannot be matched by variable names"


def check(reader: Rewriter, model_fn: ModelFn, predictions: cst.BaseExpression, nodes: Iterable[cst.CSTNode]) -> None:
    """Check that each layer of a prediction network can be matched by its name.

    Args:
        nodes: The predictions, and the statements that they need.

    Raises:
        NotConvertible: A layer cannot be matched.
    """
    for call in _calls_below(reader, nodes):
        name = reader.called(call)
        of_columns = name.startswith("tf.compat.v1.feature_column.")
        if name.startswith("tf.keras.") or of_columns or name in rnn_cells.CREATORS or call in reader.embeddings:
            raise NotConvertible(_REASON, call)
    estimators = [call for call in reader.tree.calls if reader.called(call).endswith("estimator.Estimator")]
    if model_fn.models or (not reader.reuses_variables and len(estimators) > 1):
        raise NotConvertible(_REASON, predictions)


def _calls_below(reader: Rewriter, nodes: Iterable[cst.CSTNode]) -> list[cst.Call]:
    """Return the calls in nodes, and in the functions of the file that these call."""
    calls: list[cst.Call] = []
    waiting, seen = list(nodes), set[cst.CSTNode]()
    while waiting:
        direct = list(calls_in(waiting.pop()))
        calls += direct
        inner = [
            function.node for call in direct for function in reader.functions(call.func) if function.node not in seen
        ]
        seen.update(inner)
        waiting += inner
    return calls


def predict_method(writer: Any, predictions: cst.BaseExpression) -> str:
    """Return the source of the methods of a model with a separate prediction network.

    Args:
        writer: The writer of the model class.

    Raises:
        NotConvertible: The predictions need more than features.
    """
    steps = needed(writer.model_fn.flows["predict"], set(names_in(predictions)))
    reads = set(names_in(predictions)).union(*(step.reads for step in steps))
    if reads & {"labels", "config", *writer.model_fn.extra}:
        raise NotConvertible("a different network for PREDICT that needs more than features", predictions)
    writer.reader.needs.add("keras_variables")
    text = writer.format_expression(predictions)
    if not isinstance(writer.reader.value(predictions), cst.Dict):
        text = f"{{'output': {text}}}"
    statements = [
        *(["params = self.params"] if "params" in reads else []),
        *writer.format_steps(steps),
        f"outputs = {text}",
    ]
    lines = [
        '"""Return the network of the predictions, which shares the layers."""',
        f"features = {writer.reader.helper('model_inputs')}(data)",
        "with keras_variables.of(features, self):",
        *(indented(statement, writer.unit) for statement in statements),
        "return keras_variables.sharing(self, features, outputs)",
    ]
    network = writer.format_method("def prediction_model(self, data):", lines)
    lines = ["return self.prediction_model(x).predict(x, **options)"]
    return f"{network}\n\n{writer.format_method('def predict(self, x, **options):', lines)}"
