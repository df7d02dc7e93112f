"""Conversion of V1 recurrent cells and `dynamic_rnn` to those of `keras_cells`."""

from __future__ import annotations

from functools import partial

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.analysis.syntax import children
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter

__all__ = ["CREATORS", "install"]

_V1 = "tf.compat.v1.nn."
_CELLS = {"LSTMCell": ("num_units", "forget_bias", "initializer", "name"),
          "BasicLSTMCell": ("num_units", "forget_bias", "name"),
          "GRUCell": ("num_units", "kernel_initializer", "name"),
          "MultiRNNCell": ("cells",),
          "DropoutWrapper": ("cell", "output_keep_prob")}  # fmt: skip
# Positional parameters of the cells, in V1's order. The other cells have one.
_BY_POSITION = {
    "LSTMCell": ("num_units", "use_peepholes", "cell_clip", "initializer"),
    "BasicLSTMCell": ("num_units", "forget_bias"),
    "DropoutWrapper": ("cell", "input_keep_prob", "output_keep_prob"),
}
_RNN = ("cell", "inputs", "sequence_length", "initial_state", "dtype")
CREATORS = (f"{_V1}dynamic_rnn", *(f"{_V1}rnn_cell.{name}" for name in _CELLS))
"""Functions and classes that create variables."""


def install(reader: Rewriter) -> None:
    """Register the rewrites of cells, and of the keep probabilities of DropoutWrapper."""
    for name in _CELLS:
        reader.calls[f"{_V1}rnn_cell.{name}"] = partial(_rewrite_cell, reader, name)
    reader.calls[f"{_V1}dynamic_rnn"] = partial(_rewrite_dynamic_rnn, reader)
    _find_keep_probabilities(reader)


def _rewrite_cell(reader: Rewriter, name: str, call: cst.Call) -> str:
    args = arguments(call, _BY_POSITION.get(name, _CELLS[name][:1]))
    for parameter, arg in args.items():
        if parameter == "state_is_tuple" and reader.source(arg.value) == "True":
            continue
        if parameter not in _CELLS[name] or arg.star:
            raise NotConvertible(f"{parameter or 'an argument'} of {name} has no counterpart in keras_cells", arg)
    if name == "DropoutWrapper":
        probability = args.get("output_keep_prob")
        if probability is None or not _is_keep_probability(reader, probability.value):
            raise NotConvertible("a DropoutWrapper whose keep probability may differ from 1 outside of training", call)
    reader.needs.add("keras_cells")
    cell_args = []
    for place, (parameter, arg) in enumerate(item for item in args.items() if item[0] != "state_is_tuple"):
        text = reader.text(arg.value)
        cell_args.append(text if arg.keyword is None and _CELLS[name][place] == parameter else f"{parameter}={text}")
    return reader.call(f"keras_cells.{name.removeprefix('Basic')}", cell_args, call)


def _rewrite_dynamic_rnn(reader: Rewriter, call: cst.Call) -> str:
    args = arguments(call, _RNN)
    for parameter, arg in args.items():
        if arg.star or parameter not in ("cell", "inputs", "sequence_length", "dtype"):
            raise NotConvertible(f"{parameter or 'an argument'} of dynamic_rnn has no counterpart in keras_cells", arg)
        if parameter == "dtype" and reader.name(arg.value) not in ("tf.float32", "tf.compat.v1.float32"):
            raise NotConvertible("a dtype of dynamic_rnn that is not tf.float32", arg)
    assign = reader.tree.parents.get(call)
    target = assign.targets[0].target if isinstance(assign, cst.Assign) else None
    unused = isinstance(target, cst.Tuple) and len(target.elements) == 2 and reader.source(target.elements[1]) == "_"
    if not unused:
        raise NotConvertible("the last state of dynamic_rnn: keras_cells returns it as a list", call)
    reader.needs.add("keras_cells")
    rnn_args = [reader.text(args["cell"].value), reader.text(args["inputs"].value)]
    if "sequence_length" in args:
        rnn_args.append(f"sequence_length={reader.text(args['sequence_length'].value)}")
    if reader.initializers:
        rnn_args.append(f"initializer={reader.initializers[-1]}")
    return reader.call("keras_cells.dynamic_rnn", rnn_args, call)


