"""The environment of a process for a bug report: versions, machine, scheduler and variables, without secrets."""

from __future__ import annotations

import os
import platform
import re
import resource
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from estimator_pipeline.cluster import detection
from estimator_pipeline.compat.bootstrap import versions
from estimator_pipeline.doctor.gpus import visible_gpus
from estimator_pipeline.doctor.machine import cpu_quota
from estimator_pipeline.doctor.resources import memory_limit, memory_of_host
from estimator_pipeline.doctor.storage import size_of
from estimator_pipeline.errors import PipelineError
from estimator_pipeline.utils import system_limits
from estimator_pipeline.utils.version import __version__

__all__ = ["EnvironmentReport", "read_environment"]

_PACKAGES = (
    *("tf-keras", "keras", "tensorflow-estimator", "tensorboard", "tensorflow-datasets"),
    *("protobuf", "numpy", "pyarrow"),
)
_DRIVER = "/proc/driver/nvidia/version"
# Variables that change what a job does, and whether their values are shown: paths, proxies and variables of schedulers
# may name people, hosts and passwords.
_SHOWN = re.compile(
    r"(TF|KERAS|ESTIMATOR_PIPELINE|CUDA|NVIDIA|XLA|NCCL|GRPC)_.*|(OMP|OPENBLAS|MKL)_NUM_THREADS|PYTHONHASHSEED"
)
_NAMED = re.compile(
    r"(LD_LIBRARY_PATH|LD_PRELOAD|PYTHONPATH|PYTHONHOME|PYTHONSTARTUP|VIRTUAL_ENV|CONDA_PREFIX)|(https?|no)_proxy|"
    r"(SLURM|PBS|LSB|OMPI|PMI|FLUX|SGE|OAR|SM|AWS_BATCH|JOBSET|JOB_COMPLETION|KUBERNETES)_.*",
    re.IGNORECASE,
)
# Variables of Terraform, which share the prefix.
_TERRAFORM = re.compile(r"TF_(VAR|CLI|TOKEN)_.*")
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE", re.IGNORECASE)
# user:password@ of a URL.
_LOGIN = re.compile(r"(?<=://)[^/@\s]+@")


@dataclass(frozen=True, kw_only=True)
class EnvironmentReport:
    """The environment of a process.

    Attributes:
        versions: Package -> version; None if it is not installed.
        platform: The operating system, the C library and the architecture.
        cpus: CPUs of the machine, those that this process may use, and the quota of its control groups or None.
        memory: Bytes of the machine, those that are free, and the limit of the control groups or None.
        limits: The limits on threads and open files, as text.
        gpus: The visible NVIDIA GPUs.
        driver: The version of NVIDIA's driver; "" without one.
        scheduler: The environment that has started this process, as text; "" for none.
        variables: Environment variables; None for a value that may be private.
    """

    versions: Mapping[str, str | None]
    platform: str
    cpus: Mapping[str, float | None]
    memory: Mapping[str, int | None]
    limits: str
    gpus: tuple[str, ...]
    driver: str
    scheduler: str
    variables: Mapping[str, str | None]

    def document(self) -> dict[str, Any]:
        """Return it as a JSON document."""
        return asdict(self)

    def markdown(self) -> str:
        """Format it as a code block for an issue."""
        rows = [*_rows(self)]
        width = max(len(name) for name, _ in rows)
        lines = [f"{name:{width}}  {value}".rstrip() for name, value in rows]
        # A value may have backticks; the fence is longer.
        fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", "\n".join(lines))), default=0))
        return "\n".join([f"{fence}text", *lines, fence])


def read_environment(environ: Mapping[str, str]) -> EnvironmentReport:
    """Describe this process and its machine."""
    limit, (total, free) = memory_limit(), memory_of_host()
    return EnvironmentReport(
        versions=_versions(),
        platform=platform.platform(),
        cpus={
            "machine": os.cpu_count(),
            "usable": len(system_limits.available_cores()),
            "quota": cpu_quota(),
        },
        memory={"machine": total, "free": free, "limit": limit if total is None or limit < total else None},
        limits=f"{system_limits.describe_limits()}; {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} open files",
        gpus=visible_gpus(environ),
        driver=_driver(),
        scheduler=_scheduler(environ),
        variables=dict(_variables(environ)),
    )


def _versions() -> dict[str, str | None]:
    distributions = {name: versions.installed(name) for name in versions.TENSORFLOW_DISTRIBUTIONS}
    tensorflow = {name: version for name, version in distributions.items() if version}
    return {
        "estimator_pipeline": __version__,
        "python": platform.python_version() + ("" if sys.implementation.name == "cpython" else f" ({sys.version})"),
        **(tensorflow or {"tensorflow": None}),
        **{name: versions.installed(name) for name in _PACKAGES},
    }


def _driver() -> str:
    try:
        match = re.search(r"\d+\.\d[\d.]+", Path(_DRIVER).read_text(encoding="ascii", errors="replace"))
    except OSError:
        return ""
    return match[0] if match else ""


def _scheduler(environ: Mapping[str, str]) -> str:
    try:
        detected = detection.detect(environ)
    except PipelineError as error:
        return f"not read: {error.message} [{error.code}]"
    if detected is not None:
        allocation = detected.allocation
        size = "" if allocation.size is None else f" of {allocation.size}"
        rank = f"rank {allocation.rank}{size}"
        return f"{detected.environment.name}, {rank if allocation.tf_config is None else allocation.tf_config.task}"
    around = detection.surroundings(environ)
    return "" if around is None else f"{around.environment}, outside of a task"


def _variables(environ: Mapping[str, str]) -> Iterator[tuple[str, str | None]]:
    for name, value in sorted(environ.items()):
        if _TERRAFORM.fullmatch(name):
            continue
        if _SHOWN.fullmatch(name):
            yield name, None if _SECRET.search(name) else _LOGIN.sub("…@", " ".join(value.split()))
        elif _NAMED.fullmatch(name):
            yield name, None


def _rows(report: EnvironmentReport) -> Iterator[tuple[str, str]]:
    for name, version in report.versions.items():
        yield name, version or "not installed"
    yield "platform", report.platform
    cpus, memory = report.cpus, report.memory
    quota = "" if cpus["quota"] is None else f", limited to {cpus['quota']:.3g} by the control group"
    yield "CPUs", f"{cpus['usable']} of {cpus['machine']}{quota}"
    total, free, limit = memory["machine"], memory["free"], memory["limit"]
    of_group = "" if limit is None else f", limited to {size_of(limit)} by the control group"
    yield "memory", "unknown" if total is None else f"{size_of(free or 0)} free of {size_of(total)}{of_group}"
    yield "limits", report.limits.removeprefix("the limits are ")
    driver = f", driver {report.driver}" if report.driver else ""
    yield "GPUs", f"{len(report.gpus)} visible{driver}"
    yield "scheduler", report.scheduler or "none"
    for name, value in report.variables.items():
        if value is not None:
            yield name, value or '""'
    hidden = [name for name, value in report.variables.items() if value is None]
    if hidden:
        yield "set, not shown", ", ".join(hidden)
