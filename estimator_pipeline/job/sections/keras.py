"""The section `keras` of the job file: callbacks of `Model.fit`, for the engine keras only."""

from __future__ import annotations

import collections
import string
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from estimator_pipeline.job.base import FunctionRef, Problem, Section, piecewise_problems

__all__ = ["BackupSection", "ChiefCheckpoint", "Keras", "ModelCheckpoint", "RateByEpoch", "path_fields"]

_Text = Annotated[str, Field(min_length=1)]


def _every(value: Any) -> Any:
    if value == "epoch" or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    problem = Problem(
        (),
        "this is not an interval.",
        f"{value!r}; allowed: epoch, or a number of steps from 1 on",
        "use one of these.",
        code="job/bad-value",
    )
    raise PydanticCustomError("problems", "a wrong value", {"problems": [problem]})


Every = Annotated[Any, AfterValidator(_every)]
"""An interval: "epoch", or a number of steps."""


def path_fields(path: str) -> list[str]:
    """Return the names in braces of a path that is formatted at each save, such as `ckpt_{epoch}`.

    Raises:
        ValueError: The path cannot be formatted: unbalanced braces, or a field without a name.
    """
    names = [name for _, name, _, _ in string.Formatter().parse(path) if name is not None]
    if any(not name or name[0].isdigit() for name in names):
        raise ValueError("a field in braces has no name")
    values: Mapping[str, float] = collections.defaultdict(lambda: 0.5, {"epoch": 1, "step": 1, "batch": 1})
    try:
        path.format_map(values)
    except (TypeError, LookupError, AttributeError) as error:
        raise ValueError(str(error)) from error
    return [name.replace("[", ".").partition(".")[0] for name in names]


def _path_problems(path: str | None, *, counted: str, others: str = "") -> Iterator[Problem]:
    """Yield the errors of a path; `counted` has the allowed numbers, `others` a text for other allowed fields."""
    if path is None:
        return
    known = counted.split()
    allowed = f"allowed: {', '.join(f'{{{name}}}' for name in known)}{others}"
    try:
        names = path_fields(path)
    except ValueError as error:
        yield Problem(
            ("path",),
            f"this path cannot be formatted: {error}.",
            f"{path!r}; {allowed}",
            "correct it.",
            code="job/bad-value",
        )
        return
    numbers = ("epoch", "step", "batch")
    for name in names:
        if name not in known and (name in numbers or not others):
            yield Problem(
                ("path",),
                f"{{{name}}} is not available for this path.",
                f"{path!r}; {allowed}",
                "use one of these.",
                code="job/bad-value",
            )


class BackupSection(Section):
    """`tf.keras.callbacks.BackupAndRestore`: a killed run resumes from its last backup.

    Fields:
        every (epoch, or int >= 1): Interval of `BackupAndRestore`: each epoch, or a number of steps.
        dir: Directory. null: `backup` in the model directory.
    """

    every: Every = "epoch"
    dir: _Text | None = None


class ModelCheckpoint(Section):
    """`tf.keras.callbacks.ModelCheckpoint`, in addition to the engine's checkpoints.

    Fields:
        path: Path of `ModelCheckpoint`, with `{epoch}`, names of metrics and, if `every` is a number, `{batch}`.
            Without any of these, only the latest is kept. null: `model_checkpoints/ckpt_{epoch}` in the model
            directory.
        every (epoch, or int >= 1): Interval: each epoch, or a number of steps.
        save_best_only: Save only if the model is the best so far.
        monitor: Metric for "best". Metrics `val_...` require `eval.during_training`. An unknown metric is rejected
            before training, or with custom callbacks at the end of the first epoch.
        mode: Direction of improvement. `auto`: by the metric's name.
        save_weights_only: true: weights and optimizer state. false: the whole model. With `ema_momentum`, the raw
            weights and the averages.
    """

    path: _Text | None = None
    every: Every = "epoch"
    save_best_only: bool = False
    monitor: _Text = "val_loss"
    mode: Literal["auto", "min", "max"] = "auto"
    save_weights_only: bool = True

    def problems(self) -> Iterator[Problem]:
        counted = "epoch" if self.every == "epoch" else "epoch batch"
        yield from _path_problems(self.path, counted=counted, others=", and names of metrics")


class ChiefCheckpoint(Section):
    """Weights and optimizer state, written by all workers; only the chief's files are kept.

    Fields:
        path: Path of the chief's weights and optimizer state, with `{epoch}` or `{step}`. null:
            `chief_checkpoints/ckpt_{step}` in the model directory.
        every (epoch, or int >= 1): Interval: each epoch, or a number of steps.
    """

    path: _Text | None = None
    every: Every = "epoch"

    def problems(self) -> Iterator[Problem]:
        yield from _path_problems(self.path, counted="epoch step")


class RateByEpoch(Section):
    """The learning rate by epoch: `values[0]` until the epoch `boundaries[0]` (counted from 0), and so on.

    Fields:
        boundaries: Epochs, counted from 0, at which the next value starts.
        values: Learning rates; one more than `boundaries`.
    """

    boundaries: Annotated[list[Annotated[int, Field(gt=0)]], Field(min_length=1)]
    values: Annotated[list[Annotated[float, Field(ge=0)]], Field(min_length=2)]

    def problems(self) -> Iterator[Problem]:
        return piecewise_problems(self.boundaries, self.values, "epochs")


class Keras(Section):
    """Callbacks of `Model.fit`. An epoch is the interval between two checkpoints of the engine.

    Fields:
        backup: `BackupAndRestore`.
        model_checkpoint: `ModelCheckpoint`.
        chief_checkpoint: Weights of the chief.
        learning_rate_by_epoch: Learning rate by epoch.
        print_learning_rate: The chief prints the learning rate after each epoch.
        callbacks: Functions without arguments that return a callback or a list of callbacks.
    """

    backup: BackupSection | None = None
    model_checkpoint: ModelCheckpoint | None = None
    chief_checkpoint: ChiefCheckpoint | None = None
    learning_rate_by_epoch: RateByEpoch | None = None
    print_learning_rate: bool = False
    callbacks: list[FunctionRef] = []

    def by_epoch(self) -> Iterator[str]:
        """Yield the active fields that count epochs."""
        if self.learning_rate_by_epoch is not None:
            yield "learning_rate_by_epoch"
        for name in ("model_checkpoint", "chief_checkpoint"):
            section = getattr(self, name)
            if section is not None and section.every == "epoch":
                yield name
        if self.backup is not None:
            yield "backup"

    def folders(self) -> Iterator[tuple[str, str, str]]:
        """Yield (section, field, folder) for each explicit output folder."""
        for name in self.writing():
            section = getattr(self, name)
            if name == "backup" and section.dir is not None:
                yield name, "dir", section.dir
            elif name != "backup" and section.path is not None:
                yield name, "path", section.path.rpartition("/")[0]

    def writing(self) -> list[str]:
        """Return the sections of the job that write files."""
        return [name for name in ("backup", "model_checkpoint", "chief_checkpoint") if getattr(self, name) is not None]
