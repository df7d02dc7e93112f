"""How one training step compares with another, and what a learning rate is computed from."""

from __future__ import annotations

from typing import Any

import numpy as np

from estimator_pipeline.testing import training_runs as runs
from estimator_pipeline.testing.model_subject import ModelSubject

__all__ = ["counts", "difference", "is_random", "step", "variables_of"]


def variables_of(tensor: Any) -> dict[str, Any]:
    """Name -> dtype of the variables from which a tensor is computed."""
    found, seen, todo = {}, set(), [tensor.op]
    while todo:
        op = todo.pop()
        if op.name in seen:
            continue
        seen.add(op.name)
        if op.type in ("VarHandleOp", "VariableV2", "Variable"):
            found[op.name] = op.get_attr("dtype")
        todo.extend(source.op for source in op.inputs)
    return found


def counts(run: runs.CheckedTraining, name: str) -> bool:
    """Whether a variable went up by one with each step."""
    if name not in run.before or np.ndim(run.before[name]):
        return False
    return bool(run.after) and float(run.after[name] - run.before[name]) == len(run.steps)


def step(subject: ModelSubject, replicas: int, rows: int, copies: int = 1, seed_shift: int = 0) -> runs.CheckedTraining:
    """One training step; see :meth:`Subject.step`."""
    whole = subject.training()
    if (replicas, rows, copies, seed_shift) == (1, subject.sample().rows, 1, 0) and set(whole.trainable) <= set(
        whole.gradients
    ):
        return whole  # Its first step was the same, and its gradients were written down.
    return subject.step(replicas, rows, copies, seed_shift)


def is_random(subject: ModelSubject, rows: int) -> bool:
    """Whether the same step comes out otherwise with another seed."""
    # The seed differs; the weights and the batch do not.
    return difference(subject, step(subject, 1, rows), step(subject, 1, rows, 1, 7)) is not None


def difference(subject: ModelSubject, one: runs.CheckedTraining, other: runs.CheckedTraining) -> str | None:
    """In words, how the steps of two runs differ; None where they do not."""
    tolerance = subject.options.tolerance
    norms = {name: float(np.linalg.norm(value)) for name, value in one.gradients.items()}
    floor = tolerance * 1e-2 * max(norms.values(), default=0.0)
    for name, gradient in one.gradients.items():
        if name not in other.gradients:
            continue
        found = other.gradients[name]
        apart = float(np.linalg.norm(np.asarray(gradient, np.float64) - found))
        if not apart <= tolerance * norms[name] + floor:
            ratio = float(np.linalg.norm(found)) / norms[name] if norms[name] else float("inf")
            return (
                f"the gradient of {name} has norm {norms[name]:.6g} with one replica, and with two {ratio:.4g} times "
                f"that; they are {apart:.3g} apart"
            )
    # What no training operation of TensorFlow's changes: by the change itself.
    for name in one.trainable:
        if name in one.gradients or name not in one.after or name not in other.after:
            continue
        step, found = one.after[name] - one.before[name], other.after[name] - other.before[name]
        size = float(np.linalg.norm(step))
        apart = float(np.linalg.norm(step - found))
        if not apart <= tolerance * size + 1e-6 * float(np.linalg.norm(one.before[name])):
            return f"the change of {name} has norm {size:.6g} with one replica; with two it is {apart:.3g} apart"
    return None
