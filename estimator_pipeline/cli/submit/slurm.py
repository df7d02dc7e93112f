"""`estimator-pipeline submit slurm`: a job file as a batch script, handed to Slurm."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from estimator_pipeline.cli.checks_before import refuse_hopeless
from estimator_pipeline.errors import ConfigError

if TYPE_CHECKING:
    from estimator_pipeline.job import Job

# Of doctor's checks: those of the job, not of this machine.
_CHECKS = ("identity", "data", "shards", "model", "slurm")


def command(
    job: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job file.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a field of the job file; may be repeated."),
    ] = None,
    array: Annotated[
        Path | None, typer.Option(metavar="SWEEP.yaml", help="One job for each element of a sweep, as an array.")
    ] = None,
    at_once: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="So many elements of the array run at the same time.")
    ] = None,
    no_checks: Annotated[
        bool,
        typer.Option(
            "--no-checks", help="Submit without a look at data, functions and limits: they are only there on the nodes."
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be submitted, and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")] = False,
) -> None:
    """Write a script for all tasks of a job, submit it, and print the job's id.

    The job's section `slurm` says what is asked for. What `doctor` finds without TensorFlow to be wrong with data,
    functions and limits is told first, and nothing is submitted then. `status`, `logs` and `cancel` take the same job
    file.
    The exit code is 0 when the job was submitted, 2 for bad input and for what the scheduler refuses.
    """
    from estimator_pipeline import launch
    from estimator_pipeline.launch.slurm import jobs as slurm_jobs
    from estimator_pipeline.launch.slurm import script as slurm
    from estimator_pipeline.utils.version import __version__

    if at_once is not None and array is None:
        raise ConfigError(
            "--at-once requires an array.",
            code="argument/not-applicable",
            hint="name a sweep: --array SWEEP.yaml.",
        )
    loaded, elements = _jobs(job, list(settings or []), array)
    plan = slurm.plan_slurm(
        loaded,
        folder=str(submissions_folder(loaded) / launch.new_run_id()),
        working_dir=str(Path.cwd()),
        command=[sys.executable, "-m", "estimator_pipeline"],
        version=__version__,
        elements=elements,
        at_once=at_once,
    )
    if dry_run:
        document = {"script": plan.script, "folder": plan.folder, "files": plan.files}
        typer.echo(json.dumps(document, indent=2) if as_json else plan.script, nl=as_json)
    if not no_checks:
        refuse_hopeless(
            elements or [loaded],
            file=str(job),
            done="nothing is submitted (--no-checks submits all the same)",
            checks=_CHECKS,
            other_python=loaded.slurm.command is not None,
        )
    if dry_run:
        return
    submission = slurm_jobs.submit(
        plan,
        name=loaded.name,
        stop_seconds=float(loaded.slurm.signal_seconds + slurm_jobs.SLACK_SECS),
        environ=os.environ,
    )
    if as_json:
        typer.echo(json.dumps(submission.document(), indent=2))
    else:
        typer.echo(submission.job_id)
        typer.echo(f"job {submission.job_id}: script and logs in {submission.folder}", err=True)


def submissions_folder(job: Job) -> Path:
    """Where a job's submissions are.

    Raises:
        ConfigError: The model directory is in a bucket, and slurm.dir does not say where else.
    """
    if job.slurm.dir is not None:
        return Path(job.slurm.dir).absolute()
    if "://" in job.run.model_dir:
        raise ConfigError(
            "scripts and logs of Slurm jobs need a folder that all nodes share.",
            code="file/unwritable",
            found=f"run.model_dir {job.run.model_dir}, which is none, and no slurm.dir",
            hint="set slurm.dir.",
        )
    return Path(job.run.model_dir).absolute() / "slurm"


def _jobs(path: Path, settings: list[str], sweep: Path | None) -> tuple[Job, list[Job]]:
    """The job, and those of the elements where there is a sweep: each in a model directory of its own."""
    from estimator_pipeline.job import load_job
    from estimator_pipeline.launch.slurm.sweep import read_sweep

    loaded = load_job(path, overrides=settings)
    elements, base = [], loaded.run.model_dir.rstrip("/")
    for i, changes in enumerate(read_sweep(sweep) if sweep is not None else []):
        own = "run.model_dir=" + json.dumps(f"{base}/{i}")
        element = load_job(path, overrides=[*settings, own, *changes])
        if element.cluster != loaded.cluster or element.slurm != loaded.slurm:
            raise ConfigError(
                f"element {i} of the sweep {sweep} changes the sections cluster or slurm.",
                code="job/conflict",
                found=", ".join(changes),
                hint="all elements of an array have the same tasks and resources; submit such a job by itself.",
            )
        elements.append(element)
    folders = [element.run.model_dir for element in elements]
    twice = next((folder for folder in folders if folders.count(folder) > 1), None)
    if twice is not None:
        raise ConfigError(
            f"several elements of the sweep {sweep} would train in one model directory.",
            code="job/conflict",
            found=twice,
            hint="give each a run.model_dir of its own, or none: the element's number is appended then.",
        )
    return loaded, elements
