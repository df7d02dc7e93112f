"""A loss scale that follows the gradients, for float16 in an Estimator's graph.

Gradients of float16 activations below 6e-8 vanish, and above 65504 they are infinite. The loss is scaled up before it
is differentiated, and the gradients down again. Where one of them is not finite, on whichever replica, all leave their
variables and slots as they are and halve the scale; after `GROWTH_STEPS` steps that were finite it is doubled.

As in P. Micikevicius et al., "Mixed Precision Training" (2018), and in Keras's LossScaleOptimizer. Other than there, a
step that is left out counts as one, for what a job reads goes by the step; and the scale begins at 1024, so that few
are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from estimator_pipeline import compat

__all__ = ["GROWTH_STEPS", "INITIAL_SCALE", "LossScale", "apply_if"]

INITIAL_SCALE = 2.0**10
GROWTH_STEPS = 2000
# How gradients come to a variable in either family of optimizers.
_APPLIES = ("_resource_apply_dense", "_resource_apply_sparse_duplicate_indices", "_finish")


class LossScale:
    """The loss scale of a training graph; made in the `model_fn`, on each replica.

    Attributes:
        value: the scale of this step, a float32 scalar tensor.
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
        """Whether all gradients are finite on all replicas: a scalar bool.

        Args:
            gradients: of this replica.
            summed: sums tensors over the replicas; None: there is one.
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
            finite: from `all_finite`.
        """
        tf = compat.tensorflow()
        with tf.control_dependencies([self.value]):
            good = tf.where(finite, self._good.read_value() + 1, 0)
        grows = tf.greater_equal(good, GROWTH_STEPS)
        scale = tf.where(grows, self.value * 2.0, tf.where(finite, self.value, tf.maximum(self.value / 2.0, 1.0)))
        scale = tf.where(tf.math.is_finite(scale), scale, self.value)
        # At a scale of 1 it is not the scale: training would go on for ever and change nothing.
        possible = tf.logical_or(finite, tf.greater(self.value, 1.0))
        told = "the gradient is not finite, at a loss scale of 1 either; lower the learning rate, or compute in float32"
        with tf.control_dependencies([tf.debugging.Assert(possible, [told])]):
            return tf.group(self._scale.assign(scale), self._good.assign(tf.where(grows, tf.zeros_like(good), good)))


def apply_if(finite: Any, optimizer: Any) -> None:
    """Has an optimizer change nothing where the gradients are not finite.

    The condition lies where a device applies its gradients, for a strategy's replicas cannot meet within one.

    Args:
        finite: from `LossScale.all_finite`.
        optimizer: of `tf.compat.v1.train` or `tf.keras.optimizers.legacy`, made for this graph.
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
    """Of V1's optimizers: what is done once all variables have their gradients, as Adam's powers of beta."""

    def finish(updates: Sequence[Any], name: str) -> Any:
        def apply() -> Any:
            with tf.control_dependencies([method([], f"{name}_if_finite")]):
                return tf.constant(True)

        with tf.control_dependencies(list(updates)):
            return tf.group(tf.cond(finite, apply, lambda: tf.constant(False)), name=name)

    return finish
