"""A run: its plan, its measurements in turns, each written down at once, so that a run that ends early goes on.

In a run's folder `measurements.jsonl` has a line for what the run is made of, and one for each measurement. A run in a
folder that has some already makes those that are missing, on the same machine and at the same size alone.
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
        case: of which case.
        contender: of whom.
        run: which of the runs, from 0.
    """

    case: Case
    contender: str
    run: int


@dataclass(frozen=True)
class Measurement:
    """What one measurement gave.

    Attributes:
        case: the case's name.
        contender: the contender's name.
        run: which of the runs.
        figures: by name; the case's metric among them.
        load: of the machine before it.
    """

    case: str
    contender: str
    run: int
    figures: dict[str, Any]
    load: float | None = None


def plan(cases: Sequence[Case], *, runs: int) -> list[BenchStep]:
    """All measurements in their order: case after case, run after run, the contenders forth and back in turns."""
    steps = []
    for case in cases:
        for run in range(min(runs, case.runs or runs)):
            order = case.contenders if run % 2 == 0 else case.contenders[::-1]
            steps += [BenchStep(case, contender, run) for contender in order]
    return steps


def seconds_of(steps: Sequence[BenchStep]) -> float:
    """How long they take at full size on two cores that have nothing else to do, about."""
    return sum(step.case.seconds for step in steps)


def read(folder: Path) -> tuple[dict[str, Any], list[Measurement]]:
    """Return what a run is made of, and its measurements so far; a last line that is cut off is left out.

    Raises:
        ConfigError: there is no such run, or the file is none of a run.
    """
    path = folder / LOG
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{folder} holds no run of the benchmark", found=str(error)) from error
    try:
        head = json.loads(lines[0])
        made_of, rest = head["made_of"], [json.loads(line) for line in lines[1:-1] if line]
        return made_of, [Measurement(**one) for one in rest]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} cannot be read as a run of the benchmark", found=str(error), hint="name another folder"
        ) from error


def measure_all(
    steps: Sequence[BenchStep],
    *,
    profile: Profile,
    folder: Path,
    tell: Callable[[BenchStep, Measurement, int], None] = lambda step, found, left: None,
) -> tuple[dict[str, Any], list[Measurement]]:
    """Make the measurements that the folder has not yet.

    Args:
        steps: from `plan`.
        profile: how much is done.
        folder: of the run; made if it is not there.
        tell: called after each measurement with the number of those that are left.

    Returns:
        What the run is made of, and all its measurements.

    Raises:
        ConfigError: the folder cannot be written to, or holds a run of another machine, version or size; a case needs
            more cores than there are.
        TaskFailedError: a measured process failed. What was measured before is kept.
    """
    _check_cores(steps)
    made_of = {"machine": machine.about(), "profile": asdict(profile)}
    done = _begin(folder, made_of)
    have = {(one.case, one.contender, one.run) for one in done}
    left = [step for step in steps if (step.case.name, step.contender, step.run) not in have]
    if not left:
        return made_of, done
    if any(step.case.measure not in measures.WITHOUT_DATA for step in left):
        measures.prepare(folder, profile)
    for number, step in enumerate(left, start=1):
        load = machine.load()
        with _work_folder(folder, step) as place:
            figures = measures.MEASURES[step.case.measure](
                step.contender, profile, place, folder.resolve(), step.case.settings
            )
        found = Measurement(step.case.name, step.contender, step.run, figures, load)
        _append(folder, asdict(found))
        done.append(found)
        tell(step, found, len(left) - number)
    return made_of, done


def _check_cores(steps: Sequence[BenchStep]) -> None:
    cores = machine.about()["cores"]
    needed = max((step.case.settings.get("workers", 1) for step in steps), default=1)
    if needed > cores:
        short = [step.case.name for step in steps if step.case.settings.get("workers", 1) > cores]
        raise ConfigError(
            f"the case {short[0]} needs a core for each of its {needed} workers",
            found=f"{cores} core(s) that this process may use",
            hint="name the cases that are to be measured; see python -m benchmarks.suite --list",
        )


def _begin(folder: Path, made_of: dict[str, Any]) -> list[Measurement]:
    if (folder / LOG).exists():
        before, done = read(folder)
        for part in made_of:
            other = {
                name: (before.get(part, {}).get(name), value)
                for name, value in made_of[part].items()
                if before.get(part, {}).get(name) != value and name != "runs"
            }
            if other:
                name, (then, now) = next(iter(other.items()))
                raise ConfigError(
                    f"--output {folder} holds a run of another {part}: {name} is {now} now",
                    found=f"{name} {then} in {folder / LOG}",
                    hint="name another folder",
                )
        _cut_torn_line(folder / LOG)
        return done
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LOG).write_text(json.dumps({"made_of": made_of}) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"--output {folder}: nothing can be written there",
            found=f"{error.filename or folder}: {error.strerror}",
            hint="name a folder that can be written to",
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
    """A measurement's own folder, empty at first; kept with its logs where the measurement fails."""

    def __init__(self, folder: Path, step: BenchStep) -> None:
        self.path = folder.resolve() / "work" / f"{step.case.name}.{step.contender}.{step.run}"

    def __enter__(self) -> Path:
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(parents=True)
        return self.path

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            shutil.rmtree(self.path, ignore_errors=True)
