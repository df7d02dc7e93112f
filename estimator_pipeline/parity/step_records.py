"""Step records: the steps of a training on disk, written by one run and compared with a different run.

    DIR/environment.json    environment: versions, platform, replicas
    DIR/initial.npz         the variables before the first step
    DIR/steps.jsonl         a line for each step: step, loss, learning_rate
    DIR/step-00000012.npz   the variables after step 12
    DIR/batches-worker-0    a line for each batch that a task's pipeline read: a checksum of each record

Each file is written atomically, so that the record of a run that dies remains readable. NumPy only.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.utils import durable_files as durable

__all__ = [
    "BatchWriter", "Batches", "StepReader", "StepWriter", "are_joined", "batch_name", "batch_of", "batches_alike",
    "initial_of", "read_arrays", "write_arrays",
]  # fmt: skip

_ENVIRONMENT = "environment.json"
_INITIAL = "initial.npz"
_STEPS = "steps.jsonl"
_FILE = re.compile(r"step-(\d+)\.npz")
_BATCHES = "batches-"
_OF_BATCH = "records of "
# Task -> a list of checksums for each batch.
Batches = dict[str, list[list[int]]]


class StepWriter:
    """Writes the record of one run.

    Args:
        folder: created if it is missing; must not hold a record already.

    Raises:
        ConfigError: the folder holds a record.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        if (self.folder / _STEPS).exists():
            raise ConfigError(
                f"{self.folder} holds the record of an earlier run",
                code="file/exists",
                hint="remove it, or name another folder",
            )
        self.folder.mkdir(parents=True, exist_ok=True)

    def environment(self, facts: Mapping[str, Any]) -> None:
        """Write the environment of the run: plain values by name."""
        durable.write(self.folder / _ENVIRONMENT, json.dumps(facts, indent=1).encode(), to_disk=False)

    def initial(self, variables: Mapping[str, Any]) -> None:
        """Write the variables before the first step."""
        write_arrays(self.folder / _INITIAL, variables)

    def step(
        self,
        step: int,
        *,
        loss: float,
        learning_rate: float | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        """Write one step.

        Args:
            step: the global step after it.
            loss: of the global batch, before the step.
            learning_rate: learning rate of the step, where it is known.
            variables: variables after it; None for a step whose variables are not recorded.
        """
        if variables is not None:
            write_arrays(self.folder / f"step-{step:08d}.npz", variables)
        line = {"step": step, "loss": _plain(loss), "learning_rate": _plain(learning_rate)}
        with open(self.folder / _STEPS, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


class BatchWriter:
    """Writes which records a task's pipeline reads, batch by batch.

    Args:
        folder: folder of the record, shared by all tasks of a run.
        task: the task that reads, such as "worker:0".
    """

    def __init__(self, folder: str | os.PathLike[str], task: str) -> None:
        self.path = Path(folder) / (_BATCHES + task.replace(":", "-"))

    def batch(self, checksums: list[int]) -> None:
        """Write one batch: a checksum for each of its records, in order."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(" ".join(map(str, checksums)) + "\n")


class StepReader:
    """Reads the record of one run.

    Args:
        folder: where it was written.

    Attributes:
        losses: step -> loss.
        learning_rates: step -> learning rate, where it was known.
        steps: steps whose variables were recorded, in order.

    Raises:
        ConfigError: there is no record, or it cannot be read.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.losses: dict[int, float] = {}
        self.learning_rates: dict[int, float] = {}
        try:
            lines = (self.folder / _STEPS).read_text(encoding="utf-8").splitlines()
        except OSError as error:
            if not (self.folder / _INITIAL).exists():
                raise ConfigError(
                    f"{self.folder} holds no record of a run: {error}", code="parity/bad-record"
                ) from error
            lines = []  # it ended before its first step
        for number, line in enumerate(lines, 1):
            try:
                entry = json.loads(line)
                step = int(entry["step"])
                self.losses[step] = float(entry["loss"])
                if entry["learning_rate"] is not None:
                    self.learning_rates[step] = float(entry["learning_rate"])
            except (ValueError, KeyError, TypeError) as error:
                if number == len(lines):
                    # The run died while it wrote this line.
                    break
                raise ConfigError(
                    f"{self.folder / _STEPS}, line {number}: {error}", code="parity/bad-record", found=line[:200]
                ) from error
        matches = (_FILE.fullmatch(path.name) for path in self.folder.iterdir())
        self.steps = sorted(int(match[1]) for match in matches if match is not None)

    def environment(self) -> dict[str, Any]:
        """Return the environment of the run; empty if it was not recorded.

        Raises:
            ConfigError: it cannot be read.
        """
        path = self.folder / _ENVIRONMENT
        try:
            return dict(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"{path} cannot be read: {error}", code="parity/bad-record") from error

    def initial(self) -> dict[str, np.ndarray]:
        """Return the variables before the first step; see `read_arrays`."""
        return read_arrays(self.folder / _INITIAL)

    def variables(self, step: int) -> dict[str, np.ndarray]:
        """Return the variables after a step; see `read_arrays`."""
        return read_arrays(self.folder / f"step-{step:08d}.npz")

    def unchanged(self, names: Iterable[str]) -> list[str]:
        """Return the variables of these names that the last step has unchanged from before the first step.

        Raises:
            ConfigError: no step has recorded variables; an archive cannot be read.
        """
        if not self.steps:
            raise ConfigError(f"{self.folder} holds the variables of no step", code="parity/bad-record")
        first, last = self.initial(), self.variables(self.steps[-1])
        both = first.keys() & last.keys()
        return [name for name in names if name in both and np.array_equal(first[name], last[name])]

    def batches(self) -> Batches:
        """Return task -> a list of checksums for each batch that its pipeline read; empty if not recorded."""
        batches = {}
        for path in sorted(self.folder.glob(f"{_BATCHES}*")):
            # Text after the last line break is incomplete.
            *lines, _ = path.read_text(encoding="utf-8").split("\n")
            batches[path.name.removeprefix(_BATCHES)] = [[int(checksum) for checksum in line.split()] for line in lines]
        return batches


def batch_name(task: str, batch: int) -> str:
    """Return the name of a batch of a task's pipeline in a comparison; the first batch is 0."""
    return f"{_OF_BATCH}{task}, batch {batch + 1}"


def batch_of(name: str) -> tuple[str, int]:
    """Return the task and the batch of a name from `batch_name`."""
    task, _, number = name.removeprefix(_OF_BATCH).rpartition(", batch ")
    return task, int(number) - 1


def are_joined(per_step: int | tuple[int, int]) -> bool:
    """Whether `batches_alike` joins a step's batches: the sides have different numbers of replicas."""
    return not isinstance(per_step, int) and per_step[0] != per_step[1]


def batches_alike(
    first: StepReader, second: StepReader, per_step: int | tuple[int, int]
) -> tuple[Batches, Batches, int]:
    """Return the batches of two runs, with equal numbers of batches per step.

    Args:
        first, second: the records of the runs.
        per_step: batches of a task for each step, a pair where the sides have different numbers of replicas: then the
            batches of each step are joined into one, and an incomplete step is left out.

    Returns:
        The batches of both, and the number of batches per step.
    """
    counts = (per_step, per_step) if isinstance(per_step, int) else per_step
    if not are_joined(per_step):
        return first.batches(), second.batches(), counts[0]

    def joined(side: StepReader, count: int) -> Batches:
        return {
            task: [
                list(itertools.chain(*batches[start : start + count]))
                for start in range(0, len(batches) - count + 1, count)
            ]
            for task, batches in side.batches().items()
        }

    return joined(first, counts[0]), joined(second, counts[1]), 1


def initial_of(folder: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Return the initial variables from the record of a run, which may have no step yet.

    Raises:
        ConfigError: there is no record, or it cannot be read.
    """
    return read_arrays(Path(folder) / _INITIAL)


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write name -> array as a NumPy archive; strings as bytes."""

    def plain(value: Any) -> np.ndarray:
        array = np.asarray(value)
        # Strings of TensorFlow are objects, which an archive would pickle.
        return array.astype(np.bytes_) if array.dtype.kind == "O" else array

    unfinished = path.with_suffix(".unfinished")
    with open(unfinished, "wb") as file:
        # Names contain slashes, which an archive would take for folders: a separate array holds them.
        values: dict[str, Any] = {f"value_{number}": plain(value) for number, value in enumerate(arrays.values())}
        np.savez(file, names=np.array(list(arrays), dtype=np.str_), **values)
    os.replace(unfinished, path)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an archive from `write_arrays`.

    Raises:
        ConfigError: the archive is missing or cannot be read.
    """
    try:
        # Opened here: NumPy leaves a file open that is not an archive.
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            return {str(name): np.asarray(archive[f"value_{number}"]) for number, name in enumerate(archive["names"])}
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{path} cannot be read: {error}", code="parity/bad-record") from error


def _plain(value: float | None) -> float | str | None:
    """Return a float for JSON; NaN and infinity as strings, which float() reads back."""
    if value is None:
        return None
    value = float(value)
    return value if math.isfinite(value) else str(value)
