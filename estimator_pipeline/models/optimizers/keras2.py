"""The optimizers of `spec` for `Model.fit`, with the requested arithmetic.

`api="keras"` is the Keras 2 optimizer that the Estimator uses as well (`tf.keras.optimizers.legacy`). `api="v1"` is a
Keras optimizer that matches `tf.compat.v1.train` bit by bit. Where Keras has the same operation with different argument
names, it is Keras's class with these arguments. Otherwise it is a class of this module over TensorFlow's training
operation:

========= ============================================ ==========================================================
optimizer `tf.compat.v1.train`                         difference of `tf.keras.optimizers.legacy`
========= ============================================ ==========================================================
sgd       var -= rate g                                none
momentum  a = m a + g; var -= rate a                   a = m a - rate g; var += a: the same while the rate is
                                                       constant; after a change `a` still contains the old rate
nesterov  the same with var -= rate (g + m a)          as momentum
adam      epsilon 1e-8; powers of beta multiplied up   epsilon 1e-7; powers of beta computed from the step
adagrad   var -= rate g / sqrt(a)                      an epsilon of 1e-7 is added to the root
rmsprop   epsilon 1e-10 under the root; a starts at 1  epsilon 1e-7, outside the root without momentum; a
                                                       starts at 0
ftrl      as in Keras                                  none
========= ============================================ ==========================================================

Source of the left column: the documentation of TensorFlow's training operations (`ApplyMomentum`, `ApplyAdagrad`,
`ApplyRMSProp`), checked by tests/models/test_keras_optimizers.py against both families.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.models.optimizers import keras3 as keras3_optimizers
from estimator_pipeline.models.optimizers.gradient_accumulation import accumulating, accumulating_of_keras_3
from estimator_pipeline.models.optimizers.moving_averages import averaging, averaging_of_keras_3
from estimator_pipeline.models.optimizers.spec import NAMES, LearningRate, Optimizer, linear_warmup, stock_class
from estimator_pipeline.models.optimizers.weight_decay import decaying, decaying_of_keras_3

__all__ = [
    "create_slots", "current_rate", "differences", "is_legacy", "make", "of_v1", "proximal_adagrad",
    "register", "variables_of", "weights_of",
]  # fmt: skip

# Names of the same argument: tf.compat.v1.train -> Keras.
_ARGUMENTS = {"beta1": "beta_1", "beta2": "beta_2", "decay": "rho"}
# Defaults of tf.compat.v1.train that differ in Keras; for Keras 3, where api="v1" uses the stock Adam.
_V1_DEFAULTS: dict[str, dict[str, Any]] = {"adam": {"epsilon": 1e-8}}


def of_v1(name: str, learning_rate: LearningRate, **clipping: Any) -> Any:
    """Return a Keras optimizer with the arithmetic of a `tf.compat.v1.train` optimizer.

    Args:
        name: The name without "Optimizer", such as `Adam` or `GradientDescent`.
        learning_rate: See `estimator_pipeline.models.optimizers.spec.Optimizer`.
        **clipping: The clipping arguments of `make`.

    Raises:
        ConfigError: The name is unknown, or the optimizer needs more arguments than a learning rate.
    """
    names = {"GradientDescent": "sgd", "Adam": "adam", "Adagrad": "adagrad", "RMSProp": "rmsprop", "Ftrl": "ftrl"}
    if name not in names:
        raise ConfigError(f"the optimizer {name!r} is not known", code="argument/unknown-name", found=", ".join(names))
    return make(Optimizer(name=names[name], learning_rate=learning_rate), **clipping)


def make(
    optimizer: Optimizer,
    *,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    whole_rows: bool = False,
) -> Any:
    """Return the optimizer for `Model.compile`.

    Args:
        optimizer: The configuration.
        clip_norm: The global norm to which the gradient is clipped, after the sum over the replicas.
        clip_value: The absolute value to which each element is clipped, after the sum over the replicas.
        whole_rows: Whether to sum the repeated rows of an embedding's gradient before clipping, as in
            `build_model_fn`. By default they are clipped separately, as in `tf.clip_by_global_norm` and Keras.

    Returns:
        A `tf.keras.optimizers.legacy.Optimizer`; in a process with Keras 3 a `tf.keras.optimizers.Optimizer`.

    Raises:
        ConfigError: The optimizer does not take an option.
    """
    tf = compat.tensorflow()
    clipping = {"global_clipnorm": clip_norm, "clipvalue": clip_value}
    clipping = {name: value for name, value in clipping.items() if value is not None}
    rate = _rate(tf, optimizer)
    options = dict(optimizer.options)
    if optimizer.api == "keras" or optimizer.name not in _v1_classes():
        if optimizer.api == "v1":
            options = {_ARGUMENTS.get(name, name): value for name, value in options.items()}
            options = {**_V1_DEFAULTS.get(optimizer.name, {}), **options}
        keras_optimizer = optimizer.construct_keras(rate, {**options, **clipping})
    else:
        kind = _v1_classes()[optimizer.name]
        if optimizer.name == "nesterov":
            options["use_nesterov"] = True
        keras_optimizer = optimizer.construct(kind, rate, {**options, **clipping})
    if clipping and whole_rows and is_legacy(keras_optimizer):
        _clip_whole_rows(keras_optimizer)
    return keras_optimizer


def _clip_whole_rows(optimizer: Any) -> None:
    """Make a Keras 2 optimizer sum the repeated rows of sparse gradients before it clips.

    The sparse gradient of an embedding contains a row once for each lookup, on each replica. Keras computes the norm of
    the unsummed rows, which is not the norm of the gradient and depends on the number of replicas.
    """
    tf = compat.tensorflow()

    def of_whole_rows(theirs: Any) -> Any:
        def changed(pairs: Any) -> Any:
            return theirs([(tf.convert_to_tensor(g) if isinstance(g, tf.IndexedSlices) else g, v) for g, v in pairs])

        return changed

    # Before the sum over the replicas, in the same order as an Estimator; and for calls without that sum.
    optimizer._aggregate_gradients = of_whole_rows(optimizer._aggregate_gradients)
    optimizer._transform_gradients = of_whole_rows(optimizer._transform_gradients)


def proximal_adagrad(
    learning_rate: LearningRate, initial_accumulator_value: float = 0.1, l1_regularization_strength: float = 0.0,
    l2_regularization_strength: float = 0.0,
) -> Any:  # fmt: skip
    """Return an optimizer with the arithmetic of `tf.compat.v1.train.ProximalAdagradOptimizer`, for Keras 2."""
    strengths = (l1_regularization_strength, l2_regularization_strength)
    rate = _rate(compat.tensorflow(), Optimizer(learning_rate=learning_rate))
    return _proximal_adagrad()(rate, initial_accumulator_value, *strengths)


def differences(optimizer: Optimizer) -> str | None:
    """Explain why the stock Keras 2 optimizer trains differently than `tf.compat.v1.train`; None if it does not.

    Args:
        optimizer: An optimizer with `api="v1"`; for "keras" there is no difference.
    """
    if optimizer.api != "v1":
        return None
    name, options = optimizer.name, optimizer.options
    if name in ("momentum", "nesterov") and _rate_changes(optimizer):
        return (
            "tf.compat.v1.train.MomentumOptimizer multiplies the velocity by the learning rate of the step, Keras "
            "stores it already multiplied: they differ when the schedule changes the rate"
        )
    if name == "adam" and "epsilon" not in options:
        return "epsilon is 1e-8 in tf.compat.v1.train and 1e-7 in Keras; set options: {epsilon: ...} in both"
    if name == "adagrad":
        return "Keras adds an epsilon of 1e-7 to the root of the accumulator; options: {epsilon: 1.0e-30} in Keras"
    if name == "rmsprop":
        return (
            "the accumulator starts at 1 in tf.compat.v1.train and at 0 in Keras, and epsilon (1e-10, 1e-7) is added "
            "under the root there and outside of it here; no option makes them equal"
        )
    return None


def register() -> None:
    """Register the optimizers and schedules of this package with Keras, to load models that were saved with them."""
    classes = [*_v1_classes().values(), *map(stock_class, NAMES)]
    linear_warmup()
    keras_2 = compat.keras_generation() == 2
    for kind in classes:
        decays = (decaying if keras_2 else decaying_of_keras_3)(kind)
        averages = [(averaging if keras_2 else averaging_of_keras_3)(base) for base in (kind, decays)]
        for base in (kind, decays, *averages):
            (accumulating if keras_2 else accumulating_of_keras_3)(base)


def create_slots(model: Any) -> None:
    """Create the slot variables of a compiled model's optimizer now instead of in the first step."""
    if compat.keras_generation() == 3:
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        return
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    if is_legacy(optimizer):
        optimizer._create_all_weights(model.trainable_variables)
    else:
        optimizer.build(model.trainable_variables)


