"""Before the first step: lock the model directory, and resume all workers from the same checkpoint."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from estimator_pipeline import compat
from estimator_pipeline.cluster.peers import PeerWatch
from estimator_pipeline.compat.internals import coordination_service as coordination
from estimator_pipeline.compat.internals import sessions
from estimator_pipeline.engines.core import failures
from estimator_pipeline.engines.core.rendezvous import same_job
from estimator_pipeline.engines.core.rendezvous.rendezvous import POLL_SECS, in_state
from estimator_pipeline.engines.model_dir import checkpoints, lock
from estimator_pipeline.engines.model_dir import disk_errors as disk
from estimator_pipeline.engines.model_dir import run_identity as identity
from estimator_pipeline.engines.model_dir.layout import checkpoint_step, write_dir
from estimator_pipeline.errors import ClusterError, ConfigError, PipelineError
from estimator_pipeline.inputs.wrapping import at_step, with_policy
from estimator_pipeline.progress.progress_file import CHECKPOINT_VARIABLE
from estimator_pipeline.utils.deadline import Deadline
from estimator_pipeline.utils.logger import logger

if TYPE_CHECKING:
    from estimator_pipeline.engines.core.context import TaskContext


# How long a shared file system may take to show every task the same checkpoints.
AGREE_SECS = 60.0
# How often a task looks for the chief's first status.
_MEET_SECS = 0.05


@contextlib.contextmanager
def own_model_dir(context: TaskContext) -> Iterator[TaskContext]:
    """Hold the lock on the model directory within the block; yields the context with its latest undamaged checkpoint.

    For the task that writes the checkpoints. Raises ConfigError or TaskFailedError if it may not train there, or not
    from there.
    """
    model_dir, rendezvous = context.model_dir, context.rendezvous
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(lock.hold(model_dir, owner=str(context.task), run_id=rendezvous.run_id))
        except PipelineError as error:
            # Not as a failure of training: the tasks of the other job would read that status.
            with contextlib.suppress(OSError, compat.tensorflow().errors.OpError):
                rendezvous.publish_refusal(str(error)[:2000])
            raise
        try:
            diverged = (rendezvous.read_any("training.json") or {}).get("status") == "diverged"
            with disk.explaining(model_dir):
                latest = checkpoints.rescue(model_dir, finite=diverged)
            step = max(0, checkpoint_step(latest)) if latest else 0
            if latest is None and (known := context.environ.get(CHECKPOINT_VARIABLE, "")):
                _refuse_to_start_over(model_dir, known)
            input_fn = with_policy(context.input_fn, identity.policy_of(model_dir) if step else None)
            if input_fn is not context.input_fn:
                logger.info("Training resumes with shard_policy file, with which this run started (auto is now data)")
            # Reads the data, whose errors must not be explained as errors of the model directory.
            run_identity = context.identity(input_fn)
            with disk.explaining(model_dir):
                identity.check(model_dir, run_identity, step=step, accept=context.options.accept_changes)
                if context.options.before_training is not None:
                    context.options.before_training(step)
        except Exception as error:
            failures.report(context, error)
            raise
        yield dataclasses.replace(context, start_step=step, input_fn=input_fn, identity=lambda _: run_identity)


def _refuse_to_start_over(model_dir: str, known: str) -> None:
    """Raise a ConfigError: an automatic restart must not train again from step 0."""
    if os.path.dirname(os.path.abspath(known)) != os.path.abspath(model_dir):
        return  # it belongs to a different training of the same program
    raise ConfigError(
        f"the checkpoints of {model_dir} are gone: training had written {os.path.basename(known)}, which is missing",
        code="model-dir/damaged",
        found="an empty folder, or one that is not mounted" if os.path.isdir(model_dir) else "no such folder",
        hint="restore the folder (mount the file system, or move the folder back) and start the job again; to start "
        "from step 0, start it again without changes",
    )


def meet(context: TaskContext) -> TaskContext:
    """Wait until the chief has answered this worker, by files or by its server, or until it is asked to stop.

    Returns:
        The context with the chief's shard policy, and with the directory in which this task trains: the model
        directory, or a temporary folder in it if the chief's is a different one.

    Raises:
        TaskFailedError, PreemptedError, OtherJobError, WaitError: See `Rendezvous.wait`.
    """
    rendezvous, cluster = context.rendezvous, context.tf_config.cluster
    assert cluster is not None
    watch = PeerWatch(cluster.chief, cluster.address(cluster.chief), startup=context.options.startup_timeout)

    def check(status: Mapping[str, Any] | None) -> Any:
        coordination.require_all_alive()
        return in_state(status, "running", "finished") or context.preemption.asked or None

    rendezvous.wait("the chief's first status", check, timeout=float("inf"), watch=watch, poll=_MEET_SECS)
    status = rendezvous.training() or {}
    context = dataclasses.replace(context, input_fn=with_policy(context.input_fn, status.get("policy")))
    context = dataclasses.replace(context, stopped_early=status.get("stopped_early", ""))
    if context.tf_config.is_asynchronous and status.get("job"):
        rendezvous.raise_if_other_job(status, compared_job(context))
    if not rendezvous.apart:
        return context
    logger.warning(
        "%s: %s is not the model_dir of %s. Training resumes from the chief's checkpoint, and the tasks communicate "
        "through the chief's TensorFlow server",
        *(context.task, context.model_dir, cluster.chief),
    )
    return dataclasses.replace(context, model_dir=write_dir(context.model_dir, context.tf_config))


def start_together(context: TaskContext) -> TaskContext:
    """Compare this training task with the others, and agree on the checkpoint that all resume from.

    Returns:
        The context with that step, at which its input function starts.

    Raises:
        OtherJobError, ClusterError: The tasks have different jobs, devices or checkpoints.
        TaskFailedError, PreemptedError, WaitError: See `Rendezvous.wait`.
    """
    tf_config, options, apart = context.tf_config, context.options, context.rendezvous.apart
    if not tf_config.is_single_process:
        context.preemption.joins()
        if context.strategy is not None:
            sessions.let_sigterm_end_this_process()
            refused = None if options.shared is not None else same_job.OF_PROGRAMS
            context.enter_stage("waiting for the other tasks")
            job, timeout = compared_job(context) or {}, options.startup_timeout
            same_job.agree(job, tf_config, refused=refused, apart=apart, timeout=timeout)
            _check_devices(context)
    if tf_config.is_asynchronous and not context.is_chief:
        step = follow_chief(context)
    else:
        if apart:
            fetch_start(context)
        # Before the workers agree: then the chief may write the checkpoint of step 0. In asynchronous training only the
        # chief initializes the variables.
        context = dataclasses.replace(context, warm_starts=_warm_starts(context))
        step = _agree_on_start(context)
    step = max(0, step)
    return dataclasses.replace(context, start_step=step, input_fn=at_step(context.input_fn, step))


def _warm_starts(context: TaskContext) -> bool:
    """Return whether the run starts with the values of a checkpoint of a different run; the chief checks its path."""
    section = context.options.warm_start_from
    if section is None:
        return False
    latest = compat.tensorflow().train.latest_checkpoint(context.model_dir)
    if latest is not None and context.is_chief:
        logger.info("Training resumes from %s and ignores run.warm_start_from (%s)", latest, section.path)
    return latest is None


def compared_job(context: TaskContext) -> dict[str, Any] | None:
    """Return the settings that all training tasks must share; None: a program's tasks, which are not compared."""
    shared, tf_config = context.options.shared, context.tf_config
    if shared is None and (tf_config.is_asynchronous or tf_config.is_single_process):
        return None
    if shared is None:
        shared = same_job.facts({"max_steps": context.max_steps}, same_job.versions(), context.settings)
    return same_job.of_task(context.identity(context.input_fn), shared)


