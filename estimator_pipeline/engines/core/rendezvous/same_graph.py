"""Comparison of the workers' training graphs before the first step of synchronous training.

A program may derive a learning rate or a layer's width from its machine. The summed gradients are then the same on all
workers, but each updates its variables differently. A factor of the loss that depends on the task, or a model_fn that
was edited on one machine, trains a model that no worker's code describes.

The types of the operations from which the loss is computed are counted, and its numbers by value. Everything else may
differ between tasks with the same code: names, order, seeds, whole numbers such as the task's index, and what a chief
adds. Batches of different shapes may need different operations, which are then not compared.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from estimator_pipeline import compat
from estimator_pipeline.cluster import TFConfig
from estimator_pipeline.compat.internals import session_hooks
from estimator_pipeline.compat.internals.graph_state import BATCH_OPERATIONS, called_nodes
from estimator_pipeline.engines.core.context import TaskContext
from estimator_pipeline.engines.core.rendezvous import same_job

# Operations with which an optimizer updates a variable: ResourceApplyAdam, ResourceSparseApplyAdagrad, ...
_UPDATE = re.compile(r"Apply[A-Z]")
# What is above these operations is the input, and not compared.
_DATA = re.compile(r"Iterator|Dataset|^Optional|^Queue|Dequeue|Reader|^(Un)?[Ss]tage")
# Operations that pass on their first input; some of them print or check others.
_PASSING = re.compile(r"Identity|Print|CheckNumerics(V2)?|Snapshot")
# What a task may do for its log only.
_LOGGING = re.compile(r"Summary|Print|Assert|String|NoOp")
_BATCHES, _INPUTS, _LOSS = "batches", "inputs of model_fn", "operations of the loss"
_VARIABLES, _UPDATES, _NUMBERS = "trainable variables", "updates by the optimizer", "numbers of the optimizer"
# More variables than these are compared by one digest.
_MANY_VARIABLES = 2000
# Maximum number of operations to follow from an optimizer's argument back to its constants.
_FAR = 200
# Makes a difference in what the loss is computed from a warning.
VARIABLE = "ESTIMATOR_PIPELINE_DIFFERENT_GRAPHS"


class Replica(NamedTuple):
    """A call of the model_fn: the tensors of features and labels, and the loss before it is summed over replicas."""

    inputs: Sequence[Any]
    loss: Any


def watch(estimator: Any, context: TaskContext) -> Any:
    """Return a session hook for an Estimator that is bound to this task, which compares the graph; see `compare`."""
    tf: Any = compat.tensorflow()
    replicas: list[Replica] = []
    session_hooks.notify_replicas(estimator, lambda inputs, spec: replicas.append(Replica(tuple(inputs), spec.loss)))

    class SameGraph(tf.compat.v1.train.SessionRunHook):
        def __init__(self) -> None:
            pass  # TensorFlow's __init__ logs a deprecation warning

        def begin(self) -> None:
            graph, timeout = tf.compat.v1.get_default_graph(), context.options.startup_timeout
            compare(graph, replicas, context.tf_config, timeout=timeout)

    return SameGraph()


def compare(graph: Any, replicas: Sequence[Replica], tf_config: TFConfig, *, timeout: float) -> None:
    """Compare this task's training graph, with its calls of the model_fn, with those of the other training tasks.

    Raises:
        OtherJobError: The graphs differ in a way that makes training wrong.
        WaitError: A task did not publish its graph in time.
    """
    inputs = [f"{tensor.dtype.name} {tensor.shape}" for replica in replicas for tensor in replica.inputs]
    facts = facts_of(graph) | {_INPUTS: same_job.digest(inputs), _LOSS: operations_of(graph, replicas)}
    differing = same_job.compare(facts, tf_config, about="graph", timeout=timeout)
    refused = (_VARIABLES, _UPDATES, _NUMBERS)
    of_loss = {name: differing.pop(name) for name in list(differing) if name.startswith(_LOSS)}
    if not any(name.startswith((_INPUTS, _BATCHES, *refused)) for name in differing):
        same_job.judge(
            of_loss,
            () if os.environ.get(VARIABLE) else None,
            message="the loss is computed differently on the tasks of this cluster",
            hint="start every task with the same program; a model_fn must not depend on its task or machine, except "
            f"for summaries and log messages. If the difference is intended, set {VARIABLE}=1 in every task",
        )
    differing.pop(_INPUTS, None)
    same_job.judge(differing, refused)


def facts_of(graph: Any) -> dict[str, Any]:
    """Describe the model, optimizer and batches of a training graph, as plain values."""
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
        elif op.type in BATCH_OPERATIONS:
            batches.append([f"{tensor.dtype.name} {tensor.shape}" for tensor in op.outputs])
    many = len(variables) > _MANY_VARIABLES
    return same_job.facts({_BATCHES: batches}) | {
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


def operations_of(graph: Any, replicas: Sequence[Replica]) -> dict[str, int]:
    """Count the operations from which the losses are computed, by type, and their numbers by value.

    The functions that they call, such as the bodies of loops, are included.
    """
    tf = compat.tensorflow()
    inputs = {tensor.op.name for replica in replicas for tensor in replica.inputs}
    operations: dict[str, Any] = {}
    waiting = [replica.loss.op for replica in replicas]
    while waiting:
        op = waiting.pop()
        if op.name not in inputs and op.name not in operations and not _DATA.search(op.type):
            operations[op.name] = op
            passes = _PASSING.fullmatch(op.type)
            waiting += [tensor.op for tensor in (op.inputs[:1] if passes else op.inputs)]
    functions = called_nodes(graph, operations.values())
    scalars = [op for op in operations.values() if op.type == "Const" and op.outputs[0].shape.rank == 0]
    numbers = [tf.get_static_value(op.outputs[0]) for op in scalars]
    constants = [node.attr["value"].tensor for node in functions if node.op == "Const"]
    numbers += [tf.make_ndarray(tensor) for tensor in constants if not tensor.tensor_shape.dim]
    counts = Counter(f"number {value}" for value in numbers if value.dtype.kind == "f")
    kinds = [op.type for op in operations.values() if hasattr(tf.raw_ops, op.type)]
    kinds += [node.op for node in functions]
    counts.update(kind for kind in kinds if not (_PASSING.fullmatch(kind) or _LOGGING.search(kind)))
    return dict(counts)
