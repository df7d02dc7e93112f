"""Decoupled weight decay for every optimizer: `var -= rate * decay * var`, then the optimizer's step.

As in I. Loshchilov and F. Hutter, "Decoupled Weight Decay Regularization" (2019), with the step's learning rate as the
factor: Adam with it is AdamW, SGD with it SGDW. The optimizers of Keras 3 do the same for `weight_decay`. Those of
`tf.compat.v1.train` and `tf.keras.optimizers.legacy` have no weight decay; subclasses here add it. The whole variable
decays, also with a sparse gradient.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Sequence
from typing import Any

from estimator_pipeline import compat

__all__ = ["decaying", "decaying_of_keras_3", "decaying_v1", "decays"]

# The suffix that a distribution strategy or a partitioner adds to the name of a part of a variable.
_PART = re.compile(r"/(replica|part)_\d+$")


def decays(name: str, excluded: Sequence[str]) -> bool:
    """Return whether a variable decays.

    Args:
        name: The name of the variable: "dense/bias:0", "dense/bias/replica_1:0" or "bias".
        excluded: Names of weights within their layers, such as "bias", that do not decay.
    """
    return _PART.sub("", name.partition(":")[0]).rpartition("/")[2] not in excluded


@functools.cache
def decaying_v1(kind: Any) -> Any:
    """Return a subclass of a `tf.compat.v1.train` optimizer with weight decay.

    Args:
        kind: The optimizer's class.

    Returns:
        The subclass, with the additional arguments `weight_decay`, `exclude_from_weight_decay` and `decay_rate` (the
        learning rate of the step, a number or a scalar tensor).
    """
    tf = compat.tensorflow()

    class Decaying(kind):
        def __init__(self, *args, weight_decay, exclude_from_weight_decay=(), decay_rate, **kwargs):
            super().__init__(*args, **kwargs)
            self._weight_decay, self._excluded = weight_decay, tuple(exclude_from_weight_decay)
            self._decay_rate = decay_rate

        def _resource_apply_dense(self, grad, handle):
            with tf.control_dependencies(self._weight_loss(grad, handle)):
                return super()._resource_apply_dense(grad, handle)

        def _resource_apply_sparse_duplicate_indices(self, grad, handle, indices):
            with tf.control_dependencies(self._weight_loss(grad, handle)):
                return super()._resource_apply_sparse_duplicate_indices(grad, handle, indices)

        def _weight_loss(self, grad, variable):
            return _decayed(tf, variable, grad, self._decay_rate, self._weight_decay, self._excluded)

    _named_after(Decaying, kind)
    return Decaying


@functools.cache
def decaying(kind: Any) -> Any:
    """Return a subclass of a legacy Keras optimizer with weight decay, registered for saving.

    Args:
        kind: The optimizer's class.

    Returns:
        The subclass, such as `AdamW` of `Adam`, with the additional arguments `weight_decay` and
        `exclude_from_weight_decay`.
    """
    tf = compat.tensorflow()

    class Decaying(kind):
        def __init__(self, *args, weight_decay=0.0, exclude_from_weight_decay=(), **kwargs):
            super().__init__(*args, **kwargs)
            self.weight_decay, self.exclude_from_weight_decay = weight_decay, tuple(exclude_from_weight_decay)

        def _resource_apply_dense(self, grad, var, apply_state=None):
            with tf.control_dependencies(self._weight_loss(grad, var, apply_state)):
                return super()._resource_apply_dense(grad, var, apply_state)

        def _resource_apply_sparse_duplicate_indices(self, grad, handle, indices, **kwargs):
            with tf.control_dependencies(self._weight_loss(grad, handle, kwargs.get("apply_state"))):
                return super()._resource_apply_sparse_duplicate_indices(grad, handle, indices, **kwargs)

        def _weight_loss(self, grad, variable, state):
            key = (variable.device, variable.dtype.base_dtype)
            rate = ((state or {}).get(key) or self._fallback_apply_state(*key))["lr_t"]
            return _decayed(tf, variable, grad, rate, self.weight_decay, self.exclude_from_weight_decay)

        def get_config(self):
            excluded = list(self.exclude_from_weight_decay)
            return {**super().get_config(), "weight_decay": self.weight_decay, "exclude_from_weight_decay": excluded}

    _named_after(Decaying, kind)
    return tf.keras.utils.register_keras_serializable(package="estimator_pipeline")(Decaying)


@functools.cache
def decaying_of_keras_3(kind: Any) -> Any:
    """Return a subclass of a Keras 3 optimizer that saves the names excluded from weight decay.

    The stock classes do not save them.

    Args:
        kind: The optimizer's class.

    Returns:
        The subclass, such as `AdamW` of `Adam`, with the additional argument `exclude_from_weight_decay`.
    """
    keras = compat.tensorflow().keras

    class Decaying(kind):
        def __init__(self, *args, exclude_from_weight_decay=(), **kwargs):
            super().__init__(*args, **kwargs)
            self._excluded = tuple(exclude_from_weight_decay)
            if self._excluded:
                # Keras matches the names of TensorFlow's variables in some calls, in others those of Keras's.
                names = [rf"(^|/){re.escape(name)}(/replica_\d+)?(:\d+)?$" for name in self._excluded]
                self.exclude_from_weight_decay(var_names=names)

        def get_config(self):
            return {**super().get_config(), "exclude_from_weight_decay": list(self._excluded)}

    _named_after(Decaying, kind)
    return keras.utils.register_keras_serializable(package="estimator_pipeline")(Decaying)


def _named_after(decaying: Any, kind: Any) -> None:
    decaying.__name__ = decaying.__qualname__ = f"{kind.__name__}W"
    decaying.__signature__ = inspect.signature(kind)  # for callers that inspect its arguments


def _decayed(tf: Any, variable: Any, gradient: Any, rate: Any, decay: float, excluded: Sequence[str]) -> list[Any]:
    """Return the operations that decay a variable after its gradient is computed; empty if it does not decay."""
    if not decays(variable.name, excluded):
        return []
    with tf.control_dependencies([gradient]):
        # Multiplied in Keras 3's order, for the same bits.
        value = variable.read_value()
        less = value * tf.cast(decay, value.dtype) * tf.cast(rate, value.dtype)
        done = variable.assign_sub(less, read_value=False)
    return [] if done is None else [done]
