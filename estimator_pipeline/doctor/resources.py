"""Checks of memory and open files: the minimum that a task needs against the limits.

The estimate covers TensorFlow itself, data that is held in memory, and the value, gradient and a copy of each variable.
It does not cover activations and tables of a model, which are unknown before the job runs.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from estimator_pipeline.doctor.context import Context
from estimator_pipeline.doctor.findings import CheckSkipped, DoctorFinding, error, of_error, ok
from estimator_pipeline.doctor.job.data_files import NotPrepared, array_shapes, files_of
from estimator_pipeline.doctor.machine import CGROUPS, cgroup_folders, tasks_on_this_host, words_of
from estimator_pipeline.doctor.storage import checkpoint_and_size, size_of
from estimator_pipeline.errors import ConfigError, InputError
from estimator_pipeline.job import ArraysInput, PbsResources, SlurmResources
from estimator_pipeline.utils import system_limits

__all__ = [
    "check_limits",
    "check_memory",
    "check_pbs_memory",
    "check_slurm_memory",
    "memory_limit",
    "memory_of_host",
]

_MIB = 2**20
# Measured with TensorFlow 2.15 and 2.21 on CPUs: a task that trains the smallest model has 290 to 370 MiB of private
# memory, and 300 to 430 MiB of libraries that all tasks on a host share.
_PRIVATE_BYTES, _SHARED_BYTES = 300 * _MIB, 350 * _MIB
_FILES, _FILES_OF_PEER = 64, 8
# Default limits of an input function: bytes held in memory, and open files.
_HELD_BYTES, _HELD_FILES = 2**30, 128
_COPIES = 2  # A checkpoint has values and slots; gradients and the copy that is written need as much again.
_NO_LIMIT = 2**60


@dataclass(frozen=True)
class Need:
    """The memory that a task needs.

    Attributes:
        least: Bytes without which the task cannot start.
        likely: Bytes that it is expected to use.
        details: The components of `likely`, for messages.
    """

    least: int
    likely: int
    details: str

    def severity(self, tasks: int, available: int) -> str | None:
        """Return the severity if so many tasks share `available` bytes; None if they are enough."""
        if available < tasks * self.least:
            return "error"
        return "warning" if available < tasks * self.likely + _SHARED_BYTES else None


def need_of(context: Context, *, trains: bool = True) -> Need:
    """Estimate the memory of a task from its files; only tasks that train hold training data."""
    arrays = held = variables = 0
    with contextlib.suppress(InputError, NotPrepared, CheckSkipped):
        section = context.needed_job().input
        files = files_of(context)[0].paths if trains else ()
        held = sum(map(os.path.getsize, files))
        if trains and isinstance(section, ArraysInput):
            # At least one byte per element; the file may be compressed.
            arrays = sum(math.prod(shape) for shape in array_shapes("training", section.train).values())
        held = max(arrays, held) if arrays or held <= _HELD_BYTES else 0
    with contextlib.suppress(CheckSkipped):
        latest = checkpoint_and_size(context.local_directory)
        variables = _COPIES * latest[1] if latest is not None else 0
    parts = {"TensorFlow": _PRIVATE_BYTES, "data": held, "variables": variables}
    details = ", ".join(f"{name} {size_of(count)}" for name, count in parts.items() if count > 10 * _MIB)
    return Need(_PRIVATE_BYTES + arrays, sum(parts.values()), details)


def check_memory(
    context: Context, *, meminfo: str = "/proc/meminfo", limit: int | None = None
) -> Iterator[DoctorFinding]:
    """Check the available memory against the needs of the tasks on this host."""
    if not context.part.here:
        raise CheckSkipped("the tasks of this document run elsewhere")
    total, free = memory_of_host(meminfo)
    if total is None:
        raise CheckSkipped("the memory of this system is unknown")
    limit = memory_limit() if limit is None else limit
    most = min(total, limit)
    tasks = tasks_on_this_host(context)
    need = need_of(context)
    free = min(free, most)
    group = f", {size_of(limit)} for this control group" if limit < total else ""
    there = f"{size_of(free)} free of {size_of(total)}{group}"
    takes = f"{tasks} task(s) of some {size_of(need.likely)} ({need.details}) and {size_of(_SHARED_BYTES)} shared"
    why = "the kernel kills a task that runs out of memory, or the machine starts swapping"
    if need.severity(tasks, free) is not None:
        # Memory that other processes use now may be freed.
        severity = "error" if need.severity(tasks, most) == "error" else "warning"
        hint = "request more memory, place fewer tasks on a host, or stop other processes on this host"
        yield DoctorFinding(severity, f"{takes}; {there}", why, hint)
    else:
        yield ok(f"{takes}; {there}")


def check_limits(context: Context) -> Iterator[DoctorFinding]:
    """Check `ulimit -n` against the data files and connections of a task, and the limits that `train` checks."""
    if not context.part.here:
        raise CheckSkipped("the tasks of this document run elsewhere")
    held = 0
    with contextlib.suppress(InputError, NotPrepared, CheckSkipped):
        held = min(sum(len(files.paths) for files in files_of(context)), _HELD_FILES)
    try:
        system_limits.require(context.environ, trains=True, tasks=tasks_on_this_host(context))
    except ConfigError as problem:
        yield of_error(problem, "every task checks this limit at its start, and fails with this error")
    needed = _FILES + _FILES_OF_PEER * _tasks(context) + held
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        yield ok(
            f"up to {'any number of' if soft == resource.RLIM_INFINITY else soft} open files; a task needs {needed}"
        )
        return
    more = hard == resource.RLIM_INFINITY or hard >= needed
    yield error(
        f"a task may have {soft} open files (ulimit -n), and needs up to {needed} for connections and data files",
        "it fails with `Too many open files`, possibly in the middle of training",
        f"run ulimit -n {max(needed, 4096) if more else hard} in the shell or the job script"
        + ("" if more else f", and ask the administrator to raise the hard limit of {hard} (LimitNOFILE, limits.conf)"),
    )


def _tasks(context: Context) -> int:
    if context.part.tasks:
        return len(context.part.tasks)
    return context.job.cluster.num_training_tasks if context.job is not None else 1


def memory_of_host(path: str = "/proc/meminfo") -> tuple[int | None, int]:
    """Return the total and the available memory in bytes."""
    fields = {}
    with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as file:
        for line in file:
            name, _, value = line.partition(":")
            if value.strip().endswith("kB"):
                fields[name] = int(value.split()[0]) * 1024
    total = fields.get("MemTotal")
    return total, fields.get("MemAvailable", total or 0)


def memory_limit(root: str = CGROUPS, cgroup_file: str = "/proc/self/cgroup") -> int:
    """Return the memory limit of this process's control groups in bytes; a very large number without a limit."""
    return min(_smallest("memory", name, root, cgroup_file) for name in ("memory.max", "memory.limit_in_bytes"))


