"""Tables of embeddings: `tf.get_variable("t", [V, D])` and `tf.nn.embedding_lookup(table, ids)` -> `DenseEmbedding`.

The variable becomes the layer, and a lookup its call. A variable that is used otherwise is refused.
"""

from __future__ import annotations

import libcst as cst

from estimator_pipeline.migrate.convert.names import Refused
from estimator_pipeline.migrate.convert.rule import NETWORK, Call, rule

__all__ = ["EMBEDDING_NAMES", "table", "table_lookup"]

_TABLES = ("tf.compat.v1.get_variable",)
_LOOKUPS = ("tf.nn.embedding_lookup", "tf.compat.v1.nn.embedding_lookup")
EMBEDDING_NAMES = (*_TABLES, *_LOOKUPS)


@rule(*_TABLES, at=(NETWORK,))
def table(call: Call) -> str:
    args = call.args("name", "shape", "dtype", "initializer", "regularizer", "trainable")
    shape = args.get("shape")
    if not isinstance(shape, (cst.List, cst.Tuple)) or len(shape.elements) != 2 or not _is_only_looked_up(call):
        raise Refused("a variable outside of a layer: only tables of embedding_lookup become layers", call.node)
    if "dtype" in args and not call.names.name(args["dtype"]).endswith("float32"):
        raise call.refuse("dtype", args["dtype"])
    size, width = (call.names.text(element.value) for element in shape.elements)
    initializer = call.text(args["initializer"]) if "initializer" in args else '"glorot_uniform"'
    names = {"regularizer": "embeddings_regularizer", "trainable": "trainable", "name": "name"}
    more = call.options({name: args[parameter] for parameter, name in names.items() if parameter in args})
    options = [size, width, f"embeddings_initializer={initializer}", *more]
    call.needs.add("DenseEmbedding")
    return f"DenseEmbedding({', '.join(options)})"


@rule(*_LOOKUPS, at=(NETWORK,))
def table_lookup(call: Call) -> str:
    args = call.args("params", "ids", "partition_strategy", "name", "validate_indices", "max_norm")
    value = call.names.value(args["params"]) if "params" in args else None
    if not isinstance(value, cst.Call) or call.names.name(value.func) not in _TABLES:
        raise Refused("embedding_lookup in something else than a variable of get_variable", call.node)
    for parameter in args.keys() - {"params", "ids", "name", "validate_indices"}:
        raise call.refuse(parameter, args[parameter])
    return f"{call.text(args['params'])}({call.text(args['ids'])})"


def _is_only_looked_up(call: Call) -> bool:
    """Return whether the variable is assigned to a name that only lookups take."""

    def is_lookup(arg: cst.CSTNode | None) -> bool:
        user = call.names.tree.parents.get(arg) if isinstance(arg, cst.Arg) else None
        return isinstance(user, cst.Call) and call.names.name(user.func) in _LOOKUPS and user.args[0] is arg

    return all(is_lookup(arg) for arg in call.users())