def is_legacy(optimizer: Any) -> bool:
    """Return whether an optimizer is from `tf.keras.optimizers.legacy`, not one of the newer ones of Keras 2."""
    if compat.keras_generation() == 3:
        return False
    legacy: Any = compat.tensorflow().keras.optimizers.legacy.Optimizer
    return isinstance(optimizer, legacy)


def variables_of(optimizer: Any) -> list[Any]:
    """Return the variables of an optimizer: the step, the slots, and the hyperparameters of newer optimizers."""
    return list(optimizer.weights if is_legacy(optimizer) else optimizer.variables)


def weights_of(model: Any) -> list[Any]:
    """Return the variables of a Keras model, without those of metrics that are its attributes."""
    counts = {id(variable) for metric in model.metrics for variable in metric.variables}
    return [variable for variable in model.variables if id(variable) not in counts]


def current_rate(optimizer: Any) -> float:
    """Return the learning rate of the next step."""
    tf = compat.tensorflow()
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # of a loss scale
    if is_legacy(optimizer):
        return float(optimizer._decayed_lr(tf.float32))
    rate = optimizer._learning_rate
    # With several replicas it is a variable on each.
    return float(rate(optimizer.iterations) if callable(rate) else tf.convert_to_tensor(rate))


def _rate_changes(optimizer: Optimizer) -> bool:
    return optimizer.warmup_steps > 0 or not isinstance(optimizer.learning_rate, float | int)


