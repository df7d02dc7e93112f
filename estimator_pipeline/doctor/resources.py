"""Memory, processes and open files: what a task takes at least, against what it is given.

A task takes what TensorFlow takes before it has done anything, the data that are held in memory, and for each variable
its value, its gradient and a copy. What comes on top (activations, a model's own tables) nobody knows before.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass

from estimator_pipeline.doctor.context import Context
from estimator_pipeline.doctor.findings import DoctorFinding, NotLookedAt, error, ok
from estimator_pipeline.doctor.job.data_files import NotPrepared, array_shapes, files_of
from estimator_pipeline.doctor.machine import CGROUPS, cgroup_folders, tasks_on_this_host, words_of
from estimator_pipeline.doctor.storage import latest_checkpoint, size_of
from estimator_pipeline.errors import InputError
from estimator_pipeline.job import ArraysInput, SlurmResources
from estimator_pipeline.launch.local.cores import available_cores

__all__ = ["check_limits", "check_memory", "given_by_slurm", "judged", "memory_limit"]

_MIB = 2**20
# Measured with TensorFlow 2.15 and 2.21 on CPUs: a task that trains the smallest model has 290 to 370 MiB of its own,
# and 300 to 430 MiB of libraries that all tasks on a host share.
_OWN_BYTES, _SHARED_BYTES = 300 * _MIB, 350 * _MIB
# The same of threads: a worker of a cluster has some 130 on two cores, a process that trains alone 23.
_THREADS, _THREADS_OF_CORE = 100, 16
_FILES, _FILES_OF_PEER = 64, 8
# What an input function holds in memory at most, and how many files it holds open, unless it is told otherwise.
_HELD_BYTES, _HELD_FILES = 2**30, 128
_COPIES = 2  # A checkpoint has values and slots; gradients, and the copy that is written, come on top.
_NO_LIMIT = 2**60


@dataclass(frozen=True)
class Need:
    """What a task takes.

    Attributes:
        least: bytes without which it cannot start.
        likely: bytes that it takes soon.
        told: what those are made of.
    """

    least: int
    likely: int
    told: str

    def of(self, tasks: int, given: int) -> str | None:
        """How bad it is where so many tasks have so many bytes; None: they may do."""
        if given < tasks * self.least:
            return "error"
        return "warning" if given < tasks * self.likely + _SHARED_BYTES else None


def need_of(context: Context, *, trains: bool = True) -> Need:
    """What a task takes, as far as files say; parameter servers and evaluators hold no training data."""
    arrays = held = variables = 0
    with contextlib.suppress(InputError, NotPrepared, NotLookedAt):
        section = context.needed_job().input
        files = files_of(context)[0].paths if trains else ()
        held = sum(map(os.path.getsize, files))
        if trains and isinstance(section, ArraysInput):
            # As bytes, which they are at least; the file may be compressed.
            arrays = sum(math.prod(shape) for shape in array_shapes("training", section.train).values())
        held = max(arrays, held) if arrays or held <= _HELD_BYTES else 0
    with contextlib.suppress(NotLookedAt):
        latest = latest_checkpoint(context.local_directory)
        variables = _COPIES * latest[1] if latest is not None else 0
    parts = {"TensorFlow": _OWN_BYTES, "data": held, "variables": variables}
    told = ", ".join(f"{name} {size_of(count)}" for name, count in parts.items() if count > 10 * _MIB)
    return Need(_OWN_BYTES + arrays, sum(parts.values()), told)


def check_memory(
    context: Context, *, meminfo: str = "/proc/meminfo", limit: int | None = None
) -> Iterator[DoctorFinding]:
    """Memory that is there against what the tasks on this host take."""
    if not context.part.here:
        raise NotLookedAt("the tasks of this document run elsewhere")
    total, free = _of_host(meminfo)
    if total is None:
        raise NotLookedAt("this system does not say how much memory it has")
    limit = memory_limit() if limit is None else limit
    most = min(total, limit)
    tasks = tasks_on_this_host(context)
    need = need_of(context)
    free = min(free, most)
    group = f", {size_of(limit)} for this control group" if limit < total else ""
    there = f"{size_of(free)} free of {size_of(total)}{group}"
    takes = f"{tasks} task(s) of some {size_of(need.likely)} ({need.told}) and {size_of(_SHARED_BYTES)} for all"
    why = "the kernel ends the task that asks for more, or the machine stands still"
    if need.of(tasks, free) is not None:
        # What others have now they may give back.
        bad = "error" if need.of(tasks, most) == "error" else "warning"
        hint = "ask for more memory, put fewer tasks on a host, or end what else runs here"
        yield DoctorFinding(bad, f"{takes}; {there}", why, hint)
    else:
        yield ok(f"{takes}; {there}")


def check_limits(context: Context) -> Iterator[DoctorFinding]:
    """`ulimit -n` and `ulimit -u` against the files, connections and threads of the tasks on this host."""
    if not context.part.here:
        raise NotLookedAt("the tasks of this document run elsewhere")
    tasks, cluster = tasks_on_this_host(context), _tasks(context)
    held = 0
    with contextlib.suppress(InputError, NotPrepared, NotLookedAt):
        held = min(sum(len(one.paths) for one in files_of(context)), _HELD_FILES)
    yield from _files(_FILES + _FILES_OF_PEER * cluster + held)
    yield from _threads(tasks, cluster)


def _tasks(context: Context) -> int:
    if context.part.tasks:
        return len(context.part.tasks)
    return context.job.cluster.num_training_tasks if context.job is not None else 1


def _files(needed: int) -> Iterator[DoctorFinding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        yield ok(f"up to {'any number of' if soft == resource.RLIM_INFINITY else soft} open files; a task has {needed}")
        return
    more = hard == resource.RLIM_INFINITY or hard >= needed
    yield error(
        f"a task may have {soft} open files (ulimit -n), and has up to {needed}: connections and data files",
        "it ends with `Too many open files`, in the middle of training where it is a data file",
        f"ulimit -n {max(needed, 4096) if more else hard} in the shell or the job script"
        + ("" if more else f", and have the hard limit of {hard} raised (LimitNOFILE, limits.conf)"),
    )


def _threads(tasks: int, cluster: int) -> Iterator[DoctorFinding]:
    cores = len(available_cores())
    needed = tasks * (_THREADS + _THREADS_OF_CORE * cores if cluster > 1 else _THREADS_OF_CORE * cores)
    limits = [("pids.max of the control group", _smallest("pids", "pids.max"), _smallest("pids", "pids.current"))]
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    # The kernel lets root have more.
    if soft != resource.RLIM_INFINITY and os.geteuid():
        limits.append(("ulimit -u", soft, _of_this_user()))
    found = [one for limit in limits if (one := judged(*limit, needed=needed, tasks=tasks)) is not None]
    least = min(limit for _, limit, _ in limits)
    most = "any number of" if least == _NO_LIMIT else f"up to {least}"
    yield from found or [ok(f"{most} processes and threads; {tasks} task(s) here start some {needed}")]


def judged(name: str, limit: int, used: int, *, needed: int, tasks: int) -> DoctorFinding | None:
    """What a limit of processes and threads means for so many more of them; None: they may start."""
    if limit >= _NO_LIMIT or used + needed <= limit:
        return None
    return error(
        f"{limit} processes and threads may run ({name}), {used} do, and {tasks} task(s) here start some {needed}",
        "a thread that cannot be started ends the task with `Resource temporarily unavailable`, or hangs it",
        f"raise it to {used + 2 * needed} or more, in the job script or by the administrator, or end what else runs",
    )


def _of_this_user() -> int:
    """Threads of all processes of this user."""
    count, own = 0, str(os.geteuid())
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/status", encoding="utf-8", errors="replace") as file:
                fields = dict(line.partition(":")[::2] for line in file)
                if fields.get("Uid", "").split()[:1] == [own]:
                    count += int(fields.get("Threads", "1"))
    return count


def _of_host(path: str) -> tuple[int | None, int]:
    """Bytes in all, and those that are free or can be made so."""
    found = {}
    with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as file:
        for line in file:
            name, _, value = line.partition(":")
            if value.strip().endswith("kB"):
                found[name] = int(value.split()[0]) * 1024
    total = found.get("MemTotal")
    return total, found.get("MemAvailable", total or 0)


def memory_limit(root: str = CGROUPS, own: str = "/proc/self/cgroup") -> int:
    """The bytes that this process's control groups allow, and a very large number where they set no limit."""
    return min(_smallest("memory", name, root, own) for name in ("memory.max", "memory.limit_in_bytes"))


