"""What a graph remembers from one run of it to the next, read off its operations.

A graph can be run again in the same session, with the result of a new one, if everything in it that has a memory is
set anew by what begins each run: variables, vocabulary tables and initializable iterators are. The state of a random
number generator, of a one-shot iterator or of a queue is not. :func:`what_remembers` names such operations.

Python functions in a graph are another matter: they live as long as the graph, with all that they close over.
:func:`python_functions` counts them.

The list below is of operations known to be harmless. What TensorFlow calls stateful and is not on it counts as
remembering, so that an operation nobody thought of costs time and not correctness.

Private use: `tensorflow.python.framework.op_def_registry` says which operations are stateful, and
`Graph._copy_functions_to_graph_def` gives the graph's functions without its constants, which may be the whole data
set (`Graph.as_graph_def` copies both). The same from 2.15 to 2.21.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["python_functions", "vocabularies", "what_remembers"]

_HARMLESS = re.compile(
    "|".join(
        (
            # Variables: each is set by the checkpoint or by the local initializers, or could not be read at all.
            r"VarHandleOp|Variable(V2)?|VarIsInitializedOp|IsVariableInitialized|ReadVariableOp|Assign\w*",
            r"_?ReadVariablesOp|VariableShape|DestroyResourceOp|Resource(Gather|Scatter)\w*|Scatter\w+",
            # Vocabulary tables: filled once in a session (their files are looked after by `vocabularies`).
            r"HashTable(V2)?|InitializeTable\w*|LookupTable(Find|Size|Import)(V2)?",
            # Iterators that are initialized at the start of each run, and the datasets that this makes anew.
            r"Iterator(V2)?|MakeIterator|IteratorGetNext\w*|IteratorToStringHandle|IteratorFromStringHandle(V2)?",
            r"MultiDeviceIterator\w*|RemoteCall",
            r"(?!\w*(Random|Service|Snapshot))\w*Dataset(V\d)?",
            # What lives for one call of Session.run, or has no state.
            r"TensorArray\w*|Stack(V2)?|StackP\w+|_?Arg|_?Retval|_If|_While|If|While|Case|StatefulPartitionedCall",
            r"SaveV2|RestoreV2|SaveSlices|RestoreSlice|MergeV2Checkpoints|Assert|Print|PrintV2|Timestamp|NoOp",
        )
    )
)
_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")
_DATASETS = re.compile(r"\w*Dataset(V\d)?|OneShotIterator")


def _functions(graph: Any) -> dict[str, Any]:
    """The graph's functions (FunctionDef) by name."""
    from tensorflow.core.framework import graph_pb2

    holder = graph_pb2.GraphDef()
    graph._copy_functions_to_graph_def(holder, 0)
    return {function.signature.name: function for function in holder.library.function}


def _called(node: Any) -> Iterable[str]:
    """Names of the functions that a NodeDef refers to."""
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
    """Those of `functions` that are called, by way of others too."""
    found: set[str] = set()
    left = list(called)
    while left:
        name = left.pop()
        if name in functions and name not in found:
            found.add(name)
            for node in functions[name].node_def:
                left.extend(_called(node))
    return found


def _reachable(graph: Any, fetches: Iterable[Any]) -> list[Any]:
    """All operations that running `fetches` (operations, tensors, variables) would run."""
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


def what_remembers(graph: Any, fetches: Iterable[Any]) -> list[str]:
    """Kinds of operations whose state would outlive a run of the graph and show in the next one.

    Args:
        graph: a `tf.Graph`.
        fetches: the operations, tensors and variables that are run.

    Returns:
        Operation types, sorted; empty if one session can stand for many.
    """
    from tensorflow.python.framework import op_def_registry

    reachable = _reachable(graph, fetches)
    kinds = {op.type for op in reachable}
    # Only operations with a function among their attributes are looked into: the others may be large constants.
    called = {name for op in reachable if _takes_functions(op) for name in _called(op.node_def)}
    functions = _functions(graph)
    for name in _all_called(functions, kinds | called):
        kinds.update(node.op for node in functions[name].node_def)

    def remembers(kind: str) -> bool:
        definition = op_def_registry.get(kind)
        # A function called by its name has no definition; its body is looked at by itself.
        return definition is not None and definition.is_stateful and not _HARMLESS.fullmatch(kind)

    return sorted(kind for kind in kinds if remembers(kind) and kind not in _PYTHON)


def python_functions(graph: Any) -> tuple[int, int]:
    """How many Python functions a graph calls: (those of its datasets, all others)."""
    functions = _functions(graph)
    operations = graph.get_operations()
    called = (name for op in operations if _DATASETS.fullmatch(op.type) for name in _called(op.node_def))
    in_datasets = _all_called(functions, called)
    outside = sum(op.type in _PYTHON for op in operations)
    counts = {name: sum(n.op in _PYTHON for n in function.node_def) for name, function in functions.items()}
    inside = sum(count for name, count in counts.items() if name in in_datasets)
    return inside, outside + sum(counts.values()) - inside


def vocabularies(graph: Any) -> list[Any]:
    """Paths of the vocabulary files that the graph's tables are filled from; None for one that the graph computes."""
    import tensorflow as tf

    paths = []
    for op in graph.get_operations():
        if op.type.startswith("InitializeTableFromTextFile"):
            value = tf.get_static_value(op.inputs[1])
            paths.append(None if value is None else os.fsdecode(value.item()))
    return paths
