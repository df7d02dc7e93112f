"""Checkpoints of a model by variable name, compatible with those of an Estimator."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.models.keras_runtime import warm_start as keras_weights
from estimator_pipeline.models.keras_runtime.model_fn.settings import ModelFnRunConfig as RunConfig

__all__ = ["NamedCheckpoints", "saving_callbacks"]


class NamedCheckpoints:
    """The checkpoints of a folder.

    Args:
        folder: The model's folder; None: no checkpoints are written.
        keep: The number of checkpoints to keep; None or 0: all.
        warm_start_from: A checkpoint, a folder or settings, for a model without a checkpoint.

    Attributes:
        variables: Name -> variable of the checkpoint's content.
        part_of_scope: Scope -> the name of the only partition of its variables, where slot names contain it:
            `dnn/logits/kernel/t_0/Adagrad`. Canned Estimators create partitioned variables.
    """

    def __init__(self, folder: str | None, keep: int | None, warm_start_from: Any) -> None:
        self.variables: dict[str, Any] = {}
        self.part_of_scope: dict[str, str] = {}
        self._folder, self._keep = folder, keep
        self.warm_start_from = warm_start_from
        self._saver: Any = None
        self._saved: set[str] = set()

    @property
    def last(self) -> str | None:
        """The path of the latest checkpoint; None without one."""
        path: str | None = compat.tensorflow().train.latest_checkpoint(self._folder) if self._folder else None
        return path

    def last_step(self) -> int:
        """Return the global step of the latest checkpoint; 0 without one."""
        return int(self.value("global_step")) if self.last else 0

    def names(self) -> list[str]:
        """Return the names of the latest checkpoint's variables."""
        return sorted(self._reader(self._needed()).get_variable_to_shape_map())

    def value(self, name: str) -> Any:
        """Return the value of a variable in the latest checkpoint."""
        return self._reader(self._needed()).get_tensor(name.removesuffix(":0"))

    def save(self, step: int) -> str | None:
        """Write a checkpoint, and remove the oldest checkpoints beyond `keep`."""
        if self._folder is None:
            return None
        tf = compat.tensorflow()
        tf.io.gfile.makedirs(self._folder)
        if self._saver is None or self._saved != set(self.variables):
            known = self._saver.last_checkpoints if self._saver is not None else []
            named = {self.key(name): variable for name, variable in self.variables.items()}
            self._saver = tf.compat.v1.train.Saver(named, max_to_keep=self._keep or None)
            self._saver.set_last_checkpoints(known)
            self._saved = set(self.variables)
        return str(self._saver.save(None, os.path.join(self._folder, "model.ckpt"), step, write_meta_graph=False))

    def restore(self, path: str | None = None) -> bool:
        """Restore the variables from a checkpoint, by default the latest; return whether there was one.

        Raises:
            ConfigError: The checkpoint lacks a variable, or a variable has a different shape.
        """
        path = path or self.last
        if path is None:
            return False
        keras_weights.assign(self.variables, path, self.key, kind="variable")
        return True

    def warm_start(self) -> None:
        """Initialize variables from the checkpoint of a different model."""
        trained = [variable for variable in self.variables.values() if variable.trainable]
        keras_weights.warm_start_named(self.variables, trained, self.warm_start_from, kind="variable")

    def key(self, name: str) -> str:
        """Return the name of a variable in the checkpoints."""
        of, _, slot = name.rpartition("/")
        part = self.part_of_scope.get(name.partition("/")[0])
        return f"{of}/{part}/{slot}" if part is not None and of in self.variables else name

    def _needed(self) -> str:
        path = self.last
        if path is None:
            raise ConfigError(
                f"the model of {self._folder} has no checkpoint", code="file/not-found", hint="train the model first"
            )
        return path

    def _reader(self, path: str) -> Any:
        return compat.tensorflow().train.load_checkpoint(path)


@functools.cache
def saving_callbacks() -> Any:
    """Return the callback classes of this module."""
    tf = compat.tensorflow()

    class Keeping(tf.keras.callbacks.Callback):  # type: ignore[misc,name-defined]
        """Writes checkpoints, summaries and log lines at the intervals of a RunConfig."""

        _supports_tf_logs = True  # the loss is only read for a log line

        def __init__(
            self, checkpoints: NamedCheckpoints, config: RunConfig, listeners: Sequence[Any], session: Any
        ) -> None:  # fmt: skip
            super().__init__()
            self._checkpoints, self._config, self._listeners = checkpoints, config, listeners
            self._session, self._saved, self._time, self._writer = session, -1, 0.0, None
            self._logged = (0, 0.0)

        def on_train_begin(self, logs: Any = None) -> None:
            if self._config.model_dir:
                self._writer = tf.summary.create_file_writer(self._config.model_dir)
            for listener in self._listeners:
                listener.begin()
            self._logged = (self.model.step, time.monotonic())
            self._save()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            step, every = self.model.step, self._config.log_step_count_steps
            if every and (step == 1 or step % every == 0):
                before, since = self._logged
                self._logged = step, time.monotonic()
                rate = (step - before) / max(self._logged[1] - since, 1e-9)
                print(f"step {step}: loss = {float(logs['loss']):.6g} ({rate:.4g} steps/s)", file=sys.stderr)
            self._summaries(step)
            steps, seconds = self._config.save_checkpoints_steps, self._config.save_checkpoints_secs
            if (steps and step % steps == 0) or (seconds and time.monotonic() - self._time >= seconds):
                self._save()

        def on_train_end(self, logs: Any = None) -> None:
            step = self.model.step
            if self._saved != step:
                self._save()
            for listener in self._listeners:
                listener.end(self._session, step)
            if self._writer is not None:
                self._writer.close()

        def _summaries(self, step: int) -> None:
            if self._writer is not None and self.model.last_summary is not None:
                with self._writer.as_default():
                    tf.summary.experimental.write_raw_pb(self.model.last_summary, step)

        def _save(self) -> None:
            step = self.model.step
            for listener in self._listeners:
                listener.before_save(self._session, step)
            self._checkpoints.save(step)
            self._saved, self._time = step, time.monotonic()
            for listener in self._listeners:
                if listener.after_save(self._session, step):
                    self.model.stop_training = True

    return SimpleNamespace(Keeping=Keeping)
