"""The state of a graph that persists between runs in the same session, from its operations.

A graph can run again in the same session, with the same result as in a new one, if all its state is reset at the start
of each run. That is so for variables, vocabulary tables and initializable iterators, but not for random number
generators, one-shot iterators and queues. `stateful_operations` lists such operations.

Python functions in a graph are different: they and their closures live as long as the graph. `python_functions` counts
them.

The list below has the harmless operations. Any other operation that TensorFlow marks as stateful counts as stateful, so
that an unknown operation costs time, not correctness.

Private use: `tensorflow.python.framework.op_def_registry`, which describes types of operations, and
`Graph._copy_functions_to_graph_def`, which copies the graph's functions without its constants, which may be the whole
dataset (`Graph.as_graph_def` copies both). Unchanged from 2.15 to 2.21.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = [
    "BATCH_OPERATIONS",
    "called_nodes",
    "python_functions",
    "stateful_operations",
    "vocabularies",
]

_HARMLESS = re.compile(
    "|".join(
        (
            # Variables: the checkpoint or the local initializers set each, or it could not be read.
            r"VarHandleOp|Variable(V2)?|VarIsInitializedOp|IsVariableInitialized|ReadVariableOp|Assign\w*",
            r"_?ReadVariablesOp|VariableShape|DestroyResourceOp|Resource(Gather|Scatter)\w*|Scatter\w+",
            # Vocabulary tables: initialized once per session (`vocabularies` handles changed files).
            r"HashTable(V2)?|InitializeTable\w*|LookupTable(Find|Size|Import)(V2)?",
            # Iterators that are initialized at the start of each run, and their datasets.
            r"Iterator(V2)?|MakeIterator|IteratorGetNext\w*|IteratorToStringHandle|IteratorFromStringHandle(V2)?",
            r"MultiDeviceIterator\w*|RemoteCall",
            r"(?!\w*(Random|Service|Snapshot))\w*Dataset(V\d)?",
            # State within one call of Session.run, or no state.
            r"TensorArray\w*|Stack(V2)?|StackP\w+|_?Arg|_?Retval|_If|_While|If|While|Case|StatefulPartitionedCall",
            r"SaveV2|RestoreV2|SaveSlices|RestoreSlice|MergeV2Checkpoints|Assert|Print|PrintV2|Timestamp|NoOp",
        )
    )
)
# The operations whose results are a batch of an iterator.
BATCH_OPERATIONS = ("IteratorGetNext", "OptionalGetValue")
_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")
_DATASETS = re.compile(r"\w*Dataset(V\d)?|OneShotIterator")


def _functions_of(graph: Any) -> dict[str, Any]:
    """Return the graph's functions (FunctionDef) by name."""
    from tensorflow.core.framework import graph_pb2

    holder = graph_pb2.GraphDef()
    graph._copy_functions_to_graph_def(holder, 0)
    return {function.signature.name: function for function in holder.library.function}


def _called(node: Any) -> Iterable[str]:
    """Iterate over the names of the functions that a NodeDef refers to."""
    yield node.op
    for value in node.attr.values():
        if value.HasField("func"):
            yield value.func.name
        yield from (f.name for f in value.list.func)


def _takes_functions(op: Any) -> bool:
    return op.type in ("PartitionedCall", "StatefulPartitionedCall") or any(
        attribute.type in ("func", "list(func)") for attribute in op.op_def.attr
    )


def _all_called(functions: Mapping[str, Any], called: Iterable[str]) -> set[str]:
    """Return the names in `functions` that are called, directly or indirectly."""
    reached: set[str] = set()
    left = list(called)
    while left:
        name = left.pop()
        if name in functions and name not in reached:
            reached.add(name)
            for node in functions[name].node_def:
                left.extend(_called(node))
    return reached


def called_nodes(graph: Any, operations: Iterable[Any]) -> list[Any]:
    """Return the nodes (NodeDef) of the functions that operations of a graph call, directly or indirectly."""
    functions, operations = _functions_of(graph), list(operations)
    called = {op.type for op in operations}
    # Only operations with function attributes are inspected: others may be large constants.
    called |= {name for op in operations if _takes_functions(op) for name in _called(op.node_def)}
    return [node for name in _all_called(functions, called) for node in functions[name].node_def]


def _reachable(graph: Any, fetches: Iterable[Any]) -> list[Any]:
    """Return all operations that fetching `fetches` (operations, tensors, variables) runs."""
    elements = [graph.as_graph_element(fetch) for fetch in fetches]
    left = [getattr(element, "op", element) for element in elements]
    seen = set(left)
    while left:
        op = left.pop()
        for other in [*(t.op for t in op.inputs), *op.control_inputs]:
            if other not in seen:
                seen.add(other)
                left.append(other)
    return list(seen)


def stateful_operations(graph: Any, fetches: Iterable[Any]) -> list[str]:
    """Return the types of operations whose state persists and affects the next run.

    Args:
        graph: A `tf.Graph`.
        fetches: The operations, tensors and variables that are run.

    Returns:
        Operation types, sorted; empty if one session is enough for several runs.
    """
    from tensorflow.python.framework import op_def_registry

    reachable = _reachable(graph, fetches)
    kinds = {op.type for op in reachable} | {node.op for node in called_nodes(graph, reachable)}

    def is_stateful(kind: str) -> bool:
        definition = op_def_registry.get(kind)
        # A function that is called by name has no definition; its body is inspected separately.
        return definition is not None and definition.is_stateful and not _HARMLESS.fullmatch(kind)

    return sorted(kind for kind in kinds if is_stateful(kind) and kind not in _PYTHON)


def python_functions(graph: Any) -> tuple[int, int]:
    """Return the number of Python functions that a graph calls: (in its datasets, elsewhere)."""
    functions = _functions_of(graph)
    operations = graph.get_operations()
    called = (name for op in operations if _DATASETS.fullmatch(op.type) for name in _called(op.node_def))
    in_datasets = _all_called(functions, called)
    outside = sum(op.type in _PYTHON for op in operations)
    counts = {name: sum(n.op in _PYTHON for n in function.node_def) for name, function in functions.items()}
    inside = sum(count for name, count in counts.items() if name in in_datasets)
    return inside, outside + sum(counts.values()) - inside


def vocabularies(graph: Any) -> list[Any]:
    """Return the paths of the vocabulary files of the graph's tables; None for a path that the graph computes."""
    import tensorflow as tf

    paths = []
    for op in graph.get_operations():
        if op.type.startswith("InitializeTableFromTextFile"):
            value = tf.get_static_value(op.inputs[1])
            paths.append(None if value is None else os.fsdecode(value.item()))
    return paths
