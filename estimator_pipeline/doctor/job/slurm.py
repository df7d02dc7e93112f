"""What the section `slurm` asks for, before anything is submitted."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator

from estimator_pipeline.cluster.roles import tasks_of
from estimator_pipeline.doctor.context import Context
from estimator_pipeline.doctor.findings import DoctorFinding, NotLookedAt, error, ok, warning
from estimator_pipeline.doctor.resources import given_by_slurm
from estimator_pipeline.job import SlurmSection
from estimator_pipeline.job.sections.slurm import seconds_of

__all__ = ["check_slurm"]

# Slurm sends the signal up to a minute earlier than asked.
_EARLY_SECS = 60


def check_slurm(context: Context) -> Iterator[DoctorFinding]:
    """The time limit against the signal before it, memory, and whether the shell lines can be read as such."""
    job = context.needed_job()
    slurm = job.slurm
    if slurm == SlurmSection():
        raise NotLookedAt("no section slurm")
    found = [*_time(slurm), *_shell("setup", slurm.setup), *_shell("teardown", slurm.teardown)]
    roles = Counter(task.type for task in tasks_of(job.cluster))
    for role, tasks in roles.items():
        found += given_by_slurm(context, role, tasks, slurm.of_role(role))
    yield from found or [ok(f"time {slurm.time or 'of the partition'}, signal {slurm.signal_seconds} s before")]


def _time(slurm: SlurmSection) -> Iterator[DoctorFinding]:
    limit = seconds_of(slurm.time)
    if limit is None:
        return
    told = f"slurm.time is {limit} s, and slurm.signal_seconds {slurm.signal_seconds}"
    if slurm.signal_seconds >= limit:
        yield error(
            f"{told}: the tasks are asked to stop as soon as they start",
            "no step is made, however often the job is requeued",
            f"set slurm.time to {slurm.signal_seconds // 60 + 2} minutes or more, or slurm.signal_seconds to 30 or "
            f"more and less than {limit}",
        )
    elif slurm.signal_seconds + _EARLY_SECS >= limit:
        yield warning(
            f"{told}; Slurm may send the signal a minute earlier",
            "the tasks may be asked to stop before their first step",
            "give slurm.time some minutes more",
        )


def _shell(field: str, lines: list[str]) -> Iterator[DoctorFinding]:
    bash = shutil.which("bash")
    if not lines or bash is None:
        return
    done = subprocess.run(
        [bash, "-n"], input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=30, check=False
    )
    if done.returncode:
        said = next(iter(done.stderr.strip().splitlines()), f"exit code {done.returncode}").removeprefix("bash: ")
        yield error(
            f"slurm.{field} is no shell script: {said}", "the batch script ends at that line", "correct the line"
        )
