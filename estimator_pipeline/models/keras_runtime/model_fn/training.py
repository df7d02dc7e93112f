"""`train_and_evaluate` in one process: training by `fit`, with evaluations and exports after checkpoints."""

from __future__ import annotations

import functools
from typing import Any

from estimator_pipeline.compat.internals.eager_blocks import eagerly
from estimator_pipeline.models.keras_runtime.evaluation import Evaluation
from estimator_pipeline.models.keras_runtime.model_fn import settings
from estimator_pipeline.models.keras_runtime.model_fn.inputs import dataset

__all__ = ["train_and_evaluate"]


@eagerly
def train_and_evaluate(
    estimator: Any, train_spec: settings.TrainSpec, eval_spec: settings.EvalSpec
) -> tuple[dict[str, Any] | None, list[bytes | None]]:
    """Train until `max_steps`, and evaluate and export after checkpoints, as an Estimator in one process.

    The checkpoint before the first step is not evaluated. The next checkpoint is, and each later one if the last
    evaluation started at least `throttle_secs` before. `start_delay_secs` is ignored.

    Args:
        estimator: A ModelFnModel.
        train_spec: The training data and the number of steps.
        eval_spec: The evaluation data and the exporters.

    Returns:
        The metrics of the last evaluation, and the last export of each exporter. (None, []) if the model had already
        reached `max_steps`.
    """
    exporters = eval_spec.exporters
    evaluation = Evaluation(
        functools.partial(dataset, eval_spec.input_fn, "eval", estimator),
        throttle_secs=eval_spec.throttle_secs, name=eval_spec.name, folder=estimator.model_dir,
        options={"steps": eval_spec.steps, "hooks": eval_spec.hooks, "name": eval_spec.name},
        exporters=(
            list(exporters) if isinstance(exporters, list | tuple) else [exporters] if exporters is not None else []
        ),
    )  # fmt: skip
    evaluation.set_model(estimator)
    history = estimator.fit(
        train_spec.input_fn, max_steps=train_spec.max_steps, hooks=train_spec.hooks,
        saving_listeners=[*(train_spec.saving_listeners or ()), evaluation],
    )  # fmt: skip
    return (evaluation.result, evaluation.exports) if history is not None else (None, [])
