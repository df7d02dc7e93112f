"""The synchronous worker cluster of a Keras program, with the cluster fields of an Estimator's RunConfig.

    from estimator_pipeline.models.keras_runtime import distribution as keras_cluster

    config = keras_cluster.of_workers()
    strategy = config.strategy()
    files = files[config.global_id_in_cluster :: config.num_worker_replicas]
    ...
    keras_cluster.save_weights(model, "model/weights")

An Estimator can also train asynchronously with parameter servers. `Model.fit` has no counterpart: a cluster with
parameter servers is rejected on each of its tasks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.cluster import TFConfig, from_environ
from estimator_pipeline.distribute import strategies
from estimator_pipeline.errors import ClusterError

__all__ = ["Cluster", "of_workers", "save_weights"]


@dataclass(frozen=True)
class Cluster:
    """The cluster properties of a RunConfig, with the same names.

    Args:
        tf_config: The cluster, and the task of this process.

    Raises:
        ClusterError: The cluster has parameter servers, or this process is an evaluator.
    """

    tf_config: TFConfig

    def __post_init__(self) -> None:
        cluster, task = self.tf_config.cluster, self.tf_config.task
        if cluster is not None and cluster.num_ps:
            raise _asynchronous(cluster.jobs, str(task))
        if not self.tf_config.is_training_task:
            raise ClusterError(
                f"this task is {task}, and a Keras program has no such task",
                code="training/unsupported",
                found=f"jobs: {', '.join(cluster.jobs) if cluster is not None else 'none'}",
                hint="start only the workers: they evaluate while they train",
            )

    @property
    def num_worker_replicas(self) -> int:
        """The number of training tasks; 1 without a cluster."""
        return self.tf_config.num_training_tasks

    @property
    def num_ps_replicas(self) -> int:
        """The number of parameter servers: 0."""
        return 0

    @property
    def global_id_in_cluster(self) -> int:
        """This task's index among the training tasks, from 0."""
        return self.tf_config.rank

    @property
    def is_chief(self) -> bool:
        """Whether this task is the chief, which writes checkpoints and exports."""
        return self.tf_config.is_chief

    @property
    def task_type(self) -> str:
        """The type of this task, chief or worker."""
        return self.tf_config.task.type

    @property
    def task_id(self) -> int:
        """This task's index among the tasks of its type."""
        return self.tf_config.task.index

    def strategy(self) -> Any:
        """Create a `MultiWorkerMirroredStrategy`, or return the default strategy in a single process.

        Call it before TensorFlow runs any operation.
        """
        if self.tf_config.is_single_process:
            return compat.tensorflow().distribute.get_strategy()
        return strategies.make("multi_worker_mirrored", tf_config=self.tf_config)


def of_workers(*, environ: Mapping[str, str] | None = None) -> Cluster:
    """Return the cluster of TF_CONFIG; a single process without TF_CONFIG.

    Args:
        environ: The mapping with TF_CONFIG; `os.environ` by default.

    Raises:
        ClusterError: There are parameter servers, this task is an evaluator, or TF_CONFIG is invalid.
    """
    environ = os.environ if environ is None else environ
    # Checked first: other errors of such a cluster do not matter.
    with_servers = _with_servers(environ.get("TF_CONFIG", ""))
    if with_servers is not None:
        raise _asynchronous(*with_servers)
    return Cluster(from_environ(environ))


def save_weights(model: Any, path: str, *, environ: Mapping[str, str] | None = None) -> None:
    """Save a model's weights from all workers and keep only the chief's copy. Every worker must call it.

    Args:
        model: A Keras model.
        path: The path of the weights.
        environ: The mapping with TF_CONFIG; `os.environ` by default.
    """
    task = from_environ(os.environ if environ is None else environ)
    if task.is_chief:
        model.save_weights(path)
        return
    # Per-replica values are gathered from all replicas, and two workers must not write the same files.
    folder = os.path.join(os.path.dirname(path), f"tmp_{task.task.type}_{task.task.index}")
    model.save_weights(os.path.join(folder, "weights"))
    compat.tensorflow().io.gfile.rmtree(folder)


def _with_servers(text: str) -> tuple[Mapping[str, Any], str] | None:
    """Return the jobs and the task of a TF_CONFIG with parameter servers; None for any other."""
    try:
        document = json.loads(text)
        jobs, task = document["cluster"], document.get("task") or {}
        if not jobs.get("ps"):
            return None
        return jobs, f"{task.get('type', 'unknown')}:{task.get('index', 0)}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # from_environ reports an invalid TF_CONFIG


def _asynchronous(jobs: Mapping[str, Any], task: str) -> ClusterError:
    workers = sum(len(jobs.get(name) or ()) for name in ("chief", "master", "worker"))
    counts = ", ".join(f"{len(addresses)} {name}" for name, addresses in jobs.items())
    return ClusterError(
        "TF_CONFIG describes a cluster with parameter servers, and this program trains with Keras, which does not "
        "support asynchronous updates",
        code="training/unsupported",
        found=f"{counts}; this task is {task}",
        hint="describe a cluster with only the workers, without the job ps, and start no parameter servers. Training "
        f"is then synchronous: one step processes {workers} batches, one on each worker, so max_steps / {workers} "
        f"steps read the same number of records. Tune the learning rate again, up to {workers} times as high. Or run "
        "the original Estimator program with estimator-pipeline exec",
    )
