"""Evaluation of checkpoints by the Keras engine, in the chief or in an evaluator."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from estimator_pipeline import compat
from estimator_pipeline.engines.keras import checkpoints as keras_checkpoints
from estimator_pipeline.engines.keras.data import distributed, scope, steps_of
from estimator_pipeline.engines.lifecycle.evaluator import CheckpointEvaluator
from estimator_pipeline.engines.lifecycle.result import EvaluationResult
from estimator_pipeline.engines.model_dir.layout import checkpoint_step
from estimator_pipeline.models import summaries as event_files
from estimator_pipeline.models.optimizers import keras2 as keras_optimizers
from estimator_pipeline.models.optimizers import moving_averages
from estimator_pipeline.progress.progress_file import ProgressWriter
from estimator_pipeline.utils.logger import logger

if TYPE_CHECKING:
    from estimator_pipeline.engines.keras.plan import KerasPlan

__all__ = ["KERAS_FILE", "KerasEvaluator"]

# The final checkpoint's model, with its layers and its compile configuration.
KERAS_FILE = "model.keras"


class KerasEvaluator(CheckpointEvaluator):
    """Evaluates checkpoints of the Keras engine in this process.

    Args:
        plan: The job's plan.
        progress: Receives an event for each evaluation and export.
    """

    def __init__(self, plan: KerasPlan, *, progress: ProgressWriter) -> None:
        super().__init__(plan.eval_spec, exported=plan.serving, checkpoint_steps=plan.epoch_steps, progress=progress)
        self._plan = plan
        name = plan.eval_spec.name
        self._summaries = os.path.join(plan.model_dir, f"eval_{name}" if name else "eval")
        self._model: Any = None
        self._writer: Any = None

    def metrics_of(self, checkpoint: str) -> Mapping[str, Any]:
        if self._model is None:
            with scope(self._plan.eval_strategy):
                self._model = self.build()
                self._checkpoint = self.checkpoint_of(self._model)
            self._data = distributed(self._plan.eval_strategy, self._spec.input_fn, self._plan.weighted)
            self._steps = self._spec.steps or steps_of(
                self._plan.eval_strategy, self._spec.input_fn, hint="give eval.steps"
            )
        keras_checkpoints.restore(self._checkpoint, checkpoint, whole=False)
        moving_averages.take(self._model)
        values = self._model.evaluate(self._data, steps=self._steps, return_dict=True, verbose=0)
        step = checkpoint_step(checkpoint)
        metrics = {**self._plan.completed({name: float(v) for name, v in values.items()}), "global_step": step}
        self._summarise(metrics, step)
        return metrics

    def build(self) -> Any:
        """Return the compiled model, built in the scope of the evaluation strategy."""
        return self._plan.build_model()

    def checkpoint_of(self, model: Any) -> Any:
        """Return the `tf.train.Checkpoint` of the state that evaluation needs."""
        if moving_averages.keeps(model):
            keras_optimizers.create_slots(model)
        return keras_checkpoints.of(model)

    def evaluate(self, checkpoint: str, *, final: bool) -> EvaluationResult:
        result = super().evaluate(checkpoint, final=final)
        if final:
            self._save_keras_file(checkpoint)
        return result

    def _save_keras_file(self, checkpoint: str) -> None:
        path = os.path.join(self._plan.model_dir, KERAS_FILE)
        try:
            self._plan.serving.save_keras_file(checkpoint, path)
        except (NotImplementedError, TypeError, ValueError) as error:
            # A layer without get_config. The checkpoint is sufficient to build the model again.
            logger.warning("%s was not written: %s", path, str(error).strip().splitlines()[0])
            return
        self.exports.append(path)
        self._progress.emit("export", path=path)

    def take(self, checkpoint: str, metrics: Mapping[str, Any]) -> None:
        super().take(checkpoint, metrics)
        self._summarise(metrics, checkpoint_step(checkpoint))

    def _summarise(self, metrics: Mapping[str, Any], step: int) -> None:
        tf = compat.tensorflow()
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(self._summaries)
        event_files.write_scalars(self._writer, metrics, step=step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self._model = None