def _smallest(controller: str, name: str, root: str = CGROUPS, own: str = "/proc/self/cgroup") -> int:
    limits = [_NO_LIMIT]
    for folder in cgroup_folders(root, own, controller):
        words = words_of(os.path.join(folder, name))
        if len(words) == 1 and words[0].isdigit():
            limits.append(min(int(words[0]), _NO_LIMIT))
    return min(limits)


# What Slurm is asked for -------------------------------------------------------------------------------------------


def given_by_slurm(context: Context, role: str, tasks: int, asked: SlurmResources) -> Iterator[DoctorFinding]:
    """Memory that a role's tasks are given, against what they take at least.

    Args:
        context: what is examined.
        role: for messages.
        tasks: how many the role has.
        asked: what they get.
    """
    cpus = asked.cpus_per_task or 1
    if asked.mem is not None:
        on_node = asked.tasks_per_node or (math.ceil(tasks / asked.nodes) if asked.nodes else 1)
        field, given, count = "mem", _bytes(asked.mem), min(on_node, tasks)
        told = f"slurm.mem {asked.mem} for {count} task(s) on a node"
    elif asked.mem_per_cpu is not None:
        field, given, count = "mem_per_cpu", _bytes(asked.mem_per_cpu) * cpus, 1
        told = f"slurm.mem_per_cpu {asked.mem_per_cpu} and {cpus} CPU(s) a task"
    else:
        return
    # "0" asks for all that a node has.
    if not given:
        return
    need = need_of(context, trains=role in ("chief", "worker"))
    bad = need.of(count, given)
    if bad is None:
        return
    whole = count * need.likely + _SHARED_BYTES
    needed = math.ceil(whole / (cpus if field == "mem_per_cpu" else 1) / _MIB)
    yield DoctorFinding(
        bad,
        f"{told} ({role}), and a task takes some {size_of(need.likely)} ({need.told}), all of them "
        f"{size_of(_SHARED_BYTES)} more",
        "Slurm ends the job when its memory runs out (OUT_OF_MEMORY)",
        f"set slurm.{field} to {needed}M or more",
    )


def _bytes(text: str) -> int:
    unit = text[-1] if text[-1] in "KMGT" else "M"
    return int(text.rstrip("KMGT")) * 1024 ** ("KMGT".index(unit) + 1)
