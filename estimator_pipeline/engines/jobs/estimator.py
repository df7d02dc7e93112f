"""A job on the Estimator engine: model, data, run configuration and specs, then `train_and_evaluate`."""

from __future__ import annotations

import copy
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from estimator_pipeline import compat
from estimator_pipeline.cluster import from_environ
from estimator_pipeline.distribute.run_config import build_run_config
from estimator_pipeline.engines.core.result import TrainResult
from estimator_pipeline.engines.estimator.backend import train_and_evaluate
from estimator_pipeline.engines.jobs.common import eval_spec_of, job_inputs, job_model_fn, max_steps_of, options_of
from estimator_pipeline.engines.model_dir.checkpoint_files import refuse_others
from estimator_pipeline.job import Job

if TYPE_CHECKING:
    from estimator_pipeline.engines.recording.step_recorder import StepRecorder

__all__ = ["run"]


def run(
    job: Job,
    *,
    evaluator: bool | None,
    evaluate_during_training: bool | None,
    recording: StepRecorder | None,
    environ: MutableMapping[str, str],
) -> TrainResult:
    """Run this task of a job with tf.estimator; see `estimator_pipeline.engines.jobs.runner.run_job`."""
    tf = compat.tensorflow()
    refuse_others(job.run.model_dir, engine="estimator")
    config = _run_config(job, environ)
    data = job_inputs(job)
    # With `params=None`, Estimator passes `{}` but does not require a `params` argument. User functions may not have
    # one, so they get None. Built-in model functions do have one and would trigger a warning, so they get `{}`.
    params = dict(job.model.params) or ({} if job.model.name else None)
    estimator = tf.estimator.Estimator(model_fn=job_model_fn(job, data), config=config, params=params)
    task = from_environ(environ)
    hooks, train_input_fn = [], data.train_input_fn
    if recording is not None and task.is_training_task:
        hooks.append(recording.hook(chief=task.is_chief))
        train_input_fn = recording.input_fn(train_input_fn, task=str(task.task))
    return train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(train_input_fn, max_steps=max_steps_of(job, data), hooks=hooks),
        eval_spec_of(job, data),
        options=options_of(job, data, task, evaluator=evaluator, evaluate_during_training=evaluate_during_training),
        environ=environ,
    )


def _run_config(job: Job, environ: MutableMapping[str, str]) -> Any:
    run = job.run
    unit, interval = run.checkpoint_interval
    return build_run_config(
        run.model_dir,
        train_distribute=run.train_distribute,
        eval_distribute=run.eval_distribute,
        devices=run.devices,
        num_devices=run.num_devices,
        communication=run.communication.model_dump(),
        intra_op_threads=run.threads.intra_op,
        inter_op_threads=run.threads.inter_op,
        seed=run.seed,
        session_config=_session_config(job) or None,
        environ=environ,
        save_checkpoints_steps=interval if unit == "steps" else None,
        save_checkpoints_secs=interval if unit == "secs" else None,
        save_summary_steps=run.save_summary_steps,
        keep_checkpoint_max=run.keep_checkpoint_max,
        keep_checkpoint_every_n_hours=run.keep_checkpoint_every_n_hours,
        log_step_count_steps=run.log_step_count_steps,
        checkpoint_save_graph_def=run.checkpoint_save_graph_def,
        session_creation_timeout_secs=run.session_creation_timeout_secs,
        experimental_max_worker_delay_secs=run.max_worker_delay_secs,
        protocol=run.protocol,
    )


def _session_config(job: Job) -> dict[str, Any]:
    session = copy.deepcopy(dict(job.run.session_config))
    # By default the graph optimizer runs once in an Estimator's session and twice for a tf.function. The graphs would
    # differ, and so would the rounding of sums. Both engines must run the same kernels.
    passes = session.setdefault("graph_options", {}).setdefault("rewrite_options", {})
    passes.setdefault("meta_optimizer_iterations", "TWO")
    if job.model.mixed_precision and not compat.tensorflow().config.list_physical_devices("GPU"):
        # On CPUs TensorFlow's graph optimizer fuses bfloat16 convolutions into an operation that exists only for other
        # types, and the session fails.
        rewrite = session.setdefault("graph_options", {}).setdefault("rewrite_options", {})
        rewrite.setdefault("remapping", "OFF")
    return session
