"""`estimator-pipeline clean`: what old runs have left."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from estimator_pipeline.cli.options import from_zero
from estimator_pipeline.errors import ConfigError, TaskFailedError


def command(
    folders: Annotated[
        list[Path] | None, typer.Argument(metavar="[FOLDER]...", help="Where model directories are.", show_default=".")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove what is shown.")] = False,
    older_than: Annotated[
        float, typer.Option(metavar="DAYS", callback=from_zero, help="What has not changed for so many days.")
    ] = 7.0,
    keep: Annotated[
        int, typer.Option(min=0, metavar="N", help="The newest N launches and submissions of each model stay.")
    ] = 1,
) -> None:
    """Show what old runs have left (logs of launches, submissions, runs before a requeue), or remove it.

    Checkpoints, exports, evaluations and ledgers stay, and whatever may be in use: jobs that Slurm has not ended, or
    that nobody can ask Slurm about, and all that has changed within the last hour.
    """
    from estimator_pipeline.doctor.storage import size_of
    from estimator_pipeline.launch import cleaning
    from estimator_pipeline.launch.remaining_time import time_text

    places = folders or [Path()]
    for place in places:
        if not place.is_dir():
            raise ConfigError(
                f"{place} is not a folder.", code="file/not-found", hint="name a model directory, or a folder of them."
            )
    found = {}
    for place in places:
        for one in cleaning.find(place, keep=keep, older_than=older_than * 86400, in_use=_goes_on):
            found[one.path.resolve()] = one
    for one in found.values():
        typer.echo(f"{size_of(one.size):>10}  {time_text(time.time() - one.changed):>9}  {one.path} ({one.kind})")
    total = f"{len(found)} folder{'s'[: len(found) != 1]}, {size_of(sum(one.size for one in found.values()))}"
    if not yes:
        typer.echo(f"{total}; nothing was removed" + (": give --yes" if found else ""))
        return
    stay = cleaning.remove(list(found.values()))
    if stay:
        raise TaskFailedError(
            f"{len(stay)} of {total} could not be removed",
            code="file/unwritable",
            found="; ".join(f"{one.path}: {error.strerror or error}" for one, error in stay[:5]),
        )
    typer.echo(f"{total}: removed")


def _goes_on(folder: Path) -> bool:
    """Whether the job of a submission may still run, as far as Slurm can say."""
    from estimator_pipeline.errors import PipelineError
    from estimator_pipeline.launch.slurm import jobs as slurm_jobs

    try:
        submission = slurm_jobs.find_submission(str(folder), environ=os.environ)
        return not all(one.ended for one in slurm_jobs.job_status(submission, environ=os.environ))
    except PipelineError:
        return True
