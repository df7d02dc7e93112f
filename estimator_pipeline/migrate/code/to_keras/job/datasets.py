"""Conversion of input functions to datasets for Keras."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.analysis.name_resolution import FunctionOf, Outside
from estimator_pipeline.migrate.code.to_keras.markers import REMOVED
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter, indented

__all__ = ["format_dataset", "format_take", "has_parameter", "install", "is_partial"]

_ARRAYS = ("x", "y", "batch_size", "num_epochs", "shuffle", "queue_capacity", "num_threads", "target_column")
_INPUTS = {
    "tf.compat.v1.estimator.inputs.numpy_input_fn": "numpy",
    "tf.compat.v1.estimator.inputs.pandas_input_fn": "pandas",
}
# tf.gfile function -> its name in tf.io.gfile; both take the same arguments.
_FILES = {"DeleteRecursively": "rmtree", "Exists": "exists", "Glob": "glob", "IsDirectory": "isdir",
          "ListDirectory": "listdir", "MakeDirs": "makedirs", "MkDir": "mkdir", "Remove": "remove"}  # fmt: skip


def install(reader: Rewriter) -> None:
    """Register the conversion of TensorFlow 1 queues and iterators to datasets."""
    for name in _FILES:
        reader.calls[f"tf.compat.v1.gfile.{name}"] = partial(_convert_gfile, reader, name)
    for name in ("Dataset", "TextLineDataset", "TFRecordDataset", "FixedLengthRecordDataset"):
        reader.names[f"tf.compat.v1.data.{name}"] = f"{reader.tf}.data.{name}"
    reader.calls["tf.compat.v1.decode_csv"] = partial(_convert_decode_csv, reader)
    for call in reader.tree.calls:
        _convert_get_next(reader, call)
        if not call.args and reader.called(reader.value(call.func)) in _INPUTS:  # converted to the dataset itself
            reader.replaced[call] = partial(reader.text, call.func)
    for name in _INPUTS:
        reader.calls[name] = partial(_convert_array_input, reader, name)


def _convert_get_next(reader: Rewriter, call: cst.Call) -> None:
    """Convert `dataset.make_one_shot_iterator().get_next()` to the dataset."""
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "get_next":
        return
    iterator = reader.value(call.func.value)
    method = iterator.func if isinstance(iterator, cst.Call) else None
    if not isinstance(method, cst.Attribute) or method.attr.value != "make_one_shot_iterator":
        raise NotConvertible("get_next of an iterator that is not made by make_one_shot_iterator of a dataset", call)
    parent = reader.tree.parents.get(call)
    args = cst.ensure_type(iterator, cst.Call).args
    owner = args[0].value if args else method.value
    if isinstance(parent, (cst.Return, cst.Lambda)):
        reader.replaced[call] = lambda: reader.text(owner)
    elif isinstance(parent, cst.Assign):
        _convert_batch(reader, parent, owner)
    else:
        raise NotConvertible("a batch of a dataset that is read before it is returned", call)
    if iterator is not call.func.value:
        statement = reader.statement_of(iterator)
        if isinstance(statement, cst.SimpleStatementLine):
            reader.replaced[statement] = REMOVED


def _convert_batch(reader: Rewriter, batch: cst.Assign, owner: cst.BaseExpression) -> None:
    """Convert `features, labels = iterator.get_next()` to the dataset.

    If the batch is processed before it is returned, the processing becomes a function that the dataset is mapped with.
    """
    statement = reader.tree.parents.get(batch)
    body = reader.tree.parents.get(statement) if statement is not None else None
    function, target = reader.tree.parents.get(body) if body is not None else None, batch.targets[0].target
    elements = [element.value for element in target.elements] if isinstance(target, cst.Tuple) else [target]
    names = [element.value for element in elements if isinstance(element, cst.Name)]
    if (
        not isinstance(statement, cst.SimpleStatementLine)
        or not isinstance(body, cst.IndentedBlock)
        or not isinstance(function, cst.FunctionDef)
        or len(batch.targets) != 1
        or len(names) != len(elements)
        or body in reader.replaced
    ):
        raise NotConvertible("a batch of a dataset that is read before it is returned", batch.value)
    behind = body.body[body.body.index(statement) + 1 :]
    returned = reader.tree.scopes[function].returns
    if not behind or not returned or any(not _is_within(reader, value, behind) for value in returned):
        raise NotConvertible("a batch of a dataset in a function that may return something else", batch.value)
    same = ", ".join(names)
    parameters = f"*{same}" if len(names) == 1 and _is_unpacked(reader, function, same) else same
    plain = [same, f"{same}, None"] if len(names) == 1 else [same]
    if len(behind) == 1 and reader.source(returned[0]).strip("()") in plain:
        reader.replaced[statement] = REMOVED
        reader.replaced[returned[0]] = lambda: reader.text(owner)
        return
    name = reader.free_name("prepare_batch")
    (start, end), (begins, ends), unit = reader.span(body), reader.span(statement), reader.tree.module.default_indent

    def write() -> str:
        head = reader.spliced(start, begins, body.body[: -len(behind) - 1])
        indent, text = reader.indent(statement), reader.text(owner)
        text = f"({text})" if "\n" in text else text
        comment, _, inner = reader.spliced(ends, end, behind).partition("\n")
        head = f"{head.rstrip(' ')}\n{indent}" if head else ""
        body_of = f"{comment}\n{indented(inner, unit)}"
        return f"{head}def {name}({parameters}):{body_of}\n\n{indent}return {text}.map({name})"

    reader.replaced[body] = write


def _is_within(reader: Rewriter, node: cst.CSTNode, statements: Sequence[cst.CSTNode]) -> bool:
    return any(parent in statements for parent in reader.tree.above(node))


def _is_unpacked(reader: Rewriter, function: cst.FunctionDef, name: str) -> bool:
    """Return whether a batch is unpacked or indexed, so that `Dataset.map` passes its parts."""
    for chain in reader.tree.chains:
        if not isinstance(chain, cst.Name) or chain.value != name or function not in reader.tree.above(chain):
            continue
        above = reader.tree.parents.get(chain)
        if isinstance(above, cst.Assign) and isinstance(above.targets[0].target, cst.Tuple):
            return True
        if isinstance(above, cst.Subscript) and reader.source(above).endswith("[1]"):
            return True
    return False


def _convert_gfile(reader: Rewriter, name: str, call: cst.Call) -> str:
    if len(call.args) != 1 or call.args[0].star:
        raise NotConvertible(f"arguments of {name} that cannot be determined", call)
    return reader.call(f"{reader.tf}.io.gfile.{_FILES[name]}", [reader.text(call.args[0].value)], call)


def _convert_decode_csv(reader: Rewriter, call: cst.Call) -> str:
    """Convert `decode_csv`: from the fifth argument on, TensorFlow 1 has a different order."""
    if sum(arg.keyword is None for arg in call.args) > 4:
        raise NotConvertible("more than four positional arguments of decode_csv", call)
    return f"{reader.tf}.io.decode_csv{reader.spliced(reader.span(call.func)[1], reader.span(call)[1], call.args)}"


def _convert_array_input(reader: Rewriter, name: str, call: cst.Call) -> str:
    args = arguments(call, _ARRAYS)
    texts = []
    for field, arg in args.items():
        if field in ("queue_capacity", "num_threads"):
            continue
        if field not in _ARRAYS[:5]:
            raise NotConvertible(f"{field} of {_INPUTS[name]}_input_fn", arg)
        texts.append(f"{field}={reader.text(arg.value)}" if arg.keyword else reader.text(arg.value))
    return reader.call(reader.helper("batches"), texts, call)


def _resolve_function(reader: Rewriter, node: cst.BaseExpression) -> FunctionOf | None:
    values = reader.program.meaning(node, reader.tree, reader.scope(node))
    functions = [value for value in values if isinstance(value, FunctionOf)]
    return functions[0] if len(functions) == 1 else None


def has_parameter(reader: Rewriter, node: cst.BaseExpression, parameter: str) -> bool:
    """Return whether an input function has a parameter of this name."""
    function = _resolve_function(reader, node)
    return function is not None and any(param.name.value == parameter for param in function.node.params.params)


def format_dataset(reader: Rewriter, node: cst.BaseExpression, mode: str, *, context: str = "") -> str:
    """Return the expression of the dataset that an input function returns.

    Args:
        mode: value for the parameter `mode` of the function: train, eval or infer.
        context: name of the InputContext; "" without one.

    Raises:
        NotConvertible: the input function cannot be determined.
    """
    node = reader.resolved.get(node, node)
    _check_returns(reader, node)
    if isinstance(node, cst.Lambda):
        if node.params.params:
            raise NotConvertible("a lambda with parameters as an input function", node)
        return reader.text(node.body)
    if isinstance(node, cst.Call) and is_partial(reader, node):
        function = _resolve_function(reader, node.args[0].value)
        texts = [f"{arg.keyword.value}={reader.text(arg.value)}" if arg.keyword else arg.star + reader.text(arg.value)
                 for arg in node.args[1:]]  # fmt: skip
        return (
            f"{reader.text(node.args[0].value)}"
            f"({', '.join([*texts, *_format_arguments(function, mode, context, len(texts))])})"
        )
    value = reader.value(node)
    if reader.called(value) in _INPUTS or _returns_array_input(reader, value):
        return reader.text(node)
    if isinstance(value, (cst.Lambda,)) or (isinstance(value, cst.Call) and is_partial(reader, value)):
        if isinstance(node, cst.Name):
            return f"{node.value}()"
        return format_dataset(reader, value, mode, context=context)
    function = _resolve_function(reader, node)
    if function is None:
        raise NotConvertible(f"{reader.source(node)}, an input function that cannot be determined", node)
    return f"{reader.text(node)}({', '.join(_format_arguments(function, mode, context, 0))})"


def _check_returns(reader: Rewriter, node: cst.BaseExpression) -> None:
    """Check that an input function can return a dataset.

    Raises:
        NotConvertible: it returns tensors, or reads an iterator in a file that is not converted together with this one.
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
            isinstance(chain, cst.Attribute) and chain.attr.value == "get_next" for chain in function.tree.chains
        ):
            raise NotConvertible("an input function of a different file that reads an iterator", node)
        for returned in function.tree.scopes[function.node].returns:
            if isinstance(returned, (cst.Tuple, cst.Dict, cst.List)) and not any(
                part in reader.replaced for part in (returned, *reader.tree.above(returned))
            ):
                raise NotConvertible("an input function that returns tensors instead of a dataset", node)


