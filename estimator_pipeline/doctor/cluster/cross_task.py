"""What only shows when all tasks of a job are asked: a shared folder, equal versions, devices and data, clocks."""

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
from estimator_pipeline.doctor.cluster.rendezvous import Meeting, Seat, skew_bounds
from estimator_pipeline.doctor.context import Context
from estimator_pipeline.doctor.findings import DoctorFinding, NotLookedAt, error, ok, warning
from estimator_pipeline.doctor.gpus import visible_gpus
from estimator_pipeline.doctor.job.data_files import NotPrepared, files_of
from estimator_pipeline.doctor.storage import PREFIX
from estimator_pipeline.errors import PipelineError

__all__ = ["SKEW_SECS", "compare", "facts_of", "folder_of", "seat_of"]

SKEW_SECS = 2.0
_PREFIXES = ("TF_", "NCCL_", "XLA_", "ESTIMATOR_PIPELINE_", "TFDS_", "KERAS_")
# What differs between tasks by its nature.
_OWN = (
    "TF_CONFIG",
    "ESTIMATOR_PIPELINE_HOST",
    "ESTIMATOR_PIPELINE_ROLE",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
)


def seat_of(context: Context) -> Seat:
    """This task's place in the meeting.

    Raises:
        NotLookedAt: There is one process alone, or its part is not known.
    """
    part = context.part
    if part.error is not None:
        raise NotLookedAt("this task's part is not known")
    tasks = list(part.tasks)
    if tasks and context.job is not None and context.job.cluster.evaluator and EVALUATOR not in tasks:
        tasks.append(EVALUATOR)
    if len(tasks) > 1 and part.task in tasks:
        address = part.addresses.get(part.task) if part.task != EVALUATOR else None
        return Seat(tasks.index(part.task), len(tasks), str(part.task), address)
    allocation = part.detection.allocation if part.detection is not None else None
    if not tasks and allocation is not None and (allocation.size or 0) > 1:
        assert allocation.size is not None
        return Seat(allocation.rank, allocation.size, f"rank {allocation.rank}")
    raise NotLookedAt("one process alone")


def folder_of(context: Context) -> Path:
    """Where the tasks of this start of the job meet.

    Raises:
        NotLookedAt: The model directory is none of this machine, or not known.
    """
    part = context.part
    name = "one"
    if part.detection is not None and part.detection.allocation.tf_config is None:
        allocation = part.detection.allocation
        name = allocation.start_id or f"{part.source}-{allocation.job_id}-{allocation.restart}"
    elif part.tf_config is not None and part.tf_config.cluster is not None:
        # Not that of the cluster: two tasks with different clusters should meet, and be told.
        name = f"{len(part.tf_config.cluster.tasks)}"
    digest = hashlib.sha256(name.encode()).hexdigest()[:12]
    return Path(context.local_directory).absolute() / f"{PREFIX}{digest}"


def facts_of(context: Context) -> dict[str, Any]:
    """What the other tasks should know of this one."""
    config = context.part.tf_config
    installed = {**versions.report(), "python": platform.python_version()}
    return {
        "task": str(context.part.task) if context.part.task is not None else None,
        "trains": config is None or config.is_training_task,
        "cluster": None if config is None or config.cluster is None else config.cluster.fingerprint(),
        "versions": {name: version for name, version in installed.items() if version},
        "job": _of_job(context),
        "gpus": list(visible_gpus(context.environ)),
        "environ": {k: v for k, v in context.environ.items() if k.startswith(_PREFIXES) and k not in _OWN},
        "data": _of_data(context),
    }


def _of_job(context: Context) -> dict[str, str]:
    if context.job is None:
        return {}
    sections = context.job.model_dump(mode="json")
    return {name: _digest(value) for name, value in sections.items()}


def _of_data(context: Context) -> str | None:
    """The names and sizes of the data's files; other folders may be the same data."""
    try:
        found = files_of(context)
        return _digest([[os.path.basename(p), os.path.getsize(p)] for one in found for p in one.paths])
    except PipelineError as problem:
        return f"cannot be read: {problem.message}"
    except NotPrepared:
        return "not prepared"
    except NotLookedAt:
        return None


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:12]


