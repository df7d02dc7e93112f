"""Variables within a functional Keras model, in place of TensorFlow 1's `get_variable`.

    with keras_variables.of(features):
        weights = keras_variables.variable("deep/w", [4, 2])
        net = tf.matmul(net, weights)
    model = tf.keras.Model(features, net)

Each variable is the only weight of a layer of the same name; `variable` returns that layer's output.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.models.optimizers import keras2 as keras_optimizers

__all__ = ["by_variables", "in_scope", "name_of", "of", "shared", "sharing", "variable", "variable_of"]

_OWN = "own_variable"
_making: contextvars.ContextVar[Any] = contextvars.ContextVar("making", default=None)


class _Making:
    """A model under construction: one of its inputs, and its layers and variables by name."""

    def __init__(self, like: Any, model: Any) -> None:
        self.like = like
        self.layers: dict[str, Any] = {} if model is None else {layer.name: layer for layer in model.layers}
        self.tensors: dict[str, Any] = {}


@contextlib.contextmanager
def of(features: Any, model: Any = None) -> Iterator[None]:
    """Create the variables and shared layers of the block for the model with these inputs.

    Args:
        features: Keras inputs, one or a dict of them.
        model: A model that already has the layers, to reuse them by name.
    """
    token = _making.set(_Making(compat.tensorflow().nest.flatten(features)[0], model))
    try:
        yield
    finally:
        _making.reset(token)


def variable(
    name: str, shape: Sequence[int], *, initializer: Any = "glorot_uniform", regularizer: Any = None,
    trainable: bool = True,
) -> Any:  # fmt: skip
    """Return a variable of the model under construction, as a Keras tensor of the variable's shape.

    Args:
        name: The name with its scopes, as in TensorFlow 1. An existing variable of this name is reused.
        shape: The shape of the variable.
        initializer, regularizer: Of Keras.
        trainable: Whether the variable is trainable.

    Raises:
        ConfigError: The call is outside of `with of(features)`.
    """
    making = _model(f"the variable {name!r}")
    if name not in making.tensors:
        layer = making.layers.get(name)
        if layer is None:
            layer = _layer_class()(name, [int(size) for size in shape], initializer, regularizer, trainable)
        making.tensors[name] = layer(making.like)
    return making.tensors[name]


def shared(layer: Any) -> Any:
    """Return the model's existing layer of the same name, or register and return this one.

    Args:
        layer: A layer with an explicit name.

    Raises:
        ConfigError: The call is outside of `with of(features)`.
    """
    return _model(f"the layer {layer.name!r}").layers.setdefault(layer.name, layer)


def sharing(model: Any, features: Any, outputs: Any) -> Any:
    """Build a second network from a model's layers, as a `tf.keras.Model`.

    Args:
        model: The model with the layers.
        features: Keras inputs of the network.
        outputs: Its outputs, computed from the inputs within `of(features, model)`.

    Raises:
        ConfigError: The network has a weight that the model does not have, and that was never trained.
    """
    network = compat.tensorflow().keras.Model(features, outputs)
    known = {id(weight) for weight in model.weights}
    other = [name_of(weight) for weight in network.weights if id(weight) not in known]
    if other:
        raise ConfigError(
            f"the second network of {model.name} has weights that the model does not have",
            code="model/bad-function",
            found=", ".join(other),
            hint="give its layers the names that they have in the model",
        )
    return network


def _model(subject: str) -> _Making:
    making = _making.get()
    if making is None:
        raise ConfigError(
            f"{subject} is created outside of a model",
            code="model/bad-function",
            hint="create it within `with keras_variables.of(features):`",
        )
    return making  # type: ignore[no-any-return]


def variable_of(tensor: Any) -> Any:
    """Return the `tf.Variable` of a tensor that `variable` returned."""
    return tensor.node.layer.weight


def name_of(variable: Any) -> str:
    """Return a variable's name with its scopes, as in TensorFlow 1."""
    return str(variable.name).partition(":")[0].removesuffix(f"/{_OWN}")


def in_scope(model: Any, scope: str) -> list[Any]:
    """Return the trainable variables of a TensorFlow 1 scope: names that the pattern `scope` matches from the start."""
    return [variable for variable in model.trainable_variables if re.match(scope, name_of(variable))]


