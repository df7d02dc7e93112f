"""Checks of this machine: threads and devices."""

from __future__ import annotations

import glob
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

from estimator_pipeline.cluster.addresses import host_of
from estimator_pipeline.doctor.context import Context
from estimator_pipeline.doctor.findings import CheckSkipped, DoctorFinding, error, of_error, ok, warning
from estimator_pipeline.doctor.gpus import visible_gpus
from estimator_pipeline.errors import PipelineError
from estimator_pipeline.utils.system_limits import available_cores

__all__ = [
    "CGROUPS",
    "cgroup_folders",
    "check_devices",
    "check_threads",
    "cpu_quota",
    "import_tensorflow",
    "tasks_on_this_host",
    "words_of",
]

CGROUPS = "/sys/fs/cgroup"


# Threads ---------------------------------------------------------------------------------------------------------


def cpu_quota(root: str = CGROUPS, cgroup_file: str = "/proc/self/cgroup") -> float | None:
    """Return the CPU quota of this process's control groups in CPUs; None if there is no limit.

    Both cgroup versions are supported; the lowest limit of the hierarchy counts.
    """
    limits = []
    for folder in cgroup_folders(root, cgroup_file, "cpu"):
        words = words_of(os.path.join(folder, "cpu.max"))
        if len(words) == 2 and words[0] != "max":
            limits.append(int(words[0]) / int(words[1]))
        quota, period = (words_of(os.path.join(folder, f"cpu.cfs_{name}_us")) for name in ("quota", "period"))
        if quota and period and int(quota[0]) > 0:
            limits.append(int(quota[0]) / int(period[0]))
    return min(limits) if limits else None


def cgroup_folders(root: str, cgroup_file: str, controller: str) -> Iterator[str]:
    """Iterate over the folders of this process's control groups for a controller, and their parents.

    In a container the folders may not exist.
    """
    try:
        with open(cgroup_file, encoding="utf-8") as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        lines = []
    for number, controllers, path in (line for line in lines if len(line) == 3):
        if number == "0" and not controllers:
            base = root
        elif controller in controllers.split(","):
            base = os.path.join(root, controllers)
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        yield from (os.path.join(base, *parts[:length]) for length in range(len(parts), -1, -1))
    yield from (root, os.path.join(root, controller), os.path.join(root, "cpu,cpuacct"))


def words_of(path: str) -> list[str]:
    """Return the words of a small kernel file; empty if it cannot be read."""
    try:
        with open(path, encoding="ascii") as file:
            return file.read().split()
    except (OSError, UnicodeDecodeError):
        return []


def tasks_on_this_host(context: Context) -> int:
    """Return how many of the job's tasks run on this task's host, by their addresses; 1 if unknown."""
    part = context.part
    if part.task is not None and part.task in part.addresses:
        host = host_of(part.addresses[part.task])
        return sum(host_of(address) == host for address in part.addresses.values())
    if part.detection is not None and part.hosts is not None:
        rank = part.tasks.index(part.task) if part.task in part.tasks else part.detection.allocation.rank
        return part.hosts.count(part.hosts[rank]) if rank < len(part.hosts) else 1
    return 1


