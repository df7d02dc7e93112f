"""Optimizers by name, in both of TensorFlow's families, with learning rates that follow the global step.

`api="v1"`: `tf.compat.v1.train.*Optimizer`. `api="keras"`: `tf.keras.optimizers.legacy.*`, the Keras optimizers that
can work inside an Estimator's graph (the newer ones need eager execution). An optimizer is made anew for each graph:
one that was used in an earlier `train()` call would bring slot variables of a graph that is gone.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.models.optimizers.gradient_accumulation import (
    accumulating,
    accumulating_of_keras_3,
    counting_changes,
)
from estimator_pipeline.models.optimizers.moving_averages import averaging, averaging_of_keras_3
from estimator_pipeline.models.optimizers.weight_decay import decaying, decaying_of_keras_3, decaying_v1

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

# What Keras's AdamW takes where nothing is said.
ADAMW_DECAY = 0.004
_FIELDS = (
    "name, learning_rate, api, options, warmup_steps, warmup_from, weight_decay, exclude_from_weight_decay, "
    "gradient_accumulation_steps, ema_momentum"
)

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
        name: one of `NAMES`, or "adamw": "adam" with a weight decay of 0.004, unless another one is given.
        learning_rate: a number; or a mapping with `kind` (constant, exponential, piecewise, cosine, polynomial,
            inverse_time) and the arguments of that class of `tf.keras.optimizers.schedules`; or a function of the
            global step.
        api: "v1" or "keras".
        options: further arguments of the optimizer's class, such as `{"momentum": 0.95}` or `{"beta_1": 0.8}`.
        warmup_steps: for so many steps the learning rate rises in a straight line from `warmup_from` to what
            `learning_rate` says of step `warmup_steps`; from there on it is `learning_rate`, at the same global step.
        warmup_from: the learning rate of step 0 then.
        weight_decay: what each variable loses before each step: this share of itself, times the learning rate; see
            `estimator_pipeline.models.optimizers.weight_decay`. None: nothing.
        exclude_from_weight_decay: names of weights within their layers that lose nothing, such as "bias".
        gradient_accumulation_steps: so many batches make one change of the variables, by the mean of their gradients;
            see `estimator_pipeline.models.optimizers.gradient_accumulation`. A step is a batch all the same.
        ema_momentum: what is evaluated and exported are exponential moving averages of the weights; the share of an
            average that a change leaves, such as 0.999; see
            `estimator_pipeline.models.optimizers.moving_averages`. None: the weights themselves.

    Raises:
        ConfigError: a name that is not known, or a warm-up, weight decay, momentum or number of steps that cannot be.
    """

    name: str = "sgd"
    learning_rate: LearningRate = 0.01
    api: str = "v1"
    options: Mapping[str, Any] = field(default_factory=dict)
    warmup_steps: int = 0
    warmup_from: float = 0.0
    weight_decay: float | None = None
    exclude_from_weight_decay: Sequence[str] = ()
    gradient_accumulation_steps: int = 1
    ema_momentum: float | None = None

    def __post_init__(self) -> None:
        for what, value, allowed in (("optimizer", self.name, (*NAMES, "adamw")), ("optimizer api", self.api, APIS)):
            if value not in allowed:
                raise ConfigError(
                    f"the {what} {value!r} is not known",
                    code="argument/unknown-name",
                    found=f"allowed: {', '.join(allowed)}",
                )
        if isinstance(self.warmup_steps, bool) or not isinstance(self.warmup_steps, int) or self.warmup_steps < 0:
            raise ConfigError(
                f"warmup_steps is {self.warmup_steps!r}",
                code="model/bad-optimizer",
                hint="give a number of steps, 0 for none",
            )
        if self.warmup_from < 0 or (self.warmup_from and not self.warmup_steps):
            raise ConfigError(
                f"warmup_from is {self.warmup_from!r}, with warmup_steps {self.warmup_steps}",
                code="model/bad-optimizer",
                hint="give a learning rate of 0 or more, and the steps that it takes to rise from there",
            )
        steps = self.gradient_accumulation_steps
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise ConfigError(
                f"gradient_accumulation_steps is {steps!r}",
                code="model/bad-optimizer",
                hint="give the number of batches for a change, 1 or more",
            )
        momentum = self.ema_momentum
        number = isinstance(momentum, int | float) and not isinstance(momentum, bool)
        if momentum is not None and not (number and 0 < momentum < 1):
            raise ConfigError(
                f"ema_momentum is {momentum!r}",
                code="model/bad-optimizer",
                hint="give a number between 0 and 1, such as 0.999, or leave it out",
            )
        decay, excluded = self.weight_decay, self.exclude_from_weight_decay
        if self.name == "adamw":
            object.__setattr__(self, "name", "adam")
            decay = ADAMW_DECAY if decay is None else decay
            object.__setattr__(self, "weight_decay", decay)
        if isinstance(decay, bool) or not isinstance(decay, int | float | None) or not 0 <= (decay or 0) < math.inf:
            raise ConfigError(
                f"weight_decay is {decay!r}",
                code="model/bad-optimizer",
                hint="give a number of 0 or more, such as 0.01",
            )
        if decay and self.name == "ftrl":
            raise ConfigError(
                f"weight_decay is {decay:g}, but ftrl recomputes each weight from its accumulators",
                code="model/bad-optimizer",
                hint="set options: {l2_regularization_strength: ...}, or use a different optimizer",
            )
        if isinstance(excluded, str) or not all(isinstance(name, str) and name for name in excluded):
            raise ConfigError(
                f"exclude_from_weight_decay is {excluded!r}",
                code="model/bad-optimizer",
                hint="give a list of names, such as bias, gamma, beta",
            )
        if excluded and not decay:
            raise ConfigError(
                f"exclude_from_weight_decay is {list(excluded)!r}, but there is no weight decay",
                code="model/bad-optimizer",
                hint="give weight_decay, or leave it out",
            )
        object.__setattr__(self, "exclude_from_weight_decay", tuple(excluded))

    def rate(self) -> Any:
        """Return the learning rate, warm-up included: a float, a schedule of Keras, or another function of the step.

        Raises:
            ConfigError: a schedule that cannot be made.
        """
        rate = learning_rate(self.learning_rate)
        if not self.warmup_steps:
            return rate
        if callable(rate) and not _is_schedule(compat.tensorflow(), rate):
            return lambda step: _warmed_up(step, rate, self.warmup_steps, self.warmup_from)
        return linear_warmup()(rate, self.warmup_steps, self.warmup_from)

    def make(self, global_step: Any) -> tuple[Any, Any]:
        """Return the optimizer for the current graph, and its learning rate (a float or a scalar tensor).

        Args:
            global_step: the graph's global step variable. A Keras optimizer counts with it.
        """
        tf = compat.tensorflow()
        v1_name, v1_options, _, _ = _CLASSES[self.name]
        rate = self.rate()
        if self.api == "v1":
            kind = getattr(tf.compat.v1.train, v1_name)
            value = rate(global_step) if callable(rate) else rate
            options = {**v1_options, **self.options}
            if self.weight_decay:
                kind, options = decaying_v1(kind), {**options, **self.decay(), "decay_rate": value}
            return _construct(kind, value, options), value
        # Keras evaluates a schedule itself, on its own counter; that counter is made the global step.
        given = rate if not callable(rate) or _is_schedule(tf, rate) else rate(global_step)
        kind, options = stock_class(self.name), {**_CLASSES[self.name][3], **self.options}
        if self.gradient_accumulation_steps > 1:
            # The gradients are added up in the graph, see `model_fn`; where they change nothing is decided there.
            optimizer = _construct(counting_changes(self._decaying(kind)), given, {**options, **self.decay()})
            optimizer.accumulated_steps = self.gradient_accumulation_steps
        else:
            optimizer = _construct(self._decaying(kind), given, {**options, **self.decay()})
        optimizer.iterations = global_step
        return optimizer, rate(global_step) if callable(rate) else rate

    def construct_keras(self, rate: Any, options: Mapping[str, Any]) -> Any:
        """Return the Keras optimizer of this name, with this learning rate and these arguments.

        It is one of `tf.keras.optimizers.legacy`; in a process with Keras 3, one of `tf.keras.optimizers`.
        """
        return self.construct(stock_class(self.name), rate, {**_CLASSES[self.name][3], **options})

    def construct(self, kind: Any, rate: Any, options: Mapping[str, Any]) -> Any:
        """An optimizer of a Keras class, with this learning rate and these arguments, which decays weights, keeps their
        averages and adds gradients up as asked for.

        Raises:
            ConfigError: an argument that the class does not take.
        """
        given = self.decay()
        kind = self._decaying(kind)
        if compat.keras_generation() == 3 and not self.exclude_from_weight_decay:
            given.pop("exclude_from_weight_decay", None)
        if self.ema_momentum is not None:
            kind = (averaging if compat.keras_generation() == 2 else averaging_of_keras_3)(kind)
            given["average_momentum"] = self.ema_momentum
        if self.gradient_accumulation_steps > 1:
            kind = (accumulating if compat.keras_generation() == 2 else accumulating_of_keras_3)(kind)
            given["gradient_accumulation_steps"] = self.gradient_accumulation_steps
        return _construct(kind, rate, {**options, **given})

    def _decaying(self, kind: Any) -> Any:
        """Return the class of Keras, with weight decay where it is asked for and not there."""
        if self.weight_decay and compat.keras_generation() == 2:
            return decaying(kind)
        return decaying_of_keras_3(kind) if self.exclude_from_weight_decay else kind

    def decay(self) -> dict[str, Any]:
        """Return the arguments that say what decays; empty where nothing does."""
        if not self.weight_decay:
            return {}
        return {"weight_decay": self.weight_decay, "exclude_from_weight_decay": self.exclude_from_weight_decay}


