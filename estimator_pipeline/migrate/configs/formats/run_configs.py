"""`tf.estimator.RunConfig` and `tf.contrib.learn.RunConfig`: JSON, a dict, or the line in an Estimator's log.

Fields: https://www.tensorflow.org/versions/r1.15/api_docs/python/tf/estimator/RunConfig, and of tf.contrib.learn
https://github.com/tensorflow/docs/blob/r1.4/site/en/api_docs/api_docs/python/tf/contrib/learn/RunConfig.md
"""

from __future__ import annotations

import ast
import re
from typing import Any

from estimator_pipeline.migrate.configs.documents import Document, Item, Path
from estimator_pipeline.migrate.configs.findings import JobDraft
from estimator_pipeline.migrate.configs.formats.hyperparameters import put_strategy
from estimator_pipeline.migrate.configs.python_reprs import Opaque, parse_proto

__all__ = ["NAMES", "convert"]

TAKEN: dict[str, tuple[str, str]] = {
    "model_dir": ("run.model_dir", ""),
    "tf_random_seed": ("run.seed", "for variables and dropout; input.seed is for the order of examples"),
    "save_summary_steps": ("run.save_summary_steps", "steps"),
    "save_checkpoints_steps": ("run.save_checkpoints_steps", "steps"),
    "save_checkpoints_secs": ("run.save_checkpoints_secs", "seconds"),
    "keep_checkpoint_max": ("run.keep_checkpoint_max", ""),
    "keep_checkpoint_every_n_hours": ("run.keep_checkpoint_every_n_hours", "hours"),
    "log_step_count_steps": ("run.log_step_count_steps", "steps"),
    "session_creation_timeout_secs": ("run.session_creation_timeout_secs", "seconds"),
    "checkpoint_save_graph_def": ("run.checkpoint_save_graph_def", ""),
    "experimental_max_worker_delay_secs": ("run.max_worker_delay_secs", "seconds"),
    "protocol": ("run.protocol", ""),
}
DROPPED = {
    "service": "never a public option",
    "task_type": "each task gets its role from TF_CONFIG or its scheduler",
    "task_id": "each task gets its role from TF_CONFIG or its scheduler",
    "task": "each task gets its role from TF_CONFIG or its scheduler",
    "job_name": "each task gets its role from TF_CONFIG or its scheduler",
    "global_id_in_cluster": "follows from the task",
    "is_chief": "follows from the task",
    "master": "the address of this task's server, from TF_CONFIG",
    "evaluation_master": "the evaluator is a separate task: cluster.evaluator",
    "environment": "local, cloud or google: a job file runs in each of them",
    "distribute_coordinator_mode": "the engine chooses it",
}
CLUSTER = ("cluster_spec", "num_worker_replicas", "num_ps_replicas")
STRATEGY = ("train_distribute", "eval_distribute", "experimental_distribute")
SESSION = ("session_config", "tf_config", "gpu_memory_fraction", "log_device_placement", "num_cores")
NAMES = frozenset({*TAKEN, *DROPPED, *CLUSTER, *STRATEGY, *SESSION, "device_fn", "tpu_config", "cluster"})
_CLASSES = {
    "MirroredStrategy": "mirrored",
    "CollectiveAllReduceStrategy": "multi_worker_mirrored",
    "MultiWorkerMirroredStrategy": "multi_worker_mirrored",
    "ParameterServerStrategy": "parameter_server",
    "OneDeviceStrategy": "one_device",
}


def convert(draft: JobDraft) -> None:
    """Convert each field of a RunConfig."""
    document = draft.document
    fields = {_bare(str(item.path[-1])): item for item in document.items()}
    _cluster(draft, fields)
    for name in STRATEGY:
        if name in fields:
            _strategy(draft, name, fields[name])
    put_strategy(draft)
    for name, item in fields.items():
        if name in TAKEN:
            _take(draft, name, item)
        elif name in DROPPED:
            draft.drop(item, DROPPED[name])
        elif name in SESSION:
            _session(draft, name, item)
        elif name == "device_fn" and item.value is not None:
            draft.decide(item, "a job file has no device function; call tf.device in the model_fn")
        elif name in ("tpu_config", "cluster") and item.value is not None:
            draft.decide(item, "TPUs are not supported")
        elif name not in CLUSTER and name not in STRATEGY and item.value is None:
            draft.drop(item, "not set")


