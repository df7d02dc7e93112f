"""What a training did, step by step, on disk: written by one engine's run, read beside the other's.

    DIR/environment.json    where it ran: versions, platform, replicas
    DIR/initial.npz         the variables before the first step
    DIR/steps.jsonl         a line for each step: step, loss, learning_rate
    DIR/step-00000012.npz   the variables after step 12
    DIR/batches-worker-0    a line for each batch that a task's pipeline read: a checksum (CRC-32) of each record

Each file is written whole or not at all, so that a run that dies leaves what it did. NumPy only.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import math
import os
import re
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any

import numpy as np

from estimator_pipeline.errors import ConfigError

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
# Of the names in an archive those that are wanted.
Chosen = Callable[[Set[str]], Collection[str]]


class StepWriter:
    """Writes the record of one run.

    Args:
        folder: made if it is not there; a record that is in it already is an error, for two would be mixed.

    Raises:
        ConfigError: there is a record.
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
        """Write where the run takes place: plain values by name."""
        unfinished = self.folder / f"{_ENVIRONMENT}.unfinished"
        unfinished.write_text(json.dumps(facts, indent=1), encoding="utf-8")
        os.replace(unfinished, self.folder / _ENVIRONMENT)

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
            learning_rate: that it was made with, where it is known.
            variables: after it; None for a step whose variables are not kept.
        """
        if variables is not None:
            write_arrays(self.folder / f"step-{step:08d}.npz", variables)
        line = {"step": step, "loss": _plain(loss), "learning_rate": _plain(learning_rate)}
        with open(self.folder / _STEPS, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


class BatchWriter:
    """Writes which records a task's pipeline reads, batch by batch.

    Args:
        folder: of the record; every task of a run writes to the same one.
        task: whose pipeline it is, such as "worker:0".
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
        steps: those whose variables were kept, in order.

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
                told = json.loads(line)
                step = int(told["step"])
                self.losses[step] = float(told["loss"])
                if told["learning_rate"] is not None:
                    self.learning_rates[step] = float(told["learning_rate"])
            except (ValueError, KeyError, TypeError) as error:
                if number == len(lines):
                    # The run died while it wrote this one.
                    break
                raise ConfigError(
                    f"{self.folder / _STEPS}, line {number}: {error}", code="parity/bad-record", found=line[:200]
                ) from error
        found = (_FILE.fullmatch(path.name) for path in self.folder.iterdir())
        self.steps = sorted(int(match[1]) for match in found if match is not None)

    def environment(self) -> dict[str, Any]:
        """Where the run took place; empty for a record that does not tell.

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

    def initial(self, chosen: Chosen | None = None) -> dict[str, np.ndarray]:
        """Return the variables before the first step; see `read_arrays`."""
        return read_arrays(self.folder / _INITIAL, chosen)

    def variables(self, step: int, chosen: Chosen | None = None) -> dict[str, np.ndarray]:
        """Return the variables after a step; see `read_arrays`."""
        return read_arrays(self.folder / f"step-{step:08d}.npz", chosen)

    def unchanged(self, names: Iterable[str]) -> list[str]:
        """Those of these variables that the last step has as they were before the first one, and that it has at all.

        Of both archives one variable is read after the other, and no other one.

        Raises:
            ConfigError: there is no step whose variables were kept; one of the archives cannot be read.
        """
        if not self.steps:
            raise ConfigError(f"{self.folder} holds the variables of no step", code="parity/bad-record")
        with (
            _opened(self.folder / _INITIAL) as first,
            _opened(self.folder / f"step-{self.steps[-1]:08d}.npz") as last,
        ):
            both = first.keys() & last.keys()
            return [name for name in names if name in both and np.array_equal(first[name](), last[name]())]

    def batches(self) -> Batches:
        """Task -> a list of checksums for each batch that its pipeline read; empty where that was not recorded."""
        found = {}
        for path in sorted(self.folder.glob(f"{_BATCHES}*")):
            # What comes after the last line's end was not written whole.
            *lines, _ = path.read_text(encoding="utf-8").split("\n")
            found[path.name.removeprefix(_BATCHES)] = [[int(one) for one in line.split()] for line in lines]
        return found


def batch_name(task: str, batch: int) -> str:
    """Return what a batch of a task's pipeline is called in a comparison; the first one is 0."""
    return f"{_OF_BATCH}{task}, batch {batch + 1}"


