"""`estimator-pipeline logs`: print the logs of a submitted job."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from estimator_pipeline.cli.submit import kubernetes_jobs
from estimator_pipeline.cli.submit.status import JOB_HELP, submission_of
from estimator_pipeline.errors import ConfigError

if TYPE_CHECKING:
    from estimator_pipeline.launch.slurm.jobs import Submission

POLL_SECS = 1.0
# Slurm is asked after every third poll whether the job has ended.
ASK_EVERY = 3


def command(
    job: Annotated[str, typer.Argument(metavar="JOB", help=JOB_HELP)],
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the logs until the job ends, across requeues.")
    ] = False,
    task: Annotated[
        str | None,
        typer.Option(metavar="TASK", help="Print only this task, such as worker:1; script for the batch script."),
    ] = None,
    failed: Annotated[
        bool,
        typer.Option(
            "--failed", help="Print only the task that failed first in the newest run, of an array in any element."
        ),
    ] = False,
    element: Annotated[int | None, typer.Option(min=0, metavar="N", help="Select this element of an array.")] = None,
    lines: Annotated[
        int, typer.Option(min=0, help="Print the last N lines of each log; 0: all lines of all runs.")
    ] = 20,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Set a field of the job file, as in its submission; repeatable."
        ),
    ] = None,
    namespace: kubernetes_jobs.NamespaceOption = None,
) -> None:
    """Print the logs of a submitted job, each line with its task."""
    from estimator_pipeline.launch.logs.terminal import harmless
    from estimator_pipeline.launch.slurm.jobs import job_status
    from estimator_pipeline.launch.slurm.logs import SCRIPT_LABEL, LogReaders

    if (theirs := kubernetes_jobs.kubernetes_job(job, settings, namespace)) is not None:
        kubernetes_jobs.logs(theirs, follow=follow, task=task, element=element, lines=lines, failed=failed)
        return
    submission = submission_of(job, settings)
    known = (SCRIPT_LABEL, *submission.tasks)
    if task is not None and task not in known:
        raise ConfigError(
            f"--task {task}: the job has no such task.", code="jobs/not-found", found=f"its tasks: {', '.join(known)}"
        )
    if submission.array is None and element is not None:
        raise ConfigError(
            f"--element {element}: the job is not an array.", code="argument/not-applicable", hint="leave it out."
        )
    if failed and (task is not None or follow):
        raise ConfigError(
            "--failed shows one log to its end.", code="argument/conflict", hint="leave --task and --follow out."
        )
    if failed and submission.array is not None and element is None:
        element = _failed_first(submission)
        typer.echo(f"element {element}: ", nl=False)
    if submission.array is not None and not (element is not None and element < submission.array):
        raise ConfigError(
            "the job is an array, and each element has separate logs.",
            code="argument/missing",
            found=f"{submission.array} elements" + ("" if element is None else f", and --element {element}"),
            hint=f"name one of them: --element 0 to {submission.array - 1}.",
        )
    folder = submission.log_folders[element or 0]
    if failed:
        _show_failed(folder, submission.tasks, lines)
        return
    readers = LogReaders(folder, submission.tasks, wanted=task, last=lines if lines else None)
    width = max(map(len, known))

    def show(whole: bool) -> None:
        for who, line in readers.read(whole=whole):
            typer.echo(harmless(line if task is not None else f"{who:<{width}} | {line}"))

    show(whole=follow)
    polls = 0
    while follow:
        ended = polls % ASK_EVERY == 0 and job_status(submission, environ=os.environ)[element or 0].ended
        show(whole=not ended)
        if ended:
            return
        polls += 1
        time.sleep(POLL_SECS)


def _failed_first(submission: Submission) -> int:
    """Return the element of an array that failed first; one that has ended counts before one that still runs."""
    from estimator_pipeline.launch.slurm.history import history_of
    from estimator_pipeline.launch.slurm.script import OUTPUT

    failures = []
    for element, folder in enumerate(submission.log_folders):
        history = history_of(folder, submission.tasks)
        if history.failure is not None and history.end != "done":
            failures.append((history.end != "gave_up", history.failure.time, element))
        elif history.setup_end:
            failures.append((False, (folder / OUTPUT).stat().st_mtime, element))
    if not failures:
        raise ConfigError(
            "no task has failed in the newest run of any element, as far as the supervisors know.",
            code="jobs/not-found",
            found=f"{submission.array} elements",
            hint="see `status` for their states; --element N prints the logs of one.",
        )
    return min(failures)[-1]


def _show_failed(folder: Path, tasks: Sequence[str], lines: int) -> None:
    """Print the failure in one line, and the end of that task's log without TensorFlow's startup messages.

    If slurm.setup did not end, the log is the script's.
    """
    from estimator_pipeline.launch.local.outcome import last_lines
    from estimator_pipeline.launch.logs.terminal import harmless
    from estimator_pipeline.launch.slurm.history import history_of
    from estimator_pipeline.launch.slurm.script import OUTPUT

    history = history_of(folder, tasks)
    failure, log = history.failure, None
    if failure is not None:
        text, log = failure.text(), failure.log
    elif history.setup_end:
        text, log = f"{history.setup_end} ({OUTPUT})", OUTPUT
    else:
        raise ConfigError(
            "no task has failed in the newest run, as far as its supervisor knows.",
            code="jobs/not-found",
            found="; ".join(history.setup_warnings) or None,
        )
    for line in (text, *history.setup_warnings):
        typer.echo(harmless(line))
    if log is not None:
        size = (folder / log).stat().st_size
        for line in last_lines(folder / log, count=lines or size, limit=size if not lines else 1024 * 1024):
            typer.echo(harmless(line))
