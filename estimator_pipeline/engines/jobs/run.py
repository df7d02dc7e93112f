"""From a job file to a running task: selects the engine and prepares the process for it."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from types import ModuleType
from typing import TYPE_CHECKING

from estimator_pipeline.cluster import TFConfig, from_environ
from estimator_pipeline.cluster.resolution import RUN_ID_VARIABLE
from estimator_pipeline.compat.patches import missing_peers
from estimator_pipeline.engines.core.rendezvous.result_exchange import evaluator_of_job
from estimator_pipeline.engines.core.result import TrainResult
from estimator_pipeline.engines.core.warm_start import checkpoint_of
from estimator_pipeline.engines.jobs import estimator, keras
from estimator_pipeline.engines.jobs.build import BuiltJob, JobTask, prepare_process
from estimator_pipeline.engines.jobs.continuing import plan_training
from estimator_pipeline.job import Job
from estimator_pipeline.utils.fixes import of_job_file
from estimator_pipeline.utils.logger import logger

if TYPE_CHECKING:
    from estimator_pipeline.engines.recording.step_recorder import StepRecorder

__all__ = ["run_job"]


def run_job(
    job: Job,
    *,
    tf_config: TFConfig | None = None,
    recording: StepRecorder | None = None,
    environ: MutableMapping[str, str] | None = None,
) -> TrainResult:
    """Run this process's task of a job.

    Args:
        job: From `estimator_pipeline.load_job`.
        tf_config: Cluster and task of this process; by default those of `environ`.
        recording: Records each training step, and may set the initial values of the variables.
        environ: The environment; `os.environ` by default.

    Returns:
        The job's result, the same on every task.

    Raises:
        PipelineError: See `train_and_evaluate`; also errors of building the model, the data and the configuration.
    """
    environ = os.environ if environ is None else environ
    tf_config = tf_config or from_environ(environ)
    with (
        of_job_file(),
        missing_peers.job_settings(seconds=job.run.start_timeout_secs, signals=job.run.preemption_signals),
    ):
        evaluator = evaluator_of_job(job.cluster.evaluator, tf_config, environ)
        during = job.eval.during_training or job.eval.early_stopping is not None
        task = JobTask(
            tf_config=tf_config,
            environ=environ,
            evaluator=evaluator,
            evaluate_during_training=True if during and not evaluator else None,
            recording=recording,
        )
        tf = prepare_process(job)
        _set_threads(job, tf)
        if job.run.engine != "keras" and (ignored := sorted(job.keras.model_fields_set)):
            logger.warning("The engine %s ignores the section keras: %s", job.run.engine, ", ".join(ignored))
        plan = plan_training(job, environ.get(RUN_ID_VARIABLE, ""))
        built = BuiltJob(job, read=plan.read, plan=plan)
        built.check_functions()
        if tf_config.is_chief and tf.train.latest_checkpoint(job.run.model_dir) is None:
            # Once a run; the other tasks wait for the chief.
            if job.run.warm_start_from is not None:
                checkpoint_of(job.run.warm_start_from)
            built.check_values()
        result = (estimator if job.run.engine == "estimator" else keras).run(built, task)
        if tf_config.is_chief:
            plan.finish(result.global_step)
        return result


def _set_threads(job: Job, tf: ModuleType) -> None:
    """Set the sizes of TensorFlow's thread pools, which it creates with the first device of the process.

    A session's `intra_op_parallelism_threads` would be too late.
    """
    threads = job.run.threads
    for name, count, settle in (
        ("intra_op", threads.intra_op, tf.config.threading.set_intra_op_parallelism_threads),
        ("inter_op", threads.inter_op, tf.config.threading.set_inter_op_parallelism_threads),
    ):
        try:
            if count is not None:
                settle(count)
        except RuntimeError as error:
            logger.warning("run.threads.%s has no effect in this process: %s", name, error)