def _rate(tf: Any, optimizer: Optimizer) -> Any:
    """Return the learning rate as a number or a schedule object, which wraps a plain function of the step."""
    rate = optimizer.rate()
    base: Any = tf.keras.optimizers.schedules.LearningRateSchedule
    if not callable(rate) or isinstance(rate, base):
        return rate

    class Function(base):
        def __call__(self, step: Any) -> Any:
            return rate(step)

        def get_config(self) -> Mapping[str, Any]:
            raise NotImplementedError("a schedule that is a custom function cannot be saved")

    return Function()


def _v1_classes() -> Mapping[str, type]:
    """Return the optimizer classes over the operations of `tf.compat.v1.train`, for the Keras of this process."""
    return keras3_optimizers.v1_classes() if compat.keras_generation() == 3 else _v1_classes_of_keras_2()


@functools.cache
def _proximal_adagrad() -> Any:
    tf = compat.tensorflow()
    adagrad: Any = _v1_classes_of_keras_2()["adagrad"]

    @tf.keras.saving.register_keras_serializable(package="estimator_pipeline")  # type: ignore[misc]
    class V1ProximalAdagrad(adagrad):
        """Adagrad with a proximal step that shrinks the weights towards 0."""

        def __init__(self, learning_rate=0.01, initial_accumulator_value=0.1, l1=0.0, l2=0.0,
                     name="V1ProximalAdagrad", **kwargs):  # fmt: skip
            super().__init__(learning_rate, initial_accumulator_value, name, **kwargs)
            self.strengths = (l1, l2)

        def _arguments(self, var, state):
            l1, l2 = (tf.constant(strength, var.dtype.base_dtype) for strength in self.strengths)
            return {**super()._arguments(var, state), "l1": l1, "l2": l2}

        def _resource_apply_dense(self, grad, var, apply_state=None):
            return tf.raw_ops.ResourceApplyProximalAdagrad(**self._arguments(var, apply_state), grad=grad)

        def _resource_apply_sparse(self, grad, var, indices, apply_state=None):
            arguments = self._arguments(var, apply_state)
            return tf.raw_ops.ResourceSparseApplyProximalAdagrad(**arguments, grad=grad, indices=indices)

        def get_config(self):
            return {**super().get_config(), "l1": self.strengths[0], "l2": self.strengths[1]}

    return V1ProximalAdagrad


