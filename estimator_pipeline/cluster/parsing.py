"""The parser of TF_CONFIG documents: text to `TFConfig`, or an error with a hint.

Use it from `estimator_pipeline.cluster.spec`. Imports no TensorFlow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from estimator_pipeline.cluster.addresses import read_addresses
from estimator_pipeline.cluster.tasks import (
    TASK_TYPES,
    ClusterSpec,
    Task,
    TFConfig,
    check_cluster,
    listed,
    reject_unknown,
)
from estimator_pipeline.errors import ClusterError
from estimator_pipeline.utils.text import nearest

__all__ = ["parse_tf_config"]

_TOP_LEVEL = ("cluster", "task", "environment", "rpc_layer")


def parse_tf_config(text_or_mapping: str | Mapping[str, Any], *, source: str = "TF_CONFIG") -> TFConfig:
    """Parse a TF_CONFIG document of any dialect.

    Args:
        text_or_mapping: The JSON text, or the decoded document. Empty text, whitespace and `{}` mean a single
            process.
        source: The origin, as the prefix of messages.

    Returns:
        The document in one form for all dialects.

    Raises:
        ClusterError: The document is invalid. The message has the value, the allowed values and a hint.
    """
    document = _decode(text_or_mapping, source=source)
    for key in document:
        _check_top_level(key, source=source)
    cluster, dialect = _read_cluster(document.get("cluster"), source=source)
    task, task_extra = _read_task(document.get("task"), cluster, source=source)
    rpc_layer, environment = _read_rest(document, source=source)
    return TFConfig(
        cluster=cluster,
        task=task,
        environment=environment,
        rpc_layer=rpc_layer,
        dialect=dialect,
        evaluator_in_cluster=cluster is not None and cluster.evaluator is not None,
        extra={key: value for key, value in document.items() if key not in _TOP_LEVEL},
        task_extra=task_extra,
    )


def _read_rest(document: Mapping[str, Any], *, source: str) -> tuple[str, str | None]:
    """Return the transport and the environment's name."""
    rpc_layer = document.get("rpc_layer") or "grpc"
    if not isinstance(rpc_layer, str):
        raise ClusterError(
            f"{source}: rpc_layer is {rpc_layer!r}, which is not text.",
            code="cluster/bad-tf-config",
            found=f"a value of type {type(rpc_layer).__name__}; allowed: the name of a transport",
            hint="leave rpc_layer out.",
        )
    environment = document.get("environment")
    if environment is not None and not isinstance(environment, str):
        raise ClusterError(
            f"{source}: environment is {environment!r}, which is not text.",
            code="cluster/bad-tf-config",
            found=f'a value of type {type(environment).__name__}; allowed: text, such as "cloud", or none',
            hint="leave environment out.",
        )
    return rpc_layer, environment


def _decode(text_or_mapping: str | Mapping[str, Any], *, source: str) -> Mapping[str, Any]:
    document: Any = text_or_mapping
    if isinstance(text_or_mapping, str):
        text = text_or_mapping.strip()
        if not text:
            return {}
        try:
            document = json.loads(text, object_pairs_hook=lambda pairs: _without_twins(pairs, source=source))
        except json.JSONDecodeError as error:
            near = text[max(0, error.pos - 20) : error.pos + 20]
            quotes = "JSON wants double quotes; " if "'" in near else ""
            raise ClusterError(
                f"{source} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}.",
                code="cluster/bad-tf-config",
                found=f"near there: {near!r}",
                hint=f"{quotes}write it with json.dumps, or check it with `python -m json.tool`.",
            ) from None
    if not isinstance(document, Mapping):
        raise ClusterError(
            f"{source} is not a JSON object, but {document!r}.",
            code="cluster/bad-tf-config",
            found=f"a value of type {type(document).__name__}",
            hint='write {"cluster": {...}, "task": {"type": ..., "index": ...}}.',
        )
    return document


def _without_twins(pairs: list[tuple[str, Any]], *, source: str) -> dict[str, Any]:
    """Reject duplicate keys: Python's parser silently keeps the last one and would lose a part of the cluster."""
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ClusterError(
                f"{source} has the key {key!r} twice in one object.",
                code="cluster/bad-tf-config",
                found=f"{result[key]!r} and {value!r}",
                hint="put both into one list, or leave one out.",
            )
        result[key] = value
    return result


def _check_top_level(key: str, *, source: str) -> None:
    """Reject misspelt keys: without `cluster` or `task` the process would train alone. Other keys are kept."""
    if key in _TOP_LEVEL:
        return
    if str(key).lower().replace("_", "") == "sparsecluster":
        raise ClusterError(
            f"{source}: a sparse cluster ({key!r}) names only some of the tasks and is not supported.",
            code="cluster/bad-tf-config",
            found=f'the key {key!r}; allowed: "cluster" with every task',
            hint="turn the launcher's dynamic workers off (Kubeflow: enableDynamicWorker: false).",
        )
    close = nearest(key, ("cluster", "task"))
    if close and abs(len(str(key)) - len(close)) <= 1:
        raise ClusterError(
            f"{source}: unknown key {key!r}.",
            code="cluster/bad-tf-config",
            found=f"{key!r}; allowed: cluster, task, environment, rpc_layer, and a service's own keys",
            hint=f"did you mean {close!r}? Without it, this task would train alone.",
        )


