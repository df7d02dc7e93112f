"""The Keras 2 engine: trains with `Model.fit`. `keras_common/training.py` has what it shares with Keras 3."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.cluster import TFConfig
from estimator_pipeline.compat.internals import keras_steps_per_execution as keras_steps
from estimator_pipeline.compat.internals import stateless_random as step_random
from estimator_pipeline.engines.core import optimizer_changes
from estimator_pipeline.engines.core.backend import TrainingOutcome
from estimator_pipeline.engines.core.context import TaskContext
from estimator_pipeline.engines.core.options import TrainOptions
from estimator_pipeline.engines.core.result import TrainResult
from estimator_pipeline.engines.core.stopping.synchronized_stop import SingleProcessStop
from estimator_pipeline.engines.core.task import run_task
from estimator_pipeline.engines.keras_common import checkpoints, training
from estimator_pipeline.engines.keras_common.callbacks import (
    closing_summaries,
    saved_values_callback,
    tensorboard_callback,
)
from estimator_pipeline.engines.keras_common.data import distributed, steps_of
from estimator_pipeline.engines.keras_common.evaluation import KerasEvaluation
from estimator_pipeline.engines.keras_common.plan import KerasPlan
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.models.optimizers import keras2 as keras_optimizers
from estimator_pipeline.models.optimizers import moving_averages

__all__ = ["KerasBackend", "checkpoint_for_evaluation", "restored", "train_and_evaluate"]


def train_and_evaluate(
    plan: KerasPlan,
    *,
    tf_config: TFConfig,
    options: TrainOptions | None = None,
    environ: Mapping[str, str] | None = None,
) -> TrainResult:
    """Run this process's task of a job with `Model.fit`.

    Args:
        plan: The job's plan.
        tf_config: Cluster and task of this process.
        options: See `TrainOptions`.
        environ: Environment for the rendezvous and the launcher's progress file; `os.environ` by default.

    Returns:
        The job's result, the same on every task: final step, metrics, exports, a summary of each task.

    Raises:
        ConfigError: The model directory has checkpoints of a different model.
        PipelineError: See `run_task`.
    """
    compat.install()
    context = training.context_of(plan, engine="keras", tf_config=tf_config, options=options, environ=environ)
    return run_task(context, KerasBackend(plan))


@dataclasses.dataclass(frozen=True)
class KerasBackend:
    """Trains and evaluates with Keras 2; see `Backend`.

    Attributes:
        plan: The job's plan.
    """

    plan: KerasPlan

    def train(self, context: TaskContext, stop: SingleProcessStop) -> TrainingOutcome:
        return training.train(context, stop, self.plan, lambda start: _Fit(context, self.plan, start))

    def evaluator(self, context: TaskContext) -> KerasEvaluation:
        return KerasEvaluation(self.plan, checkpoint_of=checkpoint_for_evaluation)

    def server(self, context: TaskContext) -> Any:
        raise ConfigError(
            f"{context.task} is a parameter server, and Model.fit has none",
            code="training/unsupported",
            hint="engine keras trains with none, one_device, mirrored or multi_worker_mirrored; for parameter "
            "servers keep the engine estimator",
        )


def checkpoint_for_evaluation(model: Any) -> Any:
    """Return the `tf.train.Checkpoint` of the state of a compiled model that an evaluation needs."""
    if moving_averages.keeps(model):
        keras_optimizers.create_slots(model)
    return checkpoints.of(model)


def restored(model: Any, checkpoint_path: str) -> None:
    """Restore a compiled model from a checkpoint, for an export."""
    keras_optimizers.create_slots(model)
    checkpoints.restore(checkpoints.of(model), checkpoint_path, whole=False)


class _Fit:
    """A model that `Model.fit` trains; see `KerasTraining`."""

    engine = "keras"

    def __init__(self, context: TaskContext, plan: KerasPlan, start_step: int) -> None:
        self._context, self._plan, self._start_step = context, plan, start_step
        self.model = plan.build_model()
        self.checkpoint = checkpoints.of(self.model)

    def restore(self, path: str, changed: Mapping[str, Sequence[Any]]) -> None:
        if not changed:
            checkpoints.restore(self.checkpoint, path, whole=True)
            return
        momentum = optimizer_changes.keeps_momentum(changed)
        slots = checkpoints.restore_changed(self.model, self.checkpoint, path, momentum=momentum)
        training.log_slots(self._context, path, *slots)

    def callbacks(self) -> list[Any]:
        callbacks = [saved_values_callback()] if self._context.evaluates_during_training else []
        if self._context.is_chief and self._plan.summary_steps:
            callbacks.append(
                tensorboard_callback(
                    self._context.model_dir,
                    every_steps=self._plan.summary_steps,
                    start_step=self._start_step,
                    shown=self._plan.histograms,
                )
            )
        return callbacks

    def fit(self, data: Any, epochs: training.FitEpochs, *, callbacks: list[Any], tracing: training.Tracing) -> None:
        if self._plan.seed is not None:
            self._draw_by_step(self._plan.seed)
        keras_steps.trace_in(self.model, tracing)
        with closing_summaries(callbacks):
            self.model.fit(
                data,
                **epochs._asdict(),
                **self._validation(),
                callbacks=callbacks,
                verbose=0,
            )

    def _draw_by_step(self, seed: int) -> None:
        """Make random numbers in layers depend on step and replica, the same as an Estimator's."""
        tf, model, original = compat.tensorflow(), self.model, self.model.train_step

        def train_step(data: Any) -> Any:
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            with step_random.drawn_by_step(tf, seed=seed, step=model.optimizer.iterations, replica=replica):
                return original(data)

        model.train_step = train_step

    def _validation(self) -> dict[str, Any]:
        """Return the evaluation data for all workers, if checkpoints are evaluated during training."""
        if not self._context.evaluates_during_training:
            return {}
        spec, strategy = self._plan.eval_spec, self._context.strategy
        return {
            "validation_data": distributed(strategy, spec.input_fn, self._plan.weighted),
            "validation_steps": spec.steps or steps_of(strategy, spec.input_fn, hint="give eval.steps"),
        }

    def before_save(self) -> None:
        pass

    def metrics_of(self, validation: Mapping[str, float], step: int) -> dict[str, float] | None:
        return {**self._plan.completed(validation), "global_step": step} if validation else {}

    def why_single(self) -> str:
        return keras_steps.why_not(self.model, random_by_step=self._plan.seed is not None)

    def prepare_steps(self) -> None:
        keras_steps.prepare(self.model)

    def set_steps(self, model: Any, steps: int) -> None:
        keras_steps.set_steps(model, steps)