# What came of it -----------------------------------------------------------------------------------------------------


def compare(meeting: Meeting, folder: Path) -> Iterator[DoctorFinding]:
    """What the tasks are not of one mind about."""
    found = [finding for check in _COMPARED for finding in check(meeting)]
    hosts = {str(one["host"]) for one in meeting.facts.values()}
    told = [f"{meeting.name(rank)} on {meeting.facts[rank]['host']}" for rank in list(meeting.facts)[:8]]
    yield ok(
        f"{len(meeting.facts)} tasks on {len(hosts)} host(s) met in {folder.parent}, which they share: "
        f"{', '.join(told)}{', ...' if len(meeting.facts) > 8 else ''}"
    )
    if not any(one["silent"] for one in meeting.told.values()):
        yield ok("each task can connect to each other one")
    yield ok(_clocks(meeting))
    yield from found


def _values(meeting: Meeting, of: Callable[[Mapping[str, Any]], Any]) -> dict[str, list[str]]:
    """From each value, as text, to the tasks that have it."""
    found: dict[str, list[str]] = {}
    for rank, facts in meeting.facts.items():
        found.setdefault(str(of(facts)), []).append(meeting.name(rank))
    return found


def _item(of: str, name: str, default: Any = None) -> Callable[[Mapping[str, Any]], Any]:
    return lambda one: one[of].get(name, default)