def _bare(name: str) -> str:
    return name.lstrip("_")


def _take(draft: JobDraft, name: str, item: Item) -> None:
    to, why = TAKEN[name]
    path: Path = tuple(to.split("."))
    if name == "model_dir":
        if item.value and re.search(r"(^|[/\\])tmp\w{6,10}$", str(item.value)):
            draft.decide(item, "a temporary directory, because the program set none", path)
            draft.need(path, "the program set none")
        elif item.value:
            draft.take(item, path, str(item.value))
        else:
            draft.drop(item, "not set")
    elif item.value is None and name in ("keep_checkpoint_max", "log_step_count_steps"):
        words = "keep all checkpoints" if name == "keep_checkpoint_max" else "steps are not logged"
        draft.take(item, path, why=words)
    elif item.value is None and name == "save_summary_steps":
        draft.decide(
            item, "no summaries were written; a job file cannot disable them: set a large number of steps", path
        )
    elif item.value is None:
        draft.drop(item, "not set")
    else:
        draft.take(item, path, why=why)


# Cluster ---------------------------------------------------------------------------------------------------------


def _cluster(draft: JobDraft, fields: dict[str, Item]) -> None:
    spec = _spec(fields["cluster_spec"].value) if "cluster_spec" in fields else None
    workers, ps = fields.get("num_worker_replicas"), fields.get("num_ps_replicas")
    if spec:
        item = fields["cluster_spec"]
        chief = next((name for name in ("chief", "master") if name in spec), None)
        draft.take(item, ("cluster", "workers"), len(spec.get("worker", ())), why="addresses come from the scheduler")
        if chief:
            draft.take(item, ("cluster", "chief"), True, why=f"the job {chief!r}")
        if spec.get("ps"):
            draft.take(item, ("cluster", "ps"), len(spec["ps"]))
        if spec.get("evaluator"):
            draft.take(item, ("cluster", "evaluator"), True)
        for other in (workers, ps):
            if other is not None:
                draft.drop(other, "counted from cluster_spec")
        return
    if "cluster_spec" in fields:
        draft.drop(fields["cluster_spec"], "addresses come from TF_CONFIG or the scheduler")
    if ps is not None:
        if ps.value:
            draft.take(ps, ("cluster", "ps"))
        else:
            draft.drop(ps, "none")
    if workers is not None:
        _workers(draft, workers, fields)


def _workers(draft: JobDraft, item: Item, fields: dict[str, Item]) -> None:
    count, kind, chief = item.value, _value_of(fields, "task_type"), _value_of(fields, "is_chief")
    if not isinstance(count, int) or isinstance(count, bool):
        draft.decide(item, "not a number", ("cluster", "workers"))
    elif count <= 1 and not draft.current("cluster", "ps"):
        draft.drop(item, "one process")
    elif kind in ("chief", "master"):
        if draft.take(item, ("cluster", "workers"), count - 1, why=f"{count} including the {kind}"):
            draft.derive(("cluster", "chief"), True, f"the RunConfig is from the {kind}")
    elif kind == "worker" and chief is True:
        draft.take(item, ("cluster", "workers"), count, why="worker 0 is the chief")
    else:
        why = f"{count} tasks train; if one is the chief, set {count - 1} and chief: true, otherwise {count}"
        draft.decide(item, why, ("cluster", "workers"))
        draft.need(("cluster", "workers"), why)


def _value_of(fields: dict[str, Item], name: str) -> Any:
    return fields[name].value if name in fields else None


def _spec(value: Any) -> dict[str, Any] | None:
    """Parse a cluster_spec: job -> addresses; None: it has none."""
    if isinstance(value, Opaque):
        inner = re.fullmatch(r"ClusterSpec\((.*)\)", value, re.DOTALL)
        try:
            value = ast.literal_eval(inner[1]) if inner else None
        except (ValueError, SyntaxError):
            value = None
    return (
        value if isinstance(value, dict) and all(isinstance(v, list | tuple | dict) for v in value.values()) else None
    )


