"""Whether the workers of synchronous training have built one model: what their graphs can tell, before the first step.

A program may take a learning rate or a layer's width from the machine that it runs on. The sums of gradients are the
same on all workers then, and what each makes of them is not.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.cluster import TFConfig
from estimator_pipeline.engines.lifecycle.rendezvous import same_job

__all__ = ["facts_of", "hook"]

# What updates a variable by a rule of an optimizer: ResourceApplyAdam, ResourceSparseApplyAdagrad, ...
_UPDATE = re.compile(r"Apply[A-Z]")
_DATA = ("IteratorGetNext", "OptionalGetValue")
_VARIABLES, _UPDATES, _NUMBERS = "trainable variables", "updates by the optimizer", "numbers of the optimizer"
# More variables than these are compared by one digest.
_MANY_VARIABLES = 2000
# Operations from a number of an optimizer back to what it is made of.
_FAR = 200


def hook(tf_config: TFConfig, *, timeout: float) -> Any:
    """A session hook that ends training where the workers' graphs differ, in what makes it wrong.

    Args:
        tf_config: which task this is.
        timeout: seconds for the others to have built theirs.
    """
    tf: Any = compat.tensorflow()

    class SameGraph(tf.compat.v1.train.SessionRunHook):
        def __init__(self) -> None:
            pass  # TensorFlow's says that it is deprecated

        def begin(self) -> None:
            own = facts_of(tf.compat.v1.get_default_graph())
            refused = (_VARIABLES, _UPDATES, _NUMBERS)
            same_job.agree(own, tf_config, about="graph", refused=refused, timeout=timeout)

    return SameGraph()


def facts_of(graph: Any) -> dict[str, Any]:
    """What a training graph says of its model, its optimizer and its batches, as plain values.

    Args:
        graph: a `tf.Graph`.
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
    """The constants that a number is made of, whatever is done with them (a schedule has several).

    What a variable holds, as a Keras optimizer's learning rate, all workers take from the chief.
    """
    found: list[float] = []
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
                # As it was written, not as float32 rounds it.
                found.append(float(str(value)))
        waiting.extend(op.inputs)
    return found
