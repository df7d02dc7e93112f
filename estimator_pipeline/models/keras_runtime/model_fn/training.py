"""`train_and_evaluate` of one process: training by `fit`, an evaluation and exports with its checkpoints."""

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
    """Trains until `max_steps`; evaluates and exports after checkpoints and at the end, as an Estimator of one process.

    The first checkpoint of a training, before its first step, is not evaluated; the next one is, and each after it
    from which the last evaluation began `throttle_secs` ago. `start_delay_secs` is of clusters, and has no meaning.

    Args:
        estimator: a ModelFnModel.
        train_spec: what it trains on.
        eval_spec: what it is evaluated on.

    Returns:
        The metrics of the last evaluation, and for each exporter the folder that it wrote last; None, where a model
        had come to `max_steps` before.
    """
    given = eval_spec.exporters
    evaluation = Evaluation(
        functools.partial(dataset, eval_spec.input_fn, "eval", estimator),
        throttle_secs=eval_spec.throttle_secs, name=eval_spec.name, folder=estimator.model_dir,
        options={"steps": eval_spec.steps, "hooks": eval_spec.hooks, "name": eval_spec.name},
        exporters=list(given) if isinstance(given, list | tuple) else [given] if given is not None else [],
    )  # fmt: skip
    evaluation.set_model(estimator)
    history = estimator.fit(
        train_spec.input_fn, max_steps=train_spec.max_steps, hooks=train_spec.hooks,
        saving_listeners=[*(train_spec.saving_listeners or ()), evaluation],
    )  # fmt: skip
    return (evaluation.result, evaluation.exports) if history is not None else (None, [])
