"""Checks of system limits that are too low for TensorFlow, before it is loaded.

If TensorFlow cannot start a thread or map memory, it aborts the process (SIGABRT) with a page of C++ frames; NumPy's
BLAS library prints an error per thread, or hangs. Python cannot catch this. So the limits are checked first, against
the needs of the smallest job: a job that passes may still need more.
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

__all__ = ["HINT", "SIZES_POOLS", "available_cores", "describe_limits", "explained", "require", "warn"]

# Variables that set the size of thread pools; the default is one thread per CPU.
SIZES_POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
# Whether it trains -> the minimum, and the increase per CPU: threads, and MB of address space. Measured without GPUs on
# 1 to 32 CPUs, with 2.15 and 2.21; the lower value with a margin. A training has 9 threads, and 7 more per CPU.
_THREADS = {False: (0, 2), True: (6, 7)}
_MEGABYTES = {False: (1150, 65), True: (2350, 118)}
_AMPLE = 50  # a limit on a user's threads that is higher by this factor is not tested by starting threads
HINT = (
    "raise that limit (ulimit -u, LimitNPROC= of systemd, pids of the container), or stop other processes of this "
    "user, which count too"
)
_PIDS_MAX = Path("/sys/fs/cgroup/pids.max")
_UNMAPPED = ("failed to map segment", "cannot allocate memory", "cannot create shared object descriptor")


def available_cores() -> tuple[int, ...]:
    """Return the CPUs that this process may use, in order."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def require(environ: Mapping[str, str], *, trains: bool, sized: bool = False, tasks: int = 1) -> None:
    """Check that TensorFlow can be loaded in this process, and that a job can train.

    Args:
        environ: The environment with the variables of the thread pools.
        trains: Whether to check for a training.
        sized: Whether the size of the thread pools is set otherwise.
        tasks: The number of processes that this one starts; 0 or 1 for this process.

    Raises:
        ConfigError: A system limit is too low for the smallest job.
    """
    sized = sized or tasks > 1 or any(environ.get(name) for name in SIZES_POOLS)
    cpus = 1 if sized else len(available_cores())
    purpose = "to train" if trains else "to be loaded"
    base, each = _MEGABYTES[trains]
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    least = (base + each * cpus) * 2**20
    if limit != resource.RLIM_INFINITY and limit < 2 * least:
        problem = _of_addresses(limit, f"TensorFlow needs more than {least // 2**20:,} MB {purpose} with {_cpus(cpus)}")
        if limit < least:
            raise problem
        if trains:
            logger.warning("%s. If that is too little, TensorFlow aborts the process (SIGABRT)", problem.message)
    base, each = _THREADS[trains]
    wanted = tasks * (base + each * cpus)
    limits = _of_threads()
    started = wanted if min(limits, default=wanted * _AMPLE) >= wanted * _AMPLE else _startable(wanted)
    if started < wanted:
        raise ConfigError(
            f"only {started} of {wanted} threads could be started here, and TensorFlow needs more {purpose}"
            + (f" {tasks} tasks" if tasks > 1 else f" with {_cpus(cpus)}"),
            code="system/limit",
            found=describe_limits(),
            hint=HINT,
        )


def warn(environ: Mapping[str, str]) -> None:
    """Log a warning if a limit is too low for a training.

    This process may not train, or need fewer threads.
    """
    try:
        require(environ, trains=True)
    except ConfigError as error:
        limits = (error.found or "").removeprefix("the limits are ")
        logger.warning("%s (%s). If that is too little, TensorFlow aborts the process (SIGABRT)", error.message, limits)


def describe_limits() -> str:
    """Describe the limits on the number of threads and processes."""
    return "the limits are " + " and ".join(_of_threads().values()) if _of_threads() else "no limit of this process"


def explained(error: BaseException) -> ConfigError | None:
    """Convert the error of loading TensorFlow without enough memory; None for others."""
    if not isinstance(error, MemoryError) and not any(message in str(error).lower() for message in _UNMAPPED):
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    why = f"TensorFlow could not be loaded: {str(error) or type(error).__name__}"
    if limit != resource.RLIM_INFINITY:
        return _of_addresses(limit, why)
    return ConfigError(
        f"out of memory. {why}", code="system/limit", hint="give the process more memory, or stop others"
    )


def _of_addresses(limit: int, why: str) -> ConfigError:
    return ConfigError(
        f"the address space of this process is limited to {limit // 2**20:,} MB (ulimit -v {limit // 1024})",
        code="system/limit",
        found=why,
        hint="set `ulimit -v unlimited`: most of the address space is never used. To limit memory, use a cgroup (--mem "
        "of Slurm, limits of a container)",
    )


def _of_threads() -> dict[int, str]:
    """Return the limits on the number of threads, and their descriptions."""
    limits = {}
    most = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if most != resource.RLIM_INFINITY:
        limits[most] = f"{most} processes and threads of one user (ulimit -u {most})"
    with contextlib.suppress(OSError, ValueError):  # no cgroup, or "max"
        limits[int(_PIDS_MAX.read_text())] = f"{_PIDS_MAX.read_text().strip()} in this container (pids.max)"
    return limits


def _startable(count: int) -> int:
    """Return how many of `count` threads can be started at the same time."""
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
