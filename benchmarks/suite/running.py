"""Runs of the benchmark: the plan, and the measurements, each written at once so that a run can resume.

In the folder of a run, `measurements.jsonl` has one line for the conditions of the run, and one for each measurement.
A run in an existing folder makes the missing measurements, but only on the same machine and with the same size.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.suite import machine, measures
from benchmarks.suite.cases import Case
from benchmarks.suite.work import Profile
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.utils.jsonable import finite

__all__ = ["LOG", "BenchStep", "Measurement", "measure_all", "plan", "read", "seconds_of"]

LOG = "measurements.jsonl"


@dataclass(frozen=True)
class BenchStep:
    """One measurement to make.

    Attributes:
        case: the case.
        contender: the contender.
        run: index of the run, from 0.
    """

    case: Case
    contender: str
    run: int


@dataclass(frozen=True)
class Measurement:
    """The result of one measurement.

    Attributes:
        case: the case's name.
        contender: the contender's name.
        run: index of the run.
        figures: figures by name, including the case's metric.
        load: the load of the machine before the measurement.
    """

    case: str
    contender: str
    run: int
    figures: dict[str, Any]
    load: float | None = None


def plan(cases: Sequence[Case], *, runs: int) -> list[BenchStep]:
    """Return all measurements in order: by case and run, with the contenders in alternating order."""
    steps = []
    for case in cases:
        for run in range(min(runs, case.runs or runs)):
            order = case.contenders if run % 2 == 0 else case.contenders[::-1]
            steps += [BenchStep(case, contender, run) for contender in order]
    return steps


def seconds_of(steps: Sequence[BenchStep]) -> float:
    """Return the approximate seconds at full size on two idle cores."""
    return sum(step.case.seconds for step in steps)


def read(folder: Path) -> tuple[dict[str, Any], list[Measurement]]:
    """Return the conditions of a run and its measurements so far, without an incomplete last line.

    Raises:
        ConfigError: There is no such run, or the file is not that of a run.
    """
    path = folder / LOG
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{folder} has no run of the benchmark", found=str(error)) from error
    try:
        head = json.loads(lines[0])
        conditions, documents = head["made_of"], [json.loads(line) for line in lines[1:-1] if line]
        return conditions, [Measurement(**document) for document in documents]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} cannot be read as a run of the benchmark", found=str(error), hint="name another folder"
        ) from error


def measure_all(
    steps: Sequence[BenchStep],
    *,
    profile: Profile,
    folder: Path,
    on_measurement: Callable[[BenchStep, Measurement, int], None] = lambda step, measurement, remaining: None,
) -> tuple[dict[str, Any], list[Measurement]]:
    """Make the measurements that the folder does not have yet.

    Args:
        steps: The steps of `plan`.
        profile: Size of the run.
        folder: Folder of the run, which is created if it does not exist.
        on_measurement: Called after each measurement with the number of remaining ones.

    Returns:
        The conditions of the run, and all its measurements.

    Raises:
        ConfigError: The folder cannot be written to, or has a run of a different machine, version or size; or a case
            needs more cores than there are.
        TaskFailedError: A measured process failed. Earlier measurements are kept.
    """
    _check_cores(steps)
    conditions = {"machine": machine.about(), "profile": asdict(profile)}
    done = _begin(folder, conditions)
    measured = {(measurement.case, measurement.contender, measurement.run) for measurement in done}
    missing = [step for step in steps if (step.case.name, step.contender, step.run) not in measured]
    if not missing:
        return conditions, done
    if any(step.case.measure not in measures.WITHOUT_DATA for step in missing):
        measures.prepare(folder, profile)
    for number, step in enumerate(missing, start=1):
        load = machine.load()
        with _work_folder(folder, step) as place:
            figures = measures.MEASURES[step.case.measure](
                step.contender, profile, place, folder.resolve(), step.case.settings
            )
        measurement = Measurement(step.case.name, step.contender, step.run, figures, load)
        _append(folder, asdict(measurement))
        done.append(measurement)
        on_measurement(step, measurement, len(missing) - number)
    return conditions, done


def _check_cores(steps: Sequence[BenchStep]) -> None:
    cores = machine.about()["cores"]
    needed = max((step.case.settings.get("workers", 1) for step in steps), default=1)
    if needed > cores:
        short = [step.case.name for step in steps if step.case.settings.get("workers", 1) > cores]
        raise ConfigError(
            f"the case {short[0]} needs a core for each of its {needed} workers",
            found=f"{cores} core(s) that this process may use",
            hint="name the cases to measure; see python -m benchmarks.suite --list",
        )


def _begin(folder: Path, conditions: dict[str, Any]) -> list[Measurement]:
    if (folder / LOG).exists():
        before, done = read(folder)
        for part in conditions:
            other = {
                name: (before.get(part, {}).get(name), value)
                for name, value in conditions[part].items()
                if before.get(part, {}).get(name) != value and name != "runs"
            }
            if other:
                name, (then, now) = next(iter(other.items()))
                raise ConfigError(
                    f"--output {folder} has a run of a different {part}: {name} is {now} now",
                    found=f"{name} {then} in {folder / LOG}",
                    hint="name another folder",
                )
        _cut_torn_line(folder / LOG)
        return done
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LOG).write_text(json.dumps({"made_of": conditions}) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"--output {folder} cannot be written to",
            found=f"{error.filename or folder}: {error.strerror}",
            hint="name a writable folder",
        ) from error
    return []


def _cut_torn_line(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if not text.endswith("\n"):
        path.write_text(text[: text.rindex("\n") + 1], encoding="utf-8")


def _append(folder: Path, document: dict[str, Any]) -> None:
    with open(folder / LOG, "a", encoding="utf-8") as log:
        log.write(json.dumps(finite(document)) + "\n")
        log.flush()
        os.fsync(log.fileno())


class _work_folder:
    """New, empty folder of a measurement, which is kept with its logs if the measurement fails."""

    def __init__(self, folder: Path, step: BenchStep) -> None:
        self.path = folder.resolve() / "work" / f"{step.case.name}.{step.contender}.{step.run}"

    def __enter__(self) -> Path:
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(parents=True)
        return self.path

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            shutil.rmtree(self.path, ignore_errors=True)
