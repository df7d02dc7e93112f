"""Checks of the job file's sections `slurm` and `pbs` before the job is submitted."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator

from estimator_pipeline.cluster.roles import tasks_of
from estimator_pipeline.doctor.context import Context
from estimator_pipeline.doctor.findings import CheckSkipped, DoctorFinding, error, ok, warning
from estimator_pipeline.doctor.resources import check_pbs_memory, check_slurm_memory
from estimator_pipeline.job import PbsSection, SlurmSection
from estimator_pipeline.job.sections.batch import BatchSection
from estimator_pipeline.job.sections.pbs import seconds_of_walltime
from estimator_pipeline.job.sections.slurm import seconds_of

__all__ = ["check_pbs", "check_slurm"]

# Slurm may send the signal up to a minute early; so do not count on the last minute.
_EARLY_SECS = 60


def check_slurm(context: Context) -> Iterator[DoctorFinding]:
    """Check the time limit against the signal, the memory, and the syntax of the shell lines."""
    job = context.needed_job()
    slurm = job.slurm
    if slurm == SlurmSection():
        raise CheckSkipped("no slurm section")
    findings = [*_time("slurm.time", seconds_of(slurm.time), slurm), *_shell("slurm", slurm)]
    for role, tasks in Counter(task.type for task in tasks_of(job.cluster)).items():
        findings += check_slurm_memory(context, role, tasks, slurm.of_role(role))
    yield from findings or [ok(f"time {slurm.time or 'of the partition'}, signal {slurm.signal_seconds} s before")]


def check_pbs(context: Context) -> Iterator[DoctorFinding]:
    """Check the time limit against the signal, the memory, and the syntax of the shell lines."""
    job = context.needed_job()
    pbs = job.pbs
    if pbs == PbsSection():
        raise CheckSkipped("no pbs section")
    findings = [*_time("pbs.walltime", seconds_of_walltime(pbs.walltime), pbs), *_shell("pbs", pbs)]
    for role in dict.fromkeys(task.type for task in tasks_of(job.cluster)):
        findings += check_pbs_memory(context, role, pbs.of_role(role))
    yield from findings or [ok(f"walltime {pbs.walltime or 'of the queue'}, signal {pbs.signal_seconds} s before")]


def _time(field: str, limit: int | None, section: BatchSection) -> Iterator[DoctorFinding]:
    if limit is None:
        return
    name, signal_secs = field.partition(".")[0], section.signal_seconds
    settings = f"{field} is {limit} s, and {name}.signal_seconds {signal_secs}"
    if signal_secs >= limit:
        yield error(
            f"{settings}: the tasks are asked to stop as soon as they start",
            "the job makes no progress, even when it is requeued",
            f"set {field} to {signal_secs // 60 + 2} minutes or more, or {name}.signal_seconds to 30 or "
            f"more and less than {limit}",
            code="job/conflict",
        )
    elif signal_secs + _EARLY_SECS >= limit:
        early = "; Slurm may send the signal a minute earlier" if name == "slurm" else ""
        yield warning(
            f"{settings}{early}",
            "the tasks may be asked to stop before their first step",
            f"increase {field} by some minutes",
        )


def _shell(name: str, section: BatchSection) -> Iterator[DoctorFinding]:
    bash = shutil.which("bash")
    for field, lines in (("setup", section.setup), ("teardown", section.teardown)):
        if not lines or bash is None:
            continue
        done = subprocess.run(
            [bash, "-n"], input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=30, check=False
        )
        if done.returncode:
            reason = next(iter(done.stderr.strip().splitlines()), f"exit code {done.returncode}").removeprefix("bash: ")
            yield error(
                f"{name}.{field} is not a valid shell script: {reason}",
                "the batch script fails at that line",
                "correct the line",
                code="job/bad-value",
            )
