"""What a checkpoint of `tf.train.Checkpoint` says of its variables, without the program that wrote it.

Such a file keeps variables by their place in the program's objects, and beside them a description of those objects:
the name that each variable had, and which variables are an optimizer's slots of which others.

Private use: the protocol buffer of that description (`tensorflow.core.protobuf.trackable_object_graph_pb2`), which the
public API has no reader for.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass

__all__ = ["KEY", "SavedVariable", "variables_in"]

# Under this key a checkpoint has the description.
KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
_VALUE = "VARIABLE_VALUE"


@dataclass(frozen=True)
class SavedVariable:
    """A variable in a checkpoint of objects.

    Attributes:
        key: of its value in the file.
        full_name: the variable's name in the program that wrote it; "" where it had none.
        slot: the slot's name, where it is an optimizer's slot.
        slot_of: the key of the variable that it belongs to, then.
    """

    key: str
    full_name: str
    slot: str | None = None
    slot_of: str | None = None


def variables_in(serialized: bytes) -> list[SavedVariable]:
    """The variables of a checkpoint, in the order of the objects.

    Args:
        serialized: what the checkpoint has under :data:`KEY`.
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
    found = []
    for number, (key, name) in values.items():
        slot, owner = slots.get(number, (None, None))
        found.append(SavedVariable(key, name, slot, values[owner][0] if owner in values else None))
    return found
