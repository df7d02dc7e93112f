"""From a job file to a running task: the engine is chosen, and everything else is its own."""

from __future__ import annotations

import importlib
import os
from collections.abc import MutableMapping
from types import ModuleType
from typing import TYPE_CHECKING

from estimator_pipeline import compat
from estimator_pipeline.compat.patches import missing_peers
from estimator_pipeline.engines.lifecycle.rendezvous.result_exchange import evaluator_of_job
from estimator_pipeline.engines.lifecycle.result import TrainResult
from estimator_pipeline.errors import CompatError
from estimator_pipeline.job import Job
from estimator_pipeline.utils.logger import logger

if TYPE_CHECKING:
    from estimator_pipeline.engines.recording.step_recorder import StepRecorder

__all__ = ["prepare_process", "run_job"]

# Engine -> the module that runs a job by it.
_ENGINES = {
    "estimator": "estimator_pipeline.engines.jobs.estimator",
    "keras": "estimator_pipeline.engines.jobs.keras",
    "keras3": "estimator_pipeline.engines.jobs.keras3",
}


def run_job(
    job: Job, *, recording: StepRecorder | None = None, environ: MutableMapping[str, str] | None = None
) -> TrainResult:
    """Runs this process's task of a job.

    Args:
        job: from :func:`estimator_pipeline.load_job`.
        recording: what each training step did is written down, and what training starts from is given.
        environ: where TF_CONFIG is read; `os.environ` by default.

    Returns:
        The job's result, the same on every task.

    Raises:
        PipelineError: see :func:`~estimator_pipeline.engines.estimator.engine.train_and_evaluate`, and what building
            the model, the data and the configuration raises.
    """
    with missing_peers.told(seconds=job.run.start_timeout_secs, signals=job.run.preemption_signals):
        return _run_job(job, recording, os.environ if environ is None else environ)


def _run_job(job: Job, recording: StepRecorder | None, environ: MutableMapping[str, str]) -> TrainResult:
    has_evaluator = evaluator_of_job(job.cluster.evaluator, environ)
    during = True if job.eval.during_training and not has_evaluator else None
    _set_threads(job, prepare_process(job))
    if job.run.engine != "keras" and (given := sorted(job.keras.model_fields_set)):
        logger.warning("The engine %s reads nothing of the section keras: %s", job.run.engine, ", ".join(given))
    # An engine is imported where it is asked for: each brings a Keras of its own.
    engine = importlib.import_module(_ENGINES[job.run.engine])
    result: TrainResult = engine.run(
        job, evaluator=has_evaluator, evaluate_during_training=during, recording=recording, environ=environ
    )
    return result


def prepare_process(job: Job) -> ModuleType:
    """TensorFlow with the Keras that the job's engine trains; the first call of a process decides.

    Under `run.tf1` the job's own functions get TensorFlow 1's names.

    Raises:
        CompatError: this TensorFlow has none such, or the process has the other one already.
    """
    engine = job.run.engine
    if engine == "keras3":
        return compat.use_keras_3()
    tf = compat.tensorflow()
    if compat.keras_generation() == 3:
        raise CompatError(
            f"this process has Keras 3, and the engine {engine} is built on Keras 2",
            code="tensorflow/wrong-keras",
            hint="run the job in a process of its own",
        )
    if job.run.tf1:
        compat.install(tf1=True)
    return tf


def _set_threads(job: Job, tf: ModuleType) -> None:
    """Sizes of TensorFlow's thread pools, of which it makes one for the process with the first device.

    A session's `intra_op_parallelism_threads` comes too late for that one.
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
