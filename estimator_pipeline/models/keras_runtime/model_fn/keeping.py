"""What is written while a model trains: checkpoints, event files, lines of the log."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.models.keras_runtime.model_fn.checkpoints import NamedCheckpoints
from estimator_pipeline.models.keras_runtime.model_fn.settings import ModelFnRunConfig as RunConfig

__all__ = ["callbacks"]


@functools.cache
def callbacks() -> Any:
    """The callbacks of this module."""
    tf = compat.tensorflow()

    class Keeping(tf.keras.callbacks.Callback):  # type: ignore[misc,name-defined]
        """Writes what a RunConfig says, into the model's folder."""

        _supports_tf_logs = True  # the loss is read where it is shown

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
