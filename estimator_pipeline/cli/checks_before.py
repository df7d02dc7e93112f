"""No subcommand: what `launch` and `submit` look at before they start anything."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from estimator_pipeline.errors import ConfigError, DiskError
from estimator_pipeline.utils import io_errors

if TYPE_CHECKING:
    from estimator_pipeline.job import Job

__all__ = ["refuse_hopeless"]


def refuse_hopeless(
    jobs: Sequence[Job],
    *,
    file: str,
    done: str,
    checks: Sequence[str],
    other_python: bool = False,
    other_files: bool = False,
) -> None:
    """Refuses jobs of which can be told, without TensorFlow, that every task would end with an error.

    Args:
        jobs: the job, or those of an array.
        file: the job file's name.
        done: what is not done then: "nothing was submitted".
        checks: which of doctor's.
        other_python: whether the tasks run in another Python than this one.
        other_files: whether they see other files than this process.

    Raises:
        ConfigError: all that is wrong, one a line.
        DiskError: the data cannot be read, for a disk fails.
    """
    from estimator_pipeline import doctor
    from estimator_pipeline.inputs.sources.proxies import PROXIES
    from estimator_pipeline.job.error_messages import MistakesError

    # The cluster is the job's: what a scheduler says here is not about its tasks.
    names = ("HOME", "XDG_CACHE_HOME", "TFDS_DATA_DIR", *PROXIES)
    known = {name: os.environ[name] for name in names if name in os.environ}
    wrong: dict[tuple[str, str, str], list[int]] = {}
    for job, numbers in _looked_at(jobs):
        context = doctor.Context(
            environ=known,
            job=job,
            job_file=file,
            connect=True,
            other_python=other_python,
            other_files=other_files,
        )
        for finding in doctor.examine(context, only=checks).findings:
            if finding.severity == "error":
                wrong.setdefault((finding.code, finding.what, finding.hint), []).extend(numbers)
    if not wrong:
        return
    told = [
        (code or "job/conflict", _of_elements(numbers, len(jobs)) + what, hint or None)
        for (code, what, hint), numbers in wrong.items()
    ]
    if {hint for *_, hint in told} == {io_errors.HINT}:
        raise DiskError(f"{file}: {'; '.join(what for _, what, _ in told)}; {done}", hint=io_errors.HINT)
    if len(told) == 1:
        ((code, what, hint),) = told
        raise ConfigError(f"{file}: {what}; {done}", code=code, hint=hint)
    mistakes = [ConfigError(what, code=code, hint=hint) for code, what, hint in told]
    raise MistakesError.of(f"{file} has {len(told)} mistakes, and {done}:", mistakes)


def _looked_at(jobs: Sequence[Job]) -> list[tuple[Job, list[int]]]:
    """Each job once that a check may see as another, and the numbers of those that are the same to it."""
    found: list[tuple[Job, list[int]]] = []
    for number, job in enumerate(jobs):
        parts = ("model", "input", "train", "cluster", "slurm")
        same = (
            numbers
            for one, numbers in found
            if all(getattr(one, part) == getattr(job, part) for part in parts)
            and one.run.devices_per_task == job.run.devices_per_task
        )
        numbers = next(same, None)
        if numbers is None:
            found.append((job, [number]))
        else:
            numbers.append(number)
    return found


def _of_elements(numbers: Sequence[int], count: int) -> str:
    """Which elements of an array; nothing where it is all of them."""
    if len(numbers) == count:
        return ""
    return f"element{'s'[: len(numbers) > 1]} {', '.join(map(str, sorted(numbers)))}: "
