"""Variables that a program makes by itself, and tables: the Keras layers that they are part of."""

from __future__ import annotations

from functools import partial

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.to_keras.markers import REMOVED
from estimator_pipeline.migrate.code.to_keras.model_fn import layers
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter

__all__ = ["install", "is_own", "write_lookups"]

_VARIABLE = "tf.compat.v1.get_variable"
_PARAMETERS = ("name", "shape", "dtype", "initializer", "regularizer", "trainable")
_LOOKUPS = ("tf.nn.embedding_lookup", "tf.compat.v1.nn.embedding_lookup")
_PARTITIONERS = tuple(f"tf.compat.v1.{name}_partitioner" for name in (
    "fixed_size", "variable_axis_size", "min_max_variable"))  # fmt: skip
_TABLES = ("tf.lookup.StaticVocabularyTable", "tf.lookup.StaticHashTable")


def is_own(reader: Rewriter, node: cst.CSTNode) -> bool:
    """Whether a statement makes a variable by get_variable."""
    first = node.body[0] if isinstance(node, cst.SimpleStatementLine) else node
    return isinstance(first, cst.Assign) and reader.called(first.value) == _VARIABLE


def install(reader: Rewriter) -> None:
    """Lets a reader write a variable that is only looked up in as an Embedding layer, others as those of one's own."""
    reader.calls[_VARIABLE] = partial(_own, reader)
    for name in _LOOKUPS:
        reader.calls[name] = partial(_looked_up, reader)
    reader.calls["tf.compat.v1.nn.xw_plus_b"] = partial(_product, reader)
    for call in reader.tree.calls:
        if reader.called(call) in _PARTITIONERS:
            _remove_partitioner(reader, call)
    for call in reader.tree.calls:
        if reader.called(call) != _VARIABLE:
            continue
        statement = reader.statement_of(call)
        lookup = _lookup(reader, call)
        if statement is not None and lookup is not None:
            reader.replaced[statement] = REMOVED
            reader.replaced[lookup] = partial(_embedding, reader, call, lookup)
            reader.embeddings.add(call)


def _lookup(reader: Rewriter, call: cst.Call) -> cst.Call | None:
    """Return the call that looks rows of a variable up, where that is all it is used for."""
    assign = reader.tree.parents.get(call)
    target = assign.targets[0].target if isinstance(assign, cst.Assign) and len(assign.targets) == 1 else None
    if not isinstance(target, cst.Name) or len(reader.program.bindings(target.value, reader.scope(call))) != 1:
        return None
    home = reader.home(target)
    used = [one for one in reader.tree.chains if one is not target and _root(one).value == target.value
            and reader.home(_root(one)) == home and _root(one) is not target]  # fmt: skip
    if len(used) != 1:
        return None
    arg = reader.tree.parents.get(used[0])
    lookup = reader.tree.parents.get(arg) if isinstance(arg, cst.Arg) else None
    if not isinstance(lookup, cst.Call) or reader.called(lookup) not in _LOOKUPS:
        return None
    given = arguments(lookup, ("params", "ids"))
    return lookup if given.keys() == {"params", "ids"} and given["params"] is arg else None


def _root(node: cst.CSTNode) -> cst.Name:
    while isinstance(node, cst.Attribute):
        node = node.value
    return node if isinstance(node, cst.Name) else cst.Name("_")


def _given(reader: Rewriter, call: cst.Call) -> dict[str, cst.Arg]:
    """Return the arguments of get_variable, without collections in which nobody looks for it."""
    given = arguments(call, _PARAMETERS)
    collections = given.pop("collections", None)
    if collections is None:
        return given
    node = reader.value(collections.value)
    names = [one.value for one in node.elements] if isinstance(node, (cst.List, cst.Tuple)) else []
    keys = [reader.name(one).rpartition(".")[2] for one in names]
    own = [one for one, key in zip(names, keys, strict=True) if key not in ("GLOBAL_VARIABLES", "TRAINABLE_VARIABLES")]
    if "GLOBAL_VARIABLES" not in keys or not all(isinstance(one, cst.SimpleString) for one in own):
        raise NotConvertible("a variable of collections that cannot be told, or that is not saved", collections)
    for asked in reader.tree.calls:
        if reader.called(asked).rpartition(".")[2] in ("get_collection", "get_collection_ref"):
            key = reader.value(asked.args[0].value) if asked.args else None
            known = isinstance(key, cst.SimpleString) or bool(key is not None and reader.name(key))
            if own and (
                not known or key is None or reader.source(key)[1:-1] in [reader.source(one)[1:-1] for one in own]
            ):
                raise NotConvertible("a collection of variables of the program's own, which is asked for", asked)
    return given


