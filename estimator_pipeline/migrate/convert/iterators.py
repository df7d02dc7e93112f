"""Input functions that return tensors: `return data.make_one_shot_iterator().get_next()`.

`fit` takes the dataset itself: what the function returns becomes `data`. What the function computes from the tensors
before it returns them becomes a function that the dataset maps. Constants become a dataset of one batch, repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import libcst as cst

from estimator_pipeline.migrate.code.analysis.name_resolution import FunctionOf
from estimator_pipeline.migrate.code.analysis.syntax import Tree, children, iter_nodes
from estimator_pipeline.migrate.convert import allowed
from estimator_pipeline.migrate.convert.names import FileNames, Refused, calls_in, names_bound, names_read
from estimator_pipeline.migrate.convert.rest import Rest
from estimator_pipeline.migrate.convert.rule import operand

__all__ = ["return_dataset"]

_MAKERS = ("make_one_shot_iterator", "make_initializable_iterator")
_CONSTANTS = frozenset(f"tf.{name}" for name in ("constant", "convert_to_tensor", "cast", "reshape", "one_hot",
                                                 "expand_dims", "SparseTensor"))  # fmt: skip


def return_dataset(names: FileNames, rests: Mapping[Tree, Rest], function: cst.FunctionDef | cst.Lambda) -> None:
    """Let a function return a dataset instead of tensors, in the edits of `rests`.

    Raises:
        Refused: its tensors cannot become a dataset.
    """
    rest, calls = rests[names.tree], list(calls_in(function.body))
    gets = [call for call in calls if _method(call) == "get_next"]
    if len(gets) > 1:
        raise Refused("an input_fn with several iterators", function)
    if gets or any(_method(call) in _MAKERS for call in calls):
        _without_iterator(names, rest, function, gets)
        return
    for value in names.tree.scopes[function].returns:
        if value in rest.new:
            continue
        if isinstance(names.value(value), (cst.Tuple, cst.Dict, cst.List)):
            _constants(names, rest, value, calls)
        called = names.function(value.func) if isinstance(value, cst.Call) else None
        if called is not None and called.tree in rests and called.node is not function and _returns_data(called):
            return_dataset(names.of(called.tree), rests, called.node)


def _returns_data(function: FunctionOf) -> bool:
    return bool(function.tree.scopes[function.node].returns)


def _constants(names: FileNames, rest: Rest, value: cst.BaseExpression, calls: Sequence[cst.Call]) -> None:
    """Return a dataset of the batch that the function makes of Python values and constants, which never ends."""
    for call in calls:
        full = names.name(call.func)
        plain = full in _CONSTANTS or full.split(".")[0] in ("numpy", "pandas", "math")
        if not plain and not (isinstance(call.func, cst.Name) and call.func.value in allowed.BUILTINS) and (
            _method(call) not in allowed.METHODS or full.startswith("tf.")
        ):  # fmt: skip
            raise Refused("an input_fn that returns tensors, not a dataset", value)
    tensors = names.value(value)
    if isinstance(tensors, cst.Tuple) and len(tensors.elements) == 2 and (
        names.text(tensors.elements[1].value) == "None"
    ):  # fmt: skip
        value = tensors.elements[0].value
    elif isinstance(tensors, cst.List):
        raise Refused("an input_fn that returns tensors, not a dataset", value)
    text = rest.text(value).strip()
    text = f"({text})" if isinstance(value, cst.Tuple) and not value.lpar else text
    outer = next(node for node in (value, *names.tree.above(value)) if isinstance(node, (cst.Return, cst.Lambda)))
    body = outer.value if isinstance(outer, cst.Return) else outer.body
    assert body is not None
    rest.new[body] = f"{names.tf}.data.Dataset.from_tensors({text}).repeat()"


def _without_iterator(
    names: FileNames, rest: Rest, function: cst.FunctionDef | cst.Lambda, gets: Sequence[cst.Call]
) -> None:
    if not gets:
        raise Refused("an input_fn that returns tensors of an iterator", function)
    (get,) = gets
    iterator = names.value(get.func.value) if isinstance(get.func, cst.Attribute) else get
    dataset = _dataset(names, iterator)
    parent = names.tree.parents.get(get)
    if dataset is None:
        raise Refused("an input_fn that returns tensors of an iterator", get)
    read, start = names_read(dataset), names.tree.position(iterator)
    for node in iter_nodes(function.body):
        is_behind = isinstance(node, cst.BaseSmallStatement) and names.tree.position(node)[:2] > start[:2]
        if is_behind and node is not parent and names_bound(node) & read:
            raise Refused("a dataset that changes behind its iterator", node)
    if isinstance(function, cst.FunctionDef):
        rest.functions.append(function)
    if isinstance(parent, cst.Return) or parent is function:
        rest.new[get] = rest.text(dataset)
        unneeded = {iterator} - {get}
    elif isinstance(parent, cst.Assign) and _is_returned(names, function, parent):
        value = _returns(function)[0].value
        assert value is not None
        rest.new[value] = rest.text(dataset)
        unneeded = {get, iterator}
    else:
        _mapped(names, rest, function, parent, rest.text(dataset))
        unneeded = {iterator} - {get}
    for node in unneeded:
        assign = names.tree.parents.get(node)
        statement = names.tree.parents.get(assign) if isinstance(assign, cst.Assign) else None
        if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1:
            rest.removed.append(statement)


def _returns(function: cst.CSTNode) -> list[cst.Return]:
    """Return the return statements of a function, without those of functions inside of it."""
    returns: list[cst.Return] = []
    waiting = list(children(function))
    while waiting:
        node = waiting.pop()
        if isinstance(node, cst.Return):
            returns.append(node)
        elif not isinstance(node, (cst.FunctionDef, cst.ClassDef, cst.Lambda)):
            waiting += children(node)
    return returns


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


def _is_returned(names: FileNames, function: cst.CSTNode, assign: cst.Assign) -> bool:
    """Return whether `return x, y` follows `x, y = iterator.get_next()`, and nothing else uses the two."""
    if len(assign.targets) != 1:
        return False
    target = names.text(assign.targets[0].target).strip("()")
    returns = _returns(function)
    if len(returns) != 1 or returns[0].value is None or names.text(returns[0].value).strip("()") != target:
        return False
    read = {node.value for node in iter_nodes(returns[0].value) if isinstance(node, cst.Name)}
    inside = set(iter_nodes(returns[0]))
    scope = names.tree.scopes[function]
    return not any(place not in inside and names.home(place) is scope for name in read for place in names.places(name))


def _mapped(
    names: FileNames, rest: Rest, function: cst.FunctionDef | cst.Lambda, assign: cst.CSTNode | None, dataset: str
) -> None:
    """Let the dataset map what the function computes from its tensors: `def prepare(x, y): ...; data.map(prepare)`."""
    statement = names.tree.parents.get(assign) if isinstance(assign, cst.Assign) else None
    block = names.tree.parents.get(statement) if statement is not None else None
    refusal = Refused("an input_fn that returns tensors of an iterator", assign or function)
    if not isinstance(assign, cst.Assign) or not isinstance(statement, cst.SimpleStatementLine) or (
        not isinstance(block, cst.IndentedBlock) or len(assign.targets) != 1
    ):  # fmt: skip
        raise refusal
    tail = list(block.body[block.body.index(statement) + 1 :])
    returns = _returns(function)
    last = tail[-1] if tail else None
    if not isinstance(last, cst.SimpleStatementLine) or list(last.body) != returns:
        raise refusal
    parameters = list(_parameters(names, assign.targets[0].target, tail, refusal))
    bound = {name.lstrip("*") for name in parameters}
    local = {name for node in tail for name in names_bound(node)}
    for node in tail:
        if names_read(node) & local - bound or '"""' in names.text(node):
            raise refusal
        bound |= names_bound(node)
    taken = {*names.tree.scope.names, *names.tree.scopes[function].names}
    prepare = next(name for name in ("prepare", "prepare_batch", "keras_prepare") if name not in taken)
    lines = [line for node in tail for line in rest.text(node).strip("\n").split("\n")]
    rest.replaced[statement] = [
        *([""] if block.body.index(statement) else []),
        f"def {prepare}({', '.join(parameters)}):",
        *(f"    {line}" for line in lines),
        "",
        f"return {operand(dataset)}.map({prepare})",
    ]
    rest.until[statement] = tail


def _parameters(
    names: FileNames, target: cst.BaseExpression, tail: Sequence[cst.CSTNode], refusal: Refused
) -> Iterator[str]:
    """Yield the names of what one `get_next` returns; a single name of which only `x[0]`, `x[1]` are read is `*x`."""
    if isinstance(target, (cst.Tuple, cst.List)):
        for element in target.elements:
            if not isinstance(element.value, cst.Name):
                raise refusal
            yield element.value.value
        return
    if not isinstance(target, cst.Name):
        raise refusal
    nodes = [inner for statement in tail for inner in iter_nodes(statement)]
    places = [names.text(node.slice[0].slice) for node in nodes
              if isinstance(node, cst.Subscript) and names.text(node.value) == target.value]  # fmt: skip
    reads = sum(isinstance(node, cst.Name) and node.value == target.value for node in nodes)
    if all(place.isdigit() for place in places) and {*places} - {"0"} and reads == len(places):
        yield f"*{target.value}"
        return
    for node in nodes:
        if isinstance(node, cst.Subscript) and names.text(node.value) == target.value:
            index = node.slice[0].slice
            if not isinstance(index, cst.Index) or not isinstance(index.value, (cst.SimpleString, cst.Name)):
                raise refusal
    yield target.value
