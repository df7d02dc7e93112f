"""Comparison of the workers' training graphs before the first step of synchronous training.

A program may derive a learning rate or a layer's width from its machine. The summed gradients are then the same on all
workers, but each updates its variables differently. A factor of the loss that depends on the task, or a model_fn that
was edited on one machine, trains a model that no worker's code describes.

The digest of what loss and train_op are computed from is compared with the other properties. Only if it differs, the
tasks exchange the digests of all nodes, and find the first that differ. Batches of different shapes mean different
constants: the nodes are then not compared.
"""

from __future__ import annotations

import functools
import os
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.cluster import TFConfig
from estimator_pipeline.compat.internals import session_hooks
from estimator_pipeline.compat.internals.graph_state import BATCH_OPERATIONS
from estimator_pipeline.engines.core.context import TaskContext
from estimator_pipeline.engines.core.rendezvous import same_job
from estimator_pipeline.engines.core.rendezvous.graph_nodes import GraphNodes, Replica

# Operations with which an optimizer updates a variable: ResourceApplyAdam, ResourceSparseApplyAdagrad, ...
_UPDATE = re.compile(r"Apply[A-Z]")
_BATCHES, _INPUTS, _NODES, _MISSING = "batches", "inputs of model_fn", "nodes", ("no such node",) * 2
_VARIABLES, _UPDATES, _NUMBERS = "trainable variables", "updates by the optimizer", "numbers of the optimizer"
# More variables than these are compared by one digest.
_MANY_VARIABLES = 2000
# Maximum number of operations to follow from an optimizer's argument back to its constants.
_FAR = 200
# Makes a difference in what loss and train_op are computed from a warning.
VARIABLE = "ESTIMATOR_PIPELINE_DIFFERENT_GRAPHS"


def watch(estimator: Any, context: TaskContext) -> Any:
    """Return a session hook for an Estimator that is bound to this task, which compares the graph; see `compare`."""
    tf: Any = compat.tensorflow()
    replicas: list[Replica] = []
    session_hooks.notify_replicas(
        estimator, lambda inputs, spec: replicas.append(Replica(tuple(inputs), spec.loss, spec.train_op))
    )

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
    nodes = GraphNodes(graph, replicas)
    inputs = [f"{tensor.dtype.name} {tensor.shape}" for replica in replicas for tensor in replica.inputs]
    facts = facts_of(graph) | {_INPUTS: same_job.digest(inputs), _NODES: nodes.digest}
    differing = same_job.compare(facts, tf_config, about="graph", timeout=timeout)
    refused = (_VARIABLES, _UPDATES, _NUMBERS)
    comparable = not differing.keys() & {_INPUTS, _BATCHES, *refused}
    of_nodes, _ = differing.pop(_NODES, None), differing.pop(_INPUTS, None)
    if of_nodes is not None and comparable:
        same_job.judge(
            _nodes_that_differ(graph, replicas, nodes, tf_config, timeout=timeout),
            () if os.environ.get(VARIABLE) else None,
            message="loss and train_op are computed differently on the tasks of this cluster",
            hint="start every task with the same program; a model_fn must not depend on its task or machine, except "
            f"for summaries and log messages. If the difference is intended, set {VARIABLE}=1 in every task",
        )
    same_job.judge(differing, refused)


def _nodes_that_differ(
    graph: Any, replicas: Sequence[Replica], nodes: GraphNodes, tf_config: TFConfig, *, timeout: float
) -> same_job.Differences:
    """Return the first nodes that differ, if they do not differ only in constants that are the task's number.

    All training tasks call it, and get the same result.
    """
    exchange = functools.partial(same_job.exchange, tf_config=tf_config, timeout=timeout)
    assert tf_config.cluster is not None
    tasks = tf_config.cluster.training_tasks
    place, count = tasks.index(tf_config.task), len(replicas)
    numbers = {tf_config.task.index, *range(place * count, (place + 1) * count)}
    indices = exchange("graph: task numbers", nodes.indices(numbers))
    nodes = GraphNodes(graph, replicas, frozenset.intersection(*map(frozenset, indices.values())))
    published = exchange("graph: nodes", [nodes.digest, *(digest.hex() for digest in nodes.by_digest)])
    chief, local = str(tf_config.cluster.chief), str(tf_config.task)
    others = [task for task, (digest, *_) in published.items() if digest != published[chief][0]]
    against = others if local == chief else [chief]
    first = exchange(
        "graph: differences",
        {task: nodes.first_of_difference(set(map(bytes.fromhex, published[task]))) for task in against},
    )
    differing: same_job.Differences = {}
    for task in others:
        both = first[chief][task], first[task][chief]
        in_loss = any(not after for nodes in both for after, *_ in nodes)
        ours, theirs = ({name: texts for after, name, *texts in nodes if not (after and in_loss)} for nodes in both)
        # A node that both have, or else the first of each.
        common = next((name for name in ours if name in theirs), None)
        for name in [common] if common else [*list(ours)[:1], *list(theirs)[:1]]:
            pair = ours.get(name, _MISSING), theirs.get(name, _MISSING)
            long = int(pair[0][0] == pair[1][0])
            by = differing.setdefault(f"node {name}", {chief: pair[0][long]})
            by[task] = pair[1][long]
    return differing


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