@functools.cache
def _v1_classes_of_keras_2() -> Mapping[str, type]:
    tf = compat.tensorflow()
    register = tf.keras.saving.register_keras_serializable(package="estimator_pipeline")
    base: Any = tf.keras.optimizers.legacy.Optimizer
    ops = tf.raw_ops

    class V1Optimizer(base):
        """The common part: the learning rate."""

        def __init__(self, learning_rate, name, **kwargs):
            super().__init__(name, **kwargs)
            self._set_hyper("learning_rate", learning_rate)

        def get_config(self):
            return {**super().get_config(), "learning_rate": self._serialize_hyperparameter("learning_rate")}

        def _rate(self, var, state):
            key = (var.device, var.dtype.base_dtype)
            return ((state or {}).get(key) or self._fallback_apply_state(*key))["lr_t"]

    @register
    class V1Momentum(V1Optimizer):
        """`tf.compat.v1.train.MomentumOptimizer`: the velocity contains only gradients, not the learning rate."""

        def __init__(self, learning_rate=0.01, momentum=0.9, use_nesterov=False, name="V1Momentum", **kwargs):
            super().__init__(learning_rate, name, **kwargs)
            self._set_hyper("momentum", momentum)
            self.use_nesterov = use_nesterov

        def _create_slots(self, var_list):
            for var in var_list:
                self.add_slot(var, "momentum")

        def _arguments(self, var, state):
            return {
                "var": var.handle,
                "accum": self.get_slot(var, "momentum").handle,
                "lr": self._rate(var, state),
                "momentum": self._get_hyper("momentum", var.dtype.base_dtype),
                "use_locking": self._use_locking,
                "use_nesterov": self.use_nesterov,
            }

        def _resource_apply_dense(self, grad, var, apply_state=None):
            return ops.ResourceApplyMomentum(**self._arguments(var, apply_state), grad=grad)

        def _resource_apply_sparse(self, grad, var, indices, apply_state=None):
            return ops.ResourceSparseApplyMomentum(**self._arguments(var, apply_state), grad=grad, indices=indices)

        def get_config(self):
            return {
                **super().get_config(),
                "momentum": self._serialize_hyperparameter("momentum"),
                "use_nesterov": self.use_nesterov,
            }

    @register
    class V1Adam(V1Optimizer):
        """`tf.compat.v1.train.AdamOptimizer`: powers of beta are variables, not computed from the step."""

        def __init__(self, learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-8, name="V1Adam", **kwargs):
            super().__init__(learning_rate, name, **kwargs)
            self.betas, self.epsilon = (beta1, beta2), epsilon
            self._powers: tuple[Any, ...] = ()

        def _create_slots(self, var_list):
            if not self._powers:
                # The same on all replicas, like the step.
                self._powers = tuple(
                    self.add_weight(
                        f"beta{number}_power",
                        shape=[],
                        initializer=tf.constant_initializer(beta),
                        trainable=False,
                        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
                    )
                    for number, beta in enumerate(self.betas, start=1)
                )
                self._weights.extend(self._powers)
            for slot in ("m", "v"):
                for var in var_list:
                    self.add_slot(var, slot)

        def apply_gradients(self, *args, **kwargs):
            done = super().apply_gradients(*args, **kwargs)
            for power, beta in zip(self._powers, self.betas, strict=True):
                power.assign(self._next_power(power, beta))
            return done

        def _next_power(self, power, beta):
            return power * beta

        def _arguments(self, var, state):
            dtype = var.dtype.base_dtype
            return {
                "lr": self._rate(var, state),
                "beta1_power": tf.cast(self._powers[0], dtype),
                "beta2_power": tf.cast(self._powers[1], dtype),
                "beta1": tf.constant(self.betas[0], dtype),
                "beta2": tf.constant(self.betas[1], dtype),
                "epsilon": tf.constant(self.epsilon, dtype),
            }

        def _resource_apply_dense(self, grad, var, apply_state=None):
            slots = {name: self.get_slot(var, name).handle for name in ("m", "v")}
            arguments = self._arguments(var, apply_state)
            return ops.ResourceApplyAdam(var=var.handle, **slots, **arguments, grad=grad, use_locking=self._use_locking)

        def _resource_apply_sparse(self, grad, var, indices, apply_state=None):
            # All rows change; those without a gradient by their decayed moments.
            arguments = self._arguments(var, apply_state)
            rate = arguments["lr"] * tf.sqrt(1 - arguments["beta2_power"]) / (1 - arguments["beta1_power"])
            moved = []
            for name, beta, value in (("m", arguments["beta1"], grad), ("v", arguments["beta2"], grad * grad)):
                slot = self.get_slot(var, name)
                with tf.control_dependencies([slot.assign(slot * beta, use_locking=self._use_locking)]):
                    moved.append(self._resource_scatter_add(slot, indices, value * (1 - beta)))
            change = rate * moved[0] / (tf.sqrt(moved[1]) + arguments["epsilon"])
            return var.assign_sub(change, use_locking=self._use_locking)

        def get_config(self):
            named = {"beta1": self.betas[0], "beta2": self.betas[1], "epsilon": self.epsilon}
            return {**super().get_config(), **named}

    @register
    class V1Adagrad(V1Optimizer):
        """`tf.compat.v1.train.AdagradOptimizer`: no epsilon."""

        def __init__(self, learning_rate=0.01, initial_accumulator_value=0.1, name="V1Adagrad", **kwargs):
            super().__init__(learning_rate, name, **kwargs)
            self.initial_accumulator_value = initial_accumulator_value

        def _create_slots(self, var_list):
            for var in var_list:
                self.add_slot(var, "accumulator", tf.constant_initializer(self.initial_accumulator_value))

        def _arguments(self, var, state):
            return {
                "var": var.handle,
                "accum": self.get_slot(var, "accumulator").handle,
                "lr": self._rate(var, state),
                "use_locking": self._use_locking,
            }

        def _resource_apply_dense(self, grad, var, apply_state=None):
            return ops.ResourceApplyAdagrad(**self._arguments(var, apply_state), grad=grad)

        def _resource_apply_sparse(self, grad, var, indices, apply_state=None):
            return ops.ResourceSparseApplyAdagrad(**self._arguments(var, apply_state), grad=grad, indices=indices)

        def get_config(self):
            return {
                **super().get_config(),
                "initial_accumulator_value": self.initial_accumulator_value,
            }

    @register
    class V1RMSProp(V1Optimizer):
        """`tf.compat.v1.train.RMSPropOptimizer`: the mean square starts at 1, epsilon is under the root."""

        def __init__(
            self,
            learning_rate=0.01,
            decay=0.9,
            momentum=0.0,
            epsilon=1e-10,
            centered=False,
            name="V1RMSProp",
            **kwargs,
        ):
            super().__init__(learning_rate, name, **kwargs)
            self._set_hyper("rho", decay)
            self._set_hyper("momentum", momentum)
            self.epsilon, self.centered = epsilon, centered

        def _create_slots(self, var_list):
            for var in var_list:
                self.add_slot(var, "rms", tf.ones_initializer())
                self.add_slot(var, "momentum")
                if self.centered:
                    self.add_slot(var, "mg")

        def _arguments(self, var, state):
            dtype = var.dtype.base_dtype
            arguments = {
                "var": var.handle,
                "ms": self.get_slot(var, "rms").handle,
                "mom": self.get_slot(var, "momentum").handle,
                "lr": self._rate(var, state),
                "rho": self._get_hyper("rho", dtype),
                "momentum": self._get_hyper("momentum", dtype),
                "epsilon": tf.convert_to_tensor(self.epsilon, dtype),
                "use_locking": self._use_locking,
            }
            return {**arguments, "mg": self.get_slot(var, "mg").handle} if self.centered else arguments

        def _resource_apply_dense(self, grad, var, apply_state=None):
            apply = ops.ResourceApplyCenteredRMSProp if self.centered else ops.ResourceApplyRMSProp
            return apply(**self._arguments(var, apply_state), grad=grad)

        def _resource_apply_sparse(self, grad, var, indices, apply_state=None):
            apply = ops.ResourceSparseApplyCenteredRMSProp if self.centered else ops.ResourceSparseApplyRMSProp
            return apply(**self._arguments(var, apply_state), grad=grad, indices=indices)

        def get_config(self):
            return {
                **super().get_config(),
                "decay": self._serialize_hyperparameter("rho"),
                "momentum": self._serialize_hyperparameter("momentum"),
                "epsilon": self.epsilon,
                "centered": self.centered,
            }

    return {
        "momentum": V1Momentum,
        "nesterov": V1Momentum,
        "adam": V1Adam,
        "adagrad": V1Adagrad,
        "rmsprop": V1RMSProp,
    }