def _told(values: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(
        f"{value} on {', '.join(names[:4])}{', ...' if len(names) > 4 else ''}" for value, names in values.items()
    )


def _clusters(meeting: Meeting) -> Iterator[DoctorFinding]:
    known = _values(meeting, lambda one: one["cluster"])
    if len(known) > 1:
        yield error(
            f"the tasks have different clusters: {_told(known)}",
            "a task waits for addresses at which nobody is",
            "give every task the same `cluster`; only `task` differs",
        )


def _versions(meeting: Meeting) -> Iterator[DoctorFinding]:
    names = sorted({name for one in meeting.facts.values() for name in one["versions"]})
    for name in names:
        values = _values(meeting, _item("versions", name, "none"))
        if len(values) > 1:
            hard = name in ("tensorflow", "tf-keras", "keras", "tensorflow-estimator")
            yield (error if hard else warning)(
                f"{name} is {_told(values)}",
                "workers that compute by different code come to different numbers, or do not understand each other",
                f"install the same {name} everywhere",
            )


def _jobs(meeting: Meeting) -> Iterator[DoctorFinding]:
    sections = {name for one in meeting.facts.values() for name in one["job"]}
    differ = sorted(s for s in sections if len(_values(meeting, _item("job", s))) > 1)
    if differ:
        values = _values(meeting, lambda one: [one["job"].get(name) for name in differ])
        groups = " and ".join(f"({', '.join(names[:4])})" for names in values.values())
        yield error(
            f"the tasks have different job files: {', '.join(differ)} of {groups}",
            "workers that train different jobs wait for each other for ever, or come to nonsense",
            "give every task the same job file and the same --set",
        )


def _devices(meeting: Meeting) -> Iterator[DoctorFinding]:
    training = {rank: one for rank, one in meeting.facts.items() if one["trains"]}
    counts: dict[str, list[str]] = {}
    for rank, one in training.items():
        counts.setdefault(f"{len(one['gpus'])} GPU(s)", []).append(meeting.name(rank))
    if len(counts) > 1:
        yield error(
            f"the training tasks have different numbers of devices: {_told(counts)}",
            "the replicas of multi_worker_mirrored are counted as this task's devices times the tasks: batches and "
            "gradients do not fit",
            "ask the scheduler for the same number of GPUs for each task, or set run.num_devices",
        )
    seen: dict[tuple[str, str], str] = {}
    for rank, one in training.items():
        for gpu in one["gpus"]:
            other = seen.setdefault((str(one["host"]), gpu), meeting.name(rank))
            if other != meeting.name(rank):
                yield warning(
                    f"{other} and {meeting.name(rank)} both see GPU {gpu} of {one['host']}",
                    "the first takes all its memory, and the other ends with out-of-memory",
                    "give each task its own (srun --gpus-per-task, CUDA_VISIBLE_DEVICES), or set "
                    "TF_FORCE_GPU_ALLOW_GROWTH=true",
                )
                return


def _variables(meeting: Meeting) -> Iterator[DoctorFinding]:
    names = sorted({name for one in meeting.facts.values() for name in one["environ"]})
    differ = [n for n in names if len(_values(meeting, _item("environ", n))) > 1]
    if differ:
        shown = [f"{n} ({_told(_values(meeting, _item('environ', n, 'not set')))})" for n in differ]
        yield warning(
            f"variables differ between tasks: {'; '.join(shown[:4])}{', ...' if len(differ) > 4 else ''}",
            "what they switch holds for a part of the job alone",
            "set them for all tasks (srun --export=ALL, the pod's manifest), or for none",
        )


def _data(meeting: Meeting) -> Iterator[DoctorFinding]:
    values = _values(meeting, lambda one: one["data"])
    if len(values) > 1:
        yield error(
            f"the tasks do not see the same data files: {_told(values)} (a hash of names and sizes)",
            "workers would share out different records, or one ends while the others wait",
            "put the data where all hosts see it, or copy it anew to those that differ",
        )


def _ports(meeting: Meeting) -> Iterator[DoctorFinding]:
    by_target: dict[str, dict[str, list[str]]] = {}
    for rank, one in meeting.told.items():
        for target, why in one["silent"].items():
            by_target.setdefault(target, {}).setdefault(why, []).append(meeting.name(rank))
    for target, reasons in sorted(by_target.items(), key=lambda item: int(item[0])):
        facts = meeting.facts[int(target)]
        for why, names in reasons.items():
            yield error(
                f"{meeting.name(int(target))} at {facts['address']} (on {facts['host']}) cannot be reached from "
                f"{', '.join(names[:4])}{', ...' if len(names) > 4 else ''}: {why}",
                "training waits for that connection until its time-out, although the task listens there",
                "correct the address; open the port between the hosts (firewall, network policy); see that task's "
                "own check of its port",
            )


def _locks(meeting: Meeting) -> Iterator[DoctorFinding]:
    wrong = [meeting.name(rank) for rank, one in meeting.told.items() if one["lock"] == "not kept"]
    if wrong:
        yield warning(
            f"a file lock that {meeting.name(0)} holds is not seen by {', '.join(wrong[:4])}",
            "two jobs in one model_dir would not notice each other, and spoil each other's checkpoints",
            "mount the file system with cluster-wide locks (Lustre: -o flock, not localflock; NFS: version 4)",
        )


def _bounds(meeting: Meeting) -> dict[tuple[int, int], tuple[float, float]]:
    ranks = sorted(meeting.facts)
    found = {(a, 0): skew_bounds(meeting.told, a, 0) for a in ranks if a}
    return {pair: bounds for pair, bounds in found.items() if bounds is not None}


def _skew(meeting: Meeting) -> Iterator[DoctorFinding]:
    for (one, other), (least, most) in _bounds(meeting).items():
        if least > SKEW_SECS or most < -SKEW_SECS:
            ahead, behind = (one, other) if least > 0 else (other, one)
            low, high = sorted((abs(least), abs(most)))
            yield warning(
                f"the clock of {meeting.name(ahead)} ({meeting.facts[ahead]['host']}) is {low:.1f} to {high:.1f} s "
                f"ahead of that of {meeting.name(behind)} ({meeting.facts[behind]['host']})",
                "times in logs, events and checkpoints do not compare, leases and tokens run out early, and make-like "
                "tools take new files for old",
                "let both hosts follow one NTP server (chronyc tracking)",
            )


def _clocks(meeting: Meeting) -> str:
    bounds = _bounds(meeting)
    if not bounds:
        return "clocks were not compared"
    widest = max(max(abs(least), abs(most)) for least, most in bounds.values())
    return f"no clock is more than {max(widest, 0.01):.2f} s off that of {meeting.name(0)}"


_COMPARED = (_clusters, _versions, _jobs, _devices, _variables, _data, _ports, _locks, _skew)
