"""The graph of a model_fn for one mode, as functions that a Keras step runs like a session.

A model_fn is called in a function graph with empty collections, created by `tf.compat.v1.wrap_function`. Its variables
are stored by name outside of the graph and shared by all modes. Only the fetched operations run.
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
    """Return the tensors of a structure, with sparse and ragged tensors split into their components."""
    tensors: list[Any] = compat.tensorflow().nest.flatten(value, expand_composites=True)
    return tensors


class Variables:
    """Variables by name: creating a variable with an existing name returns the existing one.

    Attributes:
        by_name: All variables.
        initial: (variable, tensor of the graph in which it was created) for variables without a computed initial value.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, Any] = {}
        self.initial: list[tuple[Any, Any]] = []

    def creator(self, next_creator: Callable[..., Any], **arguments: Any) -> Any:
        """Create a variable for `tf.variable_creator_scope`, within a function graph."""
        tf = compat.tensorflow()
        v1 = tf.compat.v1
        with v1.name_scope(arguments.get("name"), "Variable") as scope:
            name = scope.rstrip("/")
        known = self.by_name.get(name)
        if known is None:
            # These arguments belong to the graph, and the variable is outside of it.
            arguments |= {"caching_device": None, "use_resource": True}
            initial: Any = arguments.get("initial_value")
            of_graph = isinstance(initial, tf.Tensor) and hasattr(initial, "op") and not hasattr(initial, "numpy")
            if of_graph:
                zeros = functools.partial(tf.zeros, initial.shape, initial.dtype.base_dtype)
                arguments = arguments | {"initial_value": zeros}
            # A name that ends with a slash is used unchanged, and not made unique again.
            known = self.by_name[name] = _with_operation(next_creator(**arguments | {"name": scope}))
            if of_graph:
                self.initial.append((known, initial))
            return known
        keys = list(arguments.get("collections") or [v1.GraphKeys.GLOBAL_VARIABLES])
        if known.trainable and v1.GraphKeys.TRAINABLE_VARIABLES not in keys:
            keys.append(v1.GraphKeys.TRAINABLE_VARIABLES)
        for key in keys:
            v1.add_to_collection(key, known)
        return known


class _Operation(NamedTuple):
    """The fields of a variable's `op` that programs use: `tf.summary.histogram(variable.op.name, variable)`."""

    name: str
    type: str = "VarHandleOp"
    device: str = ""
    graph: Any = None


def _with_operation(variable: Any) -> Any:
    """Add an `op` to a variable, which eagerly created variables lack."""
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
    """Create TensorFlow 1 loops and branches in the graph of a function.

    A loop may compute gradients of tensors from before the loop, as differentially private optimizers do for each part
    of a batch. In the graph of an Estimator this works with either kind of loop. In the graph of a function, a
    TensorFlow 2 loop finds no path to the variables outside, and nothing would be trained. Private use: TensorFlow
    creates TensorFlow 2 loops unless the graph has `_captured`, an attribute of an older graph class, the same from
    2.15 to 2.21.
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
    """The graph of a model_fn for a mode and for inputs of one type spec.

    Args:
        build: Called in the graph with inputs of the type `spec`.
        spec: `tf.TypeSpec`s of the inputs, in any structure.
        variables: The variables of all modes.
        seed: The seed of the graph.

    Attributes:
        result: The return value of `build`.
        graph: The graph.
        local: Variables of metrics, and others that checkpoints do not contain.
    """

    def __init__(self, build: Callable[[Any], Any], spec: Any, variables: Variables, seed: int | None) -> None:
        tf = compat.tensorflow()
        v1 = tf.compat.v1
        self._variables = variables

        def call(*inputs: Any) -> Any:
            v1.set_random_seed(seed)
            arguments = tf.nest.pack_sequence_as(spec, inputs, expand_composites=True)
            with keras_graphs.as_in_graphs(), _control_flow_of_graphs(), tf.variable_creator_scope(variables.creator):
                v1.train.get_or_create_global_step()
                self.result = build(arguments)
                self.local = v1.local_variables()
                # None for tables that were initialized at creation.
                tables = v1.get_collection(v1.GraphKeys.TABLE_INITIALIZERS)
                self._begin = [initializer for initializer in tables if initializer is not None]
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
        """Return the operations that initialize variables from a checkpoint, as set by `init_from_checkpoint`."""
        ops = [getattr(variable, "_initializer_op", None) for variable in self._variables.by_name.values()]
        return [op for op in ops if op is not None and getattr(op, "graph", None) is self.graph]

    def run(self, fetches: Any, inputs: Any = None, feeds: Mapping[Any, Any] | None = None) -> Any:
        """Run the fetches with their dependencies, and return the values of tensors.

        Args:
            fetches: Tensors, operations and variables of the graph, or their names, in any structure.
            inputs: Values of the inputs; None if no fetch depends on them.
            feeds: Values of other tensors of the graph.

        Returns:
            The same structure of tensors; None for operations.
        """
        tf = compat.tensorflow()
        if not self._started:
            self._started = True
            if self._begin:
                self.run(self._begin)
        flat = [self._element(fetch) for fetch in components(fetches)]
        fed = {self._element(key): value for key, value in (feeds or {}).items()}
        wanted = list({id(element): element for element in flat}.values())
        key = (*map(id, wanted), None, *map(id, fed), inputs is None)
        if key not in self._pruned:
            self._pruned[key] = self._function.prune([*([] if inputs is None else self.inputs), *fed], wanted)
        arguments = [] if inputs is None else components(inputs)
        results = self._pruned[key](*(tf.convert_to_tensor(value) for value in (*arguments, *fed.values())))
        values = dict(zip(map(id, wanted), results, strict=True))
        return tf.nest.pack_sequence_as(fetches, [values[id(element)] for element in flat], expand_composites=True)

    def _element(self, fetch: Any) -> Any:
        """Return the graph's tensor or operation for a fetch."""
        if not isinstance(fetch, compat.tensorflow().Variable):
            return self.graph.as_graph_element(fetch)
        if id(fetch) not in self._read:
            with self.graph.as_default():
                self._read[id(fetch)] = fetch.read_value()
        return self._read[id(fetch)]