def stock_class(name: str) -> Any:
    """Keras's class for one of `NAMES`: of `tf.keras.optimizers.legacy`, or of Keras 3."""
    module = compat.tensorflow().keras.optimizers
    return getattr(module.legacy if compat.keras_generation() == 2 else module, _CLASSES[name][2])


def optimizer_of(given: str | Mapping[str, Any] | Optimizer) -> Optimizer:
    """Return an optimizer from its name, from its fields, or as it is.

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
            code="model/bad-optimizer",
            hint=f"give its name, or a mapping with {_FIELDS}",
        )
    try:
        return Optimizer(**given)
    except TypeError as error:
        raise ConfigError(
            f"the optimizer {dict(given)} cannot be read: {error}",
            code="model/bad-optimizer",
            hint=f"use the fields {_FIELDS}",
        ) from error


def _construct(kind: type, rate: Any, options: Mapping[str, Any]) -> Any:
    try:
        return kind(learning_rate=rate, **options)
    except (TypeError, ValueError) as error:
        parameters = [n for n in inspect.signature(kind).parameters if n != "kwargs"]
        raise ConfigError(
            f"{kind.__name__} does not take the options {dict(options)}: {error}",
            code="model/bad-optimizer",
            found=f"it takes: {', '.join(parameters)}",
        ) from error


def _is_schedule(tf: Any, rate: Any) -> bool:
    return isinstance(rate, tf.keras.optimizers.schedules.LearningRateSchedule)


def learning_rate(given: LearningRate) -> Any:
    """Return a float, or a function of the step, from any of the ways to say a learning rate."""
    if not isinstance(given, Mapping):
        return given if callable(given) else float(given)
    tf = compat.tensorflow()
    arguments = dict(given)
    kind = arguments.pop("kind", None)
    if kind == "constant":
        if set(arguments) != {"learning_rate"} or not isinstance(arguments["learning_rate"], int | float):
            raise ConfigError(
                f"the learning-rate schedule {dict(given)} cannot be made",
                code="model/bad-optimizer",
                found="constant takes: learning_rate, a number",
                hint="give the number alone, or kind: constant and learning_rate",
            )
        return float(arguments["learning_rate"])
    if kind not in SCHEDULES:
        raise ConfigError(
            f"the learning-rate schedule {kind!r} is not known",
            code="argument/unknown-name",
            found=f"allowed: constant, {', '.join(SCHEDULES)}",
        )
    schedule = getattr(tf.keras.optimizers.schedules, SCHEDULES[kind])
    try:
        return schedule(**arguments)
    except (TypeError, ValueError) as error:
        parameters = [n for n in inspect.signature(schedule.__init__).parameters if n != "self"]
        raise ConfigError(
            f"the learning-rate schedule {kind} cannot be made: {error}",
            code="model/bad-optimizer",
            found=f"it takes: {', '.join(parameters)}",
        ) from error


@functools.cache
def linear_warmup() -> Any:
    """Return a schedule of Keras that rises in a straight line to another one, and then is that one; it can be saved.

    As in P. Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour" (2017), section 2.2.
    """
    keras = compat.tensorflow().keras
    schedules = keras.optimizers.schedules
    base: Any = schedules.LearningRateSchedule

    @keras.utils.register_keras_serializable(package="estimator_pipeline")  # type: ignore[misc]
    class LinearWarmup(base):
        def __init__(self, after: Any, steps: int, start: float = 0.0) -> None:
            super().__init__()
            self.after, self.steps, self.start = after, steps, start

        def __call__(self, step: Any) -> Any:
            return _warmed_up(step, self.after, self.steps, self.start)

        def get_config(self) -> dict[str, Any]:
            after = schedules.serialize(self.after) if isinstance(self.after, base) else self.after
            return {"after": after, "steps": self.steps, "start": self.start}

        @classmethod
        def from_config(cls, config: Mapping[str, Any]) -> Any:
            after = config["after"]
            return cls(**{**config, "after": schedules.deserialize(after) if isinstance(after, dict) else after})

    return LinearWarmup


def _warmed_up(step: Any, after: Any, steps: int, start: float) -> Any:
    """Return the learning rate of a step, float32; `after` is a number or a function of the step."""
    tf = compat.tensorflow()

    def rate(at: Any) -> Any:
        return tf.cast(after(at) if callable(after) else after, tf.float32)

    step = tf.convert_to_tensor(step)
    share = tf.cast(step, tf.float32) / float(steps)
    rising = start + (rate(tf.constant(steps, step.dtype)) - start) * share
    return tf.where(share < 1.0, rising, rate(step))