def check_threads(context: Context, *, cores: int | None = None, quota: float | None = None) -> Iterator[DoctorFinding]:
    """Check the number of threads of the job's tasks on this host against the usable CPUs."""
    machine = os.cpu_count() or 1
    cores = len(available_cores()) if cores is None else cores
    quota = cpu_quota() if quota is None else quota
    part = context.part
    if not part.here:
        raise CheckSkipped("the tasks of this document run elsewhere")
    usable = min(cores, max(1, math.floor(quota + 0.01))) if quota is not None else cores
    asked, source = _asked(context)
    threads = asked or cores
    tasks = tasks_on_this_host(context)
    bound = cores < machine
    cpus = f"{cores} of {machine} CPUs" + (
        f", limited to {quota:.2g} by the control group" if quota is not None else ""
    )
    findings = list(_slurm(context.environ, cores))
    if threads > usable:
        message = f"{threads} intra-op thread(s) ({source}), and this task may use {cpus}"
        findings.append(
            warning(
                message,
                "oversubscribed threads slow each other down"
                + ("; above its quota the whole task is paused for part of each 100 ms" if quota is not None else ""),
                f"set run.threads: {{intra_op: {usable}, inter_op: {max(2, usable)}}}, or TF_NUM_INTRAOP_THREADS, and "
                f"OMP_NUM_THREADS={usable}",
            )
        )
    elif tasks > 1 and not bound and threads * tasks > usable and not findings:
        each = max(1, usable // tasks)
        findings.append(
            warning(
                f"{tasks} tasks on this host with {threads} thread(s) each ({source}), and {cpus} for all of them",
                "the tasks compete for CPUs, and synchronous training waits for the slowest one",
                f"bind each task to {each} CPU(s) (srun --cpus-per-task={each} --cpu-bind=cores, or taskset), or set "
                f"run.threads: {{intra_op: {each}, inter_op: {max(2, each)}}}",
            )
        )
    yield from findings or [ok(f"{threads} thread(s) ({source}) on {cpus}; {tasks} task(s) on this host")]


def _asked(context: Context) -> tuple[int, str]:
    """Return the number of intra-op threads, 0 for TensorFlow's default, and where it is set."""
    if context.job is not None:
        run = context.job.run
        if run.threads.intra_op:
            return run.threads.intra_op, "run.threads.intra_op"
        threads = run.session_config.get("intra_op_parallelism_threads")
        if isinstance(threads, int) and threads:
            return threads, "run.session_config"
    text = context.environ.get("TF_NUM_INTRAOP_THREADS", "").strip()
    if text.isdigit() and int(text):
        return int(text), "TF_NUM_INTRAOP_THREADS"
    return 0, "TensorFlow's default"


def _slurm(environ: Mapping[str, str], cores: int) -> Iterator[DoctorFinding]:
    each = environ.get("SLURM_CPUS_PER_TASK", "")
    if "SLURM_PROCID" not in environ:
        return
    if each.isdigit() and cores > int(each):
        yield warning(
            f"SLURM_CPUS_PER_TASK={each}, and this task may use {cores} CPUs: Slurm does not bind it",
            "each task starts one thread per visible CPU",
            f"use srun --cpu-bind=cores, or run.threads: {{intra_op: {each}}}",
        )
    on_node = environ.get("SLURM_CPUS_ON_NODE", "")
    if cores == 1 and not each and on_node.isdigit() and int(on_node) > 1:
        yield warning(
            f"this task may use one CPU, and the job has {on_node} on this node",
            "since Slurm 22.05 srun does not inherit --cpus-per-task from sbatch",
            "use srun --cpus-per-task=N, or export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK in the job script",
        )


# Devices ---------------------------------------------------------------------------------------------------------


def check_devices(context: Context) -> Iterator[DoctorFinding]:
    """Check the visible GPUs against those that the job requests; with `deep` as TensorFlow sees them."""
    seen = visible_gpus(context.environ)
    text = context.environ.get("CUDA_VISIBLE_DEVICES")
    on_host = len(glob.glob("/dev/nvidia[0-9]*"))
    variable = f"CUDA_VISIBLE_DEVICES={text!r}, " if text is not None else ""
    gpus, how = len(seen), f"{variable}{on_host} GPU(s) on this host"
    if context.deep:
        tensorflow = _by_tensorflow(context)
        if isinstance(tensorflow, DoctorFinding):
            yield tensorflow
            return
        if tensorflow != gpus:
            yield warning(
                f"TensorFlow sees {tensorflow} GPU(s), and {gpus} should be visible ({how})",
                "the driver, CUDA or cuDNN does not match this TensorFlow, which silently falls back to the CPU",
                "read its log with TF_CPP_MIN_LOG_LEVEL=0; pip install 'tensorflow[and-cuda]' of the same version",
            )
        gpus, how = tensorflow, "as TensorFlow reports"
    if text is not None and text.strip() not in ("", "-1", "NoDevFiles") and not seen:
        yield warning(
            f"CUDA_VISIBLE_DEVICES={text!r}, and {on_host} GPU(s) are on this host",
            "CUDA finds no such GPU, and the job runs on the CPU",
            "list existing GPUs, or let the scheduler set the variable",
        )
    problems = list(_asked_devices(context, gpus, how)) if context.job is not None else []
    yield from problems or [ok(f"{gpus} GPU(s) visible ({how})")]


def _asked_devices(context: Context, gpus: int, how: str) -> Iterator[DoctorFinding]:
    run = context.needed_job().run
    numbers = [
        int(n) for name in run.devices or () if "GPU" in name.upper() and (n := name.rpartition(":")[2]).isdigit()
    ]
    if numbers and max(numbers) >= gpus:
        yield error(
            f"run.devices names GPU:{max(numbers)}, and {gpus} GPU(s) are visible ({how})",
            "the strategy cannot be created",
            "request more GPUs from the scheduler, or list existing devices",
        )
    if run.num_devices and gpus and run.num_devices > gpus:
        yield error(
            f"run.num_devices is {run.num_devices}, and {gpus} GPU(s) are visible ({how})",
            "the strategy cannot be created",
            f"set run.num_devices to {gpus} or less, or request more GPUs from the scheduler",
        )
    if run.communication.implementation == "nccl" and not gpus:
        yield error(
            f"run.communication.implementation is nccl, and no GPU is visible ({how})",
            "NCCL works only between NVIDIA GPUs",
            "set run.communication.implementation: ring or auto",
        )


def _by_tensorflow(context: Context) -> Any:
    """Return the number of GPUs that TensorFlow sees, or a finding if it cannot be imported."""
    try:
        tf = import_tensorflow(context)
    except PipelineError as problem:
        return of_error(problem, "the job fails with this error at its start")
    return len(tf.config.list_physical_devices("GPU"))


def import_tensorflow(context: Context) -> Any:
    """Import TensorFlow, configured like in the job."""
    from estimator_pipeline import compat

    if context.job is None:
        return compat.tensorflow()
    from estimator_pipeline.engines.jobs.build import prepare_process

    return prepare_process(context.job)
