"""Optimizers by name, in both of TensorFlow's families, with learning rates that follow the global step.

`api="v1"`: `tf.compat.v1.train.*Optimizer`. `api="keras"`: `tf.keras.optimizers.legacy.*`, the Keras optimizers that
can work inside an Estimator's graph (the newer ones need eager execution). Each graph needs a new optimizer: an
optimizer of an earlier `train()` call has slot variables of a graph that no longer exists.
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
from estimator_pipeline.utils.text import nearest

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

# The default weight decay of Keras's AdamW.
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
    """The configuration of an optimizer and its learning rate.

    Attributes:
        name: One of `NAMES`, or "adamw": "adam" with a weight decay of 0.004 by default.
        learning_rate: A number; or a mapping with `kind` (constant, exponential, piecewise, cosine, polynomial,
            inverse_time) and the arguments of that class of `tf.keras.optimizers.schedules`; or a function of the
            global step.
        api: "v1" or "keras".
        options: Further arguments of the optimizer's class, such as `{"momentum": 0.95}` or `{"beta_1": 0.8}`.
        warmup_steps: The number of steps in which the learning rate increases linearly from `warmup_from` to the value
            of `learning_rate` at step `warmup_steps`. Later steps use `learning_rate` at the same global step.
        warmup_from: The learning rate of step 0 of the warm-up.
        weight_decay: The share of each variable, times the learning rate, that is subtracted before each step; see
            `estimator_pipeline.models.optimizers.weight_decay`. None: no weight decay.
        exclude_from_weight_decay: Names of weights within their layers that do not decay, such as "bias".
        gradient_accumulation_steps: The number of batches whose mean gradient makes one update of the variables; see
            `estimator_pipeline.models.optimizers.gradient_accumulation`. Each batch still counts as a step.
        ema_momentum: The share of the exponential moving average that is kept in an update, such as 0.999. Evaluation
            and exports then use the averages; see `estimator_pipeline.models.optimizers.moving_averages`. None: no
            averages.

    Raises:
        ConfigError: A name is unknown, or a warm-up, weight decay, momentum or number of steps is invalid.
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
        for kind, value, allowed in (("optimizer", self.name, (*NAMES, "adamw")), ("optimizer api", self.api, APIS)):
            if value not in allowed:
                close = nearest(value, allowed)
                raise ConfigError(
                    f"the {kind} {value!r} is not known",
                    code="argument/unknown-name",
                    found=f"allowed: {', '.join(allowed)}",
                    hint=f"did you mean {close!r}?" if close else None,
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
                hint="give a learning rate of 0 or more, and the number of warm-up steps",
            )
        steps = self.gradient_accumulation_steps
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise ConfigError(
                f"gradient_accumulation_steps is {steps!r}",
                code="model/bad-optimizer",
                hint="give the number of batches for an update, 1 or more",
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
        """Return the learning rate with warm-up: a float, a Keras schedule, or a custom function of the step.

        Raises:
            ConfigError: The schedule is invalid.
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
            global_step: The graph's global step variable, which a Keras optimizer uses as its counter.
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
        # Keras evaluates a schedule at its own counter, which is set to the global step below.
        rate_argument = rate if not callable(rate) or _is_schedule(tf, rate) else rate(global_step)
        kind, options = stock_class(self.name), {**_CLASSES[self.name][3], **self.options}
        if self.gradient_accumulation_steps > 1:
            # `model_fn` accumulates the gradients in the graph and decides which steps update the variables.
            optimizer = _construct(counting_changes(self._decaying(kind)), rate_argument, {**options, **self.decay()})
            optimizer.accumulated_steps = self.gradient_accumulation_steps
        else:
            optimizer = _construct(self._decaying(kind), rate_argument, {**options, **self.decay()})
        optimizer.iterations = global_step
        return optimizer, rate(global_step) if callable(rate) else rate

    def construct_keras(self, rate: Any, options: Mapping[str, Any]) -> Any:
        """Return the Keras optimizer of this name, with this learning rate and these arguments.

        It is one of `tf.keras.optimizers.legacy`; in a process with Keras 3, one of `tf.keras.optimizers`.
        """
        return self.construct(stock_class(self.name), rate, {**_CLASSES[self.name][3], **options})

    def construct(self, kind: Any, rate: Any, options: Mapping[str, Any]) -> Any:
        """Create an optimizer of a Keras class, with weight decay, averages and accumulation as configured.

        Raises:
            ConfigError: The class does not take an argument.
        """
        extra = self.decay()
        kind = self._decaying(kind)
        if compat.keras_generation() == 3 and not self.exclude_from_weight_decay:
            extra.pop("exclude_from_weight_decay", None)
        if self.ema_momentum is not None:
            kind = (averaging if compat.keras_generation() == 2 else averaging_of_keras_3)(kind)
            extra["average_momentum"] = self.ema_momentum
        if self.gradient_accumulation_steps > 1:
            kind = (accumulating if compat.keras_generation() == 2 else accumulating_of_keras_3)(kind)
            extra["gradient_accumulation_steps"] = self.gradient_accumulation_steps
        return _construct(kind, rate, {**options, **extra})

    def _decaying(self, kind: Any) -> Any:
        """Return the Keras class, with weight decay added where configured and not built in."""
        if self.weight_decay and compat.keras_generation() == 2:
            return decaying(kind)
        return decaying_of_keras_3(kind) if self.exclude_from_weight_decay else kind

    def decay(self) -> dict[str, Any]:
        """Return the weight-decay arguments; empty without weight decay."""
        if not self.weight_decay:
            return {}
        return {"weight_decay": self.weight_decay, "exclude_from_weight_decay": self.exclude_from_weight_decay}


def stock_class(name: str) -> Any:
    """Return Keras's class for one of `NAMES`: of `tf.keras.optimizers.legacy`, or of Keras 3."""
    module = compat.tensorflow().keras.optimizers
    return getattr(module.legacy if compat.keras_generation() == 2 else module, _CLASSES[name][2])


def optimizer_of(value: str | Mapping[str, Any] | Optimizer) -> Optimizer:
    """Return an optimizer configuration from a name, a mapping of fields, or an `Optimizer`.

    Raises:
        ConfigError: The value has a different type, or a field is invalid.
    """
    if isinstance(value, Optimizer):
        return value
    if isinstance(value, str):
        return Optimizer(name=value)
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"the optimizer is a {type(value).__name__}",
            code="model/bad-optimizer",
            hint=f"give its name, or a mapping with {_FIELDS}",
        )
    try:
        return Optimizer(**value)
    except TypeError as error:
        raise ConfigError(
            f"the optimizer {dict(value)} cannot be read: {error}",
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


def learning_rate(value: LearningRate) -> Any:
    """Return a float or a function of the step from any form of a learning rate."""
    if not isinstance(value, Mapping):
        return value if callable(value) else float(value)
    tf = compat.tensorflow()
    arguments = dict(value)
    kind = arguments.pop("kind", None)
    if kind == "constant":
        if set(arguments) != {"learning_rate"} or not isinstance(arguments["learning_rate"], int | float):
            raise ConfigError(
                f"the learning-rate schedule {dict(value)} cannot be made",
                code="model/bad-optimizer",
                found="constant takes: learning_rate, a number",
                hint="give only the number, or kind: constant and learning_rate",
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
    """Return the Keras schedule class of a linear warm-up before any schedule, registered for saving.

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
