"""Evaluation of checkpoints by the Keras engines, in the chief or in an evaluator."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.engines.keras_common import checkpoints
from estimator_pipeline.engines.keras_common.data import distributed, scope, steps_of
from estimator_pipeline.engines.keras_common.plan import KerasPlan
from estimator_pipeline.engines.model_dir.layout import checkpoint_step
from estimator_pipeline.models import summaries as event_files
from estimator_pipeline.models.optimizers import moving_averages
from estimator_pipeline.utils.logger import logger

__all__ = ["KERAS_FILE", "KerasEvaluation"]

# The final checkpoint's model, with its layers and its compile configuration.
KERAS_FILE = "model.keras"


class KerasEvaluation:
    """Evaluates checkpoints of a Keras engine in this process; see `Evaluation`.

    Args:
        plan: The job's plan.
        checkpoint_of: Returns the `tf.train.Checkpoint` of the state of a compiled model that an evaluation needs.
    """

    def __init__(self, plan: KerasPlan, *, checkpoint_of: Callable[[Any], Any]) -> None:
        self._plan, self._checkpoint_of = plan, checkpoint_of
        name = plan.eval_spec.name
        self._summaries = os.path.join(plan.model_dir, f"eval_{name}" if name else "eval")
        self._model: Any = None
        self._writer: Any = None

    @property
    def exported(self) -> Any:
        return self._plan.serving

    def metrics_of(self, checkpoint: str) -> Mapping[str, Any]:
        if self._model is None:
            with scope(self._plan.eval_strategy):
                self._model = self._plan.build_model()
                self._checkpoint = self._checkpoint_of(self._model)
            self._data = distributed(self._plan.eval_strategy, self._plan.eval_spec.input_fn, self._plan.weighted)
            self._steps = self._plan.eval_spec.steps or steps_of(
                self._plan.eval_strategy, self._plan.eval_spec.input_fn, hint="give eval.steps"
            )
        checkpoints.restore(self._checkpoint, checkpoint, whole=False)
        moving_averages.take(self._model)
        values = self._model.evaluate(self._data, steps=self._steps, return_dict=True, verbose=0)
        step = checkpoint_step(checkpoint)
        metrics = {**self._plan.completed({name: float(v) for name, v in values.items()}), "global_step": step}
        self.summarize(metrics, step)
        return metrics

    def write_final(self, checkpoint: str) -> Sequence[str]:
        path = os.path.join(self._plan.model_dir, KERAS_FILE)
        try:
            self._plan.serving.save_keras_file(checkpoint, path)
        except (NotImplementedError, TypeError, ValueError) as error:
            # A layer without get_config. The checkpoint is sufficient to build the model again.
            logger.warning("%s was not written: %s", path, str(error).strip().splitlines()[0])
            return ()
        return (path,)

    def summarize(self, metrics: Mapping[str, Any], step: int) -> None:
        tf = compat.tensorflow()
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(self._summaries)
        event_files.write_scalars(self._writer, metrics, step=step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self._model = None
