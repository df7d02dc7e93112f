"""Tasks, clusters and TF_CONFIG documents in one form for all dialects.

Read by `estimator_pipeline.cluster.parsing`; use all of it from `estimator_pipeline.cluster.spec`.
Imports no TensorFlow.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from estimator_pipeline.cluster.addresses import check_address, check_distinct, check_loopback, read_addresses
from estimator_pipeline.errors import ClusterError
from estimator_pipeline.utils.text import nearest

__all__ = [
    "DIALECTS",
    "EVALUATOR",
    "TASK_TYPES",
    "ClusterSpec",
    "TFConfig",
    "Task",
    "check_cluster",
    "check_dialect",
    "listed",
    "reject_unknown",
]

TASK_TYPES = ("chief", "worker", "ps", "evaluator")
"""The canonical task types. `master` is read as `chief`."""

DIALECTS = ("canonical", "master", "evaluator_in_cluster")
"""The dialects that a document can be written in; see `TFConfig.to_dict`."""

_JOBS = ("chief", "worker", "ps")
_ALLOWED_JOBS = "allowed: chief (or master), worker, ps, evaluator"


class _Frozen(Mapping[str, Any]):
    """A mapping that cannot be changed, and that, unlike MappingProxyType, can be pickled and copied."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, Any]) -> None:
        self._items = dict(items)

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return repr(self._items)

    def __hash__(self) -> int:
        return hash(json.dumps(self._items, sort_keys=True, default=str))

    def __reduce__(self):
        return (_Frozen, (self._items,))


@dataclasses.dataclass(frozen=True)
class Task:
    """One process of a cluster.

    Args:
        type: "chief", "worker", "ps" or "evaluator"; "master" is taken for "chief".
        index: Its place among the tasks of its type, from 0.

    Raises:
        ClusterError: An unknown type, or an index that is not a whole number from 0 on.
    """

    type: str
    index: int = 0

    def __post_init__(self) -> None:
        if self.type == "master":
            object.__setattr__(self, "type", "chief")
        if self.type not in TASK_TYPES:
            reject_unknown(self.type, noun="task type", source="a task")
        if isinstance(self.index, bool) or not isinstance(self.index, int) or self.index < 0:
            raise ClusterError(
                f"a task: the index {self.index!r} of the task type {self.type!r} cannot be one.",
                code="argument/bad-value",
                found=f"{self.index!r}; allowed: a whole number from 0 on",
                hint="number the tasks of each type from 0.",
            )

    def __str__(self) -> str:
        return f"{self.type}:{self.index}"


EVALUATOR = Task("evaluator")
"""The task that evaluates checkpoints. A job has one at most."""


