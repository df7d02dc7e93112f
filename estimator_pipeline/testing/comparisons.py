"""Comparison of training steps."""

from __future__ import annotations

import numpy as np

from estimator_pipeline.testing import training_runs as runs
from estimator_pipeline.testing.model_subject import ModelSubject

__all__ = ["difference", "is_random", "step"]


def step(subject: ModelSubject, replicas: int, rows: int, copies: int = 1, seed_shift: int = 0) -> runs.CheckedTraining:
    """Run one training step; see `ModelSubject.step`."""
    whole = subject.training()
    if (replicas, rows, copies, seed_shift) == (1, subject.sample().rows, 1, 0) and set(whole.trainable) <= set(
        whole.gradients
    ):
        return whole  # Its first step is the same one, with recorded gradients.
    return subject.step(replicas, rows, copies, seed_shift)


def is_random(subject: ModelSubject, rows: int) -> bool:
    """Whether a step with a different seed, but the same weights and batch, gives a different result."""
    return difference(subject, step(subject, 1, rows), step(subject, 1, rows, 1, 7)) is not None


def difference(subject: ModelSubject, first: runs.CheckedTraining, other: runs.CheckedTraining) -> str | None:
    """Describe how the steps of two runs differ; None if they do not."""
    tolerance = subject.options.tolerance
    norms = {name: float(np.linalg.norm(value)) for name, value in first.gradients.items()}
    floor = tolerance * 1e-2 * max(norms.values(), default=0.0)
    for name, gradient in first.gradients.items():
        if name not in other.gradients:
            continue
        second = other.gradients[name]
        apart = float(np.linalg.norm(np.asarray(gradient, np.float64) - second))
        if not apart <= tolerance * norms[name] + floor:
            ratio = float(np.linalg.norm(second)) / norms[name] if norms[name] else float("inf")
            return (
                f"the gradient of {name} has norm {norms[name]:.6g} with one replica, and {ratio:.4g} times that with "
                f"two; the norm of the difference is {apart:.3g}"
            )
    # Variables without a TensorFlow training operation: compare their change.
    for name in first.trainable:
        if name in first.gradients or name not in first.after or name not in other.after:
            continue
        step, second = first.after[name] - first.before[name], other.after[name] - other.before[name]
        size = float(np.linalg.norm(step))
        apart = float(np.linalg.norm(step - second))
        if not apart <= tolerance * size + 1e-6 * float(np.linalg.norm(first.before[name])):
            return f"the change of {name} has norm {size:.6g} with one replica; with two it differs by {apart:.3g}"
    return None