def _strategy(draft: JobDraft, name: str, item: Item) -> None:
    path: Path = ("run", "eval_distribute" if name == "eval_distribute" else "train_distribute")
    if item.value is None:
        draft.drop(item, "none" if name != "experimental_distribute" else "not set")
        return
    match = re.search(r"(\w+Strategy)(V\d|Extended)?\b", str(item.value))
    to = _CLASSES.get(match[1]) if match else None
    if name == "experimental_distribute" or to is None:
        draft.decide(item, "a job file has no such strategy", path)
        draft.need(path, f"the program had {item.value!s:.60}")
    elif name == "eval_distribute" and to in ("multi_worker_mirrored", "parameter_server"):
        draft.decide(item, "evaluation runs in one process: mirrored for all its devices, or none", path)
    elif to == "parameter_server" and not draft.current("cluster", "ps"):
        draft.decide(item, "parameter_server, but the number of parameter servers is not set", path)
        draft.need(path, "parameter_server, with cluster.ps; or multi_worker_mirrored")
    else:
        draft.take(item, path, to)


# Session ---------------------------------------------------------------------------------------------------------


def _session(draft: JobDraft, name: str, item: Item) -> None:
    if item.value is None:
        draft.drop(item, "not set")
    elif name == "gpu_memory_fraction":
        if item.value in (1, 1.0):
            draft.drop(item, "all of the memory, the default")
        else:
            draft.decide(
                item,
                "the first user of a GPU in TensorFlow sets its memory, and under a strategy that is not the session; "
                "without a strategy: gpu_options: {per_process_gpu_memory_fraction: ...}",
                ("run", "session_config", "gpu_options"),
            )
    elif name == "log_device_placement":
        if item.value is False:
            draft.drop(item, "the default")
        else:
            draft.take(item, ("run", "session_config", "log_device_placement"))
    elif name == "num_cores":
        if item.value == 0:
            draft.drop(item, "TensorFlow chooses")
        else:
            draft.take(item, ("run", "threads", "inter_op"))
            draft.take(item, ("run", "threads", "intra_op"))
    else:
        _config_proto(draft, item)


def _config_proto(draft: JobDraft, item: Item) -> None:
    value = parse_proto(str(item.value)) if isinstance(item.value, str) else item.value
    if not isinstance(value, dict):
        draft.decide(item, "not a valid ConfigProto: write its fields", ("run", "session_config"))
        return
    draft.joined.add(item.path)
    for key, inner in value.items():
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", key).lower()
        option = Item((*item.path, key), inner, draft.document.line((*item.path, key)) or item.line)
        if name in ("inter_op_parallelism_threads", "intra_op_parallelism_threads"):
            draft.take(option, ("run", "threads", name.removesuffix("_parallelism_threads")), why="threads")
        elif name == "device_filters":
            draft.drop(option, "RunConfig computes them for each task")
        elif name == "cluster_def":
            draft.drop(option, "only TF_CONFIG defines the cluster")
        elif name == "graph_options" and _snake(inner) == {"rewrite_options": {"meta_optimizer_iterations": "ONE"}}:
            draft.drop(option, "the default of RunConfig")
        elif name == "gpu_options" and _snake(inner) == {"per_process_gpu_memory_fraction": 1.0}:
            draft.drop(option, "the default of tf.contrib.learn: all of the memory")
        else:
            draft.take(option, ("run", "session_config", name), _snake(inner))
    if not value:
        draft.drop(item, "empty")


def _snake(value: Any) -> Any:
    """Convert the camel-case names of JSON to the names of the protocol buffer."""
    if isinstance(value, dict):
        return {_snake_name(key): _snake(inner) for key, inner in value.items()}
    return [_snake(inner) for inner in value] if isinstance(value, list) else value


def _snake_name(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower() if re.search("[a-z]", name) else name


def is_run_config(document: Document) -> bool:
    """Return whether a mapping has mostly names of a RunConfig, at least two."""
    if not isinstance(document.data, dict):
        return False
    names = [_bare(name) for name in document.data]
    known = [name for name in names if name in NAMES]
    return len(known) >= 2 and 2 * len(known) > len(names)
