"""From an input function to the data set that Keras takes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.analysis.name_resolution import FunctionOf, Outside
from estimator_pipeline.migrate.code.to_keras.markers import REMOVED
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter, indented

__all__ = ["dataset", "install", "is_partial", "take", "takes"]

_ARRAYS = ("x", "y", "batch_size", "num_epochs", "shuffle", "queue_capacity", "num_threads", "target_column")
_INPUTS = {
    "tf.compat.v1.estimator.inputs.numpy_input_fn": "numpy",
    "tf.compat.v1.estimator.inputs.pandas_input_fn": "pandas",
}
# Functions of V1's files with the same arguments, by other names.
_FILES = {"DeleteRecursively": "rmtree", "Exists": "exists", "Glob": "glob", "IsDirectory": "isdir",
          "ListDirectory": "listdir", "MakeDirs": "makedirs", "MkDir": "mkdir", "Remove": "remove"}  # fmt: skip


def install(reader: Rewriter) -> None:
    """Lets a reader write data sets where V1 had queues and iterators."""
    for name in _FILES:
        reader.calls[f"tf.compat.v1.gfile.{name}"] = partial(_of_files, reader, name)
    for name in ("Dataset", "TextLineDataset", "TFRecordDataset", "FixedLengthRecordDataset"):
        reader.names[f"tf.compat.v1.data.{name}"] = f"{reader.tf}.data.{name}"
    reader.calls["tf.compat.v1.decode_csv"] = partial(_csv, reader)
    for call in reader.tree.calls:
        _of_iterator(reader, call)
        if not call.args and reader.called(reader.value(call.func)) in _INPUTS:  # it is the data set by now
            reader.replaced[call] = partial(reader.text, call.func)
    for name in _INPUTS:
        reader.calls[name] = partial(_of_arrays, reader, name)


def _of_iterator(reader: Rewriter, call: cst.Call) -> None:
    """`dataset.make_one_shot_iterator().get_next()`: the data set."""
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "get_next":
        return
    made = reader.value(call.func.value)
    method = made.func if isinstance(made, cst.Call) else None
    if not isinstance(method, cst.Attribute) or method.attr.value != "make_one_shot_iterator":
        raise NotConvertible("the next batch of an iterator that is no data set's own", call)
    parent = reader.tree.parents.get(call)
    given = cst.ensure_type(made, cst.Call).args
    owner = given[0].value if given else method.value
    if isinstance(parent, (cst.Return, cst.Lambda)):
        reader.replaced[call] = lambda: reader.text(owner)
    elif isinstance(parent, cst.Assign):
        _of_names(reader, parent, owner)
    else:
        raise NotConvertible("the next batch of a data set, which is read before it is returned", call)
    if made is not call.func.value:
        statement = reader.statement_of(made)
        if isinstance(statement, cst.SimpleStatementLine):
            reader.replaced[statement] = REMOVED


def _of_names(reader: Rewriter, batch: cst.Assign, owner: cst.BaseExpression) -> None:
    """`features, labels = iterator.get_next()`: the data set, where they are returned as they are; otherwise what is
    done with a batch is a function, and the data set is mapped by it."""
    statement = reader.tree.parents.get(batch)
    body = reader.tree.parents.get(statement) if statement is not None else None
    function, target = reader.tree.parents.get(body) if body is not None else None, batch.targets[0].target
    elements = [one.value for one in target.elements] if isinstance(target, cst.Tuple) else [target]
    names = [one.value for one in elements if isinstance(one, cst.Name)]
    if (
        not isinstance(statement, cst.SimpleStatementLine)
        or not isinstance(body, cst.IndentedBlock)
        or not isinstance(function, cst.FunctionDef)
        or len(batch.targets) != 1
        or len(names) != len(elements)
        or body in reader.replaced
    ):
        raise NotConvertible("the next batch of a data set, which is read before it is returned", batch.value)
    behind = body.body[body.body.index(statement) + 1 :]
    returned = reader.tree.scopes[function].returns
    if not behind or not returned or any(not _is_within(reader, one, behind) for one in returned):
        raise NotConvertible("a batch of a data set, where a function may return another one", batch.value)
    (last, *more) = behind
    same = ", ".join(names)
    asked = f"*{same}" if len(names) == 1 and _is_tuple(reader, function, same) else same
    plain = [same, f"{same}, None"] if len(names) == 1 else [same]
    if not more and reader.source(returned[0]).strip("()") in plain:
        reader.replaced[statement] = REMOVED
        reader.replaced[returned[0]] = lambda: reader.text(owner)
        return
    source = "".join(reader.source(one) for one in behind)
    if '"""' in source or "'''" in source:
        raise NotConvertible("a text of several lines where a batch is read", last)
    name = "prepare_batch"
    while re.search(rf"\b{name}\b", reader.lines.text):
        name = f"_{name}"
    (start, end), (begins, ends), unit = reader.span(body), reader.span(statement), reader.tree.module.default_indent

    def write() -> str:
        head = reader.spliced(start, begins, body.body[: -len(behind) - 1])
        indent, given = reader.indent(statement), reader.text(owner)
        given = f"({given})" if "\n" in given else given
        comment, _, inner = reader.spliced(ends, end, behind).partition("\n")
        head = f"{head.rstrip(' ')}\n{indent}" if head else ""
        body_of = f"{comment}\n{indented(inner, unit)}"
        return f"{head}def {name}({asked}):{body_of}\n\n{indent}return {given}.map({name})"

    reader.replaced[body] = write


