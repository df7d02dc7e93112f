"""The Keras 3 engine: task lifecycle and checkpoints of the Keras engine, with a custom training loop.

It shares `estimator_pipeline.engines.keras.engine`. The differences are the loop
(`loop`), the content of a checkpoint
(`keras3_variables`), and evaluation: one process, the evaluator or the chief, evaluates
checkpoints, instead of all workers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from estimator_pipeline.cluster import TFConfig
from estimator_pipeline.engines.estimator import changed_optimizer as other_optimizer
from estimator_pipeline.engines.keras import checkpoints as keras_checkpoints
from estimator_pipeline.engines.keras.callbacks import summary_callback
from estimator_pipeline.engines.keras.engine import KerasTask
from estimator_pipeline.engines.keras.evaluator import KerasEvaluator
from estimator_pipeline.engines.keras.plan import KerasPlan
from estimator_pipeline.engines.keras.serving import KerasServing
from estimator_pipeline.engines.keras3 import loop as keras3_loop
from estimator_pipeline.engines.lifecycle.result import TrainResult
from estimator_pipeline.engines.lifecycle.settings import TrainOptions
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.models.keras3_variables import ModelVariables, optimizer_in
from estimator_pipeline.models.optimizers import moving_averages

__all__ = ["Keras3Evaluator", "Keras3Serving", "train_and_evaluate"]


def train_and_evaluate(
    plan: KerasPlan,
    *,
    tf_config: TFConfig,
    settings: TrainOptions | None = None,
    environ: Mapping[str, str] | None = None,
) -> TrainResult:
    """Run this process's task of a job with Keras 3.

    See `estimator_pipeline.engines.keras.engine.train_and_evaluate`. The process must have loaded Keras 3
    (`compat.use_keras_3()`), and `plan.build_model` must return a built model.
    """
    return _Keras3Task(
        plan,
        tf_config=tf_config,
        settings=settings or TrainOptions(),
        environ=os.environ if environ is None else environ,
    ).live()


class _Keras3Task(KerasTask):
    """One task of a job that trains with Keras 3."""

    engine = "keras3"
    _variables: ModelVariables
    # Steps of the next call of the compiled function.
    _steps = 1

    # Receives the gradients of a step; the chief's writes them.
    _record: Callable[[Sequence[Any], Sequence[Any]], None] = staticmethod(lambda variables, gradients: None)

    def checkpoint_of(self, model: Any) -> Any:
        self._variables = ModelVariables(model, strategy=self.strategy)
        return self._variables.checkpoint()

    def restore(self, model: Any, checkpoint: Any, path: str, changed: Mapping[str, Sequence[Any]]) -> None:
        there, here = optimizer_in(path), set(self._variables.optimizer)
        if here - there and not self.settings.accept_changes:
            raise other_optimizer.refused(path, here - there)
        kept = here & there
        if not other_optimizer.keeps_momentum(changed):
            kept = {name for name in kept if not name.endswith("/momentum")}
        new = here - kept
        keras_checkpoints.restore(self._variables.checkpoint(without=new) if new else checkpoint, path, whole=True)
        if any(name.endswith(f"/{moving_averages.AVERAGE}") for name in new):
            for variable, average in moving_averages.averages(model):
                average.assign(variable)
        step = {"iter"}
        self.log_slots(path, there - step, here - step, kept - step)

    def fit(
        self,
        model: Any,
        data: Any,
        *,
        initial_epoch: int,
        epochs: int,
        steps_per_epoch: int | None,
        callbacks: list[Any],
    ) -> None:
        self._variables.spread_seeds()
        # Watching callbacks read the loss of every step; otherwise it is read only at these steps.
        periods = ((self.plan.log_steps, 0), (self.plan.summary_steps, self.start_step))
        every = [(1 if self.plan.watched else n, origin) for n, origin in periods if n]
        keras3_loop.fit(
            model,
            data,
            strategy=self.strategy,
            initial_epoch=initial_epoch,
            epochs=epochs,
            steps_per_epoch=steps_per_epoch,
            callbacks=callbacks,
            whole_loss=lambda step: any((step + origin) % n == 0 for n, origin in every),
            local_variables=list(self._variables.per_replica.values()),
            steps=lambda: self._steps,
            record=self._record if "gradients" in self.plan.histograms and self.plan.summary_steps else None,
            tracing=self.tracing,
        )

    def why_single(self, model: Any) -> str:
        # Random numbers come from seed variables, so multi-step execution is the same.
        return ""

    def prepare_steps(self, model: Any) -> None:
        self._steps = 1

    def set_steps(self, model: Any, steps: int) -> None:
        self._steps = steps

    def before_save(self) -> None:
        self._variables.average()

    def saved(self, step: int, validation: dict[str, float]) -> None:
        if self.tf_config.is_chief and self.evaluate_during_training:
            self.evaluate_during(self.checkpoint_path(step))

    def summaries(self) -> list[Any]:
        callback = summary_callback(
            os.path.join(self.model_dir, "train"),
            every_steps=self.plan.summary_steps or 1,
            start_step=self.start_step,
            shown=self.plan.histograms,
        )
        self._record = callback.record
        return [callback]

    def make_evaluator(self) -> KerasEvaluator:
        return Keras3Evaluator(self.plan, progress=self.progress)

    def start_server(self) -> Any:
        raise ConfigError(
            f"{self.task} is a parameter server, and the training loop for Keras 3 has none",
            code="training/unsupported",
            hint="engine keras3 trains with none, one_device, mirrored or multi_worker_mirrored; for parameter "
            "servers keep the engine estimator",
        )


class Keras3Evaluator(KerasEvaluator):
    """Evaluates checkpoints of the Keras 3 engine in this process."""

    def checkpoint_of(self, model: Any) -> Any:
        variables = ModelVariables(model)
        return variables.checkpoint() if moving_averages.keeps(model) else variables.checkpoint_of_model()


class Keras3Serving(KerasServing):
    """SavedModels and `.keras` files of the Keras 3 engine."""

    def model_of(self, checkpoint_path: str) -> Any:
        model = self._build()
        keras_checkpoints.restore(ModelVariables(model).checkpoint(), checkpoint_path, whole=False)
        moving_averages.take(model)
        return model
