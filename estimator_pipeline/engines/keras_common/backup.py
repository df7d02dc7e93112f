"""`BackupAndRestore` in addition to the engine's checkpoints, and which of the two a run resumes from.

The engine writes a checkpoint at the end of each epoch; checkpoints are kept, evaluated and exported. A backup can be
written more often. It is restored after a crash, and Keras deletes it when training finishes. A run resumes from the
newer of the two. From a backup, Keras restores the model, the optimizer, the epoch and the position in it; the data
starts at the same step, because it is addressed by step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from typing import Any

import numpy as np

from estimator_pipeline import compat
from estimator_pipeline.engines.model_dir import checkpoints
from estimator_pipeline.utils.logger import logger

# The folder in which Keras keeps the backup that all workers restore.
_CHIEF = "chief"
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Backup:
    """Folder of the backups, shared by all tasks, and their interval: "epoch", or a number of steps."""

    folder: str
    every: str | int = "epoch"

    def callback(self) -> Any:
        """Return the `tf.keras.callbacks.BackupAndRestore`, which also removes its empty folder at the end."""
        base: Any = compat.tensorflow().keras.callbacks.BackupAndRestore
        folder = self.folder

        class Backups(base):
            def on_train_end(self, logs=None):
                super().on_train_end(logs)
                # The folder may still have files of other workers or of users. (Object stores have no empty folders.)
                with contextlib.suppress(OSError):
                    os.rmdir(folder)

        return Backups(folder, save_freq=self.every)

    def step_after(self, checkpoint_step: int, *, max_steps: int | None, epoch_steps: int) -> int | None:
        """Return the global step of a backup that training can resume from; None without one.

        A backup is not used if a checkpoint is as new; if it is of the last step (the final checkpoint is then
        missing, and is written by training from the previous one); if an epoch is now shorter than the backup's
        position in it; or if training had diverged, because Keras backs up NaN too.
        """
        train = compat.tensorflow().train
        latest = train.latest_checkpoint(os.path.join(self.folder, _CHIEF))
        if latest is None:
            return None
        reason = checkpoints.damage(latest)
        if reason is not None:
            logger.warning("The backup %s is damaged (%s), and is not used", latest, reason)
            return None
        reader = train.load_checkpoint(latest)
        names = reader.get_variable_to_shape_map()
        steps = (f"/iter{_VALUE}", f"/_iterations{_VALUE}")
        counter = min(name for name in names if name.startswith("model/optimizer/") and name.endswith(steps))
        step, batch = (int(reader.get_tensor(name)) for name in (counter, f"ckpt_saved_batch{_VALUE}"))
        usable = step > checkpoint_step and (max_steps is None or step < max_steps) and batch < epoch_steps
        return step if usable and _is_finite(reader) else None

    def remove(self) -> None:
        """Remove an old backup, which Keras would restore; for the chief, before the workers start."""
        gfile = compat.tensorflow().io.gfile
        path = os.path.join(self.folder, _CHIEF)
        if gfile.exists(path):
            gfile.rmtree(path)


def _is_finite(reader: Any) -> bool:
    kinds = reader.get_variable_to_dtype_map()
    values = (reader.get_tensor(n) for n, kind in kinds.items() if n.startswith("model/") and kind.is_floating)
    return all(np.isfinite(np.asarray(value, np.float64)).all() for value in values)
