"""A job on the Estimator engine: model, data, run configuration and specs, then `train_and_evaluate`."""

from __future__ import annotations

import copy
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.distribute.run_config import build_run_config
from estimator_pipeline.engines.core.result import TrainResult
from estimator_pipeline.engines.estimator import backend
from estimator_pipeline.engines.jobs.build import BuiltJob, JobTask
from estimator_pipeline.engines.jobs.user_hooks import HOOKS, user_hooks
from estimator_pipeline.engines.model_dir.checkpoints import refuse_others
from estimator_pipeline.job import Job

__all__ = ["run", "run_config"]

# Fields of the section `run` that are arguments of `build_run_config`.
_SAME_NAMES = (
    "train_distribute", "eval_distribute", "devices", "num_devices", "seed", "protocol", "save_summary_steps",
    "keep_checkpoint_max", "keep_checkpoint_every_n_hours", "log_step_count_steps", "checkpoint_save_graph_def",
    "session_creation_timeout_secs",
)  # fmt: skip


def run(built: BuiltJob, task: JobTask) -> TrainResult:
    """Run this task of a job with tf.estimator; see `estimator_pipeline.engines.jobs.run.run_job`."""
    tf, job, tf_config = compat.tensorflow(), built.job, task.tf_config
    refuse_others(job.run.model_dir, engine="estimator")
    config = run_config(job, task)
    estimator = built.estimator(config)
    hooks, train_input_fn = [], built.data.train_input_fn
    if tf_config.is_training_task:
        base = tf.estimator.SessionRunHook
        hooks += user_hooks(job.train.hooks, field=HOOKS, base=base, name="tf.estimator.SessionRunHook")
    if task.recording is not None and tf_config.is_training_task:
        hooks.append(task.recording.hook(chief=tf_config.is_chief))
        train_input_fn = task.recording.input_fn(train_input_fn, task=str(tf_config.task))
    return backend.run(
        estimator,
        tf.estimator.TrainSpec(train_input_fn, max_steps=built.max_steps, hooks=hooks),
        built.eval_spec(),
        tf_config=tf_config,
        options=built.options(task),
        environ=task.environ,
    )


def run_config(job: Job, task: JobTask) -> Any:
    """Return the `tf.estimator.RunConfig` of a task of a job."""
    run = job.run
    unit, interval = run.checkpoint_interval
    return build_run_config(
        run.model_dir,
        communication=run.communication.model_dump(),
        intra_op_threads=run.threads.intra_op,
        inter_op_threads=run.threads.inter_op,
        session_config=_session_config(job) or None,
        tf_config=task.tf_config,
        save_checkpoints_steps=interval if unit == "steps" else None,
        save_checkpoints_secs=interval if unit == "secs" else None,
        experimental_max_worker_delay_secs=run.max_worker_delay_secs,
        **{name: getattr(run, name) for name in _SAME_NAMES},
    )


def _session_config(job: Job) -> dict[str, Any]:
    session = copy.deepcopy(dict(job.run.session_config))
    # By default the graph optimizer runs once in an Estimator's session and twice for a tf.function. The graphs would
    # differ, and so would the rounding of sums. Both engines must run the same kernels.
    rewrite_options = session.setdefault("graph_options", {}).setdefault("rewrite_options", {})
    rewrite_options.setdefault("meta_optimizer_iterations", "TWO")
    if job.model.mixed_precision and not compat.tensorflow().config.list_physical_devices("GPU"):
        # On CPUs TensorFlow's graph optimizer fuses bfloat16 convolutions into an operation that exists only for other
        # types, and the session fails.
        rewrite_options.setdefault("remapping", "OFF")
    return session
