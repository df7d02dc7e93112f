"""PBS batch script of a job file, for OpenPBS and PBS Professional.

Each task is a chunk of the select statement with one line of PBS_NODEFILE, in the order of the ranks, so that the roles
may have different resources. `tasks.py` starts them.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Sequence
from typing import Any

from estimator_pipeline.cluster.roles import tasks_of
from estimator_pipeline.job import Job, PbsResources
from estimator_pipeline.job.loading import JOB_FILE
from estimator_pipeline.job.sections.pbs import seconds_of_walltime
from estimator_pipeline.launch.batch.runs import OUTPUT
from estimator_pipeline.launch.batch.script import plan_batch
from estimator_pipeline.launch.batch.submission import RESUBMITTED, SCRIPT, BatchPlan

__all__ = ["PBS_OUTPUT", "plan_pbs"]

PBS_OUTPUT = "pbs.log"
"""The messages of PBS about the job. The scheduler's record of the job names this file."""
# Seconds before the supervisor kills the starter of the tasks, within which that kills the tasks.
_KILL_SECS = 20
_NAME_LENGTH = 230


def plan_pbs(job: Job, *, folder: str, working_dir: str, command: Sequence[str], **values: Any) -> BatchPlan:
    """Build the submission of a job without writing it; see `plan_batch`.

    Args:
        job: The job.
        folder: The submission's folder.
        working_dir: The folder that relative paths of the job refer to.
        command: The command of estimator-pipeline: the Python, "-m", the package.
        values: Further arguments of `plan_batch`.
    """
    pbs = job.pbs
    seconds = seconds_of_walltime(pbs.walltime)
    walltime = "" if seconds is None else f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    run = pbs.command or shlex.join(command)
    start = shlex.join([command[0], "-m", "estimator_pipeline.launch.pbs.tasks"])
    grace = pbs.signal_seconds - _KILL_SECS
    options = _options(job, folder, walltime)
    dependency = ("-W", f"depend={pbs.dependency}") if pbs.dependency else ()
    return plan_batch(
        job,
        scheduler="pbs",
        folder=folder,
        working_dir=working_dir,
        command=command,
        # The dependency is not in the script, which submits itself again without it.
        submit_options=(*itertools.chain(*options), *dependency, "--", "/bin/bash", "-l"),
        has_dependency=bool(dependency),
        options=[shlex.join(option) for option in options],
        job_id="$PBS_JOBID",
        launcher="The starter",
        forwarding="The starter sends USR1 to them.",
        requeue_program="qsub",
        time_field="pbs.walltime",
        tasks_command=f'{start} "$ep_logs" {grace} \\\n    {run} train {shlex.quote(f"{folder}/{JOB_FILE}")}',
        walltime=walltime,
        output=OUTPUT,
        script=SCRIPT,
        resubmitted=RESUBMITTED,
        **values,
    )


def _options(job: Job, folder: str, walltime: str) -> list[list[str]]:
    pbs = job.pbs
    name = re.sub(r"[^\w.+-]", "_", pbs.job_name or job.name, flags=re.ASCII)[:_NAME_LENGTH]
    optional = {
        "-q": pbs.queue,
        "-A": pbs.account,
        "-P": pbs.project,
        "-l": walltime and f"walltime={walltime}",
        "-M": pbs.mail_user,
        "-m": pbs.mail_points,
    }
    return [
        ["-N", name],
        ["-j", "oe"],
        ["-o", f"{folder}/{PBS_OUTPUT}"],
        ["-r", "y" if pbs.max_requeues else "n"],
        *([option, value] for option, value in optional.items() if value),
        ["-l", f"select={_select(job)}"],
        ["-l", f"place={pbs.place}"],
        *map(shlex.split, pbs.qsub),
    ]


def _select(job: Job) -> str:
    """Format the chunks: consecutive tasks with the same resources are several of one chunk."""
    chunks = itertools.groupby(_chunk(job.pbs.of_role(task.type)) for task in tasks_of(job.cluster))
    return "+".join(f"{len(list(same))}:{chunk}" for chunk, same in chunks)


def _chunk(resources: PbsResources) -> str:
    amounts = {"ncpus": resources.ncpus or 1, "mpiprocs": 1, "mem": resources.mem, "ngpus": resources.ngpus}
    amounts |= resources.resources or {}
    return ":".join(f"{name}={value}" for name, value in amounts.items() if value)
