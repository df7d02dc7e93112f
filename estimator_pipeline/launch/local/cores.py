"""CPU assignment for the tasks of a local cluster.

Otherwise every task starts as many threads as the machine has CPUs, and synchronous training waits for the slowest of
processes that compete for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from estimator_pipeline.cluster.spec import Task

__all__ = ["TRAINING_JOBS", "share_cores", "thread_environment"]

TRAINING_JOBS = ("chief", "master", "worker")
"""The jobs that compute gradients; the others are ps and evaluator."""


def share_cores(tasks: Sequence[Task], cores: Sequence[int]) -> dict[Task, tuple[int, ...]]:
    """Assign CPUs to each task.

    With at least one CPU per task, each ps and evaluator gets one CPU. The training tasks split the rest evenly; a
    remainder goes to the first ones, the chief among them. With fewer CPUs, the training tasks split all evenly and
    the others may run on any. With fewer CPUs than training tasks, every task may run on all: if pinned, two of them
    would share a CPU and the rest would wait for these two.

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
    single = {task: (core,) for task, core in zip(others, every[cut:], strict=True)}
    return {**_even(training, every[:cut]), **single}


def thread_environment(
    cores: Mapping[Task, tuple[int, ...]], *, environ: Mapping[str, str]
) -> dict[Task, dict[str, str]]:
    """Return the variables that size each task's thread pools to its CPUs, without those that `environ` has.

    A CPU shared by n tasks counts as 1/n for each. The inter-op pool has at least two threads, because an op that
    blocks (a queue, a receive) would block the only one.
    """
    result = {}
    for task, task_cores in cores.items():
        # A training task ignores ps and evaluator, which are idle for most of the time. Those count all tasks, so that
        # they do not slow down the training.
        trains = task.type in TRAINING_JOBS
        rivals = [theirs for other, theirs in cores.items() if not trains or other.type in TRAINING_JOBS]
        part = sum(1 / sum(core in theirs for theirs in rivals) for core in task_cores)
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
