"""`estimator-pipeline status`: how a submitted job stands."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from estimator_pipeline.cli.options import above_zero
from estimator_pipeline.cli.submit import kubernetes_jobs

if TYPE_CHECKING:
    from estimator_pipeline.launch.kubernetes.kubectl import JobName
    from estimator_pipeline.launch.kubernetes.status import KubernetesStatus
    from estimator_pipeline.launch.slurm.jobs import Submission
    from estimator_pipeline.launch.slurm.status import JobStatus

JOB_HELP = (
    "The job file that was submitted, the folder of its submission, or the job's id; in Kubernetes KIND/NAME, "
    "as job/digits."
)


def command(
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help=f"{JOB_HELP} Without one: all jobs.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="As the job file was changed when it was submitted."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")] = False,
    folder: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Without JOB: where model directories are looked for.", show_default="."),
    ] = None,
    watch: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", callback=above_zero, help="Look again so often, until all have ended."),
    ] = None,
    namespace: kubernetes_jobs.NamespaceOption = None,
) -> None:
    """Say how a submitted job stands: in the queue, running, ended and why; how far its training is.

    Without JOB a table of all jobs: those of this user that Slurm knows, and those submitted to a model directory below
    the current folder; with --namespace, or where there is kubectl and no Slurm, those in Kubernetes. The exit code is
    1 where a job has failed, or nobody can say how it stands, and 0 otherwise.
    """
    from estimator_pipeline.errors import ConfigError
    from estimator_pipeline.launch.logs.terminal import harmless

    if job is None and settings:
        raise ConfigError(
            f"--set {settings[0]} changes a job file, and none is named.",
            code="argument/not-applicable",
            hint="name the job file.",
        )
    if job is not None and folder is not None:
        raise ConfigError(
            f"--folder {folder} is for a list of jobs, and {job} is one.",
            code="argument/not-applicable",
            hint="leave one of them out.",
        )
    if folder is not None and namespace is not None:
        raise ConfigError(
            "--folder is for jobs of Slurm, and --namespace for those in Kubernetes.",
            code="argument/conflict",
            hint="give one.",
        )
    theirs = None if job is None else kubernetes_jobs.kubernetes_job(job, settings, namespace)
    submission = None if job is None or theirs is not None else submission_of(job, settings)
    while True:
        if theirs is not None or submission is not None:
            found = [_look(theirs, submission)]
        else:
            found = _all_jobs(folder, namespace)
        text = _as_json(found, one=job is not None) if as_json else "\n".join(_lines(found, one=job is not None))
        if watch is not None and sys.stdout.isatty() and not as_json:
            typer.echo("\x1b[H\x1b[2J", nl=False)
        typer.echo(text if as_json else harmless(text))
        statuses = [each for own in found for each in own.jobs]
        if watch is None or all(each.ended for each in statuses):
            raise typer.Exit(int(any(each.failed for each in statuses)))
        time.sleep(watch)


class _Found(NamedTuple):
    """One submission, and how its job, or each element of its array, stands."""

    submission: Mapping[str, Any]
    jobs: Sequence[JobStatus | KubernetesStatus]


def _of_slurm(submission: Submission, jobs: Sequence[JobStatus]) -> _Found:
    return _Found(submission.document(), jobs)


def _of_kubernetes(job: JobName, status: KubernetesStatus) -> _Found:
    return _Found({"scheduler": "kubernetes", **job._asdict()}, [status])


def _look(theirs: JobName | None, submission: Submission | None) -> _Found:
    from estimator_pipeline.launch.kubernetes import jobs as kubernetes_jobs
    from estimator_pipeline.launch.slurm import jobs as slurm_jobs

    if theirs is not None:
        return _of_kubernetes(theirs, kubernetes_jobs.job_status(theirs, environ=os.environ))
    assert submission is not None
    return _of_slurm(submission, slurm_jobs.job_status(submission, environ=os.environ))


def _all_jobs(folder: Path | None, namespace: str | None) -> list[_Found]:
    from estimator_pipeline.launch.kubernetes import jobs as kubernetes_jobs
    from estimator_pipeline.launch.slurm import jobs as slurm_jobs

    found: list[_Found] = []
    if namespace is None:
        found += [_of_slurm(*one) for one in slurm_jobs.list_jobs(folder or Path(), environ=os.environ)]
    no_slurm = folder is None and not shutil.which("scontrol")
    if namespace is not None or (no_slurm and shutil.which("kubectl")):
        found += [_of_kubernetes(*one) for one in kubernetes_jobs.list_jobs(namespace, environ=os.environ)]
    return found


def _as_json(found: Sequence[_Found], *, one: bool) -> str:
    documents = [{"submission": own.submission, "jobs": [each.document() for each in own.jobs]} for own in found]
    return json.dumps(documents[0] if one else documents, indent=2)


def _lines(found: Sequence[_Found], *, one: bool) -> list[str]:
    from estimator_pipeline.launch.job_table import job_table

    if not one:
        return job_table([each.row() for own in found for each in own.jobs]) if found else ["no jobs"]
    ((submission, jobs),) = found
    lines = [line for each in jobs for line in each.lines()]
    return [*lines, f"script and logs: {submission['folder']}"] if "folder" in submission else lines


def submission_of(job: str, settings: list[str] | None) -> Submission:
    """The newest submission of a job file, or the one that a folder or an id names."""
    from estimator_pipeline.cli.submit.slurm import submissions_folder
    from estimator_pipeline.errors import ConfigError
    from estimator_pipeline.job import load_job
    from estimator_pipeline.launch.slurm import jobs as slurm_jobs

    is_file = not job.isdigit() and not Path(job).is_dir() and "." in Path(job).name
    if not is_file:
        if settings:
            raise ConfigError(
                f"--set {settings[0]} changes a job file, and {job} is none.",
                code="argument/not-applicable",
                hint="leave it out.",
            )
        return slurm_jobs.find_submission(job, environ=os.environ)
    folder = submissions_folder(load_job(job, overrides=settings or []))
    return slurm_jobs.find_submission(job, folder=folder, environ=os.environ)
