"""Limits of the system under which TensorFlow cannot work, told in one message before it is loaded.

Where it cannot start a thread or map memory, TensorFlow ends the process with SIGABRT and a page of C++ frames, and
the BLAS library of NumPy complains once a thread, or waits for ever. Python hears nothing of it. So it is looked at
beforehand, against what the smallest job takes: a job that is not refused may still need more.
"""

from __future__ import annotations

import contextlib
import os
import resource
import threading
from collections.abc import Mapping
from pathlib import Path

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.utils.logger import logger

__all__ = ["HINT", "SIZES_POOLS", "explained", "in_words", "require", "warn"]

# Variables that size the pools of threads, which have one thread a CPU without them.
SIZES_POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
# Whether it trains -> what that takes at least, and more for each CPU: threads, and MB of addresses. Measured without
# GPUs on 1 to 32 CPUs, on 2.15 and 2.21; the lower one with a margin. A training has 9 threads and 7 more a CPU.
_THREADS = {False: (0, 2), True: (6, 7)}
_MEGABYTES = {False: (1150, 65), True: (2350, 118)}
_AMPLE = 50  # a limit on all threads of a user that is so many times as high is not tried out
HINT = (
    "raise that limit (ulimit -u, LimitNPROC= of systemd, pids of the container), or end other processes of this user, "
    "which count too"
)
_PIDS_MAX = Path("/sys/fs/cgroup/pids.max")
_UNMAPPED = ("failed to map segment", "cannot allocate memory", "cannot create shared object descriptor")


def require(environ: Mapping[str, str], *, trains: bool, sized: bool = False, tasks: int = 1) -> None:
    """Looks whether TensorFlow can be loaded in this process, and whether a job can train.

    Args:
        environ: where variables may size the pools of threads.
        trains: whether a training follows.
        sized: whether something else sizes them.
        tasks: how many such processes this one starts; 0 or 1: it is the one.

    Raises:
        ConfigError: a limit of the system is too low for the smallest job.
    """
    sized = sized or tasks > 1 or any(environ.get(name) for name in SIZES_POOLS)
    cpus = 1 if sized else len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    what = "to train" if trains else "to be loaded"
    base, each = _MEGABYTES[trains]
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    least = (base + each * cpus) * 2**20
    if limit != resource.RLIM_INFINITY and limit < 2 * least:
        problem = _of_addresses(limit, f"TensorFlow needs more than {least // 2**20:,} MB {what} with {_cpus(cpus)}")
        if limit < least:
            raise problem
        if trains:
            logger.warning("%s. Where they run out, TensorFlow ends the process (SIGABRT)", problem.message)
    base, each = _THREADS[trains]
    wanted = tasks * (base + each * cpus)
    limits = _of_threads()
    started = wanted if min(limits, default=wanted * _AMPLE) >= wanted * _AMPLE else _startable(wanted)
    if started < wanted:
        raise ConfigError(
            f"only {started} of {wanted} threads could be started here, and TensorFlow needs more {what}"
            + (f" {tasks} tasks" if tasks > 1 else f" with {_cpus(cpus)}"),
            code="system/limit",
            found=in_words(),
            hint=HINT,
        )


def warn(environ: Mapping[str, str]) -> None:
    """One warning where a limit is too low for a training, of a process that may have none or one of few threads."""
    try:
        require(environ, trains=True)
    except ConfigError as error:
        found = (error.found or "").removeprefix("the limits are ")
        logger.warning("%s (%s). Where that is too little, TensorFlow ends the process (SIGABRT)", error.message, found)


def in_words() -> str:
    """The limits on the number of threads and processes."""
    return "the limits are " + " and ".join(_of_threads().values()) if _of_threads() else "no limit of this process"


def explained(error: BaseException) -> ConfigError | None:
    """The error of a TensorFlow that could not be loaded for want of memory, as one message; None for any other."""
    if not isinstance(error, MemoryError) and not any(words in str(error).lower() for words in _UNMAPPED):
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    why = f"TensorFlow could not be loaded: {str(error) or type(error).__name__}"
    if limit != resource.RLIM_INFINITY:
        return _of_addresses(limit, why)
    return ConfigError(
        f"memory ran out. {why}", code="system/limit", hint="give the process more memory, or end others"
    )


def _of_addresses(limit: int, why: str) -> ConfigError:
    return ConfigError(
        f"the addresses of this process are limited to {limit // 2**20:,} MB (ulimit -v {limit // 1024})",
        code="system/limit",
        found=why,
        hint="ulimit -v unlimited: most addresses are never memory. What limits memory is a cgroup (--mem of Slurm, "
        "limits of a container)",
    )


def _of_threads() -> dict[int, str]:
    """Each limit on the number of threads -> what it is, in words."""
    limits = {}
    most = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if most != resource.RLIM_INFINITY:
        limits[most] = f"{most} processes and threads of one user (ulimit -u {most})"
    with contextlib.suppress(OSError, ValueError):  # no cgroup, or "max"
        limits[int(_PIDS_MAX.read_text())] = f"{_PIDS_MAX.read_text().strip()} in this container (pids.max)"
    return limits


def _startable(count: int) -> int:
    """How many of so many threads can be started, all at a time. They end at once."""
    over, threads = threading.Event(), []
    size = threading.stack_size(64 * 1024)
    try:
        for _ in range(count):
            thread = threading.Thread(target=over.wait, daemon=True)
            thread.start()
            threads.append(thread)
    except (RuntimeError, MemoryError):
        pass
    finally:
        threading.stack_size(size)
        over.set()
    for thread in threads:
        thread.join()
    return len(threads)


def _cpus(count: int) -> str:
    return "one CPU" if count == 1 else f"{count} CPUs"
