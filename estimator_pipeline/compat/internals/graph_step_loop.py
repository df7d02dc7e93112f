"""Several train steps in one session call: the graph's step is copied into the body of a loop.

The graph is built for one step, as usual. The operations that `train_op` and the loss need are copied into a
`tf.while_loop`. The copies share the graph's variables, iterators and tables, and the original step remains for hooks.
Operations are copied, not Python code, so the replicas and collectives of a strategy are copied unchanged; calling a
`model_fn` inside a loop fails under a strategy ("merge_call").

A step is not copied if the copy would differ; `why_not` returns the reason:

* Operations with internal state outside of variables, which the copy would not share. Random operations (dropout of
  Keras layers) are of this kind.
* References and frames of TensorFlow 1 (`disable_v2_behavior`), which functions do not support.
* Placeholders, which are fed.

On several workers the Estimator's loss is summed over the workers: a collective in each step, whose result is needed
only in the call's last step, except for the NaN check. The copies omit the collective and check the loss of their
worker. After the loop the workers agree, in one collective, on the first step with a NaN.

Private use: `op_def_registry` (whether an operation of a function is stateful), `FuncGraph.capture`; both unchanged
from 2.15 to 2.21.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

__all__ = ["StepLoop", "why_not"]

# Operations that TensorFlow marks as stateful, but whose state is in a resource that the copy shares (a variable, a
# table, an iterator), or that have none.
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
    """A loop that runs a variable number of steps in a call. Create it before the graph is finalized.

    Args:
        train_op: An operation or tensor.
        loss: A floating-point tensor, [].
        global_step: The global step variable.
    """

    def __init__(self, train_op: Any, loss: Any, global_step: Any) -> None:
        import tensorflow as tf

        v1 = tf.compat.v1
        train_op = _operation(train_op)
        local_loss, agreeing = _before_the_sum(train_op, loss)
        operations = _needed(train_op, local_loss.op)
        shared = [tensor for op in operations if _is_shared(op) for tensor in op.outputs]
        step = _graph_def([op for op in operations if not _is_shared(op)])

        def run_step(done: Any, bad: Any) -> tuple[Any, Any]:
            body = v1.get_default_graph()
            captured = {tensor.name: body.capture(tensor) for tensor in shared}
            trained, value = tf.import_graph_def(
                step, input_map=captured, return_elements=[train_op.name, local_loss.name], name="step"
            )
            value = tf.reshape(value, [])
            # The next step starts only after this one is complete.
            with tf.control_dependencies([trained, value]):
                is_first = tf.logical_and(tf.equal(bad, 0), tf.math.is_nan(value))
                return done + 1, tf.where(is_first, done + 1, bad)

        def continues(done: Any, bad: Any) -> Any:
            # A NaN loss ends the call with its step, but not on several workers, where the others would wait.
            more = done < self._count
            return more if agreeing is not None else tf.logical_and(more, bad < 1)

        with tf.name_scope("estimator_pipeline_steps"):
            self._count = v1.placeholder(tf.int32, [], name="count")
            done, bad = tf.while_loop(
                continues,
                run_step,
                [tf.constant(0), tf.constant(0)],
                parallel_iterations=1,
            )
            if agreeing is not None:
                bad = self._first_of_all(agreeing, bad)
            with tf.control_dependencies([done, bad]):
                self._fetches = (done, bad, tf.identity(global_step.read_value()))

    def _first_of_all(self, agreeing: Any, bad: Any) -> Any:
        """Return the first bad step of any worker, or 0."""
        import tensorflow as tf

        summed, *keys = agreeing.inputs
        # The remaining steps: their maximum belongs to the first bad step.
        left = tf.where(bad > 0, self._count + 1 - bad, 0)
        copied = _graph_def([agreeing, *(key.op for key in keys)])
        (node,) = (node for node in copied.node if node.name == agreeing.name)
        node.attr["merge_op"].s = b"Max"
        sent = tf.fill(tf.shape(summed), tf.cast(left, summed.dtype))
        (most,) = tf.import_graph_def(
            copied, input_map={summed.name: sent}, return_elements=[agreeing.outputs[0].name], name="agree"
        )
        most = tf.cast(tf.reshape(most, []), tf.int32)
        return tf.where(most > 0, self._count + 1 - most, 0)

    def run(self, session: Any, count: int) -> tuple[int, bool, int]:
        """Run `count` steps.

        Returns:
            The number of steps; whether the last of these has a NaN loss on any worker; and the global step. With a NaN
            on several workers the global step is that after all `count` steps.

        Raises:
            tf.errors.OutOfRangeError: The data has ended; the previous steps are kept.
        """
        done, bad, step = session.run(self._fetches, {self._count: count})
        return int(bad or done), bool(bad), int(step)


def why_not(train_op: Any, loss: Any) -> str | None:
    """Return why the step of a graph cannot be copied, or None.

    Args:
        train_op: An operation or tensor.
        loss: A tensor.
    """
    import tensorflow as tf
    from tensorflow.python.framework import op_def_registry

    if not tf.compat.v1.control_flow_v2_enabled():
        return "the graph uses TensorFlow 1 control flow"
    if not loss.dtype.is_floating or loss.shape.num_elements() != 1:
        return f"the loss is {loss.dtype.name} of shape {loss.shape}"
    operations = _needed(_operation(train_op), loss.op)
    types = {op.type for op in operations if not _is_shared(op)}
    for op in operations:
        if any(tensor.dtype._is_ref_dtype for tensor in op.outputs):
            return f"{op.name} is a TensorFlow 1 reference variable"
    types |= {node.op for function in _functions(_graph_def(operations)) for node in function.node_def}
    for kind in sorted(types):
        if kind in _FED:
            return "the step has a placeholder"
        if kind in _FRAMES:
            return "the graph uses TensorFlow 1 control flow"
        known = op_def_registry.get(kind)
        if known is not None and known.is_stateful and not _SHARES_STATE.fullmatch(kind):
            return f"the step has an operation with internal state ({kind})"
    return None


def _before_the_sum(train_op: Any, loss: Any) -> tuple[Any, Any]:
    """Return this worker's loss and the operation that sums it over the workers; the loss and None without one.

    Only for one replica per worker: several replicas have a collective each, and all must run. If the sum is NaN, a
    summand is NaN, except for infinities of both signs.
    """
    op = loss.op
    # The reported loss may be the mean.
    while _passes_on(op):
        op = op.inputs[0].op
    if op.type != "CollectiveReduceV2" or op.control_inputs or loss.dtype.name not in ("float32", "float64"):
        return loss, None
    trains = {needed.name for needed in _needed(train_op)}
    collectives = [needed.name for needed in _needed(loss.op) if needed.type.startswith("Collective")]
    sums = [name for name in collectives if name not in trains]
    plain = op.get_attr("final_op") == b"Id" and op.get_attr("merge_op") == b"Add"
    fixed = all(key.op.type == "Const" for key in op.inputs[1:])
    if sums != [op.name] or not plain or not fixed or op.inputs[0].shape.num_elements() != 1:
        return loss, None
    return op.inputs[0], op


def _passes_on(op: Any) -> bool:
    """Whether an operation's result is NaN exactly if its first input is."""
    by_number = op.type == "RealDiv" and op.inputs[1].op.type == "Const"
    return (by_number or op.type in ("Reshape", "Identity", "SplitV", "Squeeze")) and len(op.outputs) == 1