def batch_of(name: str) -> tuple[str, int]:
    """Return the task and the batch that `batch_name` has named."""
    task, _, number = name.removeprefix(_OF_BATCH).rpartition(", batch ")
    return task, int(number) - 1


def are_joined(per_step: int | tuple[int, int]) -> bool:
    """Whether `batches_alike` joins a step's batches: the sides share it among other numbers of replicas."""
    return not isinstance(per_step, int) and per_step[0] != per_step[1]


def batches_alike(one: StepReader, other: StepReader, per_step: int | tuple[int, int]) -> tuple[Batches, Batches, int]:
    """Return what two runs have read, in as many batches a step.

    Args:
        one, other: their records.
        per_step: batches of a task for each step, a pair where the sides share a step's batch among other numbers of
            replicas: then those of a step are joined to one, and what does not make a whole step is left out.

    Returns:
        The batches of both, and how many there are a step.
    """
    counts = (per_step, per_step) if isinstance(per_step, int) else per_step
    if not are_joined(per_step):
        return one.batches(), other.batches(), counts[0]

    def joined(side: StepReader, count: int) -> Batches:
        return {
            task: [
                list(itertools.chain(*batches[start : start + count]))
                for start in range(0, len(batches) - count + 1, count)
            ]
            for task, batches in side.batches().items()
        }

    return joined(one, counts[0]), joined(other, counts[1]), 1


def initial_of(folder: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Return the variables that a run started from, from its record; the run may not have made a step yet.

    Raises:
        ConfigError: there is no record, or it cannot be read.
    """
    return read_arrays(Path(folder) / _INITIAL)


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write name -> array as a NumPy archive; texts as bytes."""

    def plain(value: Any) -> np.ndarray:
        array = np.asarray(value)
        # Texts of TensorFlow are objects, which an archive keeps as pickles.
        return array.astype(np.bytes_) if array.dtype.kind == "O" else array

    unfinished = path.with_suffix(".unfinished")
    with open(unfinished, "wb") as file:
        # Names hold slashes, which an archive would take for folders: they go into an array of their own.
        values: dict[str, Any] = {f"value_{number}": plain(value) for number, value in enumerate(arrays.values())}
        np.savez(file, names=np.array(list(arrays), dtype=np.str_), **values)
    os.replace(unfinished, path)


def read_arrays(path: Path, chosen: Chosen | None = None) -> dict[str, np.ndarray]:
    """Return what `write_arrays` has written.

    Args:
        path: of the archive.
        chosen: says which of all its names are read; None: all of them.

    Raises:
        ConfigError: it is not there, or cannot be read.
    """
    with _opened(path) as archive:
        names = archive.keys() if chosen is None else chosen(archive.keys())
        return {name: read() for name, read in archive.items() if name in names}


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Mapping[str, Callable[[], np.ndarray]]]:
    """Name -> what reads that array, of an archive.

    Raises:
        ConfigError: it is not there, or cannot be read; an array that cannot be, when it is read.
    """
    with contextlib.ExitStack() as closed:
        with _readable(path):
            # Opened here: NumPy leaves a file open that is no archive.
            file = closed.enter_context(open(path, "rb"))
            archive = closed.enter_context(np.load(file, allow_pickle=False))
            names = [str(name) for name in archive["names"]]

        def array(number: int) -> np.ndarray:
            with _readable(path):
                return np.asarray(archive[f"value_{number}"])

        yield {name: functools.partial(array, number) for number, name in enumerate(names)}


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{path} cannot be read: {error}", code="parity/bad-record") from error


def _plain(value: float | None) -> float | str | None:
    """JSON has no NaN and no infinity; as texts, float() reads them back."""
    if value is None:
        return None
    value = float(value)
    return value if math.isfinite(value) else str(value)
