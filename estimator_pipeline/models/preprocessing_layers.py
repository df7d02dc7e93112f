"""Keras' preprocessing layers in the graph of an Estimator: `adapt`, `get_vocabulary` and `vocabulary_size`.

They need eager execution, and an Estimator builds its model in a graph. The first such call in a graph therefore runs
the function that builds the layers once more, eagerly, in a thread without that graph and without a strategy. The
layers in the graph get what the eager ones have learned: vocabularies and statistics.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError

__all__ = ["build_layers"]

_METHODS = ("adapt", "get_vocabulary", "vocabulary_size")
_LAYERS = ("StringLookup", "IntegerLookup", "TextVectorization", "Normalization", "Discretization")
_thread = threading.local()


def build_layers(function: Callable[[], Any]) -> Any:
    """Call a function that builds layers; in a graph its preprocessing layers work as in eager execution.

    Raises:
        ConfigError: The function does not create the same layers when it runs again.
    """
    tf = compat.tensorflow()
    if tf.executing_eagerly() or not tf.compat.v1.control_flow_v2_enabled():  # Off with TensorFlow 1's behavior.
        return function()
    _wrap_methods()
    _thread.layers = _Layers(function)
    try:
        return function()
    finally:
        _thread.layers = None


class _Layers:
    """The preprocessing layers of a function, in the order of their creation: in an eager run, or in a graph.

    Args:
        function: In a graph, the function; None: this is its eager run.
    """

    def __init__(self, function: Callable[[], Any] | None = None) -> None:
        self.created: list[Any] = []
        self._function = function
        self._twins: list[Any] | None = None
        self._is_within = False

    def call(self, method: Callable[..., Any], layer: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a method of a layer; in a graph, the method of its eager twin."""
        if method.__name__ == "__init__":
            self.created.append(layer)
        if self._function is None or self._is_within or method.__name__ == "__init__":
            return method(layer, *args, **kwargs)
        self._is_within = True  # One method calls a different one.
        try:
            twin = self._twin(method.__name__, layer)
            if method.__name__ == "adapt":
                return _restore(layer, _in_eager_execution(functools.partial(_state, twin)))
            return _in_eager_execution(functools.partial(getattr(twin, method.__name__), *args, **kwargs))
        finally:
            self._is_within = False

    def _twin(self, name: str, layer: Any) -> Any:
        if self._twins is None:
            self._twins = _in_eager_execution(self._run)
        number = next((number for number, known in enumerate(self.created) if known is layer), len(self._twins))
        if number >= len(self._twins) or type(self._twins[number]) is not type(layer):
            raise ConfigError(
                f"{type(layer).__name__}.{name} is called in a graph, and the layer is not always created",
                code="model/bad-function",
                hint="create the same layers each time the function runs, within it",
            )
        return self._twins[number]

    def _run(self) -> list[Any]:
        assert self._function is not None
        layers = _thread.layers = _Layers()
        self._function()
        return layers.created


def _in_eager_execution(function: Callable[[], Any]) -> Any:
    """Return the result of a call in a thread that has no graph and no strategy."""
    values: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            values.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="layers in eager execution", daemon=True)
    with _bases_kept():
        thread.start()
        thread.join()
    if errors:
        raise errors[0]
    return values[0]


@contextlib.contextmanager
def _bases_kept() -> Iterator[None]:
    """Restore the base classes of layers: Keras exchanges them when a layer is created, eagerly or in a graph."""
    kinds = [compat.tensorflow().keras.layers.Layer]
    for kind in kinds:  # grows
        kinds += [each for each in type.__subclasses__(kind) if each not in kinds]
    bases = [(kind, kind.__bases__) for kind in kinds[1:]]
    try:
        yield
    finally:
        for kind, before in bases:
            if kind.__bases__ != before:
                kind.__bases__ = before


@functools.cache
def _wrap_methods() -> None:
    keras_layers = compat.tensorflow().keras.layers
    base = keras_layers.experimental.preprocessing.PreprocessingLayer
    base.__init__ = _wrapped(base.__init__)
    known = [getattr(keras_layers, name) for name in _LAYERS]
    for kind in {each for layer in known for each in layer.__mro__ if issubclass(each, base)}:
        for name in _METHODS:
            if name in vars(kind):
                setattr(kind, name, _wrapped(vars(kind)[name]))


def _wrapped(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        layers = getattr(_thread, "layers", None)
        return method(self, *args, **kwargs) if layers is None else layers.call(method, self, *args, **kwargs)

    return call


def _state(layer: Any) -> dict[str, Any]:
    """Return what a layer has learned by `adapt`."""
    if hasattr(layer, "get_vocabulary"):
        lookup = getattr(layer, "_lookup_layer", layer)
        if lookup.output_mode == "tf_idf":
            raise ConfigError(
                f"{type(layer).__name__} with output_mode='tf_idf' cannot be adapted in the graph of an Estimator",
                code="model/bad-function",
                hint="use output_mode='count' or 'multi_hot', or the engine keras",
            )
        padded = lookup.get_vocabulary(include_special_tokens=False)
        return {"vocabulary": [value for value in padded if value != lookup.oov_token]}
    if hasattr(layer, "bin_boundaries"):
        return {"boundaries": [float(value) for value in layer.bin_boundaries]}
    return {variable.name.rpartition("/")[2].partition(":")[0]: variable.numpy() for variable in layer.weights}


def _restore(layer: Any, state: dict[str, Any]) -> None:
    """Give a layer of a graph the state of its eager twin; variables are initialized with it."""
    if "vocabulary" in state:
        layer.set_vocabulary(state["vocabulary"])
    elif "boundaries" in state:
        layer.input_bin_boundaries = layer.bin_boundaries = state["boundaries"]
    else:
        add_weight = layer.add_weight

        def add_adapted_weight(*args: Any, name: str, initializer: Any = None, **kwargs: Any) -> Any:
            if name in state:
                initializer = compat.tensorflow().constant_initializer(state[name])
            return add_weight(*args, name=name, initializer=initializer, **kwargs)

        layer.add_weight = add_adapted_weight
