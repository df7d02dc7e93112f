"""Optimizers by name, in both of TensorFlow's families, with learning rates that follow the global step.

`api="v1"`: `tf.compat.v1.train.*Optimizer`. `api="keras"`: `tf.keras.optimizers.legacy.*`, the Keras optimizers that
can work inside an Estimator's graph (the newer ones need eager execution). An optimizer is made anew for each graph:
one that was used in an earlier `train()` call would bring slot variables of a graph that is gone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError

NAMES = ("sgd", "momentum", "nesterov", "adam", "adagrad", "rmsprop", "ftrl")
APIS = ("v1", "keras")

# name -> (class in tf.compat.v1.train, arguments, class in tf.keras.optimizers.legacy, arguments)
_CLASSES: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "sgd": ("GradientDescentOptimizer", {}, "SGD", {}),
    "momentum": ("MomentumOptimizer", {"momentum": 0.9}, "SGD", {"momentum": 0.9}),
    "nesterov": (
        "MomentumOptimizer", {"momentum": 0.9, "use_nesterov": True}, "SGD", {"momentum": 0.9, "nesterov": True}
    ),
    "adam": ("AdamOptimizer", {}, "Adam", {}),
    "adagrad": ("AdagradOptimizer", {}, "Adagrad", {}),
    "rmsprop": ("RMSPropOptimizer", {}, "RMSprop", {}),
    "ftrl": ("FtrlOptimizer", {}, "Ftrl", {}),
}  # fmt: skip

# kind -> class in tf.keras.optimizers.schedules
SCHEDULES = {
    "exponential": "ExponentialDecay",
    "piecewise": "PiecewiseConstantDecay",
    "cosine": "CosineDecay",
    "polynomial": "PolynomialDecay",
    "inverse_time": "InverseTimeDecay",
}

LearningRate = float | Mapping[str, Any] | Callable[[Any], Any]


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """Which optimizer, with which learning rate.

    Attributes:
        name: one of :data:`NAMES`.
        learning_rate: a number; or a mapping with `kind` (constant, exponential, piecewise, cosine, polynomial,
            inverse_time) and the arguments of that class of `tf.keras.optimizers.schedules`; or a function of the
            global step.
        api: "v1" or "keras".
        options: further arguments of the optimizer's class, such as `{"momentum": 0.95}` or `{"beta_1": 0.8}`.

    Raises:
        ConfigError: a name that is not known.
    """

    name: str = "sgd"
    learning_rate: LearningRate = 0.01
    api: str = "v1"
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for what, value, allowed in (("optimizer", self.name, NAMES), ("optimizer api", self.api, APIS)):
            if value not in allowed:
                raise ConfigError(f"the {what} {value!r} is not known", found=f"allowed: {', '.join(allowed)}")

    def make(self, global_step: Any) -> tuple[Any, Any]:
        """The optimizer for the current graph, and its learning rate (a float or a scalar tensor).

        Args:
            global_step: the graph's global step variable. A Keras optimizer counts with it.
        """
        tf = compat.install()
        v1_name, v1_options, _, _ = _CLASSES[self.name]
        rate = learning_rate(self.learning_rate)
        if self.api == "v1":
            kind = getattr(tf.compat.v1.train, v1_name)
            value = rate(global_step) if callable(rate) else rate
            return _construct(kind, value, {**v1_options, **self.options}), value
        # Keras evaluates a schedule itself, on its own counter; that counter is made the global step.
        given = rate if not callable(rate) or _is_schedule(tf, rate) else rate(global_step)
        optimizer = self.construct_keras(given, self.options)
        optimizer.iterations = global_step
        return optimizer, rate(global_step) if callable(rate) else rate

    def construct_keras(self, rate: Any, options: Mapping[str, Any]) -> Any:
        """The Keras optimizer of this name, with this learning rate and these arguments.

        It is one of `tf.keras.optimizers.legacy`; in a process with Keras 3, one of `tf.keras.optimizers`.
        """
        _, _, keras_name, keras_options = _CLASSES[self.name]
        module = compat.install().keras.optimizers
        if compat.keras_generation() == 2:
            module = module.legacy
        return _construct(getattr(module, keras_name), rate, {**keras_options, **options})


def optimizer_of(given: str | Mapping[str, Any] | Optimizer) -> Optimizer:
    """An optimizer from its name, from its fields, or as it is.

    Raises:
        ConfigError: none of these.
    """
    if isinstance(given, Optimizer):
        return given
    if isinstance(given, str):
        return Optimizer(name=given)
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"the optimizer is a {type(given).__name__}",
            mend="give its name, or a mapping with name, learning_rate, api, options",
        )
    try:
        return Optimizer(**given)
    except TypeError as error:
        raise ConfigError(
            f"the optimizer {dict(given)} cannot be read: {error}",
            mend="use the fields name, learning_rate, api, options",
        ) from error


def _construct(kind: type, rate: Any, options: Mapping[str, Any]) -> Any:
    try:
        return kind(learning_rate=rate, **options)
    except (TypeError, ValueError) as error:
        parameters = [n for n in inspect.signature(kind).parameters if n != "kwargs"]
        raise ConfigError(
            f"{kind.__name__} does not take the options {dict(options)}: {error}",
            found=f"it takes: {', '.join(parameters)}",
        ) from error


def _is_schedule(tf: Any, rate: Any) -> bool:
    return isinstance(rate, tf.keras.optimizers.schedules.LearningRateSchedule)


def learning_rate(given: LearningRate) -> Any:
    """A float, or a function of the step, from any of the ways to say a learning rate."""
    if not isinstance(given, Mapping):
        return given if callable(given) else float(given)
    tf = compat.install()
    arguments = dict(given)
    kind = arguments.pop("kind", None)
    if kind == "constant":
        if set(arguments) != {"learning_rate"} or not isinstance(arguments["learning_rate"], int | float):
            raise ConfigError(
                f"the learning-rate schedule {dict(given)} cannot be made",
                found="constant takes: learning_rate, a number",
                mend="give the number alone, or kind: constant and learning_rate",
            )
        return float(arguments["learning_rate"])
    if kind not in SCHEDULES:
        raise ConfigError(
            f"the learning-rate schedule {kind!r} is not known",
            found=f"allowed: constant, {', '.join(SCHEDULES)}",
        )
    schedule = getattr(tf.keras.optimizers.schedules, SCHEDULES[kind])
    try:
        return schedule(**arguments)
    except (TypeError, ValueError) as error:
        parameters = [n for n in inspect.signature(schedule.__init__).parameters if n != "self"]
        raise ConfigError(
            f"the learning-rate schedule {kind} cannot be made: {error}", found=f"it takes: {', '.join(parameters)}"
        ) from error
