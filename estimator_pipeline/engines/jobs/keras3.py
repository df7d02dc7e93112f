"""A job on the Keras 3 engine: the same model, data and cluster, trained with a custom loop."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from estimator_pipeline import compat
from estimator_pipeline.engines.core.result import TrainResult
from estimator_pipeline.engines.jobs import keras as keras_job
from estimator_pipeline.engines.jobs.build import BuiltJob
from estimator_pipeline.engines.keras3 import backend as keras3
from estimator_pipeline.engines.keras3.exporters import EvaluationSpec, make_exporter
from estimator_pipeline.engines.keras_common.plan import KerasPlan
from estimator_pipeline.models.keras3_variables import built_as_in_a_new_process
from estimator_pipeline.models.optimizers import keras3 as keras3_optimizers
from estimator_pipeline.models.optimizers.spec import optimizer_of
from estimator_pipeline.utils.logger import logger

if TYPE_CHECKING:
    from estimator_pipeline.engines.jobs.run import JobTask


def run(built: BuiltJob, task: JobTask) -> TrainResult:
    """Run this process's task of a job with Keras 3; see `estimator_pipeline.engines.jobs.run.run_job`."""
    job, tf_config = built.job, task.tf_config
    compat.use_keras_3()
    keras_job.warn_of_ignored(job)
    difference = keras3_optimizers.differences(optimizer_of(job.model.optimizer.model_dump()))
    if difference is not None and tf_config.is_chief:
        logger.warning("The optimizer %s differs from that of the engine keras: %s", job.model.optimizer.name,
                       difference)  # fmt: skip
    keras_job.prepare_runtime(job)
    strategy, eval_strategy = keras_job.strategies_of(job, tf_config)
    plan = plan_of(built, strategy=strategy, eval_strategy=eval_strategy)
    if (recording := task.recording) is not None:
        plan = dataclasses.replace(
            plan,
            callbacks=lambda: [recording.keras3_callback(chief=tf_config.is_chief, strategy=strategy)],
            train_input_fn=recording.input_fn(plan.train_input_fn, task=str(tf_config.task)),
            watched=True,
        )
    plan, explaining = keras_job.explaining_mismatches(plan)
    with explaining:
        return keras3.train_and_evaluate(
            plan, tf_config=tf_config, options=task.options_of(built), environ=task.environ
        )


def plan_of(built: BuiltJob, *, strategy: Any = None, eval_strategy: Any = None) -> KerasPlan:
    """Return the job's plan for Keras 3; see `estimator_pipeline.engines.jobs.keras.plan_of`."""
    evaluation, data, weighted = built.job.eval, built.data, built.weighted
    # The job's section `keras` does not apply here. A backup would contain only the weights, while this engine takes
    # the position in the data and the step from its checkpoints.
    return keras_job.plan_of(
        built,
        strategy=strategy,
        eval_strategy=eval_strategy,
        wrap=lambda build: lambda: built_as_in_a_new_process(build, lambda: weighted(data.train_input_fn())),
        restore=keras3.restored,
        eval_spec=EvaluationSpec(
            input_fn=data.eval_input_fn,
            steps=evaluation.steps,
            name=evaluation.name,
            start_delay_secs=evaluation.start_delay_secs,
            throttle_secs=evaluation.throttle_secs,
            exporters=tuple(built.exporters(lambda section: make_exporter(section, data.features_spec))),
        ),
    )
