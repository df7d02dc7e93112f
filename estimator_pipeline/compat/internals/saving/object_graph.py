"""The variables of a `tf.train.Checkpoint` checkpoint, without the program that wrote it.

Such a file stores variables by their path in the program's object graph, and a description of that graph: the name of
each variable, and the optimizer slots of each variable.

Private use: the protocol buffer of that description (`tensorflow.core.protobuf.trackable_object_graph_pb2`), for which
there is no public API.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass

__all__ = ["KEY", "SavedVariable", "variables_in"]

# The key of the description in a checkpoint.
KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
_VALUE = "VARIABLE_VALUE"


@dataclass(frozen=True)
class SavedVariable:
    """A variable in an object-based checkpoint.

    Attributes:
        key: The key of its value in the file.
        full_name: The variable's name in the program that wrote it; "" if it had none.
        slot: The slot's name if it is an optimizer slot, else None.
        slot_of: The key of the slot's variable, else None.
    """

    key: str
    full_name: str
    slot: str | None = None
    slot_of: str | None = None


def variables_in(serialized: bytes) -> list[SavedVariable]:
    """Return the variables of a checkpoint, in the order of the object graph.

    Args:
        serialized: The checkpoint's value of `KEY`.
    """
    described = importlib.import_module("tensorflow.core.protobuf.trackable_object_graph_pb2")
    graph = described.TrackableObjectGraph()
    graph.ParseFromString(serialized)
    values = {
        number: (attribute.checkpoint_key, attribute.full_name)
        for number, node in enumerate(graph.nodes)
        for attribute in node.attributes
        if attribute.name == _VALUE
    }
    slots = {
        slot.slot_variable_node_id: (slot.slot_name, slot.original_variable_node_id)
        for node in graph.nodes
        for slot in node.slot_variables
    }
    variables = []
    for number, (key, name) in values.items():
        slot, owner = slots.get(number, (None, None))
        variables.append(SavedVariable(key, name, slot, values[owner][0] if owner in values else None))
    return variables
