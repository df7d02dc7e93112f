"""Before the first step: the model directory is this run's own, and all workers go on from the same checkpoint."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.cluster import TFConfig
from estimator_pipeline.cluster.peers import PeerWatch
from estimator_pipeline.compat.internals import coordination_service as coordination
from estimator_pipeline.engines.keras.checkpoints import write_dir
from estimator_pipeline.engines.lifecycle.rendezvous.chief_status import in_state
from estimator_pipeline.engines.lifecycle.rendezvous.rendezvous import POLL_SECS, Rendezvous
from estimator_pipeline.engines.model_dir import checkpoint_files, lock
from estimator_pipeline.engines.model_dir import checkpoint_recovery as checkpoints
from estimator_pipeline.engines.model_dir import disk_errors as disk
from estimator_pipeline.engines.model_dir import run_identity as identity
from estimator_pipeline.engines.model_dir.layout import checkpoint_step
from estimator_pipeline.engines.model_dir.run_identity import RunIdentity
from estimator_pipeline.errors import ClusterError, ConfigError, PipelineError
from estimator_pipeline.utils.logger import logger

__all__ = [
    "agree_on_start",
    "check_devices",
    "fetch_start",
    "files_of_start",
    "follow_chief",
    "latest_step",
    "meet",
    "optimizer_changes",
    "own_model_dir",
]

# How long a shared file system may take to show every task the same checkpoints.
AGREE_SECS = 60.0
# How often a task looks for the chief's first word, which the others wait for as well.
_MEET_SECS = 0.05


@contextlib.contextmanager
def own_model_dir(
    model_dir: str,
    *,
    rendezvous: Rendezvous,
    owner: str,
    made_of: Callable[[], RunIdentity],
    accept_changes: bool,
    on_failure: Callable[[BaseException], None],
    known: str = "",
    input_fn: Any = None,
) -> Iterator[int]:
    """In the block, the model directory is this run's; gives the step of its latest checkpoint, which is whole.

    For the task that writes the checkpoints.

    Args:
        model_dir: the model directory.
        rendezvous: of this run.
        owner: this task's name.
        made_of: what this run is made of.
        accept_changes: whether it may go on from a run that was made of other things.
        on_failure: told why the run cannot begin, for the tasks that wait for it. Where another job trains there, the
            rendezvous is.
        known: the path of a checkpoint that an attempt before this one has told; "" for none.
        input_fn: of training, which goes on under the shard policy that the run began under.

    Raises:
        ConfigError: another job trains there, or this run is another one than the checkpoint's; or there is no
            checkpoint, and there was one for an attempt before.
        TaskFailedError: there are checkpoints, and none of them is whole; the disk is full, or cannot be written.
    """
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(lock.hold(model_dir, owner=owner, run_id=rendezvous.run_id))
        except PipelineError as error:
            # Not as a failure of training: that word is the other job's, whose tasks would read it.
            with contextlib.suppress(OSError, compat.tensorflow().errors.OpError):
                rendezvous.publish_refusal(str(error)[:2000])
            raise
        try:
            diverged = (rendezvous.read_any("training.json") or {}).get("status") == "diverged"
            with disk.explaining(model_dir):
                latest = checkpoints.rescue(model_dir, finite=diverged)
            step = max(0, checkpoint_step(latest)) if latest else 0
            if latest is None and known:
                _refuse_to_begin_anew(model_dir, known)
            if _follow(input_fn, identity.policy_of(model_dir) if step else None):
                logger.info("Training goes on with shard_policy file, by which this run began (auto is data today)")
            # Reads the data: what is wrong with those is not the model directory's fault.
            made = made_of()
            with disk.explaining(model_dir):
                identity.check(model_dir, made, step=step, accept=accept_changes)
        except Exception as error:
            on_failure(error)
            raise
        yield step


def _follow(input_fn: Any, policy: str | None) -> bool:
    """Lets the policy "auto" be the one that the run began under; whether it is."""
    follow = getattr(input_fn, "follow", None)
    return follow is not None and follow(policy)


def _refuse_to_begin_anew(model_dir: str, known: str) -> None:
    """Nobody who is started again by itself may train from step 0 what has been trained."""
    if os.path.dirname(os.path.abspath(known)) != os.path.abspath(model_dir):
        return  # of another training of the same program
    raise ConfigError(
        f"the checkpoints of {model_dir} are gone: training had written {os.path.basename(known)}, and there is none",
        code="model-dir/damaged",
        found="an empty folder, or one that is not mounted" if os.path.isdir(model_dir) else "no such folder",
        hint="bring the folder back (a file system that is not mounted, a folder that was moved) and start the job "
        "again; where it is to begin at step 0, start it again as it is",
    )


def meet(
    rendezvous: Rendezvous, model_dir: str, input_fn: Any = None, *, asked: Callable[[], bool], timeout: float
) -> str:
    """Until the chief has answered this task, by files or at its server. For a worker.

    Args:
        rendezvous: of this run, which this task attends.
        model_dir: this task's.
        input_fn: of training, which goes on under the shard policy that the run began under.
        asked: whether this task is asked to end; then it waits no longer.
        timeout: seconds for the chief's server to appear.

    Returns:
        Where this task trains: `model_dir`; where that is not the chief's, a folder in it that is removed in the end.

    Raises:
        TaskFailedError, PreemptedError, WaitError: see :meth:`Rendezvous.wait`.
    """
    cluster = rendezvous.tf_config.cluster
    assert cluster is not None
    watch = PeerWatch(cluster.chief, cluster.address(cluster.chief), startup=timeout)

    def look(said: Mapping[str, Any] | None) -> Any:
        return in_state(said, "running", "finished") or asked() or None

    rendezvous.wait("the chief's first word", look, timeout=float("inf"), watch=watch, poll=_MEET_SECS)
    _follow(input_fn, (rendezvous.training() or {}).get("policy"))
    if not rendezvous.apart:
        return model_dir
    logger.warning(
        "%s: %s is not the model_dir of %s. Training goes on from the chief's checkpoint, and what the tasks tell each "
        "other goes through the chief's TensorFlow server",
        *(rendezvous.tf_config.task, model_dir, cluster.chief),
    )
    return write_dir(model_dir, rendezvous.tf_config)


def files_of_start(model_dir: str) -> dict[str, int]:
    """The files of the checkpoint that training goes on from: name -> bytes; empty without one. For the chief."""
    tf = compat.tensorflow()
    latest = tf.train.latest_checkpoint(model_dir)
    found = [] if latest is None else checkpoint_files.files_of(latest)
    return {os.path.basename(p): tf.io.gfile.stat(p).length for p in found if not p.endswith(".meta")}


def fetch_start(rendezvous: Rendezvous, to: str, *, timeout: float) -> None:
    """Copies the checkpoint that training goes on from into a folder, for a task that does not see the chief's.

    Args:
        rendezvous: of this run.
        to: the folder; what is in it goes.
        timeout: seconds for the chief to say which one it is.

    Raises:
        TaskFailedError, PreemptedError, WaitError: see :meth:`Rendezvous.wait`.
    """
    tf = compat.tensorflow()
    if tf.io.gfile.exists(to):
        tf.io.gfile.rmtree(to)
    tf.io.gfile.makedirs(to)
    said = rendezvous.wait(
        "the chief's checkpoint", lambda said: in_state(said, "running", "finished"), timeout=timeout
    )
    files = said.get("start", {})
    rendezvous.files.fetch(files, to=to)
    for name in files:
        if name.endswith(".index"):
            tf.compat.v1.train.update_checkpoint_state(to, os.path.join(to, name.removesuffix(".index")))


def latest_step(model_dir: str) -> int:
    """The step of the newest checkpoint, 0 without one."""
    latest = compat.tensorflow().train.latest_checkpoint(model_dir)
    return checkpoint_step(latest) if latest else 0


def agree_on_start(model_dir: str, tf_config: TFConfig, *, timeout: float) -> int:
    """The step of the checkpoint that all workers go on from: the chief's, who has seen that it is whole.

    Where there is no coordination service (a single process, the chief of parameter servers) it is the latest that is
    seen here.

    Raises:
        ClusterError: this task sees another one than the chief.
        WaitError: a task did not say what it sees in time.
    """
    own = latest_step(model_dir)
    cluster = tf_config.cluster
    if cluster is None:
        return own
    tasks = [str(task) for task in cluster.training_tasks]
    told = coordination.exchange("latest checkpoint", str(own), own=str(tf_config.task), tasks=tasks, timeout=timeout)
    if told is None:
        return own
    step = int(told[str(cluster.chief)])
    # A network file system may show what the chief has just tidied up a moment later.
    deadline = time.monotonic() + AGREE_SECS
    while (own := latest_step(model_dir)) != step and time.monotonic() < deadline:
        time.sleep(POLL_SECS)
    if own != step:
        raise ClusterError(
            f"{tf_config.task} and {cluster.chief} do not see the same checkpoints in {model_dir}",
            code="cluster/folder-not-shared",
            found=f"the latest here: step {own}; there: step {step}",
            hint="give a model_dir that all tasks share, by the same path; clear copies that a task has of its own",
        )
    return step


def optimizer_changes(model_dir: str, tf_config: TFConfig, *, step: int, timeout: float) -> dict[str, list[Any]]:
    """:func:`identity.optimizer_changes`, as the chief sees them; for all workers of synchronous training.

    Raises:
        WaitError: a task did not say what it sees in time.
    """
    own, cluster = identity.optimizer_changes(model_dir, step=step), tf_config.cluster
    if cluster is None:
        return own
    tasks = [str(task) for task in cluster.training_tasks]
    told = coordination.exchange(
        "changes of the optimizer", json.dumps(own), own=str(tf_config.task), tasks=tasks, timeout=timeout
    )
    return own if told is None else json.loads(told[str(cluster.chief)])


def follow_chief(rendezvous: Rendezvous, model_dir: str, *, asked: Callable[[], bool], timeout: float) -> int:
    """The step at which a worker of a parameter-server job goes on: that of the chief's checkpoint, or a later one.

    Before the chief has looked, the newest checkpoint may be a damaged one that it is about to set aside, and where the
    state file is torn there seems to be none.

    Args:
        rendezvous: of this run.
        model_dir: the model directory.
        asked: whether this task is asked to end; then the chief is not waited for.
        timeout: seconds for the chief to say where it goes on.

    Raises:
        TaskFailedError: the chief cannot begin; PreemptedError: it is asked to end.
        WaitError: it has not said so in time.
    """

    def look(said: Mapping[str, Any] | None) -> int | None:
        running = in_state(said, "running", "finished")
        if running is None:
            return 0 if asked() else None
        return int(running["from_step"])

    step: int = rendezvous.wait("the chief's word on where training goes on", look, timeout=timeout)
    return max(step, latest_step(model_dir))


def check_devices(strategy: Any, tf_config: TFConfig, *, timeout: float) -> None:
    """All workers must have the same number of devices: a collective with another count never completes.

    Raises:
        ClusterError: they have not.
        WaitError: a task did not say how many it has in time.
    """
    assert tf_config.cluster is not None
    own = len(strategy.extended.worker_devices)
    tasks = [str(task) for task in tf_config.cluster.training_tasks]
    counts = coordination.exchange("device count", str(own), own=str(tf_config.task), tasks=tasks, timeout=timeout)
    if counts is not None and len(set(counts.values())) > 1:
        raise ClusterError(
            "the workers have different numbers of devices; synchronous training would never finish a step",
            code="cluster/different-jobs",
            found=", ".join(f"{task}: {count}" for task, count in counts.items()),
            hint="give every worker the same number (CUDA_VISIBLE_DEVICES, num_devices, the scheduler's request)",
        )
