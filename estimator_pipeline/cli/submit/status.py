"""`estimator-pipeline status`: show the status of submitted jobs."""

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

# Without --all, jobs that ended earlier are not listed.
_RECENT_SECS = 7 * 86400.0

JOB_HELP = (
    "Name the job by its job file, the folder of its submission, or the job id; in Kubernetes by KIND/NAME, such as "
    "job/digits."
)


def command(
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help=f"{JOB_HELP} Default: all jobs.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Set a field of the job file, as in its submission; repeatable."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")] = False,
    folder: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Without JOB: search this folder for model directories.", show_default="."),
    ] = None,
    show_all: Annotated[
        bool, typer.Option("--all", help="Without JOB: also list jobs that ended more than a week ago.")
    ] = False,
    watch: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", callback=above_zero, help="Refresh at this interval until all jobs have ended."
        ),
    ] = None,
    namespace: kubernetes_jobs.NamespaceOption = None,
) -> None:
    """Show the status of a submitted job: pending, running, or ended and why; and the progress of its training.

    Without JOB, list all jobs: the user's jobs in Slurm, and jobs submitted from a model directory below the current
    folder, unless they ended more than a week ago. With --namespace, or with kubectl and without Slurm, list those in
    Kubernetes. Exit codes: 1 if a job has failed or its status is unknown, otherwise 0.
    """
    from estimator_pipeline.errors import ConfigError
    from estimator_pipeline.launch.logs.terminal import harmless
    from estimator_pipeline.utils.text import counted

    if job is None and settings:
        raise ConfigError(
            f"--set {settings[0]} requires a job file.",
            code="argument/not-applicable",
            hint="name the job file.",
        )
    if job is not None and (folder is not None or show_all):
        option = "--all" if folder is None else f"--folder {folder}"
        raise ConfigError(
            f"{option} is for a list of jobs, and {job} is a single job.",
            code="argument/not-applicable",
            hint="leave one of them out.",
        )
    if folder is not None and namespace is not None:
        raise ConfigError(
            "--folder is for jobs of Slurm, and --namespace for those in Kubernetes.",
            code="argument/conflict",
            hint="leave one of them out.",
        )
    theirs = None if job is None else kubernetes_jobs.kubernetes_job(job, settings, namespace)
    submission = None if job is None or theirs is not None else submission_of(job, settings)
    while True:
        left_out, unknown = 0, ""
        if theirs is not None or submission is not None:
            entries = [_entry(theirs, submission)]
        else:
            entries, left_out, unknown = _all_jobs(
                folder, namespace, since=0.0 if show_all else time.time() - _RECENT_SECS
            )
        single = job is not None
        text = _as_json(entries, single=single) if as_json else "\n".join(_lines(entries, single=single))
        if watch is not None and sys.stdout.isatty() and not as_json:
            typer.echo("\x1b[H\x1b[2J", nl=False)
        typer.echo(text if as_json else harmless(text))
        if left_out:
            typer.echo(f"{counted(left_out, 'job')} that ended more than a week ago: --all", err=as_json)
        if unknown:
            typer.echo(unknown, err=True)
        statuses = [status for entry in entries for status in entry.jobs]
        if watch is None or all(status.ended for status in statuses):
            raise typer.Exit(int(bool(unknown) or any(status.failed for status in statuses)))
        time.sleep(watch)


class _StatusEntry(NamedTuple):
    """One submission, and the status of its job or of each element of its array."""

    submission: Mapping[str, Any]
    jobs: Sequence[JobStatus | KubernetesStatus]


def _of_slurm(submission: Submission, jobs: Sequence[JobStatus]) -> _StatusEntry:
    return _StatusEntry(submission.document(), jobs)


def _of_kubernetes(job: JobName, status: KubernetesStatus) -> _StatusEntry:
    return _StatusEntry({"scheduler": "kubernetes", **job._asdict()}, [status])


def _entry(theirs: JobName | None, submission: Submission | None) -> _StatusEntry:
    from estimator_pipeline.launch.kubernetes import jobs as kubernetes_jobs
    from estimator_pipeline.launch.slurm import jobs as slurm_jobs

    if theirs is not None:
        return _of_kubernetes(theirs, kubernetes_jobs.job_status(theirs, environ=os.environ))
    assert submission is not None
    return _of_slurm(submission, slurm_jobs.job_status(submission, environ=os.environ))


def _all_jobs(folder: Path | None, namespace: str | None, *, since: float) -> tuple[list[_StatusEntry], int, str]:
    """Return the jobs, the number of jobs left out, and why the jobs in Kubernetes are unknown, or ""."""
    from estimator_pipeline.errors import TaskFailedError
    from estimator_pipeline.launch.kubernetes import jobs as kubernetes_jobs
    from estimator_pipeline.launch.slurm import jobs as slurm_jobs

    entries: list[_StatusEntry] = []
    left_out = 0
    if namespace is None:
        listed, left_out = slurm_jobs.list_jobs(folder or Path(), environ=os.environ, since=since)
        entries += [_of_slurm(*job) for job in listed]
    no_slurm = folder is None and not shutil.which("scontrol")
    if namespace is not None or (no_slurm and shutil.which("kubectl")):
        try:
            entries += [_of_kubernetes(*job) for job in kubernetes_jobs.list_jobs(namespace, environ=os.environ)]
        except TaskFailedError as error:
            if namespace is not None:
                raise
            # kubectl may be installed without a cluster; the list of other jobs is still right.
            return entries, left_out, f"jobs in Kubernetes, if any, are unknown: {error.found}"
    return entries, left_out, ""


def _as_json(entries: Sequence[_StatusEntry], *, single: bool) -> str:
    documents = [
        {"submission": entry.submission, "jobs": [status.document() for status in entry.jobs]} for entry in entries
    ]
    return json.dumps(documents[0] if single else documents, indent=2)


def _lines(entries: Sequence[_StatusEntry], *, single: bool) -> list[str]:
    from estimator_pipeline.launch.job_table import job_table

    if not single:
        rows = [status.row() for entry in entries for status in entry.jobs]
        return job_table([row._replace(model_dir=_below_here(row.model_dir)) for row in rows]) if rows else ["no jobs"]
    ((submission, jobs),) = entries
    lines = [line for status in jobs for line in status.lines()]
    return [*lines, f"script and logs: {submission['folder']}"] if "folder" in submission else lines


def _below_here(path: str) -> str:
    """Return a path relative to the current folder, if it is below it."""
    return os.path.relpath(path) if path.startswith(f"{os.getcwd()}/") else path


def submission_of(job: str, settings: list[str] | None) -> Submission:
    """Return the newest submission of a job file, or the submission that a folder or an id names."""
    from estimator_pipeline.cli.submit.slurm import submissions_folder
    from estimator_pipeline.errors import ConfigError
    from estimator_pipeline.job import load_job
    from estimator_pipeline.launch.slurm import jobs as slurm_jobs

    is_file = not job.isdigit() and not Path(job).is_dir() and "." in Path(job).name
    if not is_file:
        if settings:
            raise ConfigError(
                f"--set {settings[0]} requires a job file, and {job} is not one.",
                code="argument/not-applicable",
                hint="leave it out.",
            )
        return slurm_jobs.find_submission(job, environ=os.environ)
    loaded = load_job(job, overrides=settings or [])
    return slurm_jobs.find_submission(
        job, folder=submissions_folder(loaded), model_dir=loaded.run.model_dir, environ=os.environ
    )