def by_variables(parts: Sequence[tuple[Any, Sequence[Any]]], *, counts: int = 0) -> Any:
    """Combine several optimizers into one, each for its own variables; other variables are not trained.

    Args:
        parts: (a Keras optimizer, its variables).
        counts: The index of the optimizer that counts the steps.

    Raises:
        ConfigError: A variable is in two parts.
    """
    seen: set[int] = set()
    for _, variables in parts:
        for variable in variables:
            if id(variable) in seen:
                raise ConfigError(f"the variable {variable.name} has two optimizers", code="model/bad-function")
            seen.add(id(variable))
    return _by_variables()(parts, counts)


@functools.cache
def _layer_class() -> Any:
    tf = compat.tensorflow()

    class OwnVariable(tf.keras.layers.Layer):  # type: ignore[misc,name-defined]
        """A layer that returns its variable and ignores its input."""

        def __init__(self, name: str, shape: list[int], initializer: Any, regularizer: Any, trainable: bool) -> None:
            super().__init__(name=name)
            self.options = {"shape": shape, "initializer": initializer, "regularizer": regularizer}
            self.options["trainable"] = trainable

        def build(self, input_shape: Any) -> None:
            self.weight = self.add_weight(name=_OWN, **self.options)
            super().build(input_shape)

        def call(self, like: Any) -> Any:
            return tf.convert_to_tensor(self.weight)

    return OwnVariable


@functools.cache
def _by_variables() -> Any:
    tf = compat.tensorflow()
    base: Any = tf.keras.optimizers.legacy.Optimizer

    class ByVariables(base):
        """Applies the gradients of each part with its own optimizer."""

        def __init__(self, parts, counts):
            super().__init__("ByVariables")
            self.parts = [optimizer for optimizer, _ in parts]
            self.variables = [list(variables) for _, variables in parts]
            self.which = [{id(variable) for variable in variables} for variables in self.variables]
            self.counting = self.parts[counts]
            for place, optimizer in enumerate(self.parts):
                self._track_trackable(optimizer, f"part_{place}")

        @property
        def iterations(self):
            return self.counting.iterations

        @iterations.setter
        def iterations(self, variable):
            self.counting.iterations = variable

        @property
        def learning_rate(self):
            return self.counting.learning_rate

        def _decayed_lr(self, var_dtype):
            return tf.cast(keras_optimizers.current_rate(self.counting), var_dtype)

        @property
        def weights(self):
            # All step counters have the same name, and the last one of a name is used, so it must be the counting one.
            parts = sorted(self.parts, key=lambda optimizer: optimizer is self.counting)
            return [weight for optimizer in parts for weight in keras_optimizers.variables_of(optimizer)]

        def _create_all_weights(self, var_list):
            for optimizer, chosen in zip(self.parts, self.which, strict=True):
                mine = [variable for variable in var_list if id(variable) in chosen]
                optimizer._create_all_weights(mine) if keras_optimizers.is_legacy(optimizer) else optimizer.build(mine)

        def apply_gradients(self, grads_and_vars, name=None, **options):
            pairs = [(gradient, variable) for gradient, variable in grads_and_vars if gradient is not None]
            for optimizer, chosen in zip(self.parts, self.which, strict=True):
                optimizer.apply_gradients([pair for pair in pairs if id(pair[1]) in chosen])
            return self.iterations

        def minimize_each(self, losses, tape, when):
            """Minimize a separate loss for each part, with all gradients from before any update.

            Args:
                losses: A scalar for each part.
                tape: A persistent GradientTape that recorded them.
                when: For each part whether it is updated: True or a boolean tensor.
            """
            by_part = [tape.gradient(loss, variables) for loss, variables in zip(losses, self.variables, strict=True)]
            self._create_all_weights([variable for variables in self.variables for variable in variables])
            for optimizer, variables, gradients, does in zip(self.parts, self.variables, by_part, when, strict=True):
                pairs = [(gradient, variable) for gradient, variable in zip(gradients, variables, strict=True)
                         if gradient is not None]  # fmt: skip
                step = functools.partial(_stepped, optimizer, pairs)
                tf.cond(does, step, tf.no_op) if tf.is_tensor(does) else step()

        def get_config(self):
            return self.counting.get_config()

    def _stepped(optimizer, pairs):
        optimizer.apply_gradients(pairs)
        return tf.no_op()

    return ByVariables
