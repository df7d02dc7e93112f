"""Tasks, clusters and TF_CONFIG: the one place of the product that reads or writes such a document.

TF_CONFIG is a JSON object in an environment variable. Three dialects of it are in use, and all are read:

* `chief` / `worker` / `ps`, the evaluator left out of `cluster` (TensorFlow 1.4 and later; Kubeflow);
* `master` in the chief's place (before 1.4, Cloud ML Engine, SageMaker);
* the evaluator's address inside `cluster` (TonY, hand-written documents).

Where a cluster has no `chief` job, `worker:0` is the chief. What is written again is the first dialect,
unless another is asked for. The evaluator is never a part of `ClusterSpec.jobs`: it trains nothing, and
a strategy that is given its address waits for it for ever.

The environment is an argument everywhere; nothing here reads `os.environ`. Imports no TensorFlow.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from estimator_pipeline.cluster.parsing import parse_tf_config
from estimator_pipeline.cluster.tasks import DIALECTS, EVALUATOR, TASK_TYPES, ClusterSpec, Task, TFConfig, check_dialect
from estimator_pipeline.errors import ClusterError

__all__ = [
    "DIALECTS",
    "EVALUATOR",
    "TASK_TYPES",
    "ClusterSpec",
    "TFConfig",
    "Task",
    "build_tf_config",
    "from_environ",
    "local_cluster",
    "num_workers",
    "own_index",
    "parse_tf_config",
]


def from_environ(environ: Mapping[str, str]) -> TFConfig:
    """Read the variable TF_CONFIG of an environment; without one, the process is alone.

    Raises:
        ClusterError: See `parse_tf_config`.
    """
    return _parsed(environ.get("TF_CONFIG", ""))


@functools.lru_cache(maxsize=16)
def _parsed(text: str) -> TFConfig:
    # The same text is read at several edges of a process, such as a program's RunConfig and its training.
    return parse_tf_config(text)


def num_workers(environ: Mapping[str, str] | None = None) -> int:
    """How many tasks share the training data: the chief and the workers; 1 without TF_CONFIG.

    Args:
        environ: where TF_CONFIG is read; `os.environ` by default.

    Raises:
        ClusterError: See `parse_tf_config`.
    """
    return from_environ(os.environ if environ is None else environ).num_training_tasks


def own_index(environ: Mapping[str, str] | None = None) -> int:
    """Which share of the training data is this task's, from 0; 0 without TF_CONFIG.

    With a `chief` job the chief has 0 and worker i has i + 1, so that every task has its own. This is not the
    same as the document's task index.

    Args:
        environ: where TF_CONFIG is read; `os.environ` by default.

    Raises:
        ClusterError: This task is a ps or an evaluator, which have no share; or see `parse_tf_config`.
    """
    return from_environ(os.environ if environ is None else environ).rank


def build_tf_config(
    task_index: int,
    num_workers: int,
    *,
    chief_index: int = 0,
    hosts: Sequence[str] | None = None,
    port: int = 2222,
    task_type: str = "worker",
) -> dict[str, Any]:
    """Write the TF_CONFIG of one machine out of `num_workers` that train together.

    Args:
        task_index: Which of the machines this is, from 0. 0 for the evaluator.
        num_workers: How many machines train.
        chief_index: Which of the machines is the chief. Where it is not 0, that machine becomes the job
            `chief` and the others are the workers, since worker:0 is the chief otherwise.
        hosts: One host name or "host:port" a machine; by default worker0, worker1, ....
        port: The port for hosts that name none.
        task_type: "worker", or "evaluator" for a further process that evaluates the checkpoints.

    Returns:
        The document; `json.dumps` of it is the variable's text.

    Raises:
        ClusterError: An index out of range, or hosts and ports that cannot work.
    """
    source = "build_tf_config"
    if task_type not in ("worker", "evaluator"):
        raise ClusterError(
            f"{source}: task_type is {task_type!r}.",
            code="argument/bad-value",
            found=f"{task_type!r}; allowed: 'worker', 'evaluator'",
            hint="choose the chief by chief_index; a cluster with parameter servers is written with "
            "local_cluster, or by hand.",
        )
    _check_range(num_workers, name="num_workers", low=1, high=None, source=source)
    _check_range(chief_index, name="chief_index", low=0, high=num_workers, source=source)
    _check_range(
        task_index,
        name="task_index",
        low=0,
        high=1 if task_type == "evaluator" else num_workers,
        source=source,
    )
    names = [f"worker{i}" for i in range(num_workers)] if hosts is None else list(hosts)
    if isinstance(hosts, str) or len(names) != num_workers:
        raise ClusterError(
            f"{source}: hosts is {hosts!r}, which does not name {num_workers} machines.",
            code="argument/bad-value",
            found=f"{1 if isinstance(hosts, str) else len(names)} of {num_workers} hosts",
            hint='give a list with one host name or "host:port" for each machine.',
        )
    addresses = [name if re.search(r":\d+$", str(name)) else f"{name}:{port}" for name in names]
    workers = addresses[:]
    jobs: dict[str, Any] = {}
    if chief_index:
        jobs["chief"] = [workers.pop(chief_index)]
    jobs["worker"] = workers
    if task_type == "evaluator":
        task = {"type": "evaluator", "index": 0}
    elif chief_index and task_index == chief_index:
        task = {"type": "chief", "index": 0}
    else:
        task = {
            "type": "worker",
            "index": task_index - (1 if chief_index and task_index > chief_index else 0),
        }
    return parse_tf_config({"cluster": jobs, "task": task}, source=source).to_dict()


def local_cluster(
    *,
    workers: int,
    ports: Sequence[int],
    chief: bool = False,
    ps: int = 0,
    evaluator: bool = False,
    dialect: str = "canonical",
    host: str = "localhost",
) -> dict[Task, dict[str, Any]]:
    """Write the TF_CONFIG of every task of a cluster on one machine.

    Args:
        workers: How many `worker` tasks; the chief is not one of them.
        ports: Free ports, one a task in the order chief, workers, ps, evaluator; further ones are not used.
        chief: Whether there is a `chief` task. Otherwise worker:0 is the chief.
        ps: How many parameter servers.
        evaluator: Whether there is an evaluator.
        dialect: See `TFConfig.to_dict`.
        host: The host of every task.

    Returns:
        From each task, in the same order, to its document.

    Raises:
        ClusterError: Too few ports, or a cluster that the dialect has no words for.
    """
    source = "local_cluster"
    check_dialect(dialect)
    _check_range(workers, name="workers", low=0 if chief else 1, high=None, source=source)
    _check_range(ps, name="ps", low=0, high=None, source=source)
    needed = workers + bool(chief) + ps + bool(evaluator)
    if len(ports) < needed:
        raise ClusterError(
            f"{source}: {needed} tasks need {needed} ports.",
            code="argument/bad-value",
            found=f"{len(ports)} ports: {list(ports)}",
            hint="reserve one free port for each task.",
        )
    left = iter(f"{host}:{port}" for port in ports)
    counts = {"chief": int(bool(chief)), "worker": workers, "ps": ps}
    jobs = {name: tuple(next(left) for _ in range(count)) for name, count in counts.items() if count}
    if evaluator and dialect == "master":
        raise ClusterError(
            f"{source}: the dialect 'master' has no evaluator task: the master evaluates.",
            code="cluster/bad-tf-config",
            found="evaluator=True",
            hint="leave the evaluator out, or use the canonical dialect.",
        )
    cluster = ClusterSpec(jobs, next(left) if evaluator and dialect == "evaluator_in_cluster" else None)
    tasks = cluster.tasks + ((EVALUATOR,) if evaluator else ())
    return {task: TFConfig(cluster=cluster, task=task).to_dict(dialect) for task in tasks}


def _check_range(value: int, *, name: str, low: int, high: int | None, source: str) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or value < low or (high is not None and value >= high):
        allowed = (
            f"a whole number from {low} on" if high is None else f"{low} to {high - 1}" if high > low + 1 else f"{low}"
        )
        raise ClusterError(
            f"{source}: {name} is {value!r}.",
            code="argument/bad-value",
            found=f"{value!r}; allowed: {allowed}",
            hint=f"give {name} as a whole number in that range.",
        )
