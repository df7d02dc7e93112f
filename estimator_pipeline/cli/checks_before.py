"""Checks that `launch` and `submit` run before they start anything."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from estimator_pipeline.errors import ConfigError, DiskError
from estimator_pipeline.utils import io_errors

if TYPE_CHECKING:
    from estimator_pipeline.job import Job

__all__ = ["reject_failing_jobs"]


def reject_failing_jobs(
    jobs: Sequence[Job],
    *,
    file: str,
    done: str,
    checks: Sequence[str],
    other_python: bool = False,
    other_files: bool = False,
) -> None:
    """Reject jobs in which every task would fail, as far as `doctor` sees it without TensorFlow.

    Warnings about numbers that are not scaled, and about requests to Slurm or PBS, are printed on standard error.

    Args:
        jobs: The job, or the jobs of an array.
        file: Name of the job file.
        done: What has not been done, for the message: "nothing was submitted".
        checks: Names of the checks of `doctor` to run.
        other_python: Whether the tasks run in a different Python installation.
        other_files: Whether the tasks see a different file system.

    Raises:
        ConfigError: All errors that were found, one per line.
        DiskError: The data cannot be read because a disk fails.
    """
    from estimator_pipeline import doctor
    from estimator_pipeline.inputs.sources.proxies import PROXIES
    from estimator_pipeline.job.error_messages import MistakesError

    # Variables of a scheduler here describe this process, not the tasks of the job.
    names = ("HOME", "XDG_CACHE_HOME", "TFDS_DATA_DIR", *PROXIES)
    known = {name: os.environ[name] for name in names if name in os.environ}
    errors: dict[tuple[str, str, str], list[int]] = {}
    warnings: dict[str, list[int]] = {}
    for job, numbers in _distinct_jobs(jobs):
        context = doctor.Context(
            environ=known, job=job, job_file=file, connect=True, other_python=other_python, other_files=other_files
        )
        for finding in doctor.examine(context, only=checks).findings:
            if finding.severity == "error":
                errors.setdefault((finding.code, finding.message, finding.hint), []).extend(numbers)
            elif finding.severity == "warning" and finding.check in ("slurm", "pbs", "model"):
                warnings.setdefault(f"{finding.message}\n  hint: {finding.hint}", []).extend(numbers)
    for text, numbers in warnings.items():
        typer.echo(f"warning: {_element_prefix(numbers, len(jobs))}{text}", err=True)
    if not errors:
        return
    messages = [
        (code or "job/conflict", _element_prefix(numbers, len(jobs)) + message, hint or None)
        for (code, message, hint), numbers in errors.items()
    ]
    if {hint for *_, hint in messages} == {io_errors.HINT}:
        raise DiskError(f"{file}: {'; '.join(message for _, message, _ in messages)}; {done}", hint=io_errors.HINT)
    if len(messages) == 1:
        ((code, message, hint),) = messages
        raise ConfigError(f"{file}: {message}; {done}", code=code, hint=hint)
    mistakes = [ConfigError(message, code=code, hint=hint) for code, message, hint in messages]
    raise MistakesError.of(f"{file} has {len(messages)} mistakes, and {done}:", mistakes)


def _distinct_jobs(jobs: Sequence[Job]) -> list[tuple[Job, list[int]]]:
    """Return the jobs that differ for the checks, each with the indices of the jobs equal to it."""
    distinct: dict[str, tuple[Job, list[int]]] = {}
    for number, job in enumerate(jobs):
        compared = (
            *(job.model, job.input, job.train, job.cluster, job.slurm, job.pbs, job.run.devices_per_task),
            job.functions,
        )
        distinct.setdefault(repr(compared), (job, []))[1].append(number)
    return list(distinct.values())


def _element_prefix(numbers: Sequence[int], count: int) -> str:
    """Return the elements of an array as a prefix; empty for all of them."""
    if len(numbers) == count:
        return ""
    return f"element{'s'[: len(numbers) > 1]} {', '.join(map(str, sorted(numbers)))}: "