def _embedding(reader: Rewriter, call: cst.Call, lookup: cst.Call) -> str:
    given = _given(reader, call)
    for one, arg in given.items():
        plain = one == "dtype" and reader.name(arg.value) in ("tf.float32", "tf.compat.v1.float32")
        if one not in _PARAMETERS or arg.star or (one in ("dtype", "trainable") and not plain):
            raise NotConvertible(f"{one or 'an argument'} of get_variable has no counterpart in an Embedding", arg)
    shape = reader.value(given["shape"].value) if "shape" in given else None
    if not isinstance(shape, (cst.List, cst.Tuple)) or len(shape.elements) != 2 or "name" not in given:
        raise NotConvertible("a variable that is looked up in, and is no table of two sizes", call)
    kept = [reader.text(one.value) for one in shape.elements]
    initializer = reader.text(given["initializer"].value) if "initializer" in given else "None"
    kept.append(f"embeddings_initializer={repr('glorot_uniform') if initializer == 'None' else initializer}")
    if "regularizer" in given:
        kept.append(f"embeddings_regularizer={reader.text(given['regularizer'].value)}")
    around, reader.prefixes = reader.prefixes, layers.scopes_of(reader, call)
    try:
        kept.append(f"name={layers.name_of(reader, call, given['name'], '')}")
    finally:
        reader.prefixes = around
    ids = reader.text(arguments(lookup, ("params", "ids"))["ids"].value)
    if reader.again:
        return layers.again(reader, reader.call(f"{reader.tf}.keras.layers.Embedding", kept, lookup), "name", ids)
    return reader.call(f"{reader.tf}.keras.layers.Embedding", kept, lookup, f"({ids})")


def _own(reader: Rewriter, call: cst.Call) -> str:
    """Return a variable that is used in calculations."""
    given = _given(reader, call)
    for one, arg in given.items():
        plain = one == "dtype" and reader.name(arg.value) in ("tf.float32", "tf.compat.v1.float32")
        if one not in _PARAMETERS or arg.star or (one == "dtype" and not plain):
            raise NotConvertible(f"{one or 'an argument'} of get_variable has no counterpart in Keras", arg)
    if "name" not in given or "shape" not in given:
        raise NotConvertible("a variable without a shape of its own", call)
    around, reader.prefixes = reader.prefixes, layers.scopes_of(reader, call)
    try:
        kept = [layers.name_of(reader, call, given["name"], "", "/"), reader.text(given["shape"].value)]
    finally:
        reader.prefixes = around
    for one in ("initializer", "regularizer", "trainable"):
        if one in given and reader.source(given[one].value) != "None":
            kept.append(f"{one}={reader.text(given[one].value)}")
    reader.needs.add("keras_variables")
    return reader.call("keras_variables.variable", kept, call)


def _looked_up(reader: Rewriter, call: cst.Call) -> str:
    """Rows of a variable: one that is in parts is one in Keras, its rows in their order."""
    given = arguments(call, ("params", "ids", "partition_strategy", "name"))
    if not {"params", "ids"} <= given.keys() or given.keys() - {"params", "ids", "partition_strategy", "name"}:
        raise NotConvertible("arguments of embedding_lookup that have no counterpart in Keras", call)
    by_rows = "partition_strategy" in given and reader.source(given["partition_strategy"].value) in ("'div'", '"div"')
    if not by_rows and any(reader.called(one) in _PARTITIONERS for one in reader.tree.calls):
        raise NotConvertible("rows of a variable in parts, which are numbered in another order there", call)
    told = [reader.text(given[one].value) for one in ("params", "ids")]
    return reader.call(f"{reader.tf}.nn.embedding_lookup", told, call)


def _product(reader: Rewriter, call: cst.Call) -> str:
    given = arguments(call, ("x", "weights", "biases", "name"))
    x, weights, biases = (reader.text(given[one].value) for one in ("x", "weights", "biases"))
    return reader.call(f"{reader.tf}.nn.bias_add", [f"{reader.tf}.matmul({x}, {weights})", biases], call)


def _remove_partitioner(reader: Rewriter, call: cst.Call) -> None:
    """A partitioner that only scopes of variables get; they leave it out."""
    assign = reader.tree.parents.get(call)
    target = assign.targets[0].target if isinstance(assign, cst.Assign) and len(assign.targets) == 1 else None
    statement = reader.statement_of(call)
    if not isinstance(target, cst.Name) or statement is None:
        return
    for one in reader.tree.chains:
        if one is target or not isinstance(one, cst.Name) or one.value != target.value:
            continue
        arg = reader.tree.parents.get(one)
        scoped = isinstance(arg, cst.Arg) and arg.keyword is not None and arg.keyword.value == "partitioner"
        if reader.home(one) == reader.home(target) and not scoped:
            return
    reader.replaced[statement] = REMOVED


def write_lookups(reader: Rewriter, functions: set[cst.CSTNode]) -> None:
    """Lets a network ask tables: a layer does it, as Keras's inputs are no tensors.

    Args:
        functions: those that make the network.
    """
    for call in reader.tree.calls:
        if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "lookup" or len(call.args) != 1:
            continue
        table = call.func.value
        if reader.called(reader.value(table)) in _TABLES and functions & set(reader.tree.above(call)):
            reader.needs.add("TableLookup")
            reader.replaced[call] = partial(_asked, reader, table, call.args[0].value)


def _asked(reader: Rewriter, table: cst.BaseExpression, keys: cst.BaseExpression) -> str:
    return f"TableLookup({reader.text(table)})({reader.text(keys)})"
