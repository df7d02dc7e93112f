"""This machine: threads against the cores that the task may use, devices, and how long a stop may take."""

from __future__ import annotations

import glob
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

from estimator_pipeline.cluster.addresses import host_of
from estimator_pipeline.doctor.context import Context
from estimator_pipeline.doctor.findings import DoctorFinding, NotLookedAt, error, info, of_error, ok, warning
from estimator_pipeline.doctor.gpus import visible_gpus
from estimator_pipeline.errors import PipelineError
from estimator_pipeline.launch.local.cores import available_cores

__all__ = [
    "CGROUPS",
    "cgroup_folders",
    "check_devices",
    "check_preemption",
    "check_threads",
    "cpu_quota",
    "import_tensorflow",
    "tasks_on_this_host",
    "words_of",
]

CGROUPS = "/sys/fs/cgroup"


# Threads ---------------------------------------------------------------------------------------------------------


def cpu_quota(root: str = CGROUPS, own: str = "/proc/self/cgroup") -> float | None:
    """How many CPUs' time this process's control groups allow, or None where they set no limit.

    Both versions of control groups are read; the tightest limit on the way up counts.
    """
    limits = []
    for folder in cgroup_folders(root, own, "cpu"):
        words = words_of(os.path.join(folder, "cpu.max"))
        if len(words) == 2 and words[0] != "max":
            limits.append(int(words[0]) / int(words[1]))
        quota, period = (words_of(os.path.join(folder, f"cpu.cfs_{name}_us")) for name in ("quota", "period"))
        if quota and period and int(quota[0]) > 0:
            limits.append(int(quota[0]) / int(period[0]))
    return min(limits) if limits else None


def cgroup_folders(root: str, own: str, controller: str) -> Iterator[str]:
    """The folders of this process's groups, as a controller has them, and of all above them.

    In a container the path may not exist inside.
    """
    try:
        with open(own, encoding="utf-8") as file:
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
    """The words of a small file of the kernel's; none where it cannot be read."""
    try:
        with open(path, encoding="ascii") as file:
            return file.read().split()
    except (OSError, UnicodeDecodeError):
        return []


def tasks_on_this_host(context: Context) -> int:
    """How many of the job's tasks run on the host of this one, as their addresses say; 1 where that is not known."""
    part = context.part
    if part.task is not None and part.task in part.addresses:
        own = host_of(part.addresses[part.task])
        return sum(host_of(address) == own for address in part.addresses.values())
    if part.detection is not None and part.hosts is not None:
        rank = part.tasks.index(part.task) if part.task in part.tasks else part.detection.allocation.rank
        return part.hosts.count(part.hosts[rank]) if rank < len(part.hosts) else 1
    return 1