def _is_within(reader: Rewriter, node: cst.CSTNode, statements: Sequence[cst.CSTNode]) -> bool:
    return any(one in statements for one in reader.tree.above(node))


def _is_tuple(reader: Rewriter, function: cst.FunctionDef, name: str) -> bool:
    """Whether a whole batch is asked for its second part: a function of a data set gets the parts one by one."""
    for one in reader.tree.chains:
        if not isinstance(one, cst.Name) or one.value != name or function not in reader.tree.above(one):
            continue
        above = reader.tree.parents.get(one)
        if isinstance(above, cst.Assign) and isinstance(above.targets[0].target, cst.Tuple):
            return True
        if isinstance(above, cst.Subscript) and reader.source(above).endswith("[1]"):
            return True
    return False


def _of_files(reader: Rewriter, name: str, call: cst.Call) -> str:
    if len(call.args) != 1 or call.args[0].star:
        raise NotConvertible(f"the arguments of {name} cannot be told", call)
    return reader.call(f"{reader.tf}.io.gfile.{_FILES[name]}", [reader.text(call.args[0].value)], call)


def _csv(reader: Rewriter, call: cst.Call) -> str:
    """`decode_csv`: behind four arguments V1 has another order."""
    if sum(arg.keyword is None for arg in call.args) > 4:
        raise NotConvertible("so many arguments of decode_csv by position", call)
    return f"{reader.tf}.io.decode_csv{reader.spliced(reader.span(call.func)[1], reader.span(call)[1], call.args)}"


def _of_arrays(reader: Rewriter, name: str, call: cst.Call) -> str:
    given = arguments(call, _ARRAYS)
    kept = []
    for one, arg in given.items():
        if one in ("queue_capacity", "num_threads"):
            continue
        if one not in _ARRAYS[:5]:
            raise NotConvertible(f"{one} of {_INPUTS[name]}_input_fn", arg)
        kept.append(f"{one}={reader.text(arg.value)}" if arg.keyword else reader.text(arg.value))
    reader.needs.add("batches")
    return reader.call("batches", kept, call)


def _function(reader: Rewriter, node: cst.BaseExpression) -> FunctionOf | None:
    found = reader.program.meaning(node, reader.tree, reader.scope(node))
    functions = [one for one in found if isinstance(one, FunctionOf)]
    return functions[0] if len(functions) == 1 else None


def takes(reader: Rewriter, node: cst.BaseExpression, parameter: str) -> bool:
    """Whether an input function has a parameter that the Estimator gives it by name."""
    function = _function(reader, node)
    return function is not None and any(one.name.value == parameter for one in function.node.params.params)


