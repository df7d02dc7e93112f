"""`BackupAndRestore` beside the engine's checkpoints: which of the two a run goes on from, and at which record.

The engine's checkpoints are those that are kept, evaluated and exported, one at the end of each epoch. A backup is one
that is written as often as wished, restored after an accident, and removed by Keras when training is done. A run goes
on from whichever is newer. Where that is the backup, Keras restores the model, the optimizer, the epoch and the place
in it; the data begin at the same step, since they are addressed by it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from typing import Any

import numpy as np

from estimator_pipeline import compat
from estimator_pipeline.engines.model_dir import checkpoint_recovery as checkpoints
from estimator_pipeline.utils.logger import logger

# Where Keras keeps the backup that all workers restore from.
_CHIEF = "chief"
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Backup:
    """How often, and where.

    Attributes:
        folder: of the backup; every task must reach it.
        every: "epoch", or the steps between two of them.
    """

    folder: str
    every: str | int = "epoch"

    def callback(self) -> Any:
        """The `tf.keras.callbacks.BackupAndRestore`; with the last backup it takes its folder away as well."""
        base: Any = compat.tensorflow().keras.callbacks.BackupAndRestore
        folder = self.folder

        class Backups(base):
            def on_train_end(self, logs=None):
                super().on_train_end(logs)
                # Other workers, or a person, may have something there yet. (Where folders are but names, in object
                # stores, an empty one is none.)
                with contextlib.suppress(OSError):
                    os.rmdir(folder)

        return Backups(folder, save_freq=self.every)

    def step_after(self, checkpoint_step: int, *, max_steps: int | None, epoch_steps: int) -> int | None:
        """The global step of a backup that training can go on from; None without one.

        It cannot where a checkpoint is as new, where all steps are made (then the final checkpoint is missing, and is
        made by training on from the one before), where an epoch is shorter now than the place of the backup in it, or
        where training had diverged: Keras backs NaN up like anything else.

        Args:
            checkpoint_step: of the latest checkpoint.
            max_steps: where training ends.
            epoch_steps: steps of an epoch.
        """
        latest = compat.tensorflow().train.latest_checkpoint(os.path.join(self.folder, _CHIEF))
        if latest is None:
            return None
        reason = checkpoints.damage(latest)
        if reason is not None:
            logger.warning("The backup %s is damaged (%s), and is not used", latest, reason)
            return None
        reader = compat.tensorflow().train.load_checkpoint(latest)
        names = reader.get_variable_to_shape_map()
        step = next(
            int(reader.get_tensor(name))
            for name in sorted(names)
            if name.startswith("model/optimizer/") and name.endswith((f"/iter{_VALUE}", f"/_iterations{_VALUE}"))
        )
        batch = int(reader.get_tensor(f"ckpt_saved_batch{_VALUE}"))
        usable = step > checkpoint_step and (max_steps is None or step < max_steps) and batch < epoch_steps
        return step if usable and _is_finite(reader) else None

    def remove(self) -> None:
        """Takes an old backup away, which Keras would restore. For the chief, before the workers meet."""
        gfile = compat.tensorflow().io.gfile
        path = os.path.join(self.folder, _CHIEF)
        if gfile.exists(path):
            gfile.rmtree(path)


def _is_finite(reader: Any) -> bool:
    kinds = reader.get_variable_to_dtype_map()
    values = (reader.get_tensor(n) for n, kind in kinds.items() if n.startswith("model/") and kind.is_floating)
    return all(np.isfinite(np.asarray(value, np.float64)).all() for value in values)
