"""The Keras 3 engine: trains with a custom loop. `keras_common/training.py` has what it shares with Keras 2.

The differences are the loop (`loop.py`), the content of a checkpoint (`models/keras3_variables.py`), and evaluation:
one process, the evaluator or the chief, evaluates checkpoints, instead of all workers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from estimator_pipeline.engines.core import optimizer_changes
from estimator_pipeline.engines.core.context import TaskContext
from estimator_pipeline.engines.core.result import TrainResult
from estimator_pipeline.engines.keras3 import loop
from estimator_pipeline.engines.keras_common import checkpoints, training
from estimator_pipeline.engines.keras_common.callbacks import summary_callback
from estimator_pipeline.engines.keras_common.plan import KerasPlan
from estimator_pipeline.models.keras3_variables import ModelVariables, names_in
from estimator_pipeline.models.optimizers import moving_averages

__all__ = ["checkpoint_of", "train_and_evaluate"]


def train_and_evaluate(plan: KerasPlan, **task: Any) -> TrainResult:
    """Run this process's task of a job with Keras 3; see `keras_common.training.train_and_evaluate`.

    The process must have loaded Keras 3 (`compat.use_keras_3()`), and `plan.build_model` must return a built model.
    """
    backend = training.KerasBackend(
        plan=plan,
        engine="keras3",
        begin=_Loop,
        checkpoint_of=checkpoint_of,
        loop="the training loop for Keras 3",
        evaluates_in_fit=False,
    )
    return training.train_and_evaluate(backend, **task)


def checkpoint_of(model: Any, whole: bool) -> Any:
    """Return the checkpoint of a compiled model that restores its optimizer too (whole), or its moving averages."""
    variables = ModelVariables(model)
    return variables.checkpoint() if whole or moving_averages.keeps(model) else variables.checkpoint_of_model()


class _Loop:
    """A model that `loop.fit` trains; see `KerasTraining`."""

    def __init__(self, context: TaskContext, plan: KerasPlan, start_step: int) -> None:
        self._context, self._plan, self._start_step = context, plan, start_step
        self.model = plan.build_model()
        self._variables = ModelVariables(self.model, strategy=context.strategy)
        self.checkpoint = self._variables.checkpoint()
        # Steps of the next call of the compiled function.
        self._steps = 1
        # Receives the gradients of a step; the chief's writes them.
        self._record: Callable[[Sequence[Any], Sequence[Any]], None] = lambda variables, gradients: None

    def restore(self, path: str, changed: Mapping[str, Sequence[Any]]) -> None:
        there, here = set(names_in(path, "optimizer")), set(self._variables.optimizer)
        if here - there and not self._context.options.accept_changes:
            raise optimizer_changes.refused(path, here - there)
        kept = here & there
        if not optimizer_changes.keeps_momentum(changed):
            kept = {name for name in kept if not name.endswith("/momentum")}
        new = here - kept
        checkpoint = self._variables.checkpoint(without=new) if new else self.checkpoint
        checkpoints.restore(checkpoint, path, whole=True)
        if any(name.endswith(f"/{moving_averages.AVERAGE}") for name in new):
            for variable, average in moving_averages.averages(self.model):
                average.assign(variable)
        if self._context.is_chief:
            step = {"iter"}
            optimizer_changes.log_slots(path, kept=kept - step, new=new - step, gone=there - kept - step)

    def weights(self) -> dict[str, Any]:
        return self._variables.without_seeds()

    def weights_in(self, checkpoint: str) -> dict[str, str]:
        return names_in(checkpoint, "model")

    def callbacks(self) -> list[Any]:
        plan = self._plan
        if not (self._context.is_chief and plan.summary_steps):
            return []
        folder, start, every = os.path.join(self._context.model_dir, "train"), self._start_step, plan.summary_steps
        callback = summary_callback(folder, every_steps=every, start_step=start, shown=plan.histograms)
        self._record = callback.record
        return [callback]

    def fit(self, data: Any, *, callbacks: list[Any], tracing: training.Tracing, **epochs: Any) -> None:
        self._variables.spread_seeds()
        # Watching callbacks read the loss of every step; otherwise it is read only at these steps.
        periods = ((self._plan.log_steps, 0), (self._plan.summary_steps, self._start_step))
        every = [(1 if self._plan.watched else n, origin) for n, origin in periods if n]
        loop.fit(
            self.model,
            data,
            strategy=self._context.strategy,
            callbacks=callbacks,
            whole_loss=lambda step: any((step + origin) % n == 0 for n, origin in every),
            local_variables=list(self._variables.per_replica.values()),
            steps=lambda: self._steps,
            record=self._record if "gradients" in self._plan.histograms and self._plan.summary_steps else None,
            tracing=tracing,
            **epochs,
        )

    def before_save(self) -> None:
        self._variables.average()

    def why_single(self) -> str:
        # Random numbers come from seed variables, so multi-step execution is the same.
        return ""

    def prepare_steps(self) -> None:
        pass

    def set_steps(self, steps: int) -> None:
        self._steps = steps
