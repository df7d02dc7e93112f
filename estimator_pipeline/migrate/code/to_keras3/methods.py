"""Methods of a model class that repeat the work of another method."""

from __future__ import annotations

import re

import libcst as cst

__all__ = ["call_predictions"]


def call_predictions(original: cst.FunctionDef, updated: cst.FunctionDef, method: cst.FunctionDef) -> cst.FunctionDef:
    """Replace statements of a metrics method that compute the predictions with a call of `self.predictions`."""
    code = cst.parse_module("").code_for_node
    body, statements = list(original.body.body), list(method.body.body)
    last = statements[-1].body[0] if isinstance(statements[-1], cst.SimpleStatementLine) else None
    if not isinstance(last, cst.Return) or not isinstance(last.value, cst.Name):
        return updated
    repeated = [code(statement).strip() for statement in statements[1:-1]]
    texts = [code(statement).strip() for statement in body]
    first = next((at for at in range(len(texts)) if texts[at : at + len(repeated)] == repeated), None)
    if not repeated or first is None:
        return updated
    assigned = {target for place, text in enumerate(repeated) if (target := text.partition(" = ")[0]).isidentifier()}
    names_after = set(re.findall(r"\w+", "\n".join(texts[first + len(repeated) :])))
    if assigned & names_after - {last.value.value}:
        return updated
    new_body = list(updated.body.body)
    call = cst.parse_statement(f"{last.value.value} = self.predictions(x, y_pred)")
    new_body[first : first + len(repeated)] = [call]
    return updated.with_changes(body=updated.body.with_changes(body=new_body))
