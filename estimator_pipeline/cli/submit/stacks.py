"""`estimator-pipeline stacks`: print the Python stacks of a running job's tasks."""

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


# A launch without a heartbeat for this long is not running: the user means the job in Kubernetes.
_OLD_SECS = 60.0


def command(
    job: Annotated[
        str,
        typer.Argument(
            metavar="JOB",
            help="Name the job as for status (job file, folder of its submission, job id), or the log folder of launch "
            "or supervise.",
        ),
    ],
    task: Annotated[str | None, typer.Option(metavar="TASK", help="Print only this task, such as worker:1.")] = None,
    brief: Annotated[bool, typer.Option("--brief", help="Print only the current line of each task.")] = False,
    timeout: Annotated[float, typer.Option(callback=above_zero, help="Wait this many seconds for answers.")] = 15.0,
    element: Annotated[int | None, typer.Option(min=0, metavar="N", help="Select this element of an array.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Set a field of the job file, as in its submission; repeatable."
        ),
    ] = None,
) -> None:
    """Print the current line of each task of a running job, and the Python stacks of all its threads.

    The job keeps running. The output starts with a line for each task: the innermost line of the job's code, or the
    current call of its main thread. Tasks answer within a few seconds, also on other machines with the same log folder.

    Exit codes: 0 if all tasks answered, 1 if one did not, 2 if no task runs.
    """
    from estimator_pipeline.launch.logs.terminal import harmless
    from estimator_pipeline.launch.stacks import requests as stack_requests

    folder, ranks = _place(job, settings, element)
    attempt = stack_requests.attempt_of(folder)
    answers = stack_requests.request_stacks(attempt, ranks=ranks, wanted=task, timeout=timeout)
    for answer in answers:
        for line in answer.lines():
            typer.echo(harmless(line))
    for answer in answers:
        if answer.stacks and not brief:
            typer.echo(harmless(f"\n==> {answer.head}\n\n{answer.stacks}"))
    raise typer.Exit(int(any(answer.missing and not answer.ended for answer in answers)))


def _place(job: str, settings: list[str] | None, element: int | None) -> tuple[Path, tuple[str, ...]]:
    """Return the newest run's log folder, and the task names by rank if srun has started them."""
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
            f"{in_pods}: the tasks of a job in Kubernetes cannot be reached from here, because their logs are in pods.",
            code="argument/not-applicable",
            hint="run the command in a pod, where kubernetes.step_timeout has started a supervisor: "
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
            "the job is an array, and each element has separate tasks.",
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
    """Return the log folder of the newest `launch` in a model directory."""
    from estimator_pipeline.launch.stacks import requests as stack_requests

    folders = [folder for folder in (model_dir / "logs").glob("*") if stack_requests.is_log_folder(folder)]
    return max(folders, key=_beat, default=None)


def _beat(folder: Path) -> float:
    from estimator_pipeline.launch.stacks import requests as stack_requests

    return stack_requests.newest_heartbeat(stack_requests.attempt_of(folder))


def _never_started(job: str, loaded: Job) -> ConfigError:
    return ConfigError(
        f"{job}: nothing was launched or submitted with this job file.",
        code="jobs/not-found",
        found=f"no logs of `launch` in {loaded.run.model_dir}/logs, and no submission to Slurm",
        hint="name the log folder (--log-dir) of `launch` or `supervise`; for a task of `train`, which has none, use "
        "`py-spy dump --pid N`.",
    )
