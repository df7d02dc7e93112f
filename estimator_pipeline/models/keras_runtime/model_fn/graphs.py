"""The graph of a model_fn for one mode, as functions: what a session ran of it, a step of Keras runs.

A model_fn is called in a function graph with empty collections, as `tf.compat.v1.wrap_function` makes one. Its
variables live outside of the graph, by their names, and are those of all modes. Nothing runs but what is asked for.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, NamedTuple

from estimator_pipeline import compat
from estimator_pipeline.compat.internals import keras_graphs

__all__ = ["ModeGraph", "Variables", "components"]


def components(value: Any) -> list[Any]:
    """Return the tensors of a structure, those of sparse and ragged tensors each by itself."""
    found: list[Any] = compat.tensorflow().nest.flatten(value, expand_composites=True)
    return found


class Variables:
    """Variables by their names: a second one of the same name is the first one.

    Attributes:
        by_name: all of them.
        initial: (variable, tensor of the graph that it was made in) of those whose values are still to be worked out.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, Any] = {}
        self.initial: list[tuple[Any, Any]] = []

    def creator(self, next_creator: Callable[..., Any], **given: Any) -> Any:
        """For `tf.variable_creator_scope`, within a function graph."""
        tf = compat.tensorflow()
        v1 = tf.compat.v1
        with v1.name_scope(given.get("name"), "Variable") as scope:
            name = scope.rstrip("/")
        known = self.by_name.get(name)
        if known is None:
            # What belongs to the graph, and the variable is none of it.
            given |= {"caching_device": None, "use_resource": True}
            initial: Any = given.get("initial_value")
            of_graph = isinstance(initial, tf.Tensor) and hasattr(initial, "op") and not hasattr(initial, "numpy")
            if of_graph:
                zeros = functools.partial(tf.zeros, initial.shape, initial.dtype.base_dtype)
                given = given | {"initial_value": zeros}
            # A name that ends with a slash is taken as it is, and not made unique once more.
            known = self.by_name[name] = _with_operation(next_creator(**given | {"name": scope}))
            if of_graph:
                self.initial.append((known, initial))
            return known
        keys = list(given.get("collections") or [v1.GraphKeys.GLOBAL_VARIABLES])
        if known.trainable and v1.GraphKeys.TRAINABLE_VARIABLES not in keys:
            keys.append(v1.GraphKeys.TRAINABLE_VARIABLES)
        for key in keys:
            v1.add_to_collection(key, known)
        return known


class _Operation(NamedTuple):
    """What programs ask the operation of a variable for: `tf.summary.histogram(variable.op.name, variable)`."""

    name: str
    type: str = "VarHandleOp"
    device: str = ""
    graph: Any = None


def _with_operation(variable: Any) -> Any:
    """Return a variable with an `op`, which one that was made eagerly does not have."""
    kind: Any = type(variable)
    variable.__class__ = _class_with_operation(kind)
    return variable


@functools.cache
def _class_with_operation(of: Hashable) -> Any:
    def op(variable: Any) -> _Operation:
        return _Operation(variable.name.partition(":")[0], device=variable.device)

    return type("VariableWithOperation", (of,), {"op": property(op)})  # type: ignore[arg-type]


@contextlib.contextmanager
def _control_flow_of_graphs() -> Iterator[None]:
    """Make loops and branches of TensorFlow 1 in the graph of a function.

    A loop may ask for the gradient of what is worked out before it, as differentially private optimizers do for each
    part of a batch. In the graph of an Estimator it gets one, whatever loops are made of; a loop of TensorFlow 2 in the
    graph of a function finds no way to variables outside, and nothing would be trained. Private use: TensorFlow makes
    its own unless the graph has an attribute of an older class of such graphs, the same from 2.15 to 2.21.
    """
    v1 = compat.tensorflow().compat.v1
    graph = v1.get_default_graph()
    with v1.Graph().as_default():
        of_tensorflow_2 = v1.control_flow_v2_enabled()
    graph._captured = {}
    v1.disable_control_flow_v2()
    try:
        yield
    finally:
        del graph._captured
        if of_tensorflow_2:
            v1.enable_control_flow_v2()


