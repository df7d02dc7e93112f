"""From an allocation to a task: the one rule by which ranks become roles, and the ports that follow from a job's id.

**The rule.** Ranks are given out in this order: the chief, where the job has one; the workers; the parameter servers;
the evaluator. A job with `chief: true, workers: 2, ps: 1, evaluator: true` wants 5 tasks: rank 0 is chief:0, ranks 1
and 2 are worker:0 and worker:1, rank 3 is ps:0, rank 4 evaluator:0. Without a chief rank 0 is worker:0, which is the
chief then. There must be as many tasks as the job has, no more and no fewer.

**Derived ports.** A job's tasks cannot ask each other for ports before they have any, so each works out the same
ones: the base port follows from the job's id, and a task's port is the base plus the number of the job's earlier
tasks on its host. Ports are from :data:`FIRST_PORT` to :data:`LAST_PORT`, below what systems give to outgoing
connections (32768 and up on Linux) and below Kubernetes's node ports (30000 and up). Ids that are numbers, as most
schedulers have them, are spread in order: two jobs with up to 16 tasks on a host have different ports if their
numbers are less than 1250 apart, and their step and number of restarts the same. Other ids are hashed: two such jobs
meet by a chance of 1 in 1250. A step's number and the count of restarts shift the base too. Where the ports are taken
after all, the task says so; ESTIMATOR_PIPELINE_PORT_BASE gives another base (the same on every task), and agreed
ports (:mod:`~estimator_pipeline.cluster.port_agreement`) cannot be taken.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from estimator_pipeline.cluster.environments.base import Allocation
from estimator_pipeline.cluster.tasks import ClusterSpec, Task, TFConfig, listed
from estimator_pipeline.errors import ClusterError

__all__ = [
    "FIRST_PORT",
    "LAST_PORT",
    "PORT_BASE_VARIABLE",
    "ClusterShape",
    "derived_addresses",
    "hosts_of",
    "port_base",
    "roles",
    "task_of",
    "tasks_of",
]

FIRST_PORT, LAST_PORT = 10000, 29999
PORT_BASE_VARIABLE = "ESTIMATOR_PIPELINE_PORT_BASE"
_STRIDE = 16
_SLOTS = (LAST_PORT + 1 - FIRST_PORT) // _STRIDE


class ClusterShape(Protocol):
    """How many tasks of each kind a job has: a job file's `cluster`, or `launch.LaunchShape`."""

    @property
    def workers(self) -> int: ...
    @property
    def chief(self) -> bool: ...
    @property
    def ps(self) -> int: ...
    @property
    def evaluator(self) -> bool: ...


def tasks_of(shape: ClusterShape) -> tuple[Task, ...]:
    """The job's tasks in order of their ranks."""
    kinds = (("chief", int(shape.chief)), ("worker", shape.workers), ("ps", shape.ps), ("evaluator", shape.evaluator))
    return tuple(Task(kind, i) for kind, count in kinds for i in range(int(count)))


def task_of(allocation: Allocation, shape: ClusterShape) -> Task:
    """This process's task.

    Raises:
        ClusterError: The job has not as many tasks as the environment has started, or none of this role.
    """
    tasks = tasks_of(shape)
    source = allocation.environment
    if allocation.role is not None:
        own = Task(allocation.role, allocation.rank)
        if own not in tasks:
            raise ClusterError(
                f"{source}: this process is {own}, and the job has no such task.",
                code="cluster/unknown-task",
                found=f"the job's tasks: {listed(tasks)}",
                hint="start as many pods of each role as the job file's cluster section says, or change that section.",
            )
        return own
    size = len(tasks) if allocation.size is None else allocation.size
    if size != len(tasks) or allocation.rank >= size:
        started = f"this process has rank {allocation.rank}" if allocation.size is None else f"{_tasks(size)} started"
        one_host = size == 1 and len(tasks) > 1
        raise ClusterError(
            f"{source}: {started}, and the job has {_tasks(len(tasks))}.",
            code="cluster/unknown-task",
            found=f"the job's tasks: {listed(tasks)}",
            hint=f"start {len(tasks)} tasks (ranks are chief, workers, ps, evaluator, in this order), change the "
            "job file's cluster section to match (--set cluster.workers=N), "
            + ("use `estimator-pipeline launch` for several tasks on one host, " if one_host else "")
            + "or say --environment none to train alone in this process.",
        )
    return tasks[allocation.rank]