# `keep = a if training else 1.`: Keras passes `training` to the cells


def _find_keep_probabilities(reader: Rewriter) -> None:
    """Remove the mode from keep probabilities that only a DropoutWrapper uses."""
    for node in _conditional_expressions(reader.tree.module):
        assign = reader.tree.parents.get(node)
        target = assign.targets[0].target if isinstance(assign, cst.Assign) and len(assign.targets) == 1 else None
        if not isinstance(target, cst.Name) or not reader.is_flag(node.test):
            continue
        home = reader.home(target)
        if reader.source(node.orelse) not in ("1.0", "1", "1.") or home is None:
            continue
        if len(reader.program.bindings(target.value, reader.scope(node))) == 1 and _is_only_keep_probability(
            reader, home, set()
        ):
            reader.keep_rates.add(home)
            reader.replaced[node] = partial(reader.text, node.body)


def _conditional_expressions(node: cst.CSTNode) -> list[cst.IfExp]:
    expressions = [node] if isinstance(node, cst.IfExp) else []
    for child in children(node):
        expressions += _conditional_expressions(child)
    return expressions


def _is_only_keep_probability(
    reader: Rewriter, home: tuple[cst.CSTNode, str], seen: set[tuple[cst.CSTNode, str]]
) -> bool:
    """Return whether a name is only passed to DropoutWrapper, also through functions, or compared with 1."""
    if home in seen:
        return True
    seen.add(home)
    for chain in reader.tree.chains:
        if not isinstance(chain, cst.Name) or chain.value != home[1] or reader.home(chain) != home:
            continue
        parent = reader.tree.parents.get(chain)
        if isinstance(parent, (cst.AssignTarget, cst.Param)):
            continue
        if isinstance(parent, cst.Comparison) and parent.left is chain and len(parent.comparisons) == 1:
            if isinstance(parent.comparisons[0].operator, cst.LessThan) and reader.source(
                parent.comparisons[0].comparator
            ) in ("1", "1.0", "1."):
                continue
            return False
        call = reader.tree.parents.get(parent) if isinstance(parent, cst.Arg) else None
        if not isinstance(call, cst.Call) or not isinstance(parent, cst.Arg):
            return False
        if reader.called(call) == f"{_V1}rnn_cell.DropoutWrapper":
            continue
        functions = [function.node for function in reader.functions(call.func)]
        if len(functions) != 1 or not isinstance(functions[0], cst.FunctionDef):
            return False
        names = [param.name.value for param in functions[0].params.params]
        place = call.args.index(parent)
        name = parent.keyword.value if parent.keyword else names[place] if place < len(names) else ""
        calls = [
            other for other in reader.tree.calls if any(f.node is functions[0] for f in reader.functions(other.func))
        ]
        if len(calls) != 1 or not _is_only_keep_probability(reader, (functions[0], name), seen):
            return False
    return True


def _is_keep_probability(reader: Rewriter, node: cst.BaseExpression) -> bool:
    """Return whether a value is 1 outside of training, as `a if training else 1.` is."""
    if not isinstance(node, cst.Name):
        return False
    home = reader.home(node)
    if home is None:
        return False
    if home in reader.keep_rates:
        return True
    function = home[0]
    if not isinstance(function, cst.FunctionDef):
        return False
    calls = [call for call in reader.tree.calls if any(f.node is function for f in reader.functions(call.func))]
    names = [param.name.value for param in function.params.params]
    if home[1] not in names or not calls:
        return False
    values = [reader.argument(call, names.index(home[1]), home[1]) for call in calls]
    return all(value is not None and _is_keep_probability(reader, value) for value in values)
