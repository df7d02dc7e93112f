"""Timestamps of a worker's own work in a synchronous step, by operations that run only when they are fetched.

In synchronous training all workers' steps take the same time: a fast worker waits in the collectives for slow ones. So
each worker records when its gradients are ready, just before the first is sent. Operations that depend on a collective
are excluded: fetching a timestamp must not run a collective, which would wait for workers that do not run it.

Private use: `Operation._get_control_flow_context`, unchanged from 2.15 to 2.21: a control dependency on an operation in
a conditional or loop is not possible from outside.
"""

from __future__ import annotations

from typing import Any

__all__ = ["marks"]

_WITH_OTHERS = ("CollectiveReduce", "CollectiveGather", "CollectiveAllToAll")
_INPUT = "IteratorGetNext"


def marks(graph: Any) -> dict[str, Any]:
    """Add two timestamps to a training graph, in seconds like `time.time()`.

    On a GPU they are the times at which the operations were launched, since nothing waits for the device.

    Args:
        graph: A `tf.Graph` that is not finalized, with the complete training step.

    Returns:
        "input" (float64 []): the time at which the batch was available; "ready" (float64 []): the time at which the
        first tensor for the other workers was available. Either may be missing; without "ready" both are.
    """
    inputs: list[Any] = []
    sent: list[Any] = []
    fed, after = set(), set()
    # Operations are in the order of their creation, so their inputs come first.
    for op in graph.get_operations():
        read = [*(tensor.op for tensor in op.inputs), *op.control_inputs]
        if op.type.startswith(_INPUT):
            inputs.append(op)
            fed.add(op)
        elif any(source in fed for source in read):
            fed.add(op)
        if any(source in after for source in read):
            after.add(op)
        if op.type.startswith(_WITH_OTHERS):
            source = op.inputs[0].op
            if source in fed and source not in after and source._get_control_flow_context() is None:
                sent.append(source)
            after.add(op)
    if not sent:
        return {}
    timestamps = {"ready": _mark(graph, sent)}
    outside = [op for op in inputs if op._get_control_flow_context() is None]
    if outside:
        timestamps["input"] = _mark(graph, outside)
    return timestamps


def _mark(graph: Any, ops: list[Any]) -> Any:
    import tensorflow as tf

    spec = tf.DeviceSpec.from_string(ops[0].device).replace(device_type="CPU", device_index=0)
    with graph.as_default(), tf.control_dependencies(None), tf.device(spec.to_string()), tf.control_dependencies(ops):
        return tf.timestamp()
