"""Comparison of all tasks: shared folder, clusters, versions, job files, devices, data, ports and locks."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from estimator_pipeline.cluster import EVALUATOR
from estimator_pipeline.compat.bootstrap import versions
from estimator_pipeline.doctor.cluster.rendezvous import Participant, RendezvousResult
from estimator_pipeline.doctor.context import Context
from estimator_pipeline.doctor.findings import CheckSkipped, DoctorFinding, error, ok, warning
from estimator_pipeline.doctor.gpus import visible_gpus
from estimator_pipeline.doctor.job.data_files import NotPrepared, files_of
from estimator_pipeline.doctor.storage import PREFIX
from estimator_pipeline.errors import PipelineError

__all__ = ["compare", "facts_of", "folder_of", "participant_of"]

_PREFIXES = ("TF_", "NCCL_", "XLA_", "ESTIMATOR_PIPELINE_", "TFDS_", "KERAS_")
# Variables that normally differ between tasks.
_PER_TASK = (
    "TF_CONFIG",
    "ESTIMATOR_PIPELINE_HOST",
    "ESTIMATOR_PIPELINE_ROLE",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
)


def participant_of(context: Context) -> Participant:
    """Return this task as a participant of the rendezvous.

    Raises:
        CheckSkipped: There is only one process, or its task is not known.
    """
    part = context.part
    if part.error is not None:
        raise CheckSkipped("this task is not known")
    tasks = list(part.tasks)
    if tasks and context.job is not None and context.job.cluster.evaluator and EVALUATOR not in tasks:
        tasks.append(EVALUATOR)
    if len(tasks) > 1 and part.task in tasks:
        address = part.addresses.get(part.task) if part.task != EVALUATOR else None
        return Participant(tasks.index(part.task), len(tasks), str(part.task), address)
    allocation = part.detection.allocation if part.detection is not None else None
    if not tasks and allocation is not None and (allocation.size or 0) > 1:
        assert allocation.size is not None
        return Participant(allocation.rank, allocation.size, f"rank {allocation.rank}")
    raise CheckSkipped("only one process")


def folder_of(context: Context) -> Path:
    """Return the rendezvous folder of this start of the job.

    Raises:
        CheckSkipped: The model directory is not local, or not known.
    """
    part = context.part
    name = "one"
    if part.detection is not None and part.detection.allocation.tf_config is None:
        allocation = part.detection.allocation
        name = allocation.start_id or f"{part.source}-{allocation.job_id}-{allocation.restart}"
    elif part.tf_config is not None and part.tf_config.cluster is not None:
        # Not the cluster's fingerprint: tasks with different clusters should meet, so that the difference is reported.
        name = f"{len(part.tf_config.cluster.tasks)}"
    digest = hashlib.sha256(name.encode()).hexdigest()[:12]
    return Path(context.local_directory).absolute() / f"{PREFIX}{digest}"


def facts_of(context: Context) -> dict[str, Any]:
    """Return the facts about this task that the other tasks compare."""
    config = context.part.tf_config
    installed = {**versions.report(), "python": platform.python_version()}
    return {
        "task": str(context.part.task) if context.part.task is not None else None,
        "trains": config is None or config.is_training_task,
        "cluster": None if config is None or config.cluster is None else config.cluster.fingerprint(),
        "versions": {name: version for name, version in installed.items() if version},
        "job": _of_job(context),
        "gpus": list(visible_gpus(context.environ)),
        "environ": {k: v for k, v in context.environ.items() if k.startswith(_PREFIXES) and k not in _PER_TASK},
        "data": _of_data(context),
    }


def _of_job(context: Context) -> dict[str, str]:
    if context.job is None:
        return {}
    sections = context.job.model_dump(mode="json")
    return {name: _digest(value) for name, value in sections.items()}


def _of_data(context: Context) -> str | None:
    """Return a digest of the data files' names and sizes; folders may differ between tasks."""
    try:
        paths = [path for files in files_of(context) for path in files.paths]
        return _digest([[os.path.basename(path), os.path.getsize(path)] for path in paths])
    except PipelineError as problem:
        return f"cannot be read: {problem.message}"
    except NotPrepared:
        return "not prepared"
    except CheckSkipped:
        return None


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:12]


# Findings --------------------------------------------------------------------------------------------------------


def compare(meeting: RendezvousResult, folder: Path) -> Iterator[DoctorFinding]:
    """Yield what differs between the tasks."""
    findings = [finding for check in _COMPARED for finding in check(meeting)]
    hosts = {str(facts["host"]) for facts in meeting.facts.values()}
    shown = [f"{meeting.name(rank)} on {meeting.facts[rank]['host']}" for rank in list(meeting.facts)[:8]]
    yield ok(
        f"{len(meeting.facts)} tasks on {len(hosts)} host(s) met in {folder.parent}, which is shared: "
        f"{', '.join(shown)}{', ...' if len(meeting.facts) > 8 else ''}"
    )
    if not any(results["silent"] for results in meeting.results.values()):
        yield ok("each task can connect to every other task")
    yield from findings


def _values(meeting: RendezvousResult, of: Callable[[Mapping[str, Any]], Any]) -> dict[str, list[str]]:
    """Return each value, as text, with the tasks that have it."""
    tasks: dict[str, list[str]] = {}
    for rank, facts in meeting.facts.items():
        tasks.setdefault(str(of(facts)), []).append(meeting.name(rank))
    return tasks


def _item(of: str, name: str, default: Any = None) -> Callable[[Mapping[str, Any]], Any]:
    return lambda facts: facts[of].get(name, default)