class ModeGraph:
    """What a model_fn gives for a mode and for inputs of one kind.

    Args:
        build: called with inputs like `spec` in the graph; what it gives is `found`.
        spec: `tf.TypeSpec`s of the inputs, in any structure.
        variables: those of all modes.
        seed: of the graph.

    Attributes:
        found: what `build` gave.
        graph: the graph.
        local: variables of metrics, and others that no checkpoint has.
    """

    def __init__(self, build: Callable[[Any], Any], spec: Any, variables: Variables, seed: int | None) -> None:
        tf = compat.tensorflow()
        v1 = tf.compat.v1
        self._variables = variables

        def call(*inputs: Any) -> Any:
            v1.set_random_seed(seed)
            given = tf.nest.pack_sequence_as(spec, inputs, expand_composites=True)
            with keras_graphs.as_in_graphs(), _control_flow_of_graphs(), tf.variable_creator_scope(variables.creator):
                v1.train.get_or_create_global_step()
                self.found = build(given)
                self.local = v1.local_variables()
                # None for tables that were filled where they were made.
                tables = v1.get_collection(v1.GraphKeys.TABLE_INITIALIZERS)
                self._begin = [one for one in tables if one is not None]
                self.summary = v1.summary.merge_all()
            return []

        self._function = v1.wrap_function(call, components(spec))
        self.graph = self._function.graph
        self.inputs = list(self._function.inputs)[: len(components(spec))]
        self._pruned: dict[tuple[Any, ...], Any] = {}
        self._read: dict[int, Any] = {}
        self._started = False
        waiting, variables.initial = variables.initial, []
        for variable, tensor in waiting:
            variable.assign(self.run(tensor))

    def initial_values(self) -> list[Any]:
        """Operations that give variables values of a checkpoint, as `init_from_checkpoint` asks for them."""
        ops = [getattr(one, "_initializer_op", None) for one in self._variables.by_name.values()]
        return [op for op in ops if op is not None and getattr(op, "graph", None) is self.graph]

    def run(self, fetches: Any, inputs: Any = None, feeds: Mapping[Any, Any] | None = None) -> Any:
        """Return the values of tensors, after all that they depend on has run.

        Args:
            fetches: tensors, operations and variables of the graph, or their names, in any structure.
            inputs: values of the inputs; None where nothing of the fetches depends on them.
            feeds: values of other tensors of the graph.

        Returns:
            The same structure of tensors; None for operations.
        """
        tf = compat.tensorflow()
        if not self._started:
            self._started = True
            if self._begin:
                self.run(self._begin)
        flat = [self._element(one) for one in components(fetches)]
        fed = {self._element(key): value for key, value in (feeds or {}).items()}
        wanted = list({id(one): one for one in flat}.values())
        key = (*map(id, wanted), None, *map(id, fed), inputs is None)
        if key not in self._pruned:
            self._pruned[key] = self._function.prune([*([] if inputs is None else self.inputs), *fed], wanted)
        given = [] if inputs is None else components(inputs)
        found = self._pruned[key](*(tf.convert_to_tensor(one) for one in (*given, *fed.values())))
        values = dict(zip(map(id, wanted), found, strict=True))
        return tf.nest.pack_sequence_as(fetches, [values[id(one)] for one in flat], expand_composites=True)

    def _element(self, one: Any) -> Any:
        """Return the tensor or operation of the graph that is meant."""
        if not isinstance(one, compat.tensorflow().Variable):
            return self.graph.as_graph_element(one)
        if id(one) not in self._read:
            with self.graph.as_default():
                self._read[id(one)] = one.read_value()
        return self._read[id(one)]
