"""CPUs shared out among the tasks of a local cluster, as plain arithmetic.

Without it every task starts as many threads as the machine has CPUs, and synchronous training then waits
for the slowest of processes that push each other about.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from estimator_pipeline.cluster.spec import Task

__all__ = ["TRAINING_JOBS", "available_cores", "share_cores", "thread_environment"]

TRAINING_JOBS = ("chief", "master", "worker")
"""The jobs that compute gradients. The others (ps, evaluator) serve them."""


def available_cores() -> tuple[int, ...]:
    """The CPUs that this process may use, in order."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def share_cores(tasks: Sequence[Task], cores: Sequence[int]) -> dict[Task, tuple[int, ...]]:
    """Give each task its CPUs.

    With a CPU for every task, each ps and evaluator gets one of its own and the training tasks share the
    rest evenly, the first ones (the chief among them) one more where it does not divide. With fewer, the
    training tasks share all evenly and the others run beside them on any. With fewer CPUs than training
    tasks all tasks run on all: pinned, two of them would share a CPU and the rest would wait for these.

    Args:
        tasks: The tasks, in the order of the cluster.
        cores: CPU numbers to share.

    Returns:
        The CPU numbers of each task, never empty.
    """
    every = tuple(cores)
    training = [task for task in tasks if task.type in TRAINING_JOBS]
    others = [task for task in tasks if task.type not in TRAINING_JOBS]
    if len(every) < len(training) or not training:
        return dict.fromkeys(tasks, every)
    if len(every) < len(tasks):
        return {**_even(training, every), **dict.fromkeys(others, every)}
    cut = len(every) - len(others)
    own = {task: (core,) for task, core in zip(others, every[cut:], strict=True)}
    return {**_even(training, every[:cut]), **own}


def thread_environment(
    cores: Mapping[Task, tuple[int, ...]], *, environ: Mapping[str, str]
) -> dict[Task, dict[str, str]]:
    """The variables that size each task's thread pools to its CPUs, save those that `environ` has already.

    Args:
        cores: What :func:`share_cores` gave. A task that shares its CPUs counts for its part of them.
        environ: The environment that the tasks will inherit.

    Returns:
        For each task the variables to add. The pool between operations has at least two threads, because
        an operation that blocks (a queue, a receive) would hold up the only one.
    """
    result = {}
    for task, own in cores.items():
        # A training task does not count the others beside it, which are idle for most of the time; those
        # count everyone, so that they do not push the training.
        trains = task.type in TRAINING_JOBS
        rivals = [theirs for other, theirs in cores.items() if not trains or other.type in TRAINING_JOBS]
        part = sum(1 / sum(core in theirs for theirs in rivals) for core in own)
        threads = max(1, int(part + 1e-9))
        wanted = {
            "TF_NUM_INTRAOP_THREADS": threads,
            "TF_NUM_INTEROP_THREADS": max(2, threads),
            "OMP_NUM_THREADS": threads,
        }
        result[task] = {name: str(value) for name, value in wanted.items() if name not in environ}
    return result


def _even(tasks: Sequence[Task], cores: tuple[int, ...]) -> dict[Task, tuple[int, ...]]:
    each, extra = divmod(len(cores), len(tasks))
    shares, start = {}, 0
    for number, task in enumerate(tasks):
        end = start + each + (number < extra)
        shares[task] = cores[start:end]
        start = end
    return shares
