"""A job on the Keras 3 engine: the same model, data and cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, Any

from estimator_pipeline import compat
from estimator_pipeline.cluster import from_environ
from estimator_pipeline.engines.core.result import TrainResult
from estimator_pipeline.engines.jobs import common
from estimator_pipeline.engines.jobs import keras as keras_job
from estimator_pipeline.engines.keras3 import backend as keras3
from estimator_pipeline.engines.keras3.exporters import EvaluationSpec, make_exporter
from estimator_pipeline.engines.keras_common.plan import KerasPlan
from estimator_pipeline.job import Job
from estimator_pipeline.models.keras3_variables import built_as_in_a_new_process
from estimator_pipeline.models.optimizers import keras3 as keras3_optimizers
from estimator_pipeline.models.optimizers.spec import optimizer_of
from estimator_pipeline.utils.logger import logger

if TYPE_CHECKING:
    from estimator_pipeline.engines.recording.step_recorder import StepRecorder


def run(
    job: Job,
    *,
    evaluator: bool | None,
    evaluate_during_training: bool | None,
    recording: StepRecorder | None,
    environ: MutableMapping[str, str],
) -> TrainResult:
    """Run this process's task of a job with Keras 3; see `estimator_pipeline.engines.jobs.runner.run_job`."""
    tf_config = from_environ(environ)
    compat.use_keras_3()
    keras_job.warn_of_ignored(job)
    difference = keras3_optimizers.differences(optimizer_of(job.model.optimizer.model_dump()))
    if difference is not None and tf_config.is_chief:
        logger.warning("The optimizer %s differs from that of the engine keras: %s", job.model.optimizer.name,
                       difference)  # fmt: skip
    keras_job.prepare_runtime(job)
    strategy, eval_strategy = keras_job.strategies_of(job, tf_config)
    data = common.job_inputs(job)
    plan = plan_of(job, data, strategy=strategy, eval_strategy=eval_strategy)
    if recording is not None:
        record = recording
        plan = dataclasses.replace(
            plan,
            callbacks=lambda: [record.keras3_callback(chief=tf_config.is_chief, strategy=strategy)],
            train_input_fn=record.input_fn(plan.train_input_fn, task=str(tf_config.task)),
            watched=True,
        )
    options = common.options_of(
        job, data, tf_config, evaluator=evaluator, evaluate_during_training=evaluate_during_training
    )
    plan, explaining = keras_job.explaining_mismatches(plan)
    with explaining:
        return keras3.train_and_evaluate(plan, tf_config=tf_config, options=options, environ=environ)


def plan_of(job: Job, data: Any, *, strategy: Any = None, eval_strategy: Any = None) -> KerasPlan:
    """Return the job's plan for Keras 3; see `estimator_pipeline.engines.jobs.keras.plan_of`."""
    evaluation = job.eval
    weighted = keras_job.weighted_of(keras_job.job_keras_model(job, data))
    # The job's section `keras` does not apply here. A backup would contain only the weights, while this engine takes
    # the position in the data and the step from its checkpoints.
    return keras_job.plan_of(
        job,
        data,
        strategy=strategy,
        eval_strategy=eval_strategy,
        wrap=lambda build: _built_as_in_a_new_process(build, lambda: weighted(data.train_input_fn())),
        restore=keras3.restored,
        eval_spec=EvaluationSpec(
            input_fn=data.eval_input_fn,
            steps=evaluation.steps,
            name=evaluation.name,
            start_delay_secs=evaluation.start_delay_secs,
            throttle_secs=evaluation.throttle_secs,
            exporters=tuple(common.exporters_of(job, lambda section: make_exporter(section, data.features_spec))),
        ),
    )


def _built_as_in_a_new_process(build: Callable[[], Any], input_fn: Callable[..., Any]) -> Callable[[], Any]:
    def build_model() -> Any:
        return built_as_in_a_new_process(build, input_fn)

    return build_model