def check_threads(context: Context, *, cores: int | None = None, quota: float | None = None) -> Iterator[DoctorFinding]:
    """Threads that the job's tasks start on this host, against the CPUs that they may use."""
    machine = os.cpu_count() or 1
    own = len(available_cores()) if cores is None else cores
    quota = cpu_quota() if quota is None else quota
    part = context.part
    if not part.here:
        raise NotLookedAt("the tasks of this document run elsewhere")
    usable = min(own, max(1, math.floor(quota + 0.01))) if quota is not None else own
    asked, source = _asked(context)
    threads = asked or own
    tasks = tasks_on_this_host(context)
    bound = own < machine
    told = f"{own} of {machine} CPUs" + (f", limited to {quota:.2g} by the control group" if quota is not None else "")
    found = list(_slurm(context.environ, own))
    if threads > usable:
        what = f"{threads} thread(s) inside one operation ({source}), and this task may use {told}"
        found.append(
            warning(
                what,
                "threads that wait for a CPU hold up the ones that compute"
                + ("; over its quota the whole task is stopped for a part of each 100 ms" if quota is not None else ""),
                f"set run.threads: {{intra_op: {usable}, inter_op: {max(2, usable)}}}, or TF_NUM_INTRAOP_THREADS, and "
                f"OMP_NUM_THREADS={usable}",
            )
        )
    elif tasks > 1 and not bound and threads * tasks > usable and not found:
        each = max(1, usable // tasks)
        found.append(
            warning(
                f"{tasks} tasks on this host with {threads} thread(s) each ({source}), and {told} for all of them",
                "synchronous training waits for the slowest of processes that push each other about",
                f"give each task its own {each} (srun --cpus-per-task={each} --cpu-bind=cores, or taskset), or set "
                f"run.threads: {{intra_op: {each}, inter_op: {max(2, each)}}}",
            )
        )
    yield from found or [ok(f"{threads} thread(s) ({source}) on {told}; {tasks} task(s) on this host")]


def _asked(context: Context) -> tuple[int, str]:
    """How many threads of one operation were asked for, 0 for TensorFlow's choice, and where."""
    if context.job is not None:
        run = context.job.run
        if run.threads.intra_op:
            return run.threads.intra_op, "run.threads.intra_op"
        given = run.session_config.get("intra_op_parallelism_threads")
        if isinstance(given, int) and given:
            return given, "run.session_config"
    text = context.environ.get("TF_NUM_INTRAOP_THREADS", "").strip()
    if text.isdigit() and int(text):
        return int(text), "TF_NUM_INTRAOP_THREADS"
    return 0, "TensorFlow's own choice"


def _slurm(environ: Mapping[str, str], own: int) -> Iterator[DoctorFinding]:
    each = environ.get("SLURM_CPUS_PER_TASK", "")
    if "SLURM_PROCID" not in environ:
        return
    if each.isdigit() and own > int(each):
        yield warning(
            f"SLURM_CPUS_PER_TASK={each}, and this task may use {own} CPUs: Slurm does not bind it",
            "each task starts a thread for every CPU that it sees",
            f"srun --cpu-bind=cores, or run.threads: {{intra_op: {each}}}",
        )
    on_node = environ.get("SLURM_CPUS_ON_NODE", "")
    if own == 1 and not each and on_node.isdigit() and int(on_node) > 1:
        yield warning(
            f"this task may use one CPU, and the job has {on_node} on this node",
            "since Slurm 22.05 srun does not take --cpus-per-task over from sbatch",
            "srun --cpus-per-task=N, or export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK in the job script",
        )


# Devices ---------------------------------------------------------------------------------------------------------


def check_devices(context: Context) -> Iterator[DoctorFinding]:
    """GPUs that are seen against those that the job asks for; with `deep` as TensorFlow sees them."""
    seen = visible_gpus(context.environ)
    text = context.environ.get("CUDA_VISIBLE_DEVICES")
    on_host = len(glob.glob("/dev/nvidia[0-9]*"))
    said = f"CUDA_VISIBLE_DEVICES={text!r}, " if text is not None else ""
    gpus, how = len(seen), f"{said}{on_host} GPU(s) on this host"
    if context.deep:
        tensorflow = _by_tensorflow(context)
        if isinstance(tensorflow, DoctorFinding):
            yield tensorflow
            return
        if tensorflow != gpus:
            yield warning(
                f"TensorFlow sees {tensorflow} GPU(s), and {gpus} should be visible ({how})",
                "the driver, CUDA or cuDNN does not fit this TensorFlow, and it computes on the CPU without a word",
                "see its log with TF_CPP_MIN_LOG_LEVEL=0; pip install 'tensorflow[and-cuda]' of the same version",
            )
        gpus, how = tensorflow, "asked of TensorFlow"
    if text is not None and text.strip() not in ("", "-1", "NoDevFiles") and not seen:
        yield warning(
            f"CUDA_VISIBLE_DEVICES={text!r}, and {on_host} GPU(s) are on this host",
            "CUDA finds no GPU of that name, and the job computes on the CPU",
            "name GPUs that there are, or leave it to the scheduler",
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
            "the strategy cannot be made",
            "ask the scheduler for more GPUs, or name devices that there are",
        )
    if run.num_devices and gpus and run.num_devices > gpus:
        yield error(
            f"run.num_devices is {run.num_devices}, and {gpus} GPU(s) are visible ({how})",
            "the strategy cannot be made",
            f"set run.num_devices to {gpus} or less, or ask the scheduler for more GPUs",
        )
    if run.communication.implementation == "nccl" and not gpus:
        yield error(
            f"run.communication.implementation is nccl, and no GPU is visible ({how})",
            "NCCL reduces between NVIDIA GPUs alone",
            "set run.communication.implementation: ring or auto",
        )


def _by_tensorflow(context: Context) -> Any:
    """How many GPUs TensorFlow sees; a finding where it cannot be imported."""
    try:
        tf = import_tensorflow(context)
    except PipelineError as problem:
        return of_error(problem, "the job ends with this error before it does anything")
    return len(tf.config.list_physical_devices("GPU"))


def import_tensorflow(context: Context) -> Any:
    from estimator_pipeline import compat

    if context.job is None:
        return compat.tensorflow()
    from estimator_pipeline.engines.jobs.runner import prepare_process

    return prepare_process(context.job)


# Being asked to end ----------------------------------------------------------------------------------------------


def check_preemption(context: Context) -> Iterator[DoctorFinding]:
    """The time that a checkpoint may take at the end, beside the time that the scheduler gives."""
    from estimator_pipeline.engines.lifecycle.stopping.preemption import SECS_VARIABLE, seconds_of

    if context.part.detection is None or context.part.detection.environment.name == "tf_config":
        raise NotLookedAt("no scheduler")
    try:
        seconds = seconds_of(context.environ)
    except PipelineError as problem:
        yield of_error(problem, "a task that is asked to end could not work out how long it may take")
        return
    name = context.part.detection.environment.name
    gives, how = _GIVES.get(name, ("is not told to the task", "see its documents"))
    yield info(
        f"a task that is asked to end takes up to {seconds:g} s for its checkpoint; what {name} gives {gives}",
        "whoever is killed before that begins again at the last checkpoint",
        f"{how}; or {SECS_VARIABLE}=SECONDS, below what there is",
    )


_GIVES = {
    "slurm": (
        "is KillWait (often 30 s), which only `scontrol show config` tells",
        "ask for an early signal, which preemption_signals names: #SBATCH --signal=USR1@120",
    ),
    **dict.fromkeys(
        ("kubernetes_job", "kubernetes_statefulset", "jobset"),
        ("is terminationGracePeriodSeconds (30 s if the manifest says nothing)", "set it to 90 in the pod's manifest"),
    ),
    "pbs": ("is kill_delay of the queue (10 s by default)", "ask the administrator, or qsig a signal earlier"),
    "aws_batch": ("is 30 s (120 s for Spot)", "write checkpoints often"),
    "sagemaker": ("is 120 s", "nothing, as long as a checkpoint takes less"),
}
