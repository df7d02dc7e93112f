"""`estimator-pipeline clean`: remove files of old runs."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from estimator_pipeline.cli.options import from_zero
from estimator_pipeline.errors import ConfigError, TaskFailedError
from estimator_pipeline.utils.text import counted


def command(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FOLDER]...", help="Search these folders for model directories.", show_default="."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove the listed folders.")] = False,
    older_than: Annotated[
        float,
        typer.Option(metavar="DAYS", callback=from_zero, help="Select only folders unchanged for this many days."),
    ] = 7.0,
    keep: Annotated[
        int, typer.Option(min=0, metavar="N", help="Keep the newest N launches and submissions of each model.")
    ] = 1,
) -> None:
    """List or remove the files of old runs: logs of launches, submissions, runs before a requeue, and unused tables.

    Tables are CSV and Parquet files that were converted for training, in the cache folder of the user.

    Checkpoints, exports, evaluations and ledgers are never removed. Folders that may be in use are kept: those of jobs
    that the scheduler has not ended or cannot report on, and those changed within the last hour.
    """
    from estimator_pipeline.doctor.storage import size_of
    from estimator_pipeline.inputs.sources.table_cache import unused_tables
    from estimator_pipeline.launch import cleaning
    from estimator_pipeline.utils.remaining_time import time_text

    roots = folders or [Path()]
    for root in roots:
        if not root.is_dir():
            raise ConfigError(
                f"{root} is not a folder.", code="file/not-found", hint="name a model directory, or a folder of them."
            )
    candidates = {}
    for root in roots:
        for folder in cleaning.find(root, keep=keep, older_than=older_than * 86400, in_use=_may_run):
            candidates[folder.path.resolve()] = folder
    for path, bytes_, used in unused_tables(os.environ, older_than=older_than * 86400):
        candidates[path] = cleaning.Leftover(path, "table in the cache", bytes_, used)
    for folder in candidates.values():
        age = time_text(time.time() - folder.changed)
        typer.echo(f"{size_of(folder.size):>10}  {age:>9}  {folder.path} ({folder.kind})")
    size = size_of(sum(folder.size for folder in candidates.values()))
    tables = sum(not folder.path.is_dir() for folder in candidates.values())
    parts = [counted(len(candidates) - tables, "folder"), *([counted(tables, "table")] if tables else []), size]
    total = ", ".join(parts)
    if not yes:
        typer.echo(f"{total}; nothing was removed" + (": give --yes" if candidates else ""))
        return
    remaining = cleaning.remove(list(candidates.values()))
    if remaining:
        raise TaskFailedError(
            f"{len(remaining)} of {total} could not be removed",
            code="file/unwritable",
            found="; ".join(f"{folder.path}: {error.strerror or error}" for folder, error in remaining[:5]),
        )
    typer.echo(f"{total}: removed")


def _may_run(folder: Path) -> bool:
    """Return whether the job of a submission may still be in the queue or running."""
    from estimator_pipeline.errors import PipelineError
    from estimator_pipeline.launch.schedulers import find_scheduler, reference_of

    try:
        reference = reference_of(str(folder))
        scheduler = find_scheduler(reference)
        job = scheduler.find(reference, environ=os.environ)
        return not all(status.ended for status in scheduler.status(job, environ=os.environ).jobs)
    except PipelineError:
        return True