def _operation(op: Any) -> Any:
    return getattr(op, "op", op)


def _is_shared(op: Any) -> bool:
    """Whether an operation is the handle of a resource: a variable, an iterator, a table, a queue."""
    return bool(op.outputs) and not op.inputs and all(tensor.dtype.name == "resource" for tensor in op.outputs)


def _needed(*targets: Any) -> list[Any]:
    """Return all operations that these depend on, up to resource handles."""
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
    """Return the operations as a GraphDef with their functions, without control inputs from resource handles."""
    import tensorflow as tf

    graph = tf.compat.v1.get_default_graph()
    graph_def = tf.compat.v1.GraphDef()
    graph_def.versions.CopyFrom(graph.graph_def_versions)
    shared = {op.name for op in operations if _is_shared(op)}
    called = False
    for op in operations:
        node = graph_def.node.add()
        node.CopyFrom(op.node_def)
        node.attr.pop("_class", None)
        # Resource handles exist before any step.
        kept = [name for name in node.input if name.removeprefix("^") not in shared or not name.startswith("^")]
        del node.input[:]
        node.input.extend(kept)
        called = called or any(_called(node)) or op.op_def is None
    if called:
        library = graph.as_graph_def().library
        by_name = {function.signature.name: function for function in library.function}
        wanted = _reachable(graph_def.node, by_name)
        graph_def.library.function.extend(by_name[name] for name in sorted(wanted))
        graph_def.library.gradient.extend(g for g in library.gradient if g.function_name in wanted)
    return graph_def


def _functions(graph_def: Any) -> Iterator[Any]:
    return iter(graph_def.library.function)


def _called(node: Any) -> Iterator[str]:
    """Iterate over the names of the functions in a node's attributes."""
    for value in node.attr.values():
        if value.func.name:
            yield value.func.name
        yield from (function.name for function in value.list.func)


def _reachable(nodes: Any, by_name: dict[str, Any]) -> set[str]:
    reached: set[str] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        for name in (*_called(node), node.op):
            if name in by_name and name not in reached:
                reached.add(name)
                waiting += by_name[name].node_def
    return reached