def _read_cluster(value: Any, *, source: str) -> tuple[ClusterSpec | None, str]:
    if value is None or value == {}:
        return None, "none"
    if not isinstance(value, Mapping):
        raise ClusterError(
            f"{source}: cluster is {value!r}, which is not an object.",
            code="cluster/bad-tf-config",
            found=f"a value of type {type(value).__name__}; allowed: an object, job to addresses",
            hint='write "cluster": {"worker": ["host:port", ...]}.',
        )
    for name in value:
        if name not in (*TASK_TYPES, "master"):
            reject_unknown(name, noun="job", source=source)
    if "chief" in value and "master" in value:
        raise ClusterError(
            f"{source}: the cluster has a chief and a master, which are two names for one task.",
            code="cluster/bad-tf-config",
            found=f"chief {value['chief']!r} and master {value['master']!r}",
            hint="keep chief, and leave master out.",
        )
    jobs = {name: read_addresses(addresses, job=name, source=source) for name, addresses in value.items()}
    for single in ("chief", "master", "evaluator"):
        if len(jobs.get(single, ())) > 1:
            raise ClusterError(
                f"{source}: the cluster has {len(jobs[single])} tasks of the job {single!r}.",
                code="cluster/bad-tf-config",
                found=f"{list(jobs[single])}; allowed: one",
                hint=f"keep one {single}" + ("." if single == "evaluator" else "; the others are workers."),
            )
    dialect = "master" if "master" in jobs else "chief" if "chief" in jobs else "workers"
    evaluator = jobs.pop("evaluator", (None,))[0]
    jobs = {"chief" if name == "master" else name: addresses for name, addresses in jobs.items()}
    check_cluster(jobs, evaluator=evaluator, source=source)
    return ClusterSpec(jobs, evaluator), dialect


def _read_task(value: Any, cluster: ClusterSpec | None, *, source: str) -> tuple[Task, dict[str, Any]]:
    if value is not None and not isinstance(value, Mapping):
        raise ClusterError(
            f"{source}: task is {value!r}, which is not an object.",
            code="cluster/bad-tf-config",
            found=f"a value of type {type(value).__name__}",
            hint='write "task": {"type": "worker", "index": 0}.',
        )
    fields = dict(value or {})
    extra = {key: item for key, item in fields.items() if key not in ("type", "index")}
    named = fields.get("type")
    if named is None:
        return _unnamed_task(fields, cluster, source=source), extra
    if named not in (*TASK_TYPES, "master"):
        reject_unknown(named, noun="task type", source=source)
    kind = "chief" if named == "master" else named
    if cluster is None:
        if kind == "ps":
            raise ClusterError(
                f"{source}: the task is a ps, and there is no cluster.",
                code="cluster/bad-tf-config",
                found="a task of type 'ps' without \"cluster\"; allowed: chief, worker, evaluator",
                hint="name the cluster's addresses, or leave TF_CONFIG out to train in one process.",
            )
        count = 1
    else:
        # The evaluator need not be in the cluster; there is always one.
        count = 1 if kind == "evaluator" else len(cluster.jobs.get(kind, ()))
    if count == 0:
        raise ClusterError(
            f"{source}: the task type {named!r} is not a job of the cluster.",
            code="cluster/bad-tf-config",
            found=f"a cluster of {listed(cluster.tasks) if cluster else 'no tasks'}",
            hint="correct the task's type, or add its addresses to the cluster.",
        )
    index = _read_index(fields.get("index"), named, count=count, source=source)
    return Task(kind, index), extra


def _unnamed_task(fields: Mapping[str, Any], cluster: ClusterSpec | None, *, source: str) -> Task:
    """Return the task of a document without a type, which is unambiguous only for a single process."""
    alone = cluster is None or (len(cluster.tasks) == 1 and cluster.evaluator is None)
    if not alone:
        assert cluster is not None
        known = f"the task {dict(fields)!r}" if fields else "no task"
        raise ClusterError(
            f"{source}: the task has no type." if fields else f"{source}: there is a cluster, but no task.",
            code="cluster/bad-tf-config",
            found=f"{known}, in a cluster of {listed(cluster.tasks)}",
            hint='name the task of this process: "task": {"type": "worker", "index": 0}.',
        )
    task = Task("worker") if cluster is None else cluster.chief
    _read_index(fields.get("index"), task.type, count=1, source=source)
    return task


def _read_index(value: Any, kind: str, *, count: int, source: str) -> int:
    if value is None and count == 1:
        return 0
    # Programs that build the document from shell variables write the index as text.
    text = value.strip() if isinstance(value, str) else value
    if isinstance(text, str) and re.fullmatch(r"[+-]?[0-9]+", text):
        text = int(text)
    allowed = "allowed: 0" if count == 1 else f"allowed: 0 to {count - 1}"
    if isinstance(text, bool) or not isinstance(text, int):
        raise ClusterError(
            f"{source}: the task has no index."
            if value is None
            else f"{source}: the task index {value!r} is not a whole number.",
            code="cluster/bad-tf-config",
            found=f"a task of type {kind!r}; {allowed}",
            hint=f'write "task": {{"type": "{kind}", "index": 0}}, with this task\'s own index.',
        )
    if not 0 <= text < count and kind in ("chief", "master", "evaluator"):
        raise ClusterError(
            f"{source}: the task index {text} is out of range for the task type {kind!r}.",
            code="cluster/unknown-task",
            found=f"there is one {kind}; {allowed}",
            hint=f"give the {kind} the index 0, and let no second one start.",
        )
    if not 0 <= text < count:
        many = f"the cluster has {count} of this type" if count > 1 else "there is one task of this type"
        raise ClusterError(
            f"{source}: the task index {text} is out of range for the task type {kind!r}.",
            code="cluster/unknown-task",
            found=f"{many}; {allowed}",
            hint="number the tasks of each type from 0, or add the missing addresses to the cluster.",
        )
    return text
