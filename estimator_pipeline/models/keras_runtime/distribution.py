"""The cluster that a program of Keras trains on, where an Estimator's RunConfig knew it: workers, all at the same step.

    from estimator_pipeline.models.keras_runtime import distribution as keras_cluster

    config = keras_cluster.of_workers()
    strategy = config.strategy()
    files = files[config.global_id_in_cluster :: config.num_worker_replicas]
    ...
    keras_cluster.save_weights(model, "model/weights")

An Estimator also trained by parameter servers, each worker by itself and none waiting for another. `Model.fit` has no
counterpart: a cluster with parameter servers is refused, on each of its tasks.
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
    """What a RunConfig told of its cluster, by the same names.

    Args:
        tf_config: the cluster, and the part of this process.

    Raises:
        ClusterError: it has parameter servers, or this process is an evaluator.
    """

    tf_config: TFConfig

    def __post_init__(self) -> None:
        cluster, task = self.tf_config.cluster, self.tf_config.task
        if cluster is not None and cluster.num_ps:
            raise _asynchronous(cluster.jobs, str(task))
        if not self.tf_config.is_training_task:
            raise ClusterError(
                f"this task is {task}, and a program of Keras has none",
                code="training/unsupported",
                found=f"jobs: {', '.join(cluster.jobs) if cluster is not None else 'none'}",
                hint="start the workers alone: they evaluate while they train",
            )

    @property
    def num_worker_replicas(self) -> int:
        """How many tasks train; 1 without a cluster."""
        return self.tf_config.num_training_tasks

    @property
    def num_ps_replicas(self) -> int:
        """0: there are no parameter servers."""
        return 0

    @property
    def global_id_in_cluster(self) -> int:
        """This task's place among those that train, from 0."""
        return self.tf_config.rank

    @property
    def is_chief(self) -> bool:
        """Whether this task leads: it writes what one task alone writes."""
        return self.tf_config.is_chief

    @property
    def task_type(self) -> str:
        """chief or worker."""
        return self.tf_config.task.type

    @property
    def task_id(self) -> int:
        """This task's number among those of its type."""
        return self.tf_config.task.index

    def strategy(self) -> Any:
        """`MultiWorkerMirroredStrategy` where there are several workers, the default one where a process is alone.

        It has to be made before TensorFlow calculates anything.
        """
        if self.tf_config.is_single_process:
            return compat.tensorflow().distribute.get_strategy()
        return strategies.make("multi_worker_mirrored", tf_config=self.tf_config)


def of_workers(*, environ: Mapping[str, str] | None = None) -> Cluster:
    """Return the cluster of TF_CONFIG; one process without it.

    Args:
        environ: where TF_CONFIG is looked up; `os.environ` by default.

    Raises:
        ClusterError: there are parameter servers, this task is an evaluator, or TF_CONFIG cannot be read.
    """
    given = os.environ if environ is None else environ
    # Whatever else is wrong with such a cluster does not matter any more.
    with_servers = _with_servers(given.get("TF_CONFIG", ""))
    if with_servers is not None:
        raise _asynchronous(*with_servers)
    return Cluster(from_environ(given))


def save_weights(model: Any, path: str, *, environ: Mapping[str, str] | None = None) -> None:
    """`model.save_weights` where several workers may have the model: each has to call it, and one copy is kept.

    Args:
        model: of Keras.
        path: of the weights.
        environ: where TF_CONFIG is looked up; `os.environ` by default.
    """
    task = from_environ(os.environ if environ is None else environ)
    if task.is_chief:
        model.save_weights(path)
        return
    # What replicas have of their own is gathered from all of them; two that write the same files break them.
    folder = os.path.join(os.path.dirname(path), f"tmp_{task.task.type}_{task.task.index}")
    model.save_weights(os.path.join(folder, "weights"))
    compat.tensorflow().io.gfile.rmtree(folder)


def _with_servers(text: str) -> tuple[Mapping[str, Any], str] | None:
    """Return the jobs of a document that has parameter servers, and the task; None for others."""
    try:
        document = json.loads(text)
        jobs, task = document["cluster"], document.get("task") or {}
        if not jobs.get("ps"):
            return None
        return jobs, f"{task.get('type', 'unknown')}:{task.get('index', 0)}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # what cannot be read is said by those who read it


def _asynchronous(jobs: Mapping[str, Any], task: str) -> ClusterError:
    workers = sum(len(jobs.get(name) or ()) for name in ("chief", "master", "worker"))
    counts = ", ".join(f"{len(addresses)} {name}" for name, addresses in jobs.items())
    return ClusterError(
        "TF_CONFIG describes a cluster with parameter servers, and this program trains with Keras, which has none: "
        "workers that update the variables without waiting for each other have no counterpart",
        code="training/unsupported",
        found=f"{counts}; this task is {task}",
        hint="describe a cluster of the workers alone, without the job ps, and start no parameter servers. They train "
        f"synchronously then: a step is one of all of them, of {workers} batches at once, and counts once, so that "
        f"max_steps / {workers} of them read the same number of records. A learning rate that was found for single "
        f"batches is tried anew, up to {workers} times as high. Or run the program as it was, with its Estimator, by "
        "estimator-pipeline exec",
    )
