"""Operations of a dataset whose order of elements differs between processes: a shuffle without a seed, for example.

Workers that keep every n-th element of the same dataset read each record once only if its order is the same on all.

Private use: `Dataset._variant_tensor` and `Dataset._as_serialized_graph`, unchanged from 2.15 to 2.21.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

__all__ = ["differing_order"]

# Operations with inputs `seed` and `seed2`, which are both 0 without a seed -> their names in tf.data.
_SEEDED = {
    "ShuffleDataset": "shuffle() or list_files()",
    "ShuffleDatasetV3": "shuffle() or list_files()",
    "ShuffleAndRepeatDataset": "shuffle_and_repeat()",
    "ShuffleAndRepeatDatasetV2": "shuffle_and_repeat()",
    "AnonymousRandomSeedGenerator": "shuffle() or list_files()",
    "AnonymousSeedGenerator": "shuffle() or list_files()",
    "RandomDataset": "random() or sample_from_datasets()",
    "RandomDatasetV2": "random() or sample_from_datasets()",
}
_FILES = ("TFRecordDataset", "TextLineDataset", "FixedLengthRecordDataset")


def differing_order(dataset: Any, *, of_files: bool = True) -> str | None:
    """Return the operation because of which the order differs, as text; None: the order is the same.

    What a Python generator yields is not known, and counts as the same.

    Args:
        dataset: A `tf.data.Dataset`, eager or of a graph.
        of_files: Whether to look at a dataset that reads files; otherwise, its order counts as the same.
    """
    with warnings.catch_warnings():
        # In a graph the options may not be known; they are, for a dataset that no other process has written.
        warnings.simplefilter("ignore", UserWarning)
        options = dataset.options()
    bodies = list(_bodies(dataset))
    if not of_files and any(node.op.startswith(_FILES) for nodes in bodies for node in nodes.values()):
        return None
    if options.deterministic is False:
        return "options.deterministic = False"
    for nodes in bodies:
        for node in nodes.values():
            if node.op in _SEEDED and _is_unseeded(node, nodes):
                return f"{_SEEDED[node.op]} without a seed"
            if "Parallel" in node.op and node.attr["deterministic"].s == b"false":
                name = node.op.partition("Parallel")[2].partition("Dataset")[0].lower()
                return f"{name}(deterministic=False)"
    return None


def _bodies(dataset: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the nodes of the dataset, by name, and those of each function that it calls, such as that of `flat_map`."""
    import tensorflow as tf

    tensor = dataset._variant_tensor
    if hasattr(tensor, "numpy"):
        graph = tf.compat.v1.GraphDef.FromString(dataset._as_serialized_graph(allow_stateful=True).numpy())
        nodes: Iterable[Any] = graph.node
    else:
        graph = tensor.graph.as_graph_def()
        every = {node.name: node for node in graph.node}
        nodes, waiting = [], [tensor.op.name]
        while waiting:
            node = every.pop(waiting.pop(), None)
            if node is not None:
                nodes.append(node)
                waiting += [_name(source) for source in node.input]
    functions = {function.signature.name: function for function in graph.library.function}
    bodies = [nodes]
    while bodies:
        body = {node.name: node for node in bodies.pop()}
        yield body
        for node in body.values():
            for attr in node.attr.values():
                for value in (attr.func, *attr.list.func):
                    if value.name in functions:
                        bodies.append(functions.pop(value.name).node_def)


def _is_unseeded(node: Any, nodes: Mapping[str, Any]) -> bool:
    import tensorflow as tf

    # The parameters of `tf.raw_ops` are the operation's inputs, in order, before its attributes.
    parameters = list(inspect.signature(getattr(tf.raw_ops, node.op)).parameters)
    seeds = [nodes.get(_name(node.input[parameters.index(name)])) for name in ("seed", "seed2")]
    return all(
        seed is not None and seed.op == "Const" and not tf.make_ndarray(seed.attr["value"].tensor) for seed in seeds
    )


def _name(source: str) -> str:
    """Return the node of an input, such as "seed:output:0" or "^control"."""
    return source.removeprefix("^").partition(":")[0]
