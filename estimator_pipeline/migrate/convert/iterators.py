"""Input functions that return the tensors of an iterator: `return data.make_one_shot_iterator().get_next()`.

`fit` takes the dataset itself: what the function returns becomes `data`. Tensors that the function changes before it
returns them are refused.
"""

from __future__ import annotations

import libcst as cst

from estimator_pipeline.migrate.code.analysis.syntax import iter_nodes
from estimator_pipeline.migrate.convert.names import FileNames, Refused
from estimator_pipeline.migrate.convert.rest import Rest

__all__ = ["return_dataset"]

_MAKERS = ("make_one_shot_iterator", "make_initializable_iterator")


def return_dataset(names: FileNames, rest: Rest, function: cst.FunctionDef | cst.Lambda) -> None:
    """Let a function return the dataset instead of the tensors of its iterator, in the edits of `rest`.

    Raises:
        Refused: the function does more with the tensors than to return them.
    """
    calls = [node for node in iter_nodes(function.body) if isinstance(node, cst.Call)]
    gets = [call for call in calls if _method(call) == "get_next"]
    if not gets and not any(_method(call) in _MAKERS for call in calls):
        return
    if len(gets) != 1:
        raise Refused("an input_fn with several iterators", function)
    (get,) = gets
    iterator = names.value(get.func.value) if isinstance(get.func, cst.Attribute) else get
    dataset = _dataset(names, iterator)
    parent = names.tree.parents.get(get)
    returned = parent if isinstance(parent, cst.Return) else _returned(names, function, parent)
    if returned is None or returned.value is None or dataset is None:
        raise Refused("an input_fn that returns tensors of an iterator", get)
    rest.new[returned.value] = rest.text(dataset)
    if isinstance(function, cst.FunctionDef):
        rest.functions.append(function)
    for node in {get, iterator} - {returned.value}:
        assign = names.tree.parents.get(node)
        statement = names.tree.parents.get(assign) if isinstance(assign, cst.Assign) else None
        if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1:
            rest.removed.append(statement)


def _method(call: cst.Call) -> str:
    return call.func.attr.value if isinstance(call.func, cst.Attribute) else ""


def _dataset(names: FileNames, iterator: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return the dataset of `data.make_one_shot_iterator()` or `tf.compat.v1.data.make_one_shot_iterator(data)`."""
    if not isinstance(iterator, cst.Call) or not isinstance(iterator.func, cst.Attribute):
        return None
    if iterator.func.attr.value != "make_one_shot_iterator":
        return None
    if names.name(iterator.func).startswith("tf."):
        return iterator.args[0].value if len(iterator.args) == 1 else None
    return iterator.func.value if not iterator.args else None


def _returned(names: FileNames, function: cst.CSTNode, assign: cst.CSTNode | None) -> cst.Return | None:
    """Return the statement `return x, y` behind `x, y = iterator.get_next()`, if nothing else uses the two."""
    if not isinstance(assign, cst.Assign) or len(assign.targets) != 1:
        return None
    target = names.text(assign.targets[0].target).strip("()")
    returns = [node for node in iter_nodes(function) if isinstance(node, cst.Return)]
    if len(returns) != 1 or returns[0].value is None or names.text(returns[0].value).strip("()") != target:
        return None
    read = {node.value for node in iter_nodes(returns[0].value) if isinstance(node, cst.Name)}
    inside = set(iter_nodes(returns[0]))
    others = [chain for chain in names.tree.chains if isinstance(chain, cst.Name) and chain.value in read
              and chain not in inside and function in set(names.tree.above(chain))]  # fmt: skip
    return None if others else returns[0]