def format_take(steps: str) -> str:
    """Return `.take(steps)`, or "" to take all batches."""
    if steps in ("", "None"):
        return ""
    return f".take({steps})" if steps.replace("_", "").isdigit() else f".take({steps} or -1)"


def is_partial(reader: Rewriter, node: cst.Call) -> bool:
    """Return whether a call is `functools.partial(...)`."""
    values = reader.program.meaning(node.func, reader.tree, reader.scope(node))
    return any(isinstance(value, Outside) and value.dotted == "functools.partial" for value in values)


def _returns_array_input(reader: Rewriter, node: cst.BaseExpression) -> bool:
    """Return whether a called function of this file returns numpy_input_fn or pandas_input_fn."""
    if not isinstance(node, cst.Call):
        return False
    for function in reader.functions(node.func):
        inner = reader.tree.scopes[function.node]
        if inner.returns and all(reader.called(reader.value(value)) in _INPUTS for value in inner.returns):
            return True
    return False


def _format_arguments(function: FunctionOf | None, mode: str, context: str, bound: int) -> list[str]:
    """Return the arguments of an input function after the first `bound` parameters."""
    if function is None:
        return []
    params = function.node.params.params[bound:]
    texts: list[str] = []
    for param in params:
        name = param.name.value
        if name == "mode":
            texts.append(f"{mode!r}" if not texts and param is params[0] and not bound else f"mode={mode!r}")
        elif name == "input_context":
            if context:
                texts.append(f"input_context={context}")
        elif name in ("config", "params") and param.default is None:
            raise NotConvertible(f"an input function with the parameter {name}", param)
    return texts