def _check_devices(context: TaskContext) -> None:
    """Check that all workers have the same number of devices: otherwise a collective never completes."""
    counts = _exchange(context, "device count", len(context.strategy.extended.worker_devices))
    if len(set(counts.values())) > 1:
        raise ClusterError(
            "the workers have different numbers of devices; synchronous training would never finish a step",
            code="cluster/different-jobs",
            found=", ".join(f"{task}: {count}" for task, count in counts.items()),
            hint="give every worker the same number (CUDA_VISIBLE_DEVICES, num_devices, the scheduler's request)",
        )


def files_of_start(model_dir: str) -> dict[str, int]:
    """Return the files of the checkpoint to resume from: name -> size in bytes; empty without one. For the chief."""
    tf = compat.tensorflow()
    latest = tf.train.latest_checkpoint(model_dir)
    files = [] if latest is None else checkpoints.files_of(latest)
    return {os.path.basename(p): tf.io.gfile.stat(p).length for p in files if not p.endswith(".meta")}


def fetch_start(context: TaskContext) -> None:
    """Copy the chief's checkpoint to resume from to this task's folder, whose content is removed.

    For a task that does not see the chief's model directory. See `Rendezvous.wait` for errors.
    """
    tf, rendezvous, to = compat.tensorflow(), context.rendezvous, context.model_dir
    if tf.io.gfile.exists(to):
        tf.io.gfile.rmtree(to)
    tf.io.gfile.makedirs(to)
    status = rendezvous.wait(
        "the chief's checkpoint",
        lambda status: in_state(status, "running", "finished"),
        timeout=context.options.startup_timeout,
    )
    files = status.get("start", {})
    rendezvous.files.fetch(files, to=to)
    for name in files:
        if name.endswith(".index"):
            tf.compat.v1.train.update_checkpoint_state(to, os.path.join(to, name.removesuffix(".index")))


