"""The Keras 2 engine: trains with `Model.fit`. `keras_common/training.py` has what it shares with Keras 3."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.compat.internals import keras_steps_per_execution as keras_steps
from estimator_pipeline.compat.internals import stateless_random as step_random
from estimator_pipeline.engines.core import optimizer_changes
from estimator_pipeline.engines.core.context import TaskContext
from estimator_pipeline.engines.core.result import TrainResult
from estimator_pipeline.engines.keras_common import checkpoints, training
from estimator_pipeline.engines.keras_common.callbacks import saved_values_callback, tensorboard_callback
from estimator_pipeline.engines.keras_common.plan import KerasPlan, evaluation_data
from estimator_pipeline.models import keras_variable_names as keras_names
from estimator_pipeline.models.optimizers import keras2 as keras_optimizers
from estimator_pipeline.models.optimizers import moving_averages

__all__ = ["checkpoint_of", "train_and_evaluate"]


def train_and_evaluate(plan: KerasPlan, **task: Any) -> TrainResult:
    """Run this process's task of a job with `Model.fit`; see `keras_common.training.train_and_evaluate`."""
    compat.install()
    backend = training.KerasBackend(
        plan=plan,
        engine="keras",
        begin=_Fit,
        checkpoint_of=checkpoint_of,
        loop="Model.fit",
        evaluates_in_fit=True,
    )
    return training.train_and_evaluate(backend, **task)


def checkpoint_of(model: Any, whole: bool = False) -> Any:
    """Return the checkpoint of a compiled model that restores its optimizer too (whole), or its moving averages."""
    if whole or moving_averages.keeps(model):
        keras_optimizers.create_slots(model)
    return checkpoints.of(model)


class _Fit:
    """A model that `Model.fit` trains; see `KerasTraining`."""

    def __init__(self, context: TaskContext, plan: KerasPlan, start_step: int) -> None:
        self._context, self._plan, self._start_step = context, plan, start_step
        self.model = plan.build_model()
        self.checkpoint = checkpoints.of(self.model)
        self._summaries: Any = contextlib.nullcontext()

    def restore(self, path: str, changed: Mapping[str, Sequence[Any]]) -> None:
        if not changed:
            checkpoints.restore(self.checkpoint, path, whole=True)
            return
        momentum = optimizer_changes.keeps_momentum(changed)
        there, here, kept = checkpoints.restore_changed(self.model, self.checkpoint, path, momentum=momentum)
        if self._context.is_chief:
            optimizer_changes.log_slots(path, kept=kept, new=here - kept, gone=there - kept)

    def weights(self) -> dict[str, Any]:
        variables = keras_optimizers.weights_of(self.model)
        names = keras_names.names_of(variables)
        return {names[id(variable)]: variable for variable in variables}

    def weights_in(self, checkpoint: str) -> dict[str, str]:
        return checkpoints.weights_in(checkpoint)

    def callbacks(self) -> list[Any]:
        plan = self._plan
        callbacks = [saved_values_callback()] if self._context.evaluates_during_training else []
        if self._context.is_chief and plan.summary_steps:
            folder, start, every = self._context.model_dir, self._start_step, plan.summary_steps
            self._summaries = tensorboard_callback(folder, every_steps=every, start_step=start, shown=plan.histograms)
            callbacks.append(self._summaries)
        return callbacks

    def fit(self, data: Any, *, callbacks: list[Any], tracing: training.Tracing, **epochs: Any) -> None:
        plan, validation = self._plan, {}
        if plan.seed is not None:
            self._draw_by_step(plan.seed)
        keras_steps.trace_in(self.model, tracing)
        if self._context.evaluates_during_training:
            evaluation, steps = evaluation_data(plan, self._context.strategy)
            validation = {"validation_data": evaluation, "validation_steps": steps}
        with self._summaries:
            self.model.fit(data, **epochs, **validation, callbacks=callbacks, verbose=0)

    def _draw_by_step(self, seed: int) -> None:
        """Make random numbers in layers depend on step and replica, the same as an Estimator's."""
        tf, model, original = compat.tensorflow(), self.model, self.model.train_step

        def train_step(data: Any) -> Any:
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            with step_random.drawn_by_step(tf, seed=seed, step=model.optimizer.iterations, replica=replica):
                return original(data)

        model.train_step = train_step

    def before_save(self) -> None:
        pass

    def why_single(self) -> str:
        return keras_steps.why_not(self.model, random_by_step=self._plan.seed is not None)

    def prepare_steps(self) -> None:
        keras_steps.prepare(self.model)

    def set_steps(self, steps: int) -> None:
        keras_steps.set_steps(self.model, steps)
