"""The continuations of a run: further data on which it trained after those with which it began, each record once.

`estimator_pipeline/continuations.json` in the model directory lists them, oldest first. The chief adds one, under the
lock of the model directory, before its first step. All steps of a continuation are trained when a checkpoint of its
last step exists; a damaged checkpoint makes it incomplete again.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.engines.model_dir.disk_errors import read_whole, write_whole
from estimator_pipeline.engines.model_dir.layout import DIRECTORY
from estimator_pipeline.errors import ConfigError

__all__ = ["Continuation", "add_continuation", "leave_continuations", "read_continuations", "trained_steps"]

_FILE = "continuations.json"
_VERSION = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Continuation:
    """Data on which a run continues.

    Attributes:
        number: Its number, from 1.
        files: Path -> digest, in the order in which the files are read.
        records: The number of records.
        epochs: How often each is read.
        origin: The global step before its first one.
        steps: The number of steps.
        checkpoint: The name of the checkpoint from which it starts.
        time: When it started, in seconds since 1970.
        run: The run ID of the last start that trained it; "" without one.
        finished: Whether its last step is evaluated and exported.
    """

    number: int
    files: Mapping[str, str]
    records: int
    epochs: int
    origin: int
    steps: int
    checkpoint: str
    time: float = dataclasses.field(default_factory=time.time)
    run: str = ""
    finished: bool = False

    @property
    def end(self) -> int:
        """Its last global step."""
        return self.origin + self.steps

    def __str__(self) -> str:
        files = ", ".join(self.files)
        epochs = "" if self.epochs == 1 else f", {self.epochs} epochs"
        return (
            f"continuation {self.number}: steps {self.origin + 1} to {self.end}, {self.records:,} records{epochs} of "
            f"{files}, from {self.checkpoint}"
        )


def read_continuations(model_dir: str) -> list[Continuation]:
    """Return the continuations of the run in a model directory, oldest first.

    Raises:
        ConfigError: The file is damaged, or of a later version.
    """
    path = _path(model_dir)
    try:
        text = read_whole(path)
        if text is None:
            return []
        document = json.loads(text)
        if document["version"] > _VERSION:
            raise ValueError(f"version {document['version']} is later than {_VERSION}")
        return [Continuation(**each) for each in document["continuations"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} cannot be read: {error}",
            code="model-dir/damaged",
            hint="restore it from a copy of the model directory: it lists the data on which the run has trained",
        ) from None


def add_continuation(model_dir: str, continuation: Continuation) -> None:
    """Add a continuation, in place of one of the same number."""
    before = [each for each in read_continuations(model_dir) if each.number < continuation.number]
    _write(model_dir, [*_cut(before, continuation.origin), continuation])


def leave_continuations(model_dir: str, step: int) -> None:
    """Record that the data with which the run began are trained from a step: earlier continuations end there."""
    continuations = read_continuations(model_dir)
    if (left := _cut(continuations, step)) != continuations:
        _write(model_dir, left)


def trained_steps(continuations: Sequence[Continuation], step: int) -> int:
    """Return how many of the steps up to `step` are of continuations, and not of the data with which the run began."""
    return sum(each.steps for each in _cut(continuations, step))


def _cut(continuations: Sequence[Continuation], step: int) -> list[Continuation]:
    """Return the continuations with the steps that are trained when training is at `step`."""
    return [
        dataclasses.replace(each, steps=min(each.end, step) - each.origin)
        for each in continuations
        if each.origin < step
    ]


def _write(model_dir: str, continuations: Sequence[Continuation]) -> None:
    document: dict[str, Any] = {
        "version": _VERSION,
        "continuations": [dataclasses.asdict(each) for each in continuations],
    }
    compat.tensorflow().io.gfile.makedirs(os.path.join(model_dir, DIRECTORY))
    write_whole(_path(model_dir), json.dumps(document, indent=1))


def _path(model_dir: str) -> str:
    return os.path.join(model_dir, DIRECTORY, _FILE)
