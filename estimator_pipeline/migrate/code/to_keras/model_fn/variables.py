"""Conversion of `get_variable` and lookup tables to Keras layers."""

from __future__ import annotations

from functools import partial

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.to_keras.markers import REMOVED
from estimator_pipeline.migrate.code.to_keras.model_fn import layers
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter

__all__ = ["creates_variable", "install", "write_lookups"]

_VARIABLE = "tf.compat.v1.get_variable"
_PARAMETERS = ("name", "shape", "dtype", "initializer", "regularizer", "trainable")
_LOOKUPS = ("tf.nn.embedding_lookup", "tf.compat.v1.nn.embedding_lookup")
_PARTITIONERS = tuple(f"tf.compat.v1.{name}_partitioner" for name in (
    "fixed_size", "variable_axis_size", "min_max_variable"))  # fmt: skip
_TABLES = ("tf.lookup.StaticVocabularyTable", "tf.lookup.StaticHashTable")


def creates_variable(reader: Rewriter, node: cst.CSTNode) -> bool:
    """Return whether a statement assigns a variable of get_variable."""
    first = node.body[0] if isinstance(node, cst.SimpleStatementLine) else node
    return isinstance(first, cst.Assign) and reader.called(first.value) == _VARIABLE


def install(reader: Rewriter) -> None:
    """Register the rewrites of variables: to an Embedding layer if only looked up, else to a variable's layer."""
    reader.calls[_VARIABLE] = partial(_rewrite_variable, reader)
    for name in _LOOKUPS:
        reader.calls[name] = partial(_rewrite_lookup, reader)
    reader.calls["tf.compat.v1.nn.xw_plus_b"] = partial(_rewrite_xw_plus_b, reader)
    for call in reader.tree.calls:
        if reader.called(call) in _PARTITIONERS:
            _remove_partitioner(reader, call)
    for call in reader.tree.calls:
        if reader.called(call) != _VARIABLE:
            continue
        statement = reader.statement_of(call)
        lookup = _only_lookup(reader, call)
        if statement is not None and lookup is not None:
            reader.replaced[statement] = REMOVED
            reader.replaced[lookup] = partial(_rewrite_to_embedding, reader, call, lookup)
            reader.embeddings.add(call)


def _only_lookup(reader: Rewriter, call: cst.Call) -> cst.Call | None:
    """Return the lookup of rows of a variable, if that is the variable's only use."""
    assign = reader.tree.parents.get(call)
    target = assign.targets[0].target if isinstance(assign, cst.Assign) and len(assign.targets) == 1 else None
    if not isinstance(target, cst.Name) or len(reader.program.bindings(target.value, reader.scope(call))) != 1:
        return None
    home = reader.home(target)
    uses = [
        chain
        for chain in reader.tree.chains
        if chain is not target
        and _root(chain).value == target.value
        and reader.home(_root(chain)) == home
        and _root(chain) is not target
    ]
    if len(uses) != 1:
        return None
    arg = reader.tree.parents.get(uses[0])
    lookup = reader.tree.parents.get(arg) if isinstance(arg, cst.Arg) else None
    if not isinstance(lookup, cst.Call) or reader.called(lookup) not in _LOOKUPS:
        return None
    args = arguments(lookup, ("params", "ids"))
    return lookup if args.keys() == {"params", "ids"} and args["params"] is arg else None


def _root(node: cst.CSTNode) -> cst.Name:
    while isinstance(node, cst.Attribute):
        node = node.value
    return node if isinstance(node, cst.Name) else cst.Name("_")


def _variable_arguments(reader: Rewriter, call: cst.Call) -> dict[str, cst.Arg]:
    """Return the arguments of get_variable, without `collections` if no code reads them."""
    args = arguments(call, _PARAMETERS)
    collections = args.pop("collections", None)
    if collections is None:
        return args
    node = reader.value(collections.value)
    names = [element.value for element in node.elements] if isinstance(node, (cst.List, cst.Tuple)) else []
    keys = [reader.name(name).rpartition(".")[2] for name in names]
    private = [
        name for name, key in zip(names, keys, strict=True) if key not in ("GLOBAL_VARIABLES", "TRAINABLE_VARIABLES")
    ]
    if "GLOBAL_VARIABLES" not in keys or not all(isinstance(name, cst.SimpleString) for name in private):
        raise NotConvertible("a variable in collections that cannot be determined, or that is not saved", collections)
    for other in reader.tree.calls:
        if reader.called(other).rpartition(".")[2] in ("get_collection", "get_collection_ref"):
            key = reader.value(other.args[0].value) if other.args else None
            known = isinstance(key, cst.SimpleString) or bool(key is not None and reader.name(key))
            if private and (
                not known or key is None or reader.source(key)[1:-1] in [reader.source(name)[1:-1] for name in private]
            ):
                raise NotConvertible("a custom collection of variables, which is read", other)
    return args