def roles(allocation: Allocation, shape: ClusterShape, addresses: Sequence[str] | None = None) -> TFConfig:
    """The cluster and this process's part in it.

    Args:
        allocation: What the environment says.
        shape: The job's cluster.
        addresses: "host:port" of each task, by rank; by default hosts from the allocation and derived ports.

    Raises:
        ClusterError: See :func:`task_of`; or the hosts are unknown and no addresses are given.
    """
    if allocation.tf_config is not None:
        return allocation.tf_config
    own, tasks = task_of(allocation, shape), tasks_of(shape)
    if len(tasks) == 1:
        return TFConfig(cluster=None, task=own)
    given = list(derived_addresses(allocation, shape) if addresses is None else addresses)
    jobs: dict[str, list[str]] = {}
    for task, address in zip(tasks, given, strict=True):
        jobs.setdefault(task.type, []).append(address)
    evaluator = jobs.pop("evaluator", [None])[0]
    return TFConfig(
        cluster=ClusterSpec({job: tuple(of_job) for job, of_job in jobs.items()}, evaluator),
        task=own,
        dialect="chief" if "chief" in jobs else "workers",
    )


def hosts_of(allocation: Allocation, shape: ClusterShape) -> tuple[str, ...] | None:
    """The host of each task of the job by rank, or None where the environment does not say."""
    tasks = tasks_of(shape)
    if allocation.host_pattern is not None:
        return tuple(
            allocation.host_pattern.format(role=task.type, index=task.index if allocation.role else rank)
            for rank, task in enumerate(tasks)
        )
    return allocation.hosts


def derived_addresses(
    allocation: Allocation, shape: ClusterShape, *, environ: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """The "host:port" of each task by rank, the same on every task.

    Raises:
        ClusterError: The hosts are unknown, or ESTIMATOR_PIPELINE_PORT_BASE is no port.
    """
    hosts = hosts_of(allocation, shape)
    if hosts is None:
        raise ClusterError(
            f"{allocation.environment}: ports cannot be derived, since no variable says on which host each rank is.",
            code="cluster/no-ports",
            found="; ".join(allocation.notes) or "ranks alone",
            hint="set cluster.ports: agreed (or auto), by which the tasks tell each other in a shared folder.",
        )
    most = max(Counter(hosts).values())
    base = _given_base(environ or {}, most) or port_base(allocation.job_id, most=most, restart=allocation.restart)
    seen: Counter[str] = Counter()
    addresses = []
    for host in hosts:
        addresses.append(f"[{host}]:{base + seen[host]}" if host.count(":") > 1 else f"{host}:{base + seen[host]}")
        seen[host] += 1
    return tuple(addresses)


def port_base(job_id: str, *, most: int, restart: int = 0) -> int:
    """The first of a job's ports.

    Args:
        job_id: See :class:`Allocation`. "123" and "123.4" (a step, or an element of an array) count as numbers.
        most: How many tasks the fullest host has.
        restart: How often the job has been started again.
    """
    number = re.fullmatch(r"([0-9]+)(?:\.([0-9]+))?", job_id)
    if number is not None:
        place = int(number[1]) + 389 * int(number[2] or 0)
    else:
        place = int.from_bytes(hashlib.sha256(job_id.encode()).digest()[:8], "big")
    slot = (place + 631 * restart) % _SLOTS
    room = LAST_PORT + 1 - FIRST_PORT - max(most, _STRIDE) + 1
    return FIRST_PORT + (slot * _STRIDE) % room


def _given_base(environ: Mapping[str, str], most: int) -> int | None:
    text = environ.get(PORT_BASE_VARIABLE, "").strip()
    if not text:
        return None
    if not text.isdigit() or not 1 <= int(text) <= 65536 - most:
        raise ClusterError(
            f"{PORT_BASE_VARIABLE}={text!r} cannot be the first of a job's ports.",
            code="environment/bad-value",
            found=f"{text!r}; allowed: 1 to {65536 - most}",
            hint=f"for example {PORT_BASE_VARIABLE}=12000, the same on every task, or leave it unset.",
        )
    return int(text)


def _tasks(number: int) -> str:
    return f"{number} task{'s'[: number != 1]}"
