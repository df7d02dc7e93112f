"""Logging and summaries of a model_fn, which become comments."""

from __future__ import annotations

import libcst as cst

from estimator_pipeline.migrate.code.to_keras.model_fn import losses_and_optimizers as arithmetic
from estimator_pipeline.migrate.code.to_keras.model_fn.keras_layers import SETS_PHASE
from estimator_pipeline.migrate.code.to_keras.model_fn.slicing import ModelFn
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter

__all__ = ["comments"]

# Calls that matter only to hooks; for layers, see keras_layers.py.
_WITHOUT_EFFECT = ("tf.identity", "tf.compat.v1.add_to_collection", SETS_PHASE)


def comments(reader: Rewriter, model_fn: ModelFn) -> list[str]:
    """Return comments that list the program's summaries and logging, which Keras does not write.

    Raises:
        NotConvertible: A statement has another side effect.
    """
    lines = []
    for mode in model_fn.flows:
        for step in model_fn.flows[mode]:
            node = step.node
            if isinstance(node, cst.For) and isinstance(node.body, cst.IndentedBlock) and len(node.body.body) == 1:
                node = node.body.body[0]
            first = node.body[0] if isinstance(node, cst.SimpleStatementLine) else None
            call = first.value if isinstance(first, cst.Expr) else None
            if not isinstance(call, cst.Call) or (node is not step.node and not _is_silent(reader, call)):
                continue
            name = reader.called(call)
            method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
            if method in ("update_state", "append") or name in _WITHOUT_EFFECT:
                continue
            if _is_silent(reader, call):
                text = " ".join(reader.source(call).split())
                if f"# Was {text}" not in lines:
                    lines += [reader.place(call), f"# Was {text}"]
            elif not name.startswith("tf.compat.v1.logging."):
                raise NotConvertible("a statement of a model_fn with a side effect", call)
    if lines:
        lines.insert(0, "# TensorBoard logs the loss, metrics and learning rate of each epoch; log more in a callback.")
    return lines


def _is_silent(reader: Rewriter, call: cst.Call) -> bool:
    return reader.called(call).startswith(arithmetic.SUMMARIES)