def latest_step(model_dir: str) -> int:
    """Return the step of the newest checkpoint, 0 without one."""
    latest = compat.tensorflow().train.latest_checkpoint(model_dir)
    return checkpoint_step(latest) if latest else 0


def _agree_on_start(context: TaskContext) -> int:
    """Return the step of the checkpoint that all workers resume from: the chief's, which the chief has verified.

    Without a coordination service (a single process, the chief of parameter servers) it is the latest one seen here.
    """
    model_dir, cluster = context.model_dir, context.tf_config.cluster
    step = _chiefs(context, "latest checkpoint", latest_step(model_dir))
    # A network file system may show recent changes by the chief with a delay.
    for _ in Deadline(AGREE_SECS).polls(POLL_SECS):
        local = latest_step(model_dir)
        if local == step:
            return step
    assert cluster is not None
    raise ClusterError(
        f"{context.task} and {cluster.chief} do not see the same checkpoints in {model_dir}",
        code="cluster/folder-not-shared",
        found=f"the latest here: step {local}; there: step {step}",
        hint="use a model_dir that all tasks share, by the same path; remove separate copies of a task",
    )


def optimizer_changes(context: TaskContext) -> dict[str, list[Any]]:
    """Return the chief's `identity.optimizer_changes` since the checkpoint, on all workers of synchronous training."""
    local = identity.optimizer_changes(context.model_dir, step=context.start_step)
    changes: dict[str, list[Any]] = _chiefs(context, "changes of the optimizer", local)
    return changes


def _chiefs(context: TaskContext, about: str, value: Any) -> Any:
    """Return the chief's value, which all workers exchange; this task's value without a coordination service."""
    cluster = context.tf_config.cluster
    return value if cluster is None else _exchange(context, about, value).get(str(cluster.chief), value)


def _exchange(context: TaskContext, about: str, value: Any) -> dict[str, Any]:
    return same_job.exchange(about, value, context.tf_config, timeout=context.options.startup_timeout)


def follow_chief(context: TaskContext) -> int:
    """Return the step at which a worker of a parameter-server job resumes: the chief's checkpoint, or a later one.

    Before the chief has checked them, the newest checkpoint may be a damaged one that it is about to set aside, or
    there may seem to be none if the state file is truncated.

    The wait (see `Rendezvous.wait`) also ends when this task is asked to stop.
    """

    def check(status: Mapping[str, Any] | None) -> int | None:
        running = in_state(status, "running", "finished")
        if running is None:
            return 0 if context.preemption.asked else None
        return int(running["from_step"])

    event, timeout = "the step at which the chief resumes training", context.options.startup_timeout
    step: int = context.rendezvous.wait(event, check, timeout=timeout)
    return max(step, latest_step(context.model_dir))
