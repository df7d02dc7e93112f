"""`estimator-pipeline submit slurm`: submit a job file to Slurm as a batch script."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from estimator_pipeline.cli.checks_before import reject_failing_jobs
from estimator_pipeline.errors import ConfigError

if TYPE_CHECKING:
    from estimator_pipeline.job import Job

# The checks of `doctor` that concern the job, not this machine.
_CHECKS = ("identity", "data", "shards", "model", "slurm")


def command(
    job: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="Submit this job file.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set a field of the job file; repeatable."),
    ] = None,
    array: Annotated[
        Path | None,
        typer.Option(metavar="SWEEP.yaml", help="Submit an array with one job for each element of this sweep."),
    ] = None,
    at_once: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Run at most this many elements of the array at the same time."),
    ] = None,
    no_checks: Annotated[
        bool,
        typer.Option("--no-checks", help="Skip the checks of data, functions and limits, if only the nodes have them."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the batch script without submitting it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")] = False,
) -> None:
    """Write a batch script for all tasks of a job, submit it, and print the job id.

    The section `slurm` of the job file sets the resources. If the checks of `doctor` that run without TensorFlow report
    errors in data, functions or limits, nothing is submitted. `status`, `logs` and `cancel` take the same job file.
    Exit codes: 0 if the job was submitted, 2 for bad input, if a job of the same model directory waits or runs, or if
    the scheduler rejected the job.
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
        reject_failing_jobs(
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
    """Return the folder of a job's submissions.

    Raises:
        ConfigError: The model directory is in a bucket, and slurm.dir is not set.
    """
    if job.slurm.dir is not None:
        return Path(job.slurm.dir).absolute()
    if "://" in job.run.model_dir:
        raise ConfigError(
            "scripts and logs of Slurm jobs need a folder that all nodes share.",
            code="file/unwritable",
            found=f"run.model_dir {job.run.model_dir}, which is not a folder, and no slurm.dir",
            hint="set slurm.dir.",
        )
    return Path(job.run.model_dir).absolute() / "slurm"


def _jobs(path: Path, settings: list[str], sweep: Path | None) -> tuple[Job, list[Job]]:
    """Return the job and the elements of its sweep, each with a separate model directory."""
    from estimator_pipeline.job import load_job
    from estimator_pipeline.launch.slurm.sweep import read_sweep

    loaded = load_job(path, overrides=settings)
    elements, base = [], loaded.run.model_dir.rstrip("/")
    for i, changes in enumerate(read_sweep(sweep) if sweep is not None else []):
        model_dir = "run.model_dir=" + json.dumps(f"{base}/{i}")
        element = load_job(path, overrides=[*settings, model_dir, *changes])
        if element.cluster != loaded.cluster or element.slurm != loaded.slurm:
            raise ConfigError(
                f"element {i} of the sweep {sweep} changes the sections cluster or slurm.",
                code="job/conflict",
                found=", ".join(changes),
                hint="all elements of an array have the same tasks and resources; submit this job separately.",
            )
        elements.append(element)
    folders = [element.run.model_dir for element in elements]
    twice = next((folder for folder in folders if folders.count(folder) > 1), None)
    if twice is not None:
        raise ConfigError(
            f"several elements of the sweep {sweep} would train in the same model directory.",
            code="job/conflict",
            found=twice,
            hint="set a different run.model_dir for each, or none: then the element's number is appended.",
        )
    return loaded, elements
