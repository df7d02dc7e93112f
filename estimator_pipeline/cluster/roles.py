"""Conversion of an allocation to a task: roles from ranks, and ports from a job's id.

Roles: ranks are assigned in this order: the chief, if the job has one; the workers; the parameter servers; the
evaluator. A job with `chief: true, workers: 2, ps: 1, evaluator: true` needs 5 tasks: rank 0 is chief:0, ranks 1
and 2 are worker:0 and worker:1, rank 3 is ps:0, rank 4 is evaluator:0. Without a chief rank 0 is worker:0, which is
then the chief. The number of started tasks must equal the number of the job's tasks.

Derived ports: a job's tasks cannot exchange ports before they have any, so each task computes the same ports. The base
port follows from the job id, and a task's port is the base plus the number of the job's earlier tasks on its host.
Ports are from `FIRST_PORT` to `LAST_PORT`, below the ephemeral ports (32768 and up on Linux) and
Kubernetes's node ports (30000 and up). Numeric ids, which most schedulers use, are spread in order: two jobs with up to
16 tasks on a host have different ports if their ids differ by less than 1250, and their step and number of restarts
are the same. Other ids are hashed: two such jobs collide with a probability of 1 in 1250. The step and the number of
restarts also shift the base. If a port is taken, the task reports it; ESTIMATOR_PIPELINE_PORT_BASE sets a different
base (the same on every task), and agreed ports (`port_agreement`) cannot be taken.
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
    """The number of tasks of each type: a job file's `cluster`, or `launch.LaunchShape`."""

    @property
    def workers(self) -> int: ...
    @property
    def chief(self) -> bool: ...
    @property
    def ps(self) -> int: ...
    @property
    def evaluator(self) -> bool: ...


def tasks_of(shape: ClusterShape) -> tuple[Task, ...]:
    """Return the job's tasks in the order of their ranks."""
    kinds = (("chief", int(shape.chief)), ("worker", shape.workers), ("ps", shape.ps), ("evaluator", shape.evaluator))
    return tuple(Task(kind, i) for kind, count in kinds for i in range(int(count)))


def task_of(allocation: Allocation, shape: ClusterShape) -> Task:
    """Return this process's task.

    Raises:
        ClusterError: The number of started tasks differs from the job's, or the job has no task of this role.
    """
    tasks = tasks_of(shape)
    source = allocation.environment
    if allocation.role is not None:
        task = Task(allocation.role, allocation.rank)
        if task not in tasks:
            raise ClusterError(
                f"{source}: this process is {task}, and the job has no such task.",
                code="cluster/unknown-task",
                found=f"the job's tasks: {listed(tasks)}",
                hint="start as many pods of each role as in the job file's section cluster, or change that section.",
            )
        return task
    size = len(tasks) if allocation.size is None else allocation.size
    if size != len(tasks) or allocation.rank >= size:
        started = f"this process has rank {allocation.rank}" if allocation.size is None else f"{_tasks(size)} started"
        one_host = size == 1 and len(tasks) > 1
        raise ClusterError(
            f"{source}: {started}, but the job has {_tasks(len(tasks))}.",
            code="cluster/unknown-task",
            found=f"the job's tasks: {listed(tasks)}",
            hint=f"start {len(tasks)} tasks (ranks are chief, workers, ps, evaluator, in this order), change the "
            "job file's cluster section to match (--set cluster.workers=N), "
            + ("use `estimator-pipeline launch` for several tasks on one host, " if one_host else "")
            + "or set --environment none to train in this process only.",
        )
    return tasks[allocation.rank]


def roles(allocation: Allocation, shape: ClusterShape, addresses: Sequence[str] | None = None) -> TFConfig:
    """Return the cluster and this process's task.

    Args:
        allocation: The allocation.
        shape: The job's cluster.
        addresses: "host:port" of each task, by rank; defaults to the allocation's hosts and derived ports.

    Raises:
        ClusterError: See `task_of`; or the hosts are unknown and `addresses` is not set.
    """
    if allocation.tf_config is not None:
        return allocation.tf_config
    this_task, tasks = task_of(allocation, shape), tasks_of(shape)
    if len(tasks) == 1:
        return TFConfig(cluster=None, task=this_task)
    by_rank = list(derived_addresses(allocation, shape) if addresses is None else addresses)
    jobs: dict[str, list[str]] = {}
    for task, address in zip(tasks, by_rank, strict=True):
        jobs.setdefault(task.type, []).append(address)
    evaluator = jobs.pop("evaluator", [None])[0]
    return TFConfig(
        cluster=ClusterSpec({job: tuple(of_job) for job, of_job in jobs.items()}, evaluator),
        task=this_task,
        dialect="chief" if "chief" in jobs else "workers",
    )


def hosts_of(allocation: Allocation, shape: ClusterShape) -> tuple[str, ...] | None:
    """Return the host of each task by rank, or None if unknown."""
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
    """Return the "host:port" of each task by rank, the same on every task.

    Raises:
        ClusterError: The hosts are unknown, or ESTIMATOR_PIPELINE_PORT_BASE is not a port.
    """
    hosts = hosts_of(allocation, shape)
    if hosts is None:
        raise ClusterError(
            f"{allocation.environment}: ports cannot be derived, because no variable has the host of each rank.",
            code="cluster/no-ports",
            found="; ".join(allocation.notes) or "only ranks",
            hint="set cluster.ports: agreed (or auto), so that the tasks publish their ports in a shared folder.",
        )
    most = max(Counter(hosts).values())
    base = _explicit_base(environ or {}, most) or port_base(allocation.job_id, most=most, restart=allocation.restart)
    seen: Counter[str] = Counter()
    addresses = []
    for host in hosts:
        addresses.append(f"[{host}]:{base + seen[host]}" if host.count(":") > 1 else f"{host}:{base + seen[host]}")
        seen[host] += 1
    return tuple(addresses)


def port_base(job_id: str, *, most: int, restart: int = 0) -> int:
    """Return the first of a job's ports.

    Args:
        job_id: See `Allocation`. "123" and "123.4" (a step, or an element of an array) count as numbers.
        most: The largest number of tasks on a host.
        restart: The number of restarts of the job.
    """
    number = re.fullmatch(r"([0-9]+)(?:\.([0-9]+))?", job_id)
    if number is not None:
        place = int(number[1]) + 389 * int(number[2] or 0)
    else:
        place = int.from_bytes(hashlib.sha256(job_id.encode()).digest()[:8], "big")
    slot = (place + 631 * restart) % _SLOTS
    room = LAST_PORT + 1 - FIRST_PORT - max(most, _STRIDE) + 1
    return FIRST_PORT + (slot * _STRIDE) % room


def _explicit_base(environ: Mapping[str, str], most: int) -> int | None:
    text = environ.get(PORT_BASE_VARIABLE, "").strip()
    if not text:
        return None
    if not text.isdigit() or not 1 <= int(text) <= 65536 - most:
        raise ClusterError(
            f"{PORT_BASE_VARIABLE}={text!r} cannot be the first of a job's ports.",
            code="environment/bad-value",
            found=f"{text!r}; allowed: 1 to {65536 - most}",
            hint=f"set for example {PORT_BASE_VARIABLE}=12000, the same on every task, or leave it unset.",
        )
    return int(text)


def _tasks(number: int) -> str:
    return f"{number} task{'s'[: number != 1]}"