def _rewrite_to_embedding(reader: Rewriter, call: cst.Call, lookup: cst.Call) -> str:
    args = _variable_arguments(reader, call)
    for parameter, arg in args.items():
        is_float32 = parameter == "dtype" and reader.name(arg.value) in ("tf.float32", "tf.compat.v1.float32")
        if parameter not in _PARAMETERS or arg.star or (parameter in ("dtype", "trainable") and not is_float32):
            raise NotConvertible(
                f"{parameter or 'an argument'} of get_variable has no counterpart in an Embedding", arg
            )
    shape = reader.value(args["shape"].value) if "shape" in args else None
    if not isinstance(shape, (cst.List, cst.Tuple)) or len(shape.elements) != 2 or "name" not in args:
        raise NotConvertible("a variable for lookups that has no name, or whose shape is not two-dimensional", call)
    layer_args = [reader.text(size.value) for size in shape.elements]
    initializer = reader.text(args["initializer"].value) if "initializer" in args else "None"
    layer_args.append(f"embeddings_initializer={repr('glorot_uniform') if initializer == 'None' else initializer}")
    if "regularizer" in args:
        layer_args.append(f"embeddings_regularizer={reader.text(args['regularizer'].value)}")
    prefixes, reader.prefixes = reader.prefixes, layers.scopes_of(reader, call)
    try:
        layer_args.append(f"name={layers.name_of(reader, call, args['name'], '')}")
    finally:
        reader.prefixes = prefixes
    ids = reader.text(arguments(lookup, ("params", "ids"))["ids"].value)
    if reader.reuses_variables:
        return layers.shared_layer(
            reader, reader.call(f"{reader.tf}.keras.layers.Embedding", layer_args, lookup), "name", ids
        )
    return reader.call(f"{reader.tf}.keras.layers.Embedding", layer_args, lookup, f"({ids})")


def _rewrite_variable(reader: Rewriter, call: cst.Call) -> str:
    """Return a `keras_variables.variable` for a variable that is used in calculations."""
    args = _variable_arguments(reader, call)
    for parameter, arg in args.items():
        is_float32 = parameter == "dtype" and reader.name(arg.value) in ("tf.float32", "tf.compat.v1.float32")
        if parameter not in _PARAMETERS or arg.star or (parameter == "dtype" and not is_float32):
            raise NotConvertible(f"{parameter or 'an argument'} of get_variable has no counterpart in Keras", arg)
    if "name" not in args or "shape" not in args:
        raise NotConvertible("a variable without an explicit name and shape", call)
    prefixes, reader.prefixes = reader.prefixes, layers.scopes_of(reader, call)
    try:
        new_args = [layers.name_of(reader, call, args["name"], "", "/"), reader.text(args["shape"].value)]
    finally:
        reader.prefixes = prefixes
    for parameter in ("initializer", "regularizer", "trainable"):
        if parameter in args and reader.source(args[parameter].value) != "None":
            new_args.append(f"{parameter}={reader.text(args[parameter].value)}")
    reader.needs.add("keras_variables")
    return reader.call("keras_variables.variable", new_args, call)


def _rewrite_lookup(reader: Rewriter, call: cst.Call) -> str:
    """Rewrite a lookup. A partitioned variable becomes one variable, with its rows in order."""
    args = arguments(call, ("params", "ids", "partition_strategy", "name"))
    if not {"params", "ids"} <= args.keys() or args.keys() - {"params", "ids", "partition_strategy", "name"}:
        raise NotConvertible("arguments of embedding_lookup that have no counterpart in Keras", call)
    by_rows = "partition_strategy" in args and reader.source(args["partition_strategy"].value) in ("'div'", '"div"')
    if not by_rows and any(reader.called(other) in _PARTITIONERS for other in reader.tree.calls):
        raise NotConvertible("rows of a partitioned variable, which are numbered in a different order", call)
    new_args = [reader.text(args[parameter].value) for parameter in ("params", "ids")]
    return reader.call(f"{reader.tf}.nn.embedding_lookup", new_args, call)


def _rewrite_xw_plus_b(reader: Rewriter, call: cst.Call) -> str:
    args = arguments(call, ("x", "weights", "biases", "name"))
    x, weights, biases = (reader.text(args[parameter].value) for parameter in ("x", "weights", "biases"))
    return reader.call(f"{reader.tf}.nn.bias_add", [f"{reader.tf}.matmul({x}, {weights})", biases], call)


def _remove_partitioner(reader: Rewriter, call: cst.Call) -> None:
    """Remove a partitioner that is only passed to variable scopes."""
    assign = reader.tree.parents.get(call)
    target = assign.targets[0].target if isinstance(assign, cst.Assign) and len(assign.targets) == 1 else None
    statement = reader.statement_of(call)
    if not isinstance(target, cst.Name) or statement is None:
        return
    for chain in reader.tree.chains:
        if chain is target or not isinstance(chain, cst.Name) or chain.value != target.value:
            continue
        arg = reader.tree.parents.get(chain)
        scoped = isinstance(arg, cst.Arg) and arg.keyword is not None and arg.keyword.value == "partitioner"
        if reader.home(chain) == reader.home(target) and not scoped:
            return
    reader.replaced[statement] = REMOVED


def write_lookups(reader: Rewriter, functions: set[cst.CSTNode]) -> None:
    """Rewrite lookups in tables of a network to layers, because Keras inputs are not tensors.

    Args:
        functions: The functions that build the network.
    """
    for call in reader.tree.calls:
        if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "lookup" or len(call.args) != 1:
            continue
        table = call.func.value
        if reader.called(reader.value(table)) in _TABLES and functions & set(reader.tree.above(call)):
            reader.replaced[call] = partial(_rewrite_table_lookup, reader, table, call.args[0].value)


def _rewrite_table_lookup(reader: Rewriter, table: cst.BaseExpression, keys: cst.BaseExpression) -> str:
    return f"{reader.helper('TableLookup')}({reader.text(table)})({reader.text(keys)})"
