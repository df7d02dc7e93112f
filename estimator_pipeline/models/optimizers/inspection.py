"""The step and the learning rate of a compiled Keras model's optimizer."""

from __future__ import annotations

from typing import Any

from estimator_pipeline import compat

__all__ = ["rate_of", "step_of"]


def step_of(model: Any) -> int:
    """Return the global step of a compiled model."""
    return int(model.optimizer.iterations.numpy())


def rate_of(model: Any) -> float:
    """Return the learning rate of the next step of a compiled Keras 3 model."""
    keras: Any = compat.tensorflow().keras
    return float(keras.ops.convert_to_numpy(model.optimizer.learning_rate))
