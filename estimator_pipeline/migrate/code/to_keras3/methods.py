"""Methods of a model's class that do what another one has done."""

from __future__ import annotations

import re

import libcst as cst

__all__ = ["not_twice"]


def not_twice(original: cst.FunctionDef, updated: cst.FunctionDef, method: cst.FunctionDef) -> cst.FunctionDef:
    """Of metrics that work out the predictions anew: asks the method that gives them."""
    code = cst.parse_module("").code_for_node
    body, asked = list(original.body.body), list(method.body.body)
    last = asked[-1].body[0] if isinstance(asked[-1], cst.SimpleStatementLine) else None
    if not isinstance(last, cst.Return) or not isinstance(last.value, cst.Name):
        return updated
    inner = [code(one).strip() for one in asked[1:-1]]
    texts = [code(one).strip() for one in body]
    first = next((at for at in range(len(texts)) if texts[at : at + len(inner)] == inner), None)
    if not inner or first is None:
        return updated
    given = {one for place, text in enumerate(inner) if (one := text.partition(" = ")[0]).isidentifier()}
    behind = set(re.findall(r"\w+", "\n".join(texts[first + len(inner) :])))
    if given & behind - {last.value.value}:
        return updated
    kept = list(updated.body.body)
    call = cst.parse_statement(f"{last.value.value} = self.predictions(x, y_pred)")
    kept[first : first + len(inner)] = [call]
    return updated.with_changes(body=updated.body.with_changes(body=kept))
