"""From a job file to a running task: selects the engine and prepares the process for it."""

from __future__ import annotations

import importlib
import os
from collections.abc import MutableMapping
from types import ModuleType
from typing import TYPE_CHECKING

from estimator_pipeline import compat
from estimator_pipeline.compat.patches import missing_peers
from estimator_pipeline.engines.core.rendezvous.result_exchange import evaluator_of_job
from estimator_pipeline.engines.core.result import TrainResult
from estimator_pipeline.errors import CompatError
from estimator_pipeline.job import Job
from estimator_pipeline.utils.logger import logger

if TYPE_CHECKING:
    from estimator_pipeline.engines.recording.step_recorder import StepRecorder

__all__ = ["prepare_process", "run_job"]

# Engine -> the module that runs a job on it.
_ENGINES = {
    "estimator": "estimator_pipeline.engines.jobs.estimator",
    "keras": "estimator_pipeline.engines.jobs.keras",
    "keras3": "estimator_pipeline.engines.jobs.keras3",
}


def run_job(
    job: Job, *, recording: StepRecorder | None = None, environ: MutableMapping[str, str] | None = None
) -> TrainResult:
    """Run this process's task of a job.

    Args:
        job: From `estimator_pipeline.load_job`.
        recording: Records each training step, and may set the initial values of the variables.
        environ: Environment with TF_CONFIG; `os.environ` by default.

    Returns:
        The job's result, the same on every task.

    Raises:
        PipelineError: See `train_and_evaluate`; also errors of
            building the model, the data and the configuration.
    """
    with missing_peers.job_settings(seconds=job.run.start_timeout_secs, signals=job.run.preemption_signals):
        return _run_job(job, recording, os.environ if environ is None else environ)


def _run_job(job: Job, recording: StepRecorder | None, environ: MutableMapping[str, str]) -> TrainResult:
    has_evaluator = evaluator_of_job(job.cluster.evaluator, environ)
    during = True if job.eval.during_training and not has_evaluator else None
    _set_threads(job, prepare_process(job))
    if job.run.engine != "keras" and (ignored := sorted(job.keras.model_fields_set)):
        logger.warning("The engine %s ignores the section keras: %s", job.run.engine, ", ".join(ignored))
    # Only the selected engine is imported: engines need different versions of Keras.
    engine = importlib.import_module(_ENGINES[job.run.engine])
    result: TrainResult = engine.run(
        job, evaluator=has_evaluator, evaluate_during_training=during, recording=recording, environ=environ
    )
    return result


def prepare_process(job: Job) -> ModuleType:
    """Return TensorFlow with the Keras version of the job's engine; the first call in a process decides.

    With `run.tf1`, the job's functions can use TensorFlow 1 names.

    Raises:
        CompatError: This TensorFlow has no such Keras, or the process has loaded the other one.
    """
    engine = job.run.engine
    if engine == "keras3":
        return compat.use_keras_3()
    tf = compat.tensorflow()
    if compat.keras_generation() == 3:
        raise CompatError(
            f"this process has Keras 3, and the engine {engine} is built on Keras 2",
            code="tensorflow/wrong-keras",
            hint="run the job in a separate process",
        )
    if job.run.tf1:
        compat.install(tf1=True)
    return tf


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
