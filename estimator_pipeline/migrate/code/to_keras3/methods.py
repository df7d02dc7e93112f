"""Methods of a model class that repeat the work of another method."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import libcst as cst

__all__ = ["call_predictions"]


def call_predictions(metrics: cst.FunctionDef, method: cst.FunctionDef) -> Iterator[tuple[Any, ...]]:
    """Yield the statements of a metrics method that repeat the predictions, and a call of `self.predictions`."""
    code = cst.parse_module("").code_for_node
    body, statements = list(metrics.body.body), list(method.body.body)
    last = statements[-1].body[0] if isinstance(statements[-1], cst.SimpleStatementLine) else None
    if not isinstance(last, cst.Return) or not isinstance(last.value, cst.Name):
        return
    repeated = [code(statement).strip() for statement in statements[1:-1]]
    texts = [code(statement).strip() for statement in body]
    first = next((at for at in range(len(texts)) if texts[at : at + len(repeated)] == repeated), None)
    if not repeated or first is None:
        return
    behind = first + len(repeated)
    assigned = {target for text in repeated if (target := text.partition(" = ")[0]).isidentifier()}
    if assigned & {name for node in body[behind:] for name in _names(node)} - {last.value.value}:
        return
    yield *body[first:behind], f"{last.value.value} = self.predictions(x, y_pred)"


def _names(node: cst.CSTNode) -> Iterator[str]:
    if isinstance(node, cst.Name):
        yield node.value
    for child in node.children:
        yield from _names(child)
