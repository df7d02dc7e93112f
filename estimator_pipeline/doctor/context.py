"""What the checks look at: a job, an environment, this process's part in a cluster, and how far they may go."""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from estimator_pipeline.cluster import EVALUATOR, Detection, Task, TFConfig, detect, parse_tf_config
from estimator_pipeline.cluster.resolution import port_way
from estimator_pipeline.cluster.roles import derived_addresses, hosts_of, roles, task_of, tasks_of
from estimator_pipeline.doctor.findings import NotLookedAt
from estimator_pipeline.errors import ClusterError
from estimator_pipeline.job import Job

__all__ = ["Context", "JobPart"]

T = TypeVar("T")


@dataclass(frozen=True)
class JobPart:
    """This process's part, as far as it can be told before the job starts.

    Attributes:
        source: where it comes from: "TF_CONFIG", a file's name, "environment slurm", or "" where there is nothing.
        detection: which environment speaks; None where none does, or where a document was given.
        tf_config: the part; None where it is not known, or only with what the tasks agree upon at their start.
        error: why it cannot be told.
        task: this process's task, where that is known.
        tasks: all of the job's tasks by rank, where they are known.
        hosts: the host of each of them, where that is known.
        here: whether this process is that task; not so for a document that was given by hand.
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
        """ "host:port" of each task that has one."""
        if self.tf_config is None or self.tf_config.cluster is None:
            return {}
        cluster = self.tf_config.cluster
        found = {task: cluster.address(task) for task in cluster.tasks}
        if cluster.evaluator is not None:
            found[EVALUATOR] = cluster.evaluator
        return found


@dataclass(frozen=True)
class Context:
    """What is examined.

    Attributes:
        environ: the variables of this process.
        job: the job, where there is one.
        job_file: the file that it was read from.
        document: the text of a TF_CONFIG that stands in the place of the environment's own.
        document_source: where that text comes from.
        environment: the name of the scheduler to ask, in the place of the one that is found.
        model_dir: in the place of the job's.
        connect: whether the ports of other tasks are tried.
        deep: whether TensorFlow may be imported, and the data and the latest checkpoint be read.
        shared: whether the job's tasks, each of them running this, meet in the model directory.
        timeout: seconds for one name to be resolved, or for one connection.
        wait: seconds for the other tasks to come.
        hostname: what this machine calls itself.
        other_python: whether the tasks run in another Python than this one, as in a container.
        other_files: whether they see other files than this process, as in a cluster.
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

    def once(self, look: Callable[[Context], T]) -> T:
        """What `look` gives for this context, or raises: several checks may ask, and it looks once."""
        if look not in self._known:
            try:
                self._known[look] = look(self), None
            except Exception as problem:  # whatever it is, the next check is told the same
                self._known[look] = None, problem
        found, raised = self._known[look]
        if raised is not None:
            raise raised
        return cast("T", found)

    @functools.cached_property
    def part(self) -> JobPart:
        """See :class:`JobPart`.

        Raises:
            ConfigError: `environment` is no name of one.
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
            NotLookedAt: None is known.
        """
        found = self.model_dir or (self.job.run.model_dir if self.job is not None else None)
        if found is None:
            raise NotLookedAt("no job file and no --model-dir")
        return found

    @property
    def local_directory(self) -> str:
        """The model directory, where it is a folder of this machine.

        Raises:
            NotLookedAt: It is none, or not known.
        """
        if "://" in self.directory:
            raise NotLookedAt(f"{self.directory} is no folder of this machine")
        return self.directory

    def needed_job(self) -> Job:
        """The job.

        Raises:
            NotLookedAt: There is none.
        """
        if self.job is None:
            raise NotLookedAt("no job file")
        return self.job

    @property
    def num_training_tasks(self) -> int:
        """How many tasks train: as the cluster says, else the job file."""
        if self.part.tf_config is not None and self.part.source:
            return self.part.tf_config.num_training_tasks
        return self.job.cluster.num_training_tasks if self.job is not None else 1

    @property
    def devices_per_task(self) -> int:
        """How many replicas each training task has: as the job file says, else the GPUs that are seen, else one."""
        from estimator_pipeline.doctor.gpus import visible_gpus

        said = self.job.run.devices_per_task if self.job is not None else None
        return said or len(visible_gpus(self.environ)) or 1

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
