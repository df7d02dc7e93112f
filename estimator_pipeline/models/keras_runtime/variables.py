"""Variables of a program's own within a functional Keras model, where TensorFlow 1 had `get_variable`.

    with keras_variables.of(features):
        weights = keras_variables.variable("deep/w", [4, 2])
        net = tf.matmul(net, weights)
    model = tf.keras.Model(features, net)

Each is the one weight of a layer of its name; what `variable` gives is that layer's output.
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
    """A model that is being made: an input of it, and what there is by names."""

    def __init__(self, like: Any, model: Any) -> None:
        self.like = like
        self.layers: dict[str, Any] = {} if model is None else {layer.name: layer for layer in model.layers}
        self.tensors: dict[str, Any] = {}


@contextlib.contextmanager
def of(features: Any, model: Any = None) -> Iterator[None]:
    """Variables and shared layers that are made within belong to the model of these inputs.

    Args:
        features: Keras inputs, one or a dict of them.
        model: one that has them already, by their names.
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
    """Return a variable for the model that is being made, as a Keras tensor of the variable's shape.

    Args:
        name: with the scopes before it, as TensorFlow 1 has it. One that is there already is given again.
        shape: of its values.
        initializer, regularizer: of Keras.
        trainable: whether it is trained.

    Raises:
        ConfigError: no model is being made.
    """
    making = _model(f"the variable {name!r}")
    if name not in making.tensors:
        layer = making.layers.get(name)
        if layer is None:
            layer = _layer_class()(name, [int(size) for size in shape], initializer, regularizer, trainable)
        making.tensors[name] = layer(making.like)
    return making.tensors[name]


def shared(layer: Any) -> Any:
    """Return the first layer of its name in the model that is being made: one that is used again.

    Args:
        layer: with a name of its own; the one to take where there is none yet.

    Raises:
        ConfigError: no model is being made.
    """
    return _model(f"the layer {layer.name!r}").layers.setdefault(layer.name, layer)


def sharing(model: Any, features: Any, outputs: Any) -> Any:
    """Another network of a model's own layers, as a `tf.keras.Model`.

    Args:
        model: that has them.
        features: Keras inputs of the network.
        outputs: what was made of them within `of(features, model)`.

    Raises:
        ConfigError: a weight that is none of the model's, and was never trained.
    """
    made = compat.tensorflow().keras.Model(features, outputs)
    known = {id(one) for one in model.weights}
    other = [name_of(one) for one in made.weights if id(one) not in known]
    if other:
        raise ConfigError(
            f"a network of the layers of {model.name} has others",
            code="model/bad-function",
            found=", ".join(other),
            hint="give its layers the names that they have in the model",
        )
    return made


def _model(what: str) -> _Making:
    making = _making.get()
    if making is None:
        raise ConfigError(
            f"{what} is made outside of a model", code="model/bad-function", hint="with keras_variables.of(features):"
        )
    return making  # type: ignore[no-any-return]


def variable_of(tensor: Any) -> Any:
    """Return the variable that `variable` gave."""
    return tensor.node.layer.own


def name_of(variable: Any) -> str:
    """Return a variable's name as TensorFlow 1 has it: that of its scopes and its own."""
    return str(variable.name).partition(":")[0].removesuffix(f"/{_OWN}")


def in_scope(model: Any, scope: str) -> list[Any]:
    """Return the trained variables of a scope of TensorFlow 1: those whose name begins as the pattern `scope` says."""
    return [one for one in model.trainable_variables if re.match(scope, name_of(one))]


def by_variables(parts: Sequence[tuple[Any, Sequence[Any]]], *, counts: int = 0) -> Any:
    """One optimizer that is another one for each of some variables; those in no part are not trained.

    Args:
        parts: (an optimizer of Keras, its variables).
        counts: which of them has the number of steps.

    Raises:
        ConfigError: a variable in two parts.
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
        """A variable, whatever it is called with."""

        def __init__(self, name: str, shape: list[int], initializer: Any, regularizer: Any, trainable: bool) -> None:
            super().__init__(name=name)
            self.options = {"shape": shape, "initializer": initializer, "regularizer": regularizer}
            self.options["trainable"] = trainable

        def build(self, input_shape: Any) -> None:
            self.own = self.add_weight(name=_OWN, **self.options)
            super().build(input_shape)

        def call(self, like: Any) -> Any:
            return tf.convert_to_tensor(self.own)

    return OwnVariable


@functools.cache
def _by_variables() -> Any:
    tf = compat.tensorflow()
    base: Any = tf.keras.optimizers.legacy.Optimizer

    class ByVariables(base):
        """The step of each part, by its own optimizer."""

        def __init__(self, parts, counts):
            super().__init__("ByVariables")
            self.parts = [optimizer for optimizer, _ in parts]
            self.variables = [list(variables) for _, variables in parts]
            self.which = [{id(one) for one in variables} for variables in self.variables]
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
            # Counts of steps have one name: the last one of it is the one that the training has.
            parts = sorted(self.parts, key=lambda one: one is self.counting)
            return [weight for one in parts for weight in keras_optimizers.variables_of(one)]

        def _create_all_weights(self, var_list):
            for one, chosen in zip(self.parts, self.which, strict=True):
                mine = [variable for variable in var_list if id(variable) in chosen]
                one._create_all_weights(mine) if keras_optimizers.is_legacy(one) else one.build(mine)

        def apply_gradients(self, grads_and_vars, name=None, **options):
            given = [(gradient, variable) for gradient, variable in grads_and_vars if gradient is not None]
            for one, chosen in zip(self.parts, self.which, strict=True):
                one.apply_gradients([pair for pair in given if id(pair[1]) in chosen])
            return self.iterations

        def minimize_each(self, losses, tape, when):
            """A step of each part down a loss of its own, by gradients of before all of them.

            Args:
                losses: a scalar for each part.
                tape: a persistent GradientTape that watched them.
                when: for each part whether it steps: True or a boolean tensor.
            """
            given = [tape.gradient(loss, own) for loss, own in zip(losses, self.variables, strict=True)]
            self._create_all_weights([variable for own in self.variables for variable in own])
            for one, own, gradients, does in zip(self.parts, self.variables, given, when, strict=True):
                pairs = [(gradient, variable) for gradient, variable in zip(gradients, own, strict=True)
                         if gradient is not None]  # fmt: skip
                step = functools.partial(_stepped, one, pairs)
                tf.cond(does, step, tf.no_op) if tf.is_tensor(does) else step()

        def get_config(self):
            return self.counting.get_config()

    def _stepped(optimizer, pairs):
        optimizer.apply_gradients(pairs)
        return tf.no_op()

    return ByVariables