def _smallest(controller: str, name: str, root: str = CGROUPS, cgroup_file: str = "/proc/self/cgroup") -> int:
    limits = [_NO_LIMIT]
    for folder in cgroup_folders(root, cgroup_file, controller):
        words = words_of(os.path.join(folder, name))
        if len(words) == 1 and words[0].isdigit():
            limits.append(min(int(words[0]), _NO_LIMIT))
    return min(limits)


# Slurm and PBS ---------------------------------------------------------------------------------------------------


def check_slurm_memory(context: Context, role: str, tasks: int, asked: SlurmResources) -> Iterator[DoctorFinding]:
    """Check the memory that a job requests from Slurm for a role against what its tasks need.

    Args:
        context: What to examine.
        role: The role, for messages.
        tasks: The number of tasks of the role.
        asked: The requested resources.
    """
    on_node = asked.tasks_per_node or (math.ceil(tasks / asked.nodes) if asked.nodes else None)
    count = min(on_node or 1, tasks)
    there = f"for {count} task(s) on a node"
    if asked.mem is not None:
        field, shares = "mem", 1
        requested = most = _bytes(asked.mem)
        request = f"slurm.mem {asked.mem} {there}"
    elif asked.mem_per_cpu is not None:
        cpus = asked.cpus_per_task or 1
        field, shares = "mem_per_cpu", cpus * count
        requested = _bytes(asked.mem_per_cpu) * shares
        # Slurm may place all tasks on one node.
        most = requested if on_node else requested * tasks
        request = f"slurm.mem_per_cpu {asked.mem_per_cpu} and {cpus} CPU(s) per task {there}"
    else:
        return
    # "0" requests all memory of a node.
    if requested:
        why = "Slurm kills the job when it runs out of memory (OUT_OF_MEMORY)"
        yield from _requested_memory(
            context,
            role,
            count,
            (requested, most),
            f"{request} ({role})",
            why,
            lambda needed: f"set slurm.{field} to {math.ceil(needed / shares / _MIB)}M or more",
        )


def check_pbs_memory(context: Context, role: str, asked: PbsResources) -> Iterator[DoctorFinding]:
    """Check the memory of a chunk, which has one task, against what the task needs."""
    if asked.mem is None:
        return
    match = re.fullmatch(r"(\d+)([kmgtp]?)([bw]?)", asked.mem.lower())
    assert match is not None, asked.mem
    requested = int(match[1]) * 1024 ** " kmgtp".index(match[2] or " ") * (8 if match[3] == "w" else 1)
    yield from _requested_memory(
        context,
        role,
        1,
        (requested, requested),
        f"pbs.mem {asked.mem} for each {role}",
        "PBS kills the job when it runs out of memory, where it enforces that",
        lambda needed: f"set pbs.mem to {math.ceil(needed / _MIB)}mb or more",
    )


def _requested_memory(
    context: Context,
    role: str,
    count: int,
    available: tuple[int, int],
    request: str,
    why: str,
    hint: Callable[[int], str],
) -> Iterator[DoctorFinding]:
    """Check requested memory in bytes, for certain and at most, against what `count` tasks need."""
    requested, most = available
    need = need_of(context, trains=role in ("chief", "worker"))
    severity = "error" if most < need.least + _SHARED_BYTES else need.severity(count, requested)
    if severity is not None:
        needs = f"{request}, and each task needs some {size_of(need.likely)} ({need.details}), plus "
        needed = count * need.likely + _SHARED_BYTES
        message = f"{needs}{size_of(_SHARED_BYTES)} shared"
        yield DoctorFinding(severity, message, why, hint(needed), code="job/conflict")


def _bytes(text: str) -> int:
    unit = text[-1] if text[-1] in "KMGT" else "M"
    return int(text.rstrip("KMGT")) * 1024 ** ("KMGT".index(unit) + 1)
