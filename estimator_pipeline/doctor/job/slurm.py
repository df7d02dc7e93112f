"""Check of the job file's `slurm` section before the job is submitted."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator

from estimator_pipeline.cluster.roles import tasks_of
from estimator_pipeline.doctor.context import Context
from estimator_pipeline.doctor.findings import CheckSkipped, DoctorFinding, error, ok, warning
from estimator_pipeline.doctor.resources import check_slurm_memory
from estimator_pipeline.job import SlurmSection
from estimator_pipeline.job.sections.slurm import seconds_of

__all__ = ["check_slurm"]

# Slurm may send the signal up to a minute early.
_EARLY_SECS = 60


def check_slurm(context: Context) -> Iterator[DoctorFinding]:
    """Check the time limit against the signal, the memory, and the syntax of the shell lines."""
    job = context.needed_job()
    slurm = job.slurm
    if slurm == SlurmSection():
        raise CheckSkipped("no slurm section")
    findings = [*_time(slurm), *_shell("setup", slurm.setup), *_shell("teardown", slurm.teardown)]
    roles = Counter(task.type for task in tasks_of(job.cluster))
    for role, tasks in roles.items():
        findings += check_slurm_memory(context, role, tasks, slurm.of_role(role))
    yield from findings or [ok(f"time {slurm.time or 'of the partition'}, signal {slurm.signal_seconds} s before")]


def _time(slurm: SlurmSection) -> Iterator[DoctorFinding]:
    limit = seconds_of(slurm.time)
    if limit is None:
        return
    settings = f"slurm.time is {limit} s, and slurm.signal_seconds {slurm.signal_seconds}"
    if slurm.signal_seconds >= limit:
        yield error(
            f"{settings}: the tasks are asked to stop as soon as they start",
            "the job makes no progress, even when it is requeued",
            f"set slurm.time to {slurm.signal_seconds // 60 + 2} minutes or more, or slurm.signal_seconds to 30 or "
            f"more and less than {limit}",
            code="job/conflict",
        )
    elif slurm.signal_seconds + _EARLY_SECS >= limit:
        yield warning(
            f"{settings}; Slurm may send the signal a minute earlier",
            "the tasks may be asked to stop before their first step",
            "increase slurm.time by some minutes",
        )


def _shell(field: str, lines: list[str]) -> Iterator[DoctorFinding]:
    bash = shutil.which("bash")
    if not lines or bash is None:
        return
    done = subprocess.run(
        [bash, "-n"], input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=30, check=False
    )
    if done.returncode:
        reason = next(iter(done.stderr.strip().splitlines()), f"exit code {done.returncode}").removeprefix("bash: ")
        yield error(
            f"slurm.{field} is not a valid shell script: {reason}",
            "the batch script fails at that line",
            "correct the line",
            code="job/bad-value",
        )
