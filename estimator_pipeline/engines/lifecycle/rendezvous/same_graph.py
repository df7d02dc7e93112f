"""Comparison of the workers' training graphs before the first step of synchronous training.

A program may derive a learning rate or a layer's width from its machine. The summed gradients are then the same on all
workers, but each updates its variables differently.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.cluster import TFConfig
from estimator_pipeline.engines.lifecycle.rendezvous import same_job

__all__ = ["facts_of", "hook"]

# Operations with which an optimizer updates a variable: ResourceApplyAdam, ResourceSparseApplyAdagrad, ...
_UPDATE = re.compile(r"Apply[A-Z]")
_DATA = ("IteratorGetNext", "OptionalGetValue")
_VARIABLES, _UPDATES, _NUMBERS = "trainable variables", "updates by the optimizer", "numbers of the optimizer"
# More variables than these are compared by one digest.
_MANY_VARIABLES = 2000
# Maximum number of operations to follow from an optimizer's argument back to its constants.
_FAR = 200


def hook(tf_config: TFConfig, *, timeout: float) -> Any:
    """Return a session hook that raises an error if the workers' graphs differ in a way that makes training wrong.

    Args:
        tf_config: Cluster and task of this process.
        timeout: Seconds for the other workers to build their graphs.
    """
    tf: Any = compat.tensorflow()

    class SameGraph(tf.compat.v1.train.SessionRunHook):
        def __init__(self) -> None:
            pass  # TensorFlow's __init__ logs a deprecation warning

        def begin(self) -> None:
            local = facts_of(tf.compat.v1.get_default_graph())
            refused = (_VARIABLES, _UPDATES, _NUMBERS)
            same_job.agree(local, tf_config, about="graph", refused=refused, timeout=timeout)

    return SameGraph()


def facts_of(graph: Any) -> dict[str, Any]:
    """Describe the model, optimizer and batches of a training graph, as plain values.

    Args:
        graph: A `tf.Graph`.
    """
    tf = compat.tensorflow()
    with graph.as_default():
        variables = {v.name: f"{v.dtype.name} {v.shape}" for v in tf.compat.v1.trainable_variables()}
    updates: Counter[str] = Counter()
    numbers: set[float] = set()
    batches = []
    for op in graph.get_operations():
        if _UPDATE.search(op.type):
            updates[op.type] += 1
            for argument, tensor in zip(op.op_def.input_arg, op.inputs, strict=False):
                if argument.name != "grad" and tensor.shape.rank == 0 and tensor.dtype.is_floating:
                    numbers.update(_numbers_behind(tf, tensor))
        elif op.type in _DATA:
            batches.append([f"{tensor.dtype.name} {tensor.shape}" for tensor in op.outputs])
    many = len(variables) > _MANY_VARIABLES
    return same_job.facts({"batches": batches}) | {
        _VARIABLES: same_job.digest(variables) if many else variables,
        _UPDATES: dict(updates),
        _NUMBERS: sorted(numbers),
    }


def _numbers_behind(tf: Any, tensor: Any) -> list[float]:
    """Return the constants from which a number is computed (a schedule has several).

    Values of variables, such as a Keras optimizer's learning rate, come from the chief on all workers.
    """
    constants: list[float] = []
    seen: set[str] = set()
    waiting = [tensor]
    while waiting and len(seen) < _FAR:
        op = waiting.pop().op
        if op.name in seen:
            continue
        seen.add(op.name)
        if op.type == "Const":
            value = tf.get_static_value(op.outputs[0])
            if value.ndim == 0 and value.dtype.kind == "f":
                # The value in the source, not the rounded float32.
                constants.append(float(str(value)))
        waiting.extend(op.inputs)
    return constants