@dataclasses.dataclass(frozen=True)
class ClusterSpec:
    """The addresses of every task of a job; the same on all of its tasks.

    Args:
        jobs: From "chief", "worker" and "ps" to addresses ("host:port"), in order of the task index. A job
            that has no task is left out.
        evaluator: The evaluator's address, where the document named one.

    Raises:
        ClusterError: The addresses cannot work as a cluster; see the message.
    """

    jobs: Mapping[str, tuple[str, ...]]
    evaluator: str | None = None

    def __post_init__(self) -> None:
        source = "a cluster"
        for name in self.jobs:
            if name not in _JOBS:
                reject_unknown(name, noun="job", source=source)
        jobs = {name: read_addresses(self.jobs[name], job=name, source=source) for name in _JOBS if name in self.jobs}
        evaluator = None
        if self.evaluator is not None:
            evaluator = check_address(self.evaluator, where=f"{source}: evaluator:0")
        check_cluster(jobs, evaluator=evaluator, source=source)
        object.__setattr__(self, "jobs", _Frozen(jobs))
        object.__setattr__(self, "evaluator", evaluator)

    @property
    def chief(self) -> Task:
        """The task that writes checkpoints: chief:0 where there is a chief job, else worker:0."""
        return Task("chief") if "chief" in self.jobs else Task("worker")

    @property
    def training_tasks(self) -> tuple[Task, ...]:
        """The tasks that compute gradients, in order of their rank: the chief, then the workers."""
        return self._tasks_of("chief") + self._tasks_of("worker")

    @property
    def num_training_tasks(self) -> int:
        """How many tasks compute gradients; the number of input pipelines."""
        return len(self.training_tasks)

    @property
    def num_ps(self) -> int:
        """How many parameter servers there are."""
        return len(self.jobs.get("ps", ()))

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Every task but the evaluator: the chief, the workers, the parameter servers."""
        return self.training_tasks + self._tasks_of("ps")

    def address(self, task: Task) -> str:
        """Return the "host:port" of a task.

        Raises:
            ClusterError: The cluster has no such task, or no address for the evaluator.
        """
        addresses = self.jobs.get(task.type, ())
        if task.type == "evaluator" and self.evaluator is not None:
            addresses = (self.evaluator,)
        if task.index >= len(addresses):
            raise ClusterError(
                f"the cluster has no address for {task}.",
                code="cluster/unknown-task",
                found=f"the tasks {listed(self.tasks)}" + (" and evaluator:0" if self.evaluator else ""),
                hint="ask for one of these, or name the task's address in the cluster.",
            )
        return addresses[task.index]

    def rank(self, task: Task) -> int:
        """Return a training task's position among the training tasks; its `input_pipeline_id`.

        Raises:
            ClusterError: The task does not train (ps, evaluator), or is not in the cluster.
        """
        if task not in self.training_tasks:
            raise _no_rank(task, self.training_tasks)
        return self.training_tasks.index(task)

    def as_dict(self, *, with_evaluator: bool = False) -> dict[str, list[str]]:
        """Return the jobs as plain lists: chief, worker, ps, and the evaluator where asked for and known."""
        plain = {name: list(addresses) for name, addresses in self.jobs.items()}
        if with_evaluator and self.evaluator is not None:
            plain["evaluator"] = [self.evaluator]
        return plain

    def fingerprint(self) -> str:
        """Twelve characters that are the same on every task of one cluster, and differ between clusters.

        The evaluator's address is left out: some launchers show it to the evaluator alone.
        """
        return hashlib.sha256(json.dumps(self.as_dict(), sort_keys=True).encode()).hexdigest()[:12]

    def _tasks_of(self, job: str) -> tuple[Task, ...]:
        return tuple(Task(job, i) for i in range(len(self.jobs.get(job, ()))))


@dataclasses.dataclass(frozen=True)
class TFConfig:
    """A TF_CONFIG document in one form for all dialects.

    Args:
        cluster: The cluster, or None for a single process.
        task: The part of this process. A single process without one is worker:0.
        environment: The document's "environment" ("cloud", "google", ...), or None where it has none.
        rpc_layer: The transport between the tasks.
        dialect: How the document named its chief: "chief", "master", "workers" (no chief job: worker:0 is the
            chief) or "none" (no cluster).
        evaluator_in_cluster: Whether the document had the evaluator's address inside its cluster.
        extra: Top-level keys without a meaning here ("job", "trial", "model_dir", "service", ...), kept.
        task_extra: The same for keys inside "task" ("cloud", "trial").
    """

    cluster: ClusterSpec | None
    task: Task
    environment: str | None = None
    rpc_layer: str = "grpc"
    dialect: str = "none"
    evaluator_in_cluster: bool = False
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    task_extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "extra", _Frozen(self.extra))
        object.__setattr__(self, "task_extra", _Frozen(self.task_extra))

    @property
    def is_chief(self) -> bool:
        """Whether this task writes the checkpoints."""
        if self.cluster is None:
            return self.is_training_task
        return self.task == self.cluster.chief

    @property
    def is_evaluator(self) -> bool:
        """Whether this task only evaluates checkpoints."""
        return self.task.type == "evaluator"

    @property
    def is_ps(self) -> bool:
        """Whether this task only holds variables."""
        return self.task.type == "ps"

    @property
    def is_training_task(self) -> bool:
        """Whether this task computes gradients."""
        return self.task.type in ("chief", "worker")

    @property
    def is_single_process(self) -> bool:
        """Whether one process trains: no cluster, or one with a single training task and no ps."""
        return self.cluster is None or (self.num_training_tasks == 1 and self.cluster.num_ps == 0)

    @property
    def num_training_tasks(self) -> int:
        """How many tasks compute gradients; 1 without a cluster."""
        return 1 if self.cluster is None else self.cluster.num_training_tasks

    @property
    def training_tasks(self) -> tuple[Task, ...]:
        """The tasks that compute gradients, the chief first; worker:0 without a cluster."""
        return (Task("worker"),) if self.cluster is None else self.cluster.training_tasks

    @property
    def is_asynchronous(self) -> bool:
        """Whether the training tasks step on their own, with parameter servers."""
        return self.cluster is not None and self.cluster.num_ps > 0

    @property
    def rank(self) -> int:
        """This task's position among the training tasks; its `input_pipeline_id`.

        Raises:
            ClusterError: This task is a ps or an evaluator, and has none.
        """
        if self.cluster is not None:
            return self.cluster.rank(self.task)
        if not self.is_training_task:
            raise _no_rank(self.task, ())
        return 0

    def to_dict(self, dialect: str = "canonical") -> dict[str, Any]:
        """Return the document for this task.

        Args:
            dialect: "canonical" (a chief is called chief, the evaluator is not in the cluster), "master" (the
                chief is called master) or "evaluator_in_cluster".

        Returns:
            A new dict that `json.dumps` takes. An empty one means a single process.

        Raises:
            ClusterError: The dialect is unknown, or cannot express this task or cluster.
        """
        check_dialect(dialect)
        document: dict[str, Any] = {}
        task = {"type": self.task.type, "index": self.task.index}
        if self.cluster is not None:
            document["cluster"] = self._cluster_in(dialect)
            if dialect == "master" and self.task.type == "chief":
                task["type"] = "master"
        # A process without a cluster is worker:0 by default.
        if self.cluster is not None or self.task != Task("worker") or self.task_extra:
            document["task"] = {**task, **self.task_extra}
        if self.environment is not None:
            document["environment"] = self.environment
        if self.rpc_layer != "grpc":
            document["rpc_layer"] = self.rpc_layer
        return {**document, **self.extra}

    def to_json(self, dialect: str = "canonical") -> str:
        """`to_dict` as the text of the environment variable."""
        return json.dumps(self.to_dict(dialect))

    def _cluster_in(self, dialect: str) -> dict[str, list[str]]:
        assert self.cluster is not None
        if dialect == "evaluator_in_cluster":
            if self.cluster.evaluator is None:
                raise ClusterError(
                    "the dialect 'evaluator_in_cluster' needs an evaluator's address; the cluster has none.",
                    code="cluster/bad-tf-config",
                    found=f"the tasks {listed(self.cluster.tasks)}",
                    hint="name the evaluator's address, or write the canonical dialect.",
                )
            return self.cluster.as_dict(with_evaluator=True)
        jobs = self.cluster.as_dict()
        if dialect == "canonical":
            return jobs
        if "chief" not in jobs:
            raise ClusterError(
                "the dialect 'master' needs a chief, and the cluster has no chief job.",
                code="cluster/bad-tf-config",
                found=f"the tasks {listed(self.cluster.tasks)}",
                hint="give the cluster a chief, or write the canonical dialect.",
            )
        if self.is_evaluator:
            raise ClusterError(
                "the dialect 'master' has no evaluator task: the master evaluates.",
                code="cluster/bad-tf-config",
                found="the task evaluator:0",
                hint="leave the evaluator out, or write the canonical dialect.",
            )
        return {"master" if name == "chief" else name: addresses for name, addresses in jobs.items()}


def _no_rank(task: Task, training_tasks: Sequence[Task]) -> ClusterError:
    return ClusterError(
        f"{task} has no rank: it is not a training task of this cluster.",
        code="cluster/unknown-task",
        found=f"the training tasks {listed(training_tasks) or 'of no cluster'}",
        hint="ask on a chief or worker only; a ps reads no data, an evaluator all of the evaluation data.",
    )


def check_cluster(jobs: Mapping[str, tuple[str, ...]], *, evaluator: str | None, source: str) -> None:
    """Check the jobs together, after each job has been checked."""
    if len(jobs.get("chief", ())) > 1:
        raise ClusterError(
            f"{source}: the cluster has {len(jobs['chief'])} tasks of the job 'chief'.",
            code="cluster/bad-tf-config",
            found=f"{list(jobs['chief'])}; allowed: one",
            hint="keep one chief; the others are workers.",
        )
    if "chief" not in jobs and "worker" not in jobs:
        only = " and ".join([*jobs, *(["evaluator"] if evaluator else [])]) or "nothing"
        raise ClusterError(
            f"{source}: the cluster has no task that trains.",
            code="cluster/bad-tf-config",
            found=f"only {only}; allowed: a chief, workers, or both, beside them",
            hint='add "worker": ["host:port", ...] or "chief": ["host:port"].',
        )
    check_distinct({**jobs, **({"evaluator": (evaluator,)} if evaluator else {})}, source=source)
    check_loopback(jobs, source=source)


def check_dialect(dialect: str) -> None:
    """Refuses a dialect that no document can be written in."""
    if dialect not in DIALECTS:
        close = nearest(dialect, DIALECTS)
        raise ClusterError(
            f"unknown dialect {dialect!r} of TF_CONFIG.",
            code="argument/unknown-name",
            found=f"{dialect!r}; allowed: {', '.join(DIALECTS)}",
            hint=f"did you mean {close!r}?" if close else "write the canonical dialect.",
        )


def reject_unknown(name: object, *, noun: str, source: str) -> NoReturn:
    """Raise the error for an unknown job or task type, with the closest known name."""
    close = nearest(name, (*TASK_TYPES, "master"))
    raise ClusterError(
        f"{source}: unknown {noun} {name!r}.",
        code="cluster/bad-tf-config",
        found=f"{name!r}; {_ALLOWED_JOBS}",
        hint=f"did you mean {close!r}?" if close else f"use one of the allowed names for the {noun}.",
    )


def listed(tasks: Sequence[Task]) -> str:
    """Format tasks as "chief:0, worker:0 to worker:3, ps:0"."""
    counts: dict[str, int] = {}
    for task in tasks:
        counts[task.type] = counts.get(task.type, 0) + 1
    return ", ".join(f"{kind}:0" if n == 1 else f"{kind}:0 to {kind}:{n - 1}" for kind, n in counts.items())
