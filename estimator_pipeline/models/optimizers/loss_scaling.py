"""Dynamic loss scaling for float16 in an Estimator's graph.

Gradients of float16 activations below 6e-8 vanish, and above 65504 they are infinite. The loss is multiplied by a scale
before differentiation, and the gradients are divided by it. If a gradient is not finite on any replica, all replicas
skip the update of variables and slots and halve the scale. After `GROWTH_STEPS` finite steps the scale is doubled.

As in P. Micikevicius et al., "Mixed Precision Training" (2018), and in Keras's LossScaleOptimizer, with two
differences. A skipped step is counted, because the data position depends on the step. The initial scale is 1024, so
that few steps are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from estimator_pipeline import compat

__all__ = ["GROWTH_STEPS", "INITIAL_SCALE", "LossScale", "apply_if"]

INITIAL_SCALE = 2.0**10
GROWTH_STEPS = 2000
# The methods that apply gradients in either family of optimizers.
_APPLIES = ("_resource_apply_dense", "_resource_apply_sparse_duplicate_indices", "_finish")


class LossScale:
    """The loss scale of a training graph, created in the `model_fn` on each replica.

    Attributes:
        value: The scale of this step, a float32 scalar tensor.
    """

    def __init__(self) -> None:
        tf = compat.tensorflow()
        self._scale = self._variable(tf, "scale", INITIAL_SCALE, tf.float32)
        self._good = self._variable(tf, "finite_steps", 0, tf.int64)
        self.value = tf.identity(self._scale.read_value())

    @staticmethod
    def _variable(tf: Any, name: str, value: float, dtype: Any) -> Any:
        return tf.compat.v1.get_variable(
            f"estimator_pipeline/loss_scale/{name}",
            shape=[],
            dtype=dtype,
            initializer=tf.constant_initializer(value),
            trainable=False,
            use_resource=True,
            # The same on all replicas.
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )

    def all_finite(self, gradients: Sequence[Any], summed: Callable[[list[Any]], list[Any]] | None) -> Any:
        """Return whether all gradients are finite on all replicas, a scalar bool tensor.

        Args:
            gradients: The gradients of this replica.
            summed: Sums tensors over the replicas; None: there is one replica.
        """
        tf = compat.tensorflow()
        values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients]
        finite = tf.reduce_all(tf.stack([tf.reduce_all(tf.math.is_finite(value)) for value in values]))
        if summed is None:
            return finite
        (broken,) = summed([tf.cast(tf.logical_not(finite), tf.float32)])
        return tf.equal(broken, 0.0)

    def update(self, finite: Any) -> Any:
        """Return the operation that sets the scale of the next step.

        Args:
            finite: The result of `all_finite`.
        """
        tf = compat.tensorflow()
        with tf.control_dependencies([self.value]):
            good = tf.where(finite, self._good.read_value() + 1, 0)
        grows = tf.greater_equal(good, GROWTH_STEPS)
        scale = tf.where(grows, self.value * 2.0, tf.where(finite, self.value, tf.maximum(self.value / 2.0, 1.0)))
        scale = tf.where(tf.math.is_finite(scale), scale, self.value)
        # At a scale of 1 the scale is not the cause: training would continue without ever updating the variables.
        possible = tf.logical_or(finite, tf.greater(self.value, 1.0))
        message = "the gradient is not finite, even at loss scale 1; lower the learning rate, or compute in float32"
        with tf.control_dependencies([tf.debugging.Assert(possible, [message])]):
            return tf.group(self._scale.assign(scale), self._good.assign(tf.where(grows, tf.zeros_like(good), good)))


def apply_if(finite: Any, optimizer: Any) -> None:
    """Make an optimizer skip the update if the gradients are not finite.

    The condition is inside the methods that apply gradients on a device, because replicas of a strategy cannot
    synchronize within a condition.

    Args:
        finite: The result of `LossScale.all_finite`.
        optimizer: A new optimizer of `tf.compat.v1.train` or `tf.keras.optimizers.legacy` for this graph.
    """
    tf = compat.tensorflow()

    def conditional(method: Callable[..., Any]) -> Callable[..., Any]:
        def applied(*args: Any, **kwargs: Any) -> Any:
            def apply() -> Any:
                with tf.control_dependencies([method(*args, **kwargs)]):
                    return tf.constant(True)

            return tf.cond(finite, apply, lambda: tf.constant(False)).op

        return applied

    for name in _APPLIES:
        method = getattr(optimizer, name, None)
        if method is not None:
            setattr(optimizer, name, _finishing(tf, finite, method) if name == "_finish" else conditional(method))


def _finishing(tf: Any, finite: Any, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a conditional `_finish` of a V1 optimizer, which runs after all updates: Adam's powers of beta."""

    def finish(updates: Sequence[Any], name: str) -> Any:
        def apply() -> Any:
            with tf.control_dependencies([method([], f"{name}_if_finite")]):
                return tf.constant(True)

        with tf.control_dependencies(list(updates)):
            return tf.group(tf.cond(finite, apply, lambda: tf.constant(False)), name=name)

    return finish
