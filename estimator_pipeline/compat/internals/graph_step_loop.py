"""Several train steps in one session call: the graph's own step, copied into the body of a loop.

The graph is built as ever, for one step. What `train_op` and the loss need is copied into a `tf.while_loop`; the copies
use the graph's own variables, iterators and tables, and the original step stays as it is, for hooks to fetch from. A
copy is made of operations, not of Python code, so what a strategy has built (replicas, collectives) is copied as it is;
to call a `model_fn` inside a loop fails there ("merge_call").

Copies are refused where they would not be the same step: :func:`why_not` says why.

* An operation that keeps a state of its own, and not in a variable: the copy would have another one. So it is with
  random operations (dropout by Keras layers), whose stream is a part of the operation.
* References and frames of TensorFlow 1 (`disable_v2_behavior`), which a function cannot take.
* Placeholders, which somebody feeds.

On several workers the loss that an Estimator shows is the sum of theirs: a collective in each step, of a number that
nobody reads before the call's last step, but to see whether it is one. The copies leave it out, and look at the loss of
their own worker; behind the loop the workers agree, in one collective, on the first step that had none.

Private use: `op_def_registry` (whether an operation of a function keeps a state), `FuncGraph.capture`; both the same
from 2.15 to 2.21.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

__all__ = ["StepLoop", "why_not"]

# Operations that TensorFlow calls stateful, and whose state is in a resource that the copy shares (a variable, a table,
# an iterator), or that have none.
_SHARES_STATE = re.compile(
    r"""(Read|Assign|AssignAdd|AssignSub|Destroy)VariableOp | VarHandleOp | VarIsInitializedOp
    | Resource(Gather|GatherNd|Apply\w+|SparseApply\w+|Scatter\w+|CountUpTo) | ResourceStridedSliceAssign
    | RngReadAndSkip | RngSkip | Stateful(Uniform|UniformInt|UniformFullInt|StandardNormalV2|TruncatedNormal)
    | IteratorGetNext(Sync|AsOptional)? | MultiDeviceIteratorGetNextFromShard
    | Collective(Reduce|Gather|BcastSend|BcastRecv|Permute)(V2|V3)?
    | Queue(Dequeue|DequeueMany|DequeueUpTo|Size)V2 | LookupTable\w+V2
    | Py(Func|FuncStateless) | EagerPyFunc | Assert | PrintV2?
    | (Stateful|Stateless)?PartitionedCall | (Stateless)?(If|While|Case)""",
    re.VERBOSE,
)
_FRAMES = ("Enter", "RefEnter", "Switch", "RefSwitch")
_FED = ("Placeholder", "PlaceholderV2", "PlaceholderWithDefault")


class StepLoop:
    """Steps of a graph, as many in a call as it is told. To be made before the graph is finalized.

    Args:
        train_op: an operation or tensor.
        loss: a floating tensor, [].
        global_step: the variable.
    """

    def __init__(self, train_op: Any, loss: Any, global_step: Any) -> None:
        import tensorflow as tf

        v1 = tf.compat.v1
        train_op = _operation(train_op)
        own, agreeing = _before_the_sum(train_op, loss)
        operations = _needed(train_op, own.op)
        shared = [tensor for op in operations if _is_shared(op) for tensor in op.outputs]
        step = _graph_def([op for op in operations if not _is_shared(op)])

        def run_step(done: Any, bad: Any) -> tuple[Any, Any]:
            body = v1.get_default_graph()
            given = {tensor.name: body.capture(tensor) for tensor in shared}
            trained, value = tf.import_graph_def(
                step, input_map=given, return_elements=[train_op.name, own.name], name="step"
            )
            value = tf.reshape(value, [])
            # Nothing of the next step begins before all of this one is done.
            with tf.control_dependencies([trained, value]):
                is_first = tf.logical_and(tf.equal(bad, 0), tf.math.is_nan(value))
                return done + 1, tf.where(is_first, done + 1, bad)

        def goes_on(done: Any, bad: Any) -> Any:
            # A loss that is NaN ends the call with its step. A worker cannot do so by itself: others would wait for it.
            more = done < self._count
            return more if agreeing is not None else tf.logical_and(more, bad < 1)

        with tf.name_scope("estimator_pipeline_steps"):
            self._count = v1.placeholder(tf.int32, [], name="count")
            done, bad = tf.while_loop(
                goes_on,
                run_step,
                [tf.constant(0), tf.constant(0)],
                parallel_iterations=1,
            )
            if agreeing is not None:
                bad = self._first_of_all(agreeing, bad)
            with tf.control_dependencies([done, bad]):
                self._fetches = (done, bad, tf.identity(global_step.read_value()))

    def _first_of_all(self, agreeing: Any, bad: Any) -> Any:
        """The first bad step of any worker, 0 if there is none."""
        import tensorflow as tf

        given, *keys = agreeing.inputs
        # The earlier, the more is left of the call: the greatest is the first.
        left = tf.where(bad > 0, self._count + 1 - bad, 0)
        copied = _graph_def([agreeing, *(key.op for key in keys)])
        (node,) = (node for node in copied.node if node.name == agreeing.name)
        node.attr["merge_op"].s = b"Max"
        sent = tf.fill(tf.shape(given), tf.cast(left, given.dtype))
        (most,) = tf.import_graph_def(
            copied, input_map={given.name: sent}, return_elements=[agreeing.outputs[0].name], name="agree"
        )
        most = tf.cast(tf.reshape(most, []), tf.int32)
        return tf.where(most > 0, self._count + 1 - most, 0)

    def run(self, session: Any, count: int) -> tuple[int, bool, int]:
        """Makes `count` steps.

        Returns:
            How many were made; whether the last of these has a loss that is NaN, of any worker; and the global step.
            With a NaN on several workers the global step is that of all `count`.

        Raises:
            tf.errors.OutOfRangeError: the data have ended; the steps before stand.
        """
        done, bad, step = session.run(self._fetches, {self._count: count})
        return int(bad or done), bool(bad), int(step)


def why_not(train_op: Any, loss: Any) -> str | None:
    """Why the step of a graph cannot be copied, or None.

    Args:
        train_op: an operation or tensor.
        loss: a tensor.
    """
    import tensorflow as tf
    from tensorflow.python.framework import op_def_registry

    if not tf.compat.v1.control_flow_v2_enabled():
        return "control flow is that of TensorFlow 1"
    if not loss.dtype.is_floating or loss.shape.num_elements() != 1:
        return f"the loss is {loss.dtype.name} of shape {loss.shape}"
    operations = _needed(_operation(train_op), loss.op)
    types = {op.type for op in operations if not _is_shared(op)}
    for op in operations:
        if any(tensor.dtype._is_ref_dtype for tensor in op.outputs):
            return f"{op.name} is a variable of TensorFlow 1"
    types |= {node.op for function in _functions(_graph_def(operations)) for node in function.node_def}
    for kind in sorted(types):
        if kind in _FED:
            return "something is fed into the step"
        if kind in _FRAMES:
            return "control flow is that of TensorFlow 1"
        known = op_def_registry.get(kind)
        if known is not None and known.is_stateful and not _SHARES_STATE.fullmatch(kind):
            return f"the step has an operation with a state of its own ({kind})"
    return None


def _before_the_sum(train_op: Any, loss: Any) -> tuple[Any, Any]:
    """The loss of this worker, and the operation that sums it over the workers; the loss and None where there is none.

    One replica a worker: several have a collective each, which all have to be run. A sum that is NaN has one that is
    NaN, but for an infinite one of each sign.
    """
    op = loss.op
    # What is shown may be their mean.
    while _passes_on(op):
        op = op.inputs[0].op
    if op.type != "CollectiveReduceV2" or op.control_inputs or loss.dtype.name not in ("float32", "float64"):
        return loss, None
    trains = {one.name for one in _needed(train_op)}
    sums = [one.name for one in _needed(loss.op) if one.type.startswith("Collective") and one.name not in trains]
    plain = op.get_attr("final_op") == b"Id" and op.get_attr("merge_op") == b"Add"
    fixed = all(key.op.type == "Const" for key in op.inputs[1:])
    if sums != [op.name] or not plain or not fixed or op.inputs[0].shape.num_elements() != 1:
        return loss, None
    return op.inputs[0], op


def _passes_on(op: Any) -> bool:
    """Whether what an operation gives is a number where its first input is one, and NaN where that is."""
    by_number = op.type == "RealDiv" and op.inputs[1].op.type == "Const"
    return (by_number or op.type in ("Reshape", "Identity", "SplitV", "Squeeze")) and len(op.outputs) == 1


def _operation(op: Any) -> Any:
    return getattr(op, "op", op)


def _is_shared(op: Any) -> bool:
    """Whether an operation stands for a resource: a variable, an iterator, a table, a queue."""
    return bool(op.outputs) and not op.inputs and all(tensor.dtype.name == "resource" for tensor in op.outputs)


def _needed(*targets: Any) -> list[Any]:
    """All operations that these need, resources being where it ends."""
    seen: dict[str, Any] = {}
    waiting = list(targets)
    while waiting:
        op = waiting.pop()
        if op.name in seen:
            continue
        seen[op.name] = op
        if not _is_shared(op):
            waiting += [tensor.op for tensor in op.inputs] + list(op.control_inputs)
    return list(seen.values())


def _graph_def(operations: list[Any]) -> Any:
    """The operations as a GraphDef, with the functions that they call; without ties to operations left outside."""
    import tensorflow as tf

    graph = tf.compat.v1.get_default_graph()
    found = tf.compat.v1.GraphDef()
    found.versions.CopyFrom(graph.graph_def_versions)
    shared = {op.name for op in operations if _is_shared(op)}
    called = False
    for op in operations:
        node = found.node.add()
        node.CopyFrom(op.node_def)
        node.attr.pop("_class", None)
        # A resource is there before any step.
        kept = [name for name in node.input if name.removeprefix("^") not in shared or not name.startswith("^")]
        del node.input[:]
        node.input.extend(kept)
        called = called or any(_called(node)) or op.op_def is None
    if called:
        library = graph.as_graph_def().library
        by_name = {function.signature.name: function for function in library.function}
        wanted = _reachable(found.node, by_name)
        found.library.function.extend(by_name[name] for name in sorted(wanted))
        found.library.gradient.extend(g for g in library.gradient if g.function_name in wanted)
    return found


def _functions(graph_def: Any) -> Iterator[Any]:
    return iter(graph_def.library.function)


def _called(node: Any) -> Iterator[str]:
    """Names of the functions in a node's attributes."""
    for value in node.attr.values():
        if value.func.name:
            yield value.func.name
        yield from (function.name for function in value.list.func)


def _reachable(nodes: Any, by_name: dict[str, Any]) -> set[str]:
    found: set[str] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        for name in (*_called(node), node.op):
            if name in by_name and name not in found:
                found.add(name)
                waiting += by_name[name].node_def
    return found
