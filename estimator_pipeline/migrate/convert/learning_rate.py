"""The learning rate of a model_fn: a number, a schedule of Keras, or a schedule with the statements of the model_fn.

    rate = params["rate"] * tf.minimum(1.0, tf.cast(step, tf.float32) / 100.0)

Keras computes a rate of the step in a class; V1's global step is the optimizer's `iterations`, which start at 0, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.convert.model_fn import ModelFnSource, Statement, needed, reached_calls
from estimator_pipeline.migrate.convert.names import TRAIN, FileNames, Refused, names_read
from estimator_pipeline.migrate.convert.rules.optimizers import GLOBAL_STEPS, SCHEDULES
from estimator_pipeline.migrate.convert.train_op import TrainOp

__all__ = ["LearningRate", "global_steps", "read_learning_rate"]


@dataclass(frozen=True)
class LearningRate:
    """How an optimizer gets its learning rate.

    Attributes:
        rate: the user's argument; None without, or where a condition chooses the optimizer.
        steps: the statements that compute it.
        changes: whether it changes from step to step; None where the call of the optimizer shows it.
        is_written: whether the conversion writes a schedule with these statements.
    """

    rate: cst.BaseExpression | None
    steps: tuple[Statement, ...]
    changes: bool | None
    is_written: bool


def global_steps(names: FileNames, nodes: Iterable[cst.CSTNode]) -> list[cst.Call]:
    """Return the calls for the global step, in code and the functions of the file that it calls."""
    return [call for call, of in reached_calls(names, nodes) if of is names and names.name(call.func) in GLOBAL_STEPS]


def read_learning_rate(
    names: FileNames, model_fn: ModelFnSource, op: TrainOp, setup: tuple[Statement, ...]
) -> LearningRate:
    """Return how the optimizer of a model_fn gets its learning rate.

    Raises:
        Refused: something else of the optimizer depends on the step, or a condition chooses such an optimizer.
    """
    if isinstance(op.optimizer, cst.Name):
        if op.decay is not None or global_steps(names, [step.node for step in setup]):
            raise Refused("a learning rate that changes, of an optimizer that a condition chooses", op.optimizer)
        return LearningRate(None, (), None, False)
    arg = arguments(op.optimizer, ("learning_rate",)).get("learning_rate")
    rate = arg.value if arg is not None else None
    others = [arg.value for arg in op.optimizer.args if arg.value is not rate] + list(op.clipping.values())
    for value in others:
        if global_steps(names, [value, *(step.node for step in _steps(setup, [value]))]):
            raise Refused("an optimizer with another argument than the learning rate that changes", value)
    if rate is None:
        return LearningRate(None, (), False, False)
    values = [rate, *([op.decay] if op.decay is not None else [])]
    steps = _steps(setup, values)
    if op.decay is None and _is_schedule(names, model_fn, rate, setup):
        return LearningRate(rate, steps, True, False)
    changes = op.decay is not None or bool(global_steps(names, [*values, *(step.node for step in steps)]))
    return LearningRate(rate, steps, changes, changes)


def _steps(setup: tuple[Statement, ...], values: Iterable[cst.BaseExpression]) -> tuple[Statement, ...]:
    return tuple(needed(setup, {name for value in values for name in names_read(value)}))


def _is_schedule(
    names: FileNames, model_fn: ModelFnSource, rate: cst.BaseExpression, setup: tuple[Statement, ...]
) -> bool:
    """Return whether a rate is a schedule of V1 at the global step, and nothing else in it depends on the step."""
    call = model_fn.resolve(rate, TRAIN)
    if not isinstance(call, cst.Call) or names.name(call.func) not in SCHEDULES:
        return False
    resolved = {arg.value: model_fn.resolve(arg.value, TRAIN) for arg in call.args}
    others = [arg for arg, value in resolved.items()
              if not isinstance(value, cst.Call) or names.name(value.func) not in GLOBAL_STEPS]  # fmt: skip
    return len(others) == len(call.args) - 1 and not any(
        global_steps(names, [*others, *(step.node for step in _steps(setup, others))])
    )
