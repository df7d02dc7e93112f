"""`estimator-pipeline stacks`: where each task of a running job stands, without ending it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from estimator_pipeline.cli.options import above_zero
from estimator_pipeline.cli.submit.kubernetes_jobs import kubernetes_job
from estimator_pipeline.errors import ConfigError

if TYPE_CHECKING:
    from estimator_pipeline.job import Job


# A launch that has sent no heartbeat for so long is not what a person means who has a job in Kubernetes.
_OLD_SECS = 60.0


def command(
    job: Annotated[
        str,
        typer.Argument(
            metavar="JOB",
            help="As for status: job file, submission's folder, job's id; or the log folder of launch or supervise.",
        ),
    ],
    task: Annotated[str | None, typer.Option(metavar="TASK", help="Of this task alone: worker:1.")] = None,
    brief: Annotated[bool, typer.Option("--brief", help="Where each task stands, and no stacks.")] = False,
    timeout: Annotated[float, typer.Option(callback=above_zero, help="Seconds to wait for the tasks' answers.")] = 15.0,
    element: Annotated[int | None, typer.Option(min=0, metavar="N", help="Which element of an array.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="As the job file was changed when it was submitted."),
    ] = None,
) -> None:
    """Print where each task of a running job stands, and the Python stacks of all its threads. The job goes on.

    First comes a line for each task: the innermost line of the job's own code, or else the call in which its main
    thread is. Tasks answer within some seconds, on other machines too where they share the log folder.

    The exit code is 0 where all have answered, 1 where one has not, and 2 where no task runs.
    """
    from estimator_pipeline.launch.logs.terminal import harmless
    from estimator_pipeline.launch.stacks import requests as stack_requests

    folder, ranks = _place(job, settings, element)
    found = stack_requests.request_stacks(stack_requests.attempt_of(folder), ranks=ranks, wanted=task, timeout=timeout)
    for one in found:
        for line in one.lines():
            typer.echo(harmless(line))
    for one in found:
        if one.stacks and not brief:
            typer.echo(harmless(f"\n==> {one.head}\n\n{one.stacks}"))
    raise typer.Exit(int(any(one.missing and not one.ended for one in found)))


def _place(job: str, settings: list[str] | None, element: int | None) -> tuple[Path, tuple[str, ...]]:
    """The newest run's log folder, and the tasks' names by rank where srun has started them."""
    from estimator_pipeline.cli.submit.status import submission_of
    from estimator_pipeline.job import load_job
    from estimator_pipeline.launch.slurm.logs import runs_of
    from estimator_pipeline.launch.stacks import requests as stack_requests

    path = Path(job)
    if path.is_dir() and stack_requests.is_log_folder(path):
        return path, ()
    loaded = load_job(job, overrides=settings or []) if path.is_file() else None
    launched = _launched(path if loaded is None else Path(loaded.run.model_dir))
    in_pods = kubernetes_job(job, settings, None)
    if in_pods is not None and (launched is None or time.time() - _beat(launched) > _OLD_SECS):
        raise ConfigError(
            f"{in_pods}: the tasks of a job in Kubernetes cannot be asked from here, for their logs are in their pods.",
            code="argument/not-applicable",
            hint="ask in a pod, where kubernetes.step_timeout has started a supervisor: "
            f"`kubectl{in_pods.flags} exec POD -- sh -c 'estimator-pipeline stacks /tmp/estimator-pipeline-*'`.",
        )
    if launched is not None and in_pods is not None:
        return launched, ()
    try:
        submission = submission_of(job, settings)
    except ConfigError as error:
        if launched is not None:
            return launched, ()
        raise error if loaded is None else _never_started(job, loaded) from None
    folders = submission.log_folders
    if submission.array is not None and not (element is not None and element < submission.array):
        raise ConfigError(
            "the job is an array, whose elements have tasks of their own.",
            code="argument/missing",
            found=f"{submission.array} elements",
            hint=f"name one of them: --element 0 to {submission.array - 1}.",
        )
    runs = runs_of(folders[element or 0])
    newest = runs[-1] if runs else folders[element or 0]
    if launched is not None and _beat(launched) > _beat(newest):
        return launched, ()
    return newest, submission.tasks


def _launched(model_dir: Path) -> Path | None:
    """The log folder of the newest `launch` in a model directory."""
    from estimator_pipeline.launch.stacks import requests as stack_requests

    found = [one for one in (model_dir / "logs").glob("*") if stack_requests.is_log_folder(one)]
    return max(found, key=_beat, default=None)


def _beat(folder: Path) -> float:
    from estimator_pipeline.launch.stacks import requests as stack_requests

    return stack_requests.newest_heartbeat(stack_requests.attempt_of(folder))


def _never_started(job: str, loaded: Job) -> ConfigError:
    return ConfigError(
        f"{job}: nothing was launched or submitted with this job file.",
        code="jobs/not-found",
        found=f"no logs of `launch` in {loaded.run.model_dir}/logs, and no submission to Slurm",
        hint="name the log folder (--log-dir) of `launch` or `supervise`; a task by `train` alone has none, and only "
        "`py-spy dump --pid N` asks it.",
    )