def _format(values: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(
        f"{value} on {', '.join(names[:4])}{', ...' if len(names) > 4 else ''}" for value, names in values.items()
    )


def _clusters(meeting: RendezvousResult) -> Iterator[DoctorFinding]:
    known = _values(meeting, lambda facts: facts["cluster"])
    if len(known) > 1:
        yield error(
            f"the tasks have different clusters: {_format(known)}",
            "tasks wait for addresses at which no task listens",
            "give every task the same `cluster`; only `task` differs",
        )


def _versions(meeting: RendezvousResult) -> Iterator[DoctorFinding]:
    names = sorted({name for facts in meeting.facts.values() for name in facts["versions"]})
    for name in names:
        values = _values(meeting, _item("versions", name, "none"))
        if len(values) > 1:
            hard = name in ("tensorflow", "tf-keras", "keras", "tensorflow-estimator")
            yield (error if hard else warning)(
                f"{name} is {_format(values)}",
                "workers with different versions compute different values, or cannot communicate",
                f"install the same version of {name} on every host",
            )


def _jobs(meeting: RendezvousResult) -> Iterator[DoctorFinding]:
    sections = {name for facts in meeting.facts.values() for name in facts["job"]}
    differ = sorted(s for s in sections if len(_values(meeting, _item("job", s))) > 1)
    if differ:
        values = _values(meeting, lambda facts: [facts["job"].get(name) for name in differ])
        groups = " and ".join(f"({', '.join(names[:4])})" for names in values.values())
        yield error(
            f"the tasks have different job files: {', '.join(differ)} of {groups}",
            "workers that train different jobs hang, or produce wrong results",
            "start every task with the same job file and the same --set",
        )


def _devices(meeting: RendezvousResult) -> Iterator[DoctorFinding]:
    training = {rank: facts for rank, facts in meeting.facts.items() if facts["trains"]}
    counts: dict[str, list[str]] = {}
    for rank, facts in training.items():
        counts.setdefault(f"{len(facts['gpus'])} GPU(s)", []).append(meeting.name(rank))
    if len(counts) > 1:
        yield error(
            f"the training tasks have different numbers of devices: {_format(counts)}",
            "multi_worker_mirrored counts its replicas as this task's devices times the tasks: batch sizes and "
            "gradient scaling would be wrong",
            "request from the scheduler the same number of GPUs for each task, or set run.num_devices",
        )
    seen: dict[tuple[str, str], str] = {}
    for rank, facts in training.items():
        for gpu in facts["gpus"]:
            other = seen.setdefault((str(facts["host"]), gpu), meeting.name(rank))
            if other != meeting.name(rank):
                yield warning(
                    f"{other} and {meeting.name(rank)} both see GPU {gpu} of {facts['host']}",
                    "the first task allocates all of its memory, and the other fails with an out-of-memory error",
                    "give each task its own (srun --gpus-per-task, CUDA_VISIBLE_DEVICES), or set "
                    "TF_FORCE_GPU_ALLOW_GROWTH=true",
                )
                return


def _variables(meeting: RendezvousResult) -> Iterator[DoctorFinding]:
    names = sorted({name for facts in meeting.facts.values() for name in facts["environ"]})
    differ = [n for n in names if len(_values(meeting, _item("environ", n))) > 1]
    if differ:
        shown = [f"{n} ({_format(_values(meeting, _item('environ', n, 'not set')))})" for n in differ]
        yield warning(
            f"environment variables differ between tasks: {'; '.join(shown[:4])}{', ...' if len(differ) > 4 else ''}",
            "what they control applies to some of the tasks only",
            "set them for all tasks (srun --export=ALL, the pod's manifest), or for none",
        )


def _data(meeting: RendezvousResult) -> Iterator[DoctorFinding]:
    values = _values(meeting, lambda facts: facts["data"])
    if len(values) > 1:
        yield error(
            f"the tasks do not see the same data files: {_format(values)} (a hash of names and sizes)",
            "workers would read wrong shards, or one stops while the others wait",
            "store the data on a file system that all hosts share, or copy it again to the hosts that differ",
        )


def _ports(meeting: RendezvousResult) -> Iterator[DoctorFinding]:
    by_target: dict[str, dict[str, list[str]]] = {}
    for rank, results in meeting.results.items():
        for target, why in results["silent"].items():
            by_target.setdefault(target, {}).setdefault(why, []).append(meeting.name(rank))
    for target, reasons in sorted(by_target.items(), key=lambda item: int(item[0])):
        facts = meeting.facts[int(target)]
        for why, names in reasons.items():
            yield error(
                f"{meeting.name(int(target))} at {facts['address']} (on {facts['host']}) cannot be reached from "
                f"{', '.join(names[:4])}{', ...' if len(names) > 4 else ''}: {why}",
                "training waits for that connection until its timeout, although the task listens there",
                "correct the address; open the port between the hosts (firewall, network policy); see the check "
                "`ports` of that task",
            )


def _locks(meeting: RendezvousResult) -> Iterator[DoctorFinding]:
    wrong = [meeting.name(rank) for rank, results in meeting.results.items() if results["lock"] == "not kept"]
    if wrong:
        yield warning(
            f"a file lock that {meeting.name(0)} holds is not seen by {', '.join(wrong[:4])}",
            "two jobs in one model_dir would not detect each other, and would overwrite each other's checkpoints",
            "mount the file system with cluster-wide locks (Lustre: -o flock, not localflock; NFS: version 4)",
        )


_COMPARED = (_clusters, _versions, _jobs, _devices, _variables, _data, _ports, _locks)
