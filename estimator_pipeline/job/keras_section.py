"""The section `keras` of the job file: callbacks of `Model.fit`, for the engine keras alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from estimator_pipeline.job.base import FunctionRef, Problem, Section

__all__ = ["Backup", "ChiefCheckpoint", "Keras", "ModelCheckpoint", "RateByEpoch"]

_Text = Annotated[str, Field(min_length=1)]


def _every(value: Any) -> Any:
    if value == "epoch" or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    problem = Problem(
        (), "this is no interval.", f"{value!r}; allowed: epoch, or a number of steps from 1 on", "write one of these."
    )
    raise PydanticCustomError("problems", "a wrong value", {"problems": [problem]})


Every = Annotated[Any, AfterValidator(_every)]
"""How often: "epoch", or a number of steps."""


class Backup(Section):
    """`tf.keras.callbacks.BackupAndRestore`: a run that was killed goes on from its last backup.

    Fields:
        every: "epoch", or the steps between two backups.
        dir: Where; null takes `backup` in the model directory.
    """

    every: Every = "epoch"
    dir: _Text | None = None


class ModelCheckpoint(Section):
    """`tf.keras.callbacks.ModelCheckpoint`, beside the engine's own checkpoints.

    Fields:
        path: Of the files, with {epoch} and names of metrics; null takes `model_checkpoints/ckpt_{epoch}` in the model
            directory.
        every: "epoch", or a number of steps.
        save_best_only: Whether only a better model than all before is saved.
        monitor: What "best" means; val_ values are those of an evaluation during training.
        mode: "min", "max", or "auto" by the name.
        save_weights_only: The weights with the optimizer's state, or the whole model.
    """

    path: _Text | None = None
    every: Every = "epoch"
    save_best_only: bool = False
    monitor: _Text = "val_loss"
    mode: Literal["auto", "min", "max"] = "auto"
    save_weights_only: bool = True


class ChiefCheckpoint(Section):
    """Weights and optimizer, written by all workers and kept of the chief.

    Fields:
        path: Of the files, with {epoch} or {step}; null takes `chief_checkpoints/ckpt_{step}` in the model directory.
        every: "epoch", or a number of steps.
    """

    path: _Text | None = None
    every: Every = "epoch"


class RateByEpoch(Section):
    """The learning rate by epoch: `values[0]` until the epoch `boundaries[0]` (counted from 0), and so on."""

    boundaries: Annotated[list[Annotated[int, Field(gt=0)]], Field(min_length=1)]
    values: Annotated[list[Annotated[float, Field(ge=0)]], Field(min_length=2)]

    def problems(self) -> Iterator[Problem]:
        if len(self.values) != len(self.boundaries) + 1:
            yield Problem(
                ("values",),
                f"{len(self.boundaries)} boundaries need {len(self.boundaries) + 1} values.",
                f"{len(self.values)} values",
                "give one value for the epochs before each boundary, and one for those from the last one on.",
            )
        if sorted(set(self.boundaries)) != self.boundaries:
            yield Problem(
                ("boundaries",),
                "the boundaries do not rise.",
                f"{self.boundaries}",
                "write the epochs in rising order, each once.",
            )


class Keras(Section):
    """Callbacks of `Model.fit`. An epoch is the stretch from one checkpoint of the engine to the next.

    Fields:
        backup: See :class:`Backup`; null makes none.
        model_checkpoint: See :class:`ModelCheckpoint`.
        chief_checkpoint: See :class:`ChiefCheckpoint`.
        learning_rate_by_epoch: See :class:`RateByEpoch`.
        print_learning_rate: Whether the chief says the learning rate at the end of each epoch.
        callbacks: Own functions without arguments, each of which returns a callback or a list of them.
    """

    backup: Backup | None = None
    model_checkpoint: ModelCheckpoint | None = None
    chief_checkpoint: ChiefCheckpoint | None = None
    learning_rate_by_epoch: RateByEpoch | None = None
    print_learning_rate: bool = False
    callbacks: list[FunctionRef] = []

    def by_epoch(self) -> Iterator[str]:
        """The fields, in force, that count epochs."""
        if self.learning_rate_by_epoch is not None:
            yield "learning_rate_by_epoch"
        for name in ("model_checkpoint", "chief_checkpoint"):
            section = getattr(self, name)
            if section is not None and section.every == "epoch":
                yield name
        if self.backup is not None:
            yield "backup"

    def folders(self) -> Iterator[tuple[str, str, str]]:
        """(section, field, folder) of all that is written to a folder that was named."""
        if self.backup is not None and self.backup.dir is not None:
            yield "backup", "dir", self.backup.dir
        for name in ("model_checkpoint", "chief_checkpoint"):
            section = getattr(self, name)
            if section is not None and section.path is not None:
                yield name, "path", section.path.rpartition("/")[0]
