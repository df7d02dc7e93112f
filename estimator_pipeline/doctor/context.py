"""The input of the checks: a job, an environment, this process's task in a cluster, and options."""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from estimator_pipeline.cluster import EVALUATOR, Detection, Task, TFConfig, detect, parse_tf_config
from estimator_pipeline.cluster.resolution import port_way
from estimator_pipeline.cluster.roles import derived_addresses, hosts_of, roles, task_of, tasks_of
from estimator_pipeline.doctor.findings import CheckSkipped
from estimator_pipeline.errors import ClusterError
from estimator_pipeline.job import Job

__all__ = ["Context", "JobPart"]

T = TypeVar("T")


@dataclass(frozen=True)
class JobPart:
    """This process's task in the cluster, as far as it is known before the job starts.

    Attributes:
        source: "TF_CONFIG", a file's name, "environment slurm", or "" where no source was found.
        detection: The detected environment; None where none was detected, or where a document was passed.
        tf_config: The cluster and this task; None where unknown, or where the tasks agree on it when they start.
        error: Why it could not be resolved.
        task: This process's task, if known.
        tasks: All of the job's tasks by rank, if known.
        hosts: The host of each task, if known.
        here: Whether this process is that task; False for a document that was passed explicitly.
        ports: "derived", "agreed", or "given".
    """

    source: str = ""
    detection: Detection | None = None
    tf_config: TFConfig | None = None
    error: ClusterError | None = None
    task: Task | None = None
    tasks: tuple[Task, ...] = ()
    hosts: tuple[str, ...] | None = None
    here: bool = True
    ports: str = "given"

    @property
    def addresses(self) -> dict[Task, str]:
        """The "host:port" of each task that has an address."""
        if self.tf_config is None or self.tf_config.cluster is None:
            return {}
        cluster = self.tf_config.cluster
        addresses = {task: cluster.address(task) for task in cluster.tasks}
        if cluster.evaluator is not None:
            addresses[EVALUATOR] = cluster.evaluator
        return addresses


@dataclass(frozen=True)
class Context:
    """What to examine, and how.

    Attributes:
        environ: The environment variables of this process.
        job: The job, if there is one.
        job_file: The file that the job was read from.
        document: The text of a TF_CONFIG that replaces the environment's.
        document_source: Where that text comes from, for messages.
        environment: The name of the scheduler; replaces detection.
        model_dir: Replaces the job's model directory.
        connect: Whether to connect to the ports of other tasks.
        deep: Whether TensorFlow may be imported, and the data be read.
        shared: Whether all tasks of the job run this and compare results in the model directory.
        timeout: Seconds for one name lookup, or for one connection.
        wait: Seconds to wait for the other tasks.
        hostname: This machine's host name.
        other_python: Whether the tasks use a different Python installation, as in a container.
        other_files: Whether the tasks see different files than this process, as in a cluster.
    """

    environ: Mapping[str, str] = field(default_factory=dict)
    job: Job | None = None
    job_file: str | None = None
    document: str | None = None
    document_source: str = "--tf-config"
    environment: str | None = None
    model_dir: str | None = None
    connect: bool = False
    deep: bool = False
    shared: bool = False
    timeout: float = 5.0
    wait: float = 60.0
    hostname: str = field(default_factory=socket.gethostname)
    other_python: bool = False
    other_files: bool = False
    _known: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def once(self, compute: Callable[[Context], T]) -> T:
        """Return or raise the result of `compute`, which is called only once for this context."""
        if compute not in self._known:
            try:
                self._known[compute] = compute(self), None
            except Exception as problem:  # the next check gets the same error
                self._known[compute] = None, problem
        result, raised = self._known[compute]
        if raised is not None:
            raise raised
        return cast("T", result)

    @functools.cached_property
    def part(self) -> JobPart:
        """This process's task; see `JobPart`.

        Raises:
            ConfigError: There is no environment called `environment`.
        """
        try:
            return self._part()
        except ClusterError as error:
            source = self.document_source if self.document is not None else "the environment"
            return JobPart(source=source, error=error)

    @property
    def directory(self) -> str:
        """The model directory.

        Raises:
            CheckSkipped: No model directory is known.
        """
        directory = self.model_dir or (self.job.run.model_dir if self.job is not None else None)
        if directory is None:
            raise CheckSkipped("no job file and no --model-dir")
        return directory

    @property
    def local_directory(self) -> str:
        """The model directory, which must be a local folder.

        Raises:
            CheckSkipped: The directory is remote or not known.
        """
        if "://" in self.directory:
            raise CheckSkipped(f"{self.directory} is not a local folder")
        return self.directory

    def needed_job(self) -> Job:
        """Return the job.

        Raises:
            CheckSkipped: There is no job.
        """
        if self.job is None:
            raise CheckSkipped("no job file")
        return self.job

    @property
    def num_training_tasks(self) -> int:
        """Number of training tasks, from the cluster, else from the job file."""
        if self.part.tf_config is not None and self.part.source:
            return self.part.tf_config.num_training_tasks
        return self.job.cluster.num_training_tasks if self.job is not None else 1

    @property
    def devices_per_task(self) -> int:
        """Replicas of each training task: from the job file, else the number of visible GPUs, else 1."""
        from estimator_pipeline.doctor.gpus import visible_gpus

        configured = self.job.run.devices_per_task if self.job is not None else None
        return configured or len(visible_gpus(self.environ)) or 1

    def _part(self) -> JobPart:
        if self.document is not None:
            config = parse_tf_config(self.document, source=self.document_source)
            return _of_config(config, source=self.document_source, here=False)
        detection = detect(self.environ, name=self.environment, hostname=self.hostname)
        if detection is None:
            return JobPart()
        allocation = detection.allocation
        named = detection.environment.name
        source = "TF_CONFIG" if named == "tf_config" else f"environment {named}"
        if allocation.tf_config is not None:
            return _of_config(allocation.tf_config, source=source, detection=detection)
        if self.job is None:
            return JobPart(source, detection, hosts=allocation.hosts, ports="")
        shape = self.job.cluster
        known: dict[str, Any] = {"source": source, "detection": detection, "hosts": hosts_of(allocation, shape)}
        try:
            known |= {"task": task_of(allocation, shape), "tasks": tasks_of(shape)}
            way = port_way(shape.ports, detection, shape)
            if len(known["tasks"]) == 1 or way == "derived":
                addresses = (
                    None if len(known["tasks"]) == 1 else derived_addresses(allocation, shape, environ=self.environ)
                )
                known["tf_config"] = roles(allocation, shape, addresses)
            return JobPart(**known, ports=way)
        except ClusterError as error:
            return JobPart(**known, error=error)


def _of_config(config: TFConfig, *, source: str, here: bool = True, detection: Detection | None = None) -> JobPart:
    tasks: tuple[Task, ...] = ()
    if config.cluster is not None:
        evaluates = config.cluster.evaluator is not None or config.is_evaluator
        tasks = (*config.cluster.tasks, *([EVALUATOR] if evaluates else []))
    return JobPart(source, detection, tf_config=config, task=config.task, tasks=tasks, here=here)
