"""`tf.contrib.opt`: optimizers based on `tf.compat.v1.train`, with their old slot names."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = [
    "AdamWOptimizer",
    "DecoupledWeightDecayExtension",
    "LARSOptimizer",
    "LazyAdamOptimizer",
    "MomentumWOptimizer",
    "NadamOptimizer",
    "extend_with_decoupled_weight_decay",
]

_v1: Any = tf.compat.v1


class DecoupledWeightDecayExtension:
    """Mixin before an optimizer class: each step subtracts `weight_decay` × the variable.

    Loshchilov and Hutter, 2017 (arXiv:1711.05101). The decay is not multiplied by the learning rate.

    Args:
        weight_decay: A number, a tensor, or a function that returns one.
        **kwargs: The arguments of the optimizer.
    """

    def __init__(self, weight_decay: Any, **kwargs: Any) -> None:
        self._weight_decay = weight_decay
        self._decayed: set[Any] | None = None
        super().__init__(**kwargs)

    def minimize(self, loss: Any, *args: Any, decay_var_list: Any = None, **options: Any) -> Any:
        """Like the base class, with decay for the variables of `decay_var_list` only, if set."""
        self._choose(decay_var_list)
        return super().minimize(loss, *args, **options)  # type: ignore[misc]

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None, decay_var_list: Any = None
    ) -> Any:
        """Like the base class, with decay for the variables of `decay_var_list` only, if set."""
        if decay_var_list is not None:
            self._choose(decay_var_list)
        return super().apply_gradients(grads_and_vars, global_step, name)  # type: ignore[misc]

    def _choose(self, variables: Any) -> None:
        self._decayed = {_identity(each) for each in variables} if variables else None

    def _prepare(self) -> None:
        decay = self._weight_decay() if callable(self._weight_decay) else self._weight_decay
        self._weight_decay_tensor = tf.convert_to_tensor(decay, name="weight_decay")
        super()._prepare()  # type: ignore[misc]

    def _decay(self, grad: Any, var: Any, indices: Any = None) -> Any:
        # After the gradient, which depends on the previous value of the variable.
        with tf.control_dependencies([grad]):
            return self._decay_now(var, indices)

    def _decay_now(self, var: Any, indices: Any) -> Any:
        if self._decayed is not None and _identity(var) not in self._decayed:
            return tf.no_op()
        decay = tf.cast(self._weight_decay_tensor, var.dtype.base_dtype)
        if indices is None:
            return _v1.assign_sub(var, decay * var, use_locking=self._use_locking)  # type: ignore[attr-defined]
        return _v1.scatter_sub(var, indices, decay * tf.gather(var, indices))

    def _apply_dense(self, grad: Any, var: Any) -> Any:
        with tf.control_dependencies([self._decay(grad, var)]):
            return super()._apply_dense(grad, var)  # type: ignore[misc]

    def _resource_apply_dense(self, grad: Any, var: Any) -> Any:
        with tf.control_dependencies([self._decay(grad, var)]):
            return super()._resource_apply_dense(grad, var)  # type: ignore[misc]

    def _apply_sparse(self, grad: Any, var: Any) -> Any:
        with tf.control_dependencies([self._decay(grad.values, var, grad.indices)]):
            return super()._apply_sparse(grad, var)  # type: ignore[misc]

    def _resource_apply_sparse(self, grad: Any, var: Any, indices: Any) -> Any:
        with tf.control_dependencies([self._decay(grad, var, indices)]):
            return super()._resource_apply_sparse(grad, var, indices)  # type: ignore[misc]


def _identity(variable: Any) -> Any:
    return variable.ref() if hasattr(variable, "ref") else id(variable)


def extend_with_decoupled_weight_decay(base_optimizer: Any) -> type:
    """Return a subclass of `base_optimizer` with weight decay, whose first argument is `weight_decay`."""

    class OptimizerWithDecoupledWeightDecay(DecoupledWeightDecayExtension, base_optimizer):
        def __init__(self, weight_decay: Any, *args: Any, **kwargs: Any) -> None:
            # The base's arguments may be positional.
            base_optimizer.__init__(self, *args, **kwargs)
            self._weight_decay = weight_decay
            self._decayed = None

    return OptimizerWithDecoupledWeightDecay


class MomentumWOptimizer(DecoupledWeightDecayExtension, _v1.train.MomentumOptimizer):
    """Momentum with weight decay."""

    def __init__(
        self,
        weight_decay: Any,
        learning_rate: Any,
        momentum: Any,
        use_locking: bool = False,
        name: str = "MomentumW",
        use_nesterov: bool = False,
    ) -> None:
        super().__init__(
            weight_decay,
            learning_rate=learning_rate,
            momentum=momentum,
            use_locking=use_locking,
            name=name,
            use_nesterov=use_nesterov,
        )


class AdamWOptimizer(DecoupledWeightDecayExtension, _v1.train.AdamOptimizer):
    """Adam with weight decay."""

    def __init__(
        self,
        weight_decay: Any,
        learning_rate: Any = 0.001,
        beta1: Any = 0.9,
        beta2: Any = 0.999,
        epsilon: Any = 1e-8,
        use_locking: bool = False,
        name: str = "AdamW",
    ) -> None:
        super().__init__(
            weight_decay,
            learning_rate=learning_rate,
            beta1=beta1,
            beta2=beta2,
            epsilon=epsilon,
            use_locking=use_locking,
            name=name,
        )


def _of_a_step(adam: Any, var: Any) -> tuple[Any, Any, Any, Any]:
    """Return the bias-corrected learning rate, beta1, beta2 and epsilon of a step of Adam."""
    dtype = var.dtype.base_dtype
    power1, power2 = (tf.cast(each, dtype) for each in adam._get_beta_accumulators())
    rate, beta1, beta2, epsilon = (
        tf.cast(each, dtype) for each in (adam._lr_t, adam._beta1_t, adam._beta2_t, adam._epsilon_t)
    )
    return rate * tf.sqrt(1 - power2) / (1 - power1), beta1, beta2, epsilon


class LazyAdamOptimizer(_v1.train.AdamOptimizer):
    """Adam that updates the moments of a row only in steps in which the row has a gradient."""

    def _apply_sparse(self, grad: Any, var: Any) -> Any:
        return self._lazily(grad.values, var, grad.indices)

    def _resource_apply_sparse(self, grad: Any, var: Any, indices: Any) -> Any:
        return self._lazily(grad, var, indices)

    def _lazily(self, grad: Any, var: Any, indices: Any) -> Any:
        rate, beta1, beta2, epsilon = _of_a_step(self, var)
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        m_rows = beta1 * tf.gather(m, indices) + (1 - beta1) * grad
        v_rows = beta2 * tf.gather(v, indices) + (1 - beta2) * tf.square(grad)
        return tf.group(
            _v1.scatter_update(m, indices, m_rows),
            _v1.scatter_update(v, indices, v_rows),
            _v1.scatter_sub(var, indices, rate * m_rows / (tf.sqrt(v_rows) + epsilon)),
        )


class NadamOptimizer(_v1.train.AdamOptimizer):
    """Adam with Nesterov momentum (Dozat, 2015)."""

    def _apply_dense(self, grad: Any, var: Any) -> Any:
        return self._apply(tf.raw_ops.ApplyAdam, grad, var, lambda each: each)

    def _resource_apply_dense(self, grad: Any, var: Any) -> Any:
        return self._apply(tf.raw_ops.ResourceApplyAdam, grad, var, lambda each: each.handle)

    def _apply(self, op: Any, grad: Any, var: Any, of: Any) -> Any:
        dtype = grad.dtype.base_dtype
        power1, power2 = self._get_beta_accumulators()
        update = op(
            var=of(var),
            m=of(self.get_slot(var, "m")),
            v=of(self.get_slot(var, "v")),
            beta1_power=tf.cast(power1, dtype),
            beta2_power=tf.cast(power2, dtype),
            lr=tf.cast(self._lr_t, dtype),
            beta1=tf.cast(self._beta1_t, dtype),
            beta2=tf.cast(self._beta2_t, dtype),
            epsilon=tf.cast(self._epsilon_t, dtype),
            grad=grad,
            use_locking=self._use_locking,
            use_nesterov=True,
        )
        return update.op if hasattr(update, "op") else update

    def _apply_sparse_shared(self, grad: Any, var: Any, indices: Any, scatter_add: Any) -> Any:
        rate, beta1, beta2, epsilon = _of_a_step(self, var)
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        part = grad * (1 - beta1)
        with tf.control_dependencies([_v1.assign(m, m * beta1)]):
            m_t = scatter_add(m, indices, part)
        with tf.control_dependencies([_v1.assign(v, v * beta2)]):
            v_t = scatter_add(v, indices, grad * grad * (1 - beta2))
        rows = part + beta1 * tf.gather(m_t, indices)
        return tf.group(
            scatter_add(var, indices, -rate * rows / (tf.sqrt(tf.gather(v_t, indices)) + epsilon)), m_t, v_t
        )


class LARSOptimizer(_v1.train.MomentumOptimizer):
    """Momentum with a learning rate that is scaled per variable by norms of it and its gradient (You et al., 2017).

    Args:
        learning_rate: The rate before scaling.
        momentum: The momentum.
        weight_decay: The factor of the variable that is added to the gradient.
        eeta: The factor of the scale.
        epsilon: Added to the norm of the gradient.
        name: The optimizer's name.
        skip_list: Parts of the names of variables that are neither scaled nor decayed.
        use_nesterov: Whether to use Nesterov momentum.

    Raises:
        ValueError: The momentum or the weight decay is negative.
    """

    def __init__(
        self,
        learning_rate: Any,
        momentum: float = 0.9,
        weight_decay: float = 0.0001,
        eeta: float = 0.001,
        epsilon: float = 0.0,
        name: str = "LARSOptimizer",
        skip_list: Any = None,
        use_nesterov: bool = False,
    ) -> None:
        if momentum < 0 or weight_decay < 0:
            raise ValueError(f"momentum and weight_decay must not be below 0: {momentum}, {weight_decay}")
        super().__init__(learning_rate, momentum, False, name, use_nesterov)
        self._decay, self._eeta, self._epsilon = weight_decay, eeta, epsilon
        self._skip_list = tuple(skip_list or ())

    def _create_slots(self, var_list: Any) -> None:
        for var in var_list:
            self._zeros_slot(var, "momentum", self._name)

    def _apply_dense(self, grad: Any, var: Any) -> Any:
        return self._scaled(grad, var)

    def _resource_apply_dense(self, grad: Any, var: Any) -> Any:
        return self._scaled(grad, var)

    def _scaled(self, grad: Any, var: Any) -> Any:
        dtype = var.dtype.base_dtype
        rate, momentum = tf.cast(self._learning_rate_tensor, dtype), tf.cast(self._momentum_tensor, dtype)
        if not any(part in var.name for part in self._skip_list):
            of_var, of_grad = tf.norm(var), tf.norm(grad)
            ratio = self._eeta * of_var / (of_grad + self._decay * of_var + self._epsilon)
            rate = rate * tf.where(tf.logical_and(of_var > 0, of_grad > 0), ratio, tf.ones_like(ratio))
            grad = grad + self._decay * var
        # The learning rate is part of the accumulated value: a change does not affect previous steps.
        step = _v1.assign(self.get_slot(var, "momentum"), momentum * self.get_slot(var, "momentum") + rate * grad)
        return _v1.assign_sub(var, rate * grad + momentum * step if self._use_nesterov else step).op
