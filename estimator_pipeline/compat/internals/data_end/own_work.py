"""When one of several workers has done its own part of a step, told by operations that only a step which asks for them
runs.

In synchronous training the steps of all workers take the same time: who is done early waits in the collectives for who
is not. So each tells when its own gradients stand, just before the first of them goes to the others. What depends on a
collective itself is left out: nothing here may ever run a collective, which would wait for workers that run none.

Private use: `Operation._get_control_flow_context`, the same from 2.15 to 2.21: an operation within a conditional or a
loop cannot be waited for outside of it.
"""

from __future__ import annotations

from typing import Any

__all__ = ["marks"]

_WITH_OTHERS = ("CollectiveReduce", "CollectiveGather", "CollectiveAllToAll")
_INPUT = "IteratorGetNext"


def marks(graph: Any) -> dict[str, Any]:
    """Adds two scalars to a training graph, seconds as `time.time()` has them.

    On a GPU what is measured is when the operations were handed to it, for nothing here waits for it.

    Args:
        graph: a `tf.Graph` that is not finalized, with all of a training step.

    Returns:
        "input" (float64 []): when the batch was there; "ready" (float64 []): when what this worker gives to the others
        first was there. Either may be missing; without "ready" there is none.
    """
    inputs: list[Any] = []
    given: list[Any] = []
    fed, after = set(), set()
    # Operations stand in the order in which they were made, so what they read comes before them.
    for op in graph.get_operations():
        read = [*(tensor.op for tensor in op.inputs), *op.control_inputs]
        if op.type.startswith(_INPUT):
            inputs.append(op)
            fed.add(op)
        elif any(one in fed for one in read):
            fed.add(op)
        if any(one in after for one in read):
            after.add(op)
        if op.type.startswith(_WITH_OTHERS):
            source = op.inputs[0].op
            if source in fed and source not in after and source._get_control_flow_context() is None:
                given.append(source)
            after.add(op)
    if not given:
        return {}
    found = {"ready": _mark(graph, given)}
    outside = [op for op in inputs if op._get_control_flow_context() is None]
    if outside:
        found["input"] = _mark(graph, outside)
    return found


def _mark(graph: Any, ops: list[Any]) -> Any:
    import tensorflow as tf

    spec = tf.DeviceSpec.from_string(ops[0].device).replace(device_type="CPU", device_index=0)
    with graph.as_default(), tf.control_dependencies(None), tf.device(spec.to_string()), tf.control_dependencies(ops):
        return tf.timestamp()