def dataset(reader: Rewriter, node: cst.BaseExpression, mode: str, *, context: str = "") -> str:
    """Return the expression of the data set that an input function gives.

    Args:
        mode: train, eval or infer: what a function with a parameter `mode` is called with.
        context: the name of the InputContext, where there is one.

    Raises:
        NotConvertible: what the function is cannot be told.
    """
    node = reader.meant.get(node, node)
    _check_gives(reader, node)
    if isinstance(node, cst.Lambda):
        if node.params.params:
            raise NotConvertible("a lambda with parameters as an input function", node)
        return reader.text(node.body)
    if isinstance(node, cst.Call) and is_partial(reader, node):
        function = _function(reader, node.args[0].value)
        given = [f"{arg.keyword.value}={reader.text(arg.value)}" if arg.keyword else arg.star + reader.text(arg.value)
                 for arg in node.args[1:]]  # fmt: skip
        return (
            f"{reader.text(node.args[0].value)}({', '.join([*given, *_handed(function, mode, context, len(given))])})"
        )
    made = reader.value(node)
    if reader.called(made) in _INPUTS or _gives_arrays(reader, made):
        return reader.text(node)
    if isinstance(made, (cst.Lambda,)) or (isinstance(made, cst.Call) and is_partial(reader, made)):
        if isinstance(node, cst.Name):
            return f"{node.value}()"
        return dataset(reader, made, mode, context=context)
    function = _function(reader, node)
    if function is None:
        raise NotConvertible(f"{reader.source(node)}: what it reads cannot be told", node)
    return f"{reader.text(node)}({', '.join(_handed(function, mode, context, 0))})"


def _check_gives(reader: Rewriter, node: cst.BaseExpression) -> None:
    """Whether what an input function gives may be a data set.

    Raises:
        NotConvertible: it gives tensors, or reads an iterator in a file that is not converted with this one.
    """
    value = reader.value(node)
    if isinstance(value, cst.Lambda):
        value = value.body
    if isinstance(value, cst.Call):
        called = value.args[0].value if is_partial(reader, value) and value.args else value.func
        if reader.called(value) in _INPUTS:
            return
    else:
        called = value
    for function in reader.program.meaning(called, reader.tree, reader.scope(called)):
        if not isinstance(function, FunctionOf) or function.node not in function.tree.scopes:
            continue
        if function.tree is not reader.tree and any(
            isinstance(one, cst.Attribute) and one.attr.value == "get_next" for one in function.tree.chains
        ):
            raise NotConvertible("an input function of another file, which reads an iterator", node)
        for one in function.tree.scopes[function.node].returns:
            if isinstance(one, (cst.Tuple, cst.Dict, cst.List)) and not any(
                part in reader.replaced for part in (one, *reader.tree.above(one))
            ):
                raise NotConvertible("an input function that gives tensors, and no data set", node)


def take(steps: str) -> str:
    """So many batches of a data set, of all where `steps` is "", None, or None when the program runs."""
    if steps in ("", "None"):
        return ""
    return f".take({steps})" if steps.replace("_", "").isdigit() else f".take({steps} or -1)"


def is_partial(reader: Rewriter, node: cst.Call) -> bool:
    """Whether a call is one of `functools.partial`."""
    found = reader.program.meaning(node.func, reader.tree, reader.scope(node))
    return any(isinstance(one, Outside) and one.dotted == "functools.partial" for one in found)


def _gives_arrays(reader: Rewriter, node: cst.BaseExpression) -> bool:
    """Whether a call is one of a function of this file that returns such an input function."""
    if not isinstance(node, cst.Call):
        return False
    for function in reader.functions(node.func):
        inner = reader.tree.scopes[function.node]
        if inner.returns and all(reader.called(reader.value(one)) in _INPUTS for one in inner.returns):
            return True
    return False


def _handed(function: FunctionOf | None, mode: str, context: str, given: int) -> list[str]:
    """Return what an Estimator hands an input function by the names of its parameters."""
    if function is None:
        return []
    params = function.node.params.params[given:]
    found: list[str] = []
    for param in params:
        name = param.name.value
        if name == "mode":
            found.append(f"{mode!r}" if not found and param is params[0] and not given else f"mode={mode!r}")
        elif name == "input_context":
            if context:
                found.append(f"input_context={context}")
        elif name in ("config", "params") and param.default is None:
            raise NotConvertible(f"an input function that asks for {name}", param)
    return found
