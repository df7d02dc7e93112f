"""Optimizers of Keras 3 with the arithmetic of `tf.compat.v1.train`, and differences of stock Keras 3.

As in `estimator_pipeline.models.optimizers.keras2`, `api="v1"` matches `tf.compat.v1.train` bit by bit, with
TensorFlow's training operation where Keras has no equivalent, and `api="keras"` is the stock optimizer. The stock
optimizers of Keras 3 and of `tf.keras.optimizers.legacy` are equal except for two:

========= ============================================== =====================================================
optimizer Keras 3                                        `tf.keras.optimizers.legacy`
========= ============================================== =====================================================
adagrad   var -= rate g / sqrt(a + 1e-7)                 var -= rate g / (sqrt(a) + 1e-7)
rmsprop   epsilon 1e-7 under the root                    under the root with momentum, outside of it without
========= ============================================== =====================================================

For the sparse gradient of an embedding, momentum, nesterov, rmsprop with momentum and ftrl of Keras 2 update only the
rows of the batch, including their slots; Keras 3 updates every row.

Source: the update rules in the documentation of `keras.optimizers`, checked by tests/engines/test_keras3.py.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.models.optimizers.spec import Optimizer

__all__ = ["SLOTS", "differences", "takes_rows", "v1_classes"]

# Class -> name of a slot in Keras 3 -> its name in Keras 2, where they differ.
SLOTS: Mapping[str, Mapping[str, str]] = {
    "Adam": {"momentum": "m", "velocity": "v", "velocity_hat": "vhat"},
    "RMSprop": {"velocity": "rms", "average_gradient": "mg"},
    "Adadelta": {"accumulated_grad": "accum_grad", "accumulated_delta_var": "accum_var"},
}


def differences(optimizer: Optimizer, *, rows: bool = False) -> str | None:
    """Explain why an optimizer trains differently in Keras 3 than in the Keras 2 engine; None if it does not.

    Args:
        optimizer: The optimizer.
        rows: Whether gradients are sparse, as those of embeddings.
    """
    if optimizer.api != "keras":
        return None
    moves_on = optimizer.name in ("momentum", "nesterov", "ftrl") or optimizer.options.get("momentum")
    if rows and moves_on:
        return "Keras 3 updates every row of an embedding, Keras 2 only the rows of the batch"
    if optimizer.name == "adagrad":
        return "Keras 3 adds its epsilon under the root of the accumulator, Keras 2 to the root"
    if optimizer.name == "rmsprop" and not optimizer.options.get("momentum"):
        return "Keras 3 adds its epsilon under the root of the mean square, Keras 2 to the root if there is no momentum"
    return None


def takes_rows(optimizer: Any) -> bool:
    """Return whether a Keras 3 optimizer is correct for sparse gradients with repeated rows."""
    stock = compat.tensorflow().keras.optimizers.SGD
    return getattr(optimizer, "takes_rows", False) or (isinstance(optimizer, stock) and not optimizer.momentum)


@functools.cache
def v1_classes() -> Mapping[str, type]:
    """Return the Keras 3 optimizer classes over the operations of `tf.compat.v1.train`, by name."""
    tf = compat.tensorflow()
    keras = tf.keras
    register = keras.utils.register_keras_serializable(package="estimator_pipeline")
    base: Any = keras.optimizers.Optimizer
    ops = tf.raw_ops

    class V1Optimizer(base):
        """The common part: slots, and sparse gradients summed by row."""

        takes_rows = True

        # Name of a slot -> its initial value; `operation` takes the slots from `arguments`.
        slots: Mapping[str, float] = {}

        def build(self, variables):
            if self.built:
                return
            super().build(variables)
            self._slots = {
                name: self.add_optimizer_variables(variables, name, initializer=keras.initializers.Constant(value))
                for name, value in self.slots.items()
            }

        def update_step(self, gradient, variable, learning_rate):
            index = self._get_variable_index(variable)
            slots = {name: variables_of_slot[index].value for name, variables_of_slot in self._slots.items()}
            rate = tf.cast(learning_rate, variable.dtype)
            arguments = self.arguments(variable, slots, rate)
            if isinstance(gradient, tf.IndexedSlices):
                rows, place = tf.unique(gradient.indices)
                values = tf.math.unsorted_segment_sum(gradient.values, place, tf.shape(rows)[0])
                return self.operation(sparse=True)(**arguments, grad=tf.cast(values, variable.dtype), indices=rows)
            return self.operation(sparse=False)(**arguments, grad=tf.cast(gradient, variable.dtype))

    @register
    class V1Momentum(V1Optimizer):
        """`tf.compat.v1.train.MomentumOptimizer`: the velocity contains only gradients, not the learning rate."""

        slots: Mapping[str, float] = {"momentum": 0.0}

        def __init__(self, learning_rate=0.01, momentum=0.9, use_nesterov=False, name="V1Momentum", **kwargs):
            super().__init__(learning_rate=learning_rate, name=name, **kwargs)
            self.momentum, self.use_nesterov = momentum, use_nesterov

        def operation(self, *, sparse):
            return ops.ResourceSparseApplyMomentum if sparse else ops.ResourceApplyMomentum

        def arguments(self, variable, slots, rate):
            return {
                "var": variable.handle,
                "accum": slots["momentum"].handle,
                "lr": rate,
                "momentum": tf.cast(self.momentum, variable.dtype),
                "use_nesterov": self.use_nesterov,
            }

        def get_config(self):
            return {**super().get_config(), "momentum": self.momentum, "use_nesterov": self.use_nesterov}

    @register
    class V1Adagrad(V1Optimizer):
        """`tf.compat.v1.train.AdagradOptimizer`: no epsilon."""

        def __init__(self, learning_rate=0.01, initial_accumulator_value=0.1, name="V1Adagrad", **kwargs):
            super().__init__(learning_rate=learning_rate, name=name, **kwargs)
            self.initial_accumulator_value = initial_accumulator_value
            self.slots = {"accumulator": initial_accumulator_value}

        def operation(self, *, sparse):
            return ops.ResourceSparseApplyAdagrad if sparse else ops.ResourceApplyAdagrad

        def arguments(self, variable, slots, rate):
            return {"var": variable.handle, "accum": slots["accumulator"].handle, "lr": rate}

        def get_config(self):
            return {**super().get_config(), "initial_accumulator_value": self.initial_accumulator_value}

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
            super().__init__(learning_rate=learning_rate, name=name, **kwargs)
            self.decay, self.momentum, self.epsilon, self.centered = decay, momentum, epsilon, centered
            self.slots = {"rms": 1.0, "momentum": 0.0, **({"mg": 0.0} if centered else {})}

        def operation(self, *, sparse):
            if self.centered:
                return ops.ResourceSparseApplyCenteredRMSProp if sparse else ops.ResourceApplyCenteredRMSProp
            return ops.ResourceSparseApplyRMSProp if sparse else ops.ResourceApplyRMSProp

        def arguments(self, variable, slots, rate):
            arguments = {
                "var": variable.handle,
                "ms": slots["rms"].handle,
                "mom": slots["momentum"].handle,
                "lr": rate,
                "rho": tf.cast(self.decay, variable.dtype),
                "momentum": tf.cast(self.momentum, variable.dtype),
                "epsilon": tf.cast(self.epsilon, variable.dtype),
            }
            return {**arguments, "mg": slots["mg"].handle} if self.centered else arguments

        def get_config(self):
            return {
                **super().get_config(),
                "decay": self.decay,
                "momentum": self.momentum,
                "epsilon": self.epsilon,
                "centered": self.centered,
            }

    @register
    class V1Ftrl(V1Optimizer):
        """`tf.compat.v1.train.FtrlOptimizer`: rows that are not in a sparse gradient do not change."""

        def __init__(
            self,
            learning_rate=0.001,
            learning_rate_power=-0.5,
            initial_accumulator_value=0.1,
            l1_regularization_strength=0.0,
            l2_regularization_strength=0.0,
            name="V1Ftrl",
            **kwargs,
        ):
            super().__init__(learning_rate=learning_rate, name=name, **kwargs)
            self.learning_rate_power, self.initial_accumulator_value = learning_rate_power, initial_accumulator_value
            self.l1_regularization_strength = l1_regularization_strength
            self.l2_regularization_strength = l2_regularization_strength
            self.slots = {"accumulator": initial_accumulator_value, "linear": 0.0}

        def operation(self, *, sparse):
            return ops.ResourceSparseApplyFtrl if sparse else ops.ResourceApplyFtrl

        def arguments(self, variable, slots, rate):
            return {
                "var": variable.handle,
                "accum": slots["accumulator"].handle,
                "linear": slots["linear"].handle,
                "lr": rate,
                "l1": tf.cast(self.l1_regularization_strength, variable.dtype),
                "l2": tf.cast(self.l2_regularization_strength, variable.dtype),
                "lr_power": tf.cast(self.learning_rate_power, variable.dtype),
            }

        def get_config(self):
            names = ("learning_rate_power", "initial_accumulator_value", "l1_regularization_strength",
                     "l2_regularization_strength")  # fmt: skip
            return {**super().get_config(), **{name: getattr(self, name) for name in names}}

    return {
        "momentum": V1Momentum,
        "nesterov": V1Momentum,
        "adagrad": V1Adagrad,
        "rmsprop": V1RMSProp,
        "ftrl": V1Ftrl,
    }
