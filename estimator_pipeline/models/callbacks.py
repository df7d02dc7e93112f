"""Callbacks for `Model.fit` on the workers of TF_CONFIG.

    from estimator_pipeline import callbacks

    model.fit(..., callbacks=[
        callbacks.chief_checkpoint("weights/ckpt_{epoch}"),
        callbacks.learning_rate_by_epoch(boundaries=[3, 7], values=[1e-3, 1e-4, 1e-5]),
        callbacks.print_learning_rate(),
    ])

Use the same callbacks on every worker, because collectives need the same program on each. A callback restricts itself
to the chief where necessary. In job files they are options of the section `keras`.
"""

from __future__ import annotations

import os
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.cluster import TFConfig, from_environ
from estimator_pipeline.errors import ConfigError

__all__ = ["chief_checkpoint", "learning_rate_by_epoch", "model_checkpoint", "print_learning_rate"]


def chief_checkpoint(
    path: str,
    *,
    every: str | int = "epoch",
    tf_config: TFConfig | None = None,
    environ: Mapping[str, str] | None = None,
) -> Any:
    """Save the model's weights and optimizer state, and keep only the chief's copy.

    Every worker saves, each to a different path. Per-replica values such as BatchNorm's moving statistics are gathered
    from all replicas, so a chief that saved without the other workers would hang. The other workers' files are removed
    immediately. `Model.load_weights` reads the files.

    Args:
        path: The path of the files. `{epoch}` (from 1) or `{step}` (of the optimizer) gives each checkpoint its own
            name. A path that ends in .h5 is one HDF5 file with only the weights, any other a TensorFlow checkpoint.
        every: "epoch", or a number of batches, counted by the optimizer's step: a resumed run saves at the same steps
            as an uninterrupted one.
        tf_config: The cluster and the task of this process; by default read from `environ`.
        environ: The mapping with TF_CONFIG; `os.environ` by default.

    Returns:
        A `tf.keras.callbacks.Callback`.

    Raises:
        ConfigError: `path` has an unknown field, or the interval is invalid.
    """
    tf = compat.tensorflow()
    _check_every("chief_checkpoint", every)
    fields = {name for _, name, _, _ in string.Formatter().parse(path) if name is not None}
    if not fields <= {"epoch", "step"}:
        raise ConfigError(
            f"chief_checkpoint does not know the field {{{min(fields - {'epoch', 'step'})}}}",
            code="argument/unknown-name",
            found=f"path {path!r}",
            hint="use {epoch} and {step}",
        )
    task = _task(tf_config, environ)
    base: Any = tf.keras.callbacks.Callback

    class ChiefCheckpoint(base):
        _supports_tf_logs = True

        def __init__(self) -> None:
            super().__init__()
            self._epoch = self._step = self._begun = 0

        def on_epoch_begin(self, epoch, logs=None):
            # Not in on_train_begin: a callback that restores a checkpoint may run after this one.
            self._epoch, self._step = epoch, int(self.model.optimizer.iterations.numpy())

        def on_train_batch_begin(self, batch, logs=None):
            self._begun = batch

        def on_train_batch_end(self, batch, logs=None):
            before = self._step
            # With steps_per_execution, one call covers several steps.
            self._step += batch - self._begun + 1
            if isinstance(every, int) and self._step // every > before // every:
                self._save()

        def on_epoch_end(self, epoch, logs=None):
            if every == "epoch":
                self._save()

        def _save(self):
            target = path.format(epoch=self._epoch + 1, step=self._step)
            folder, name = os.path.split(target)
            if not task.is_chief:
                folder = os.path.join(folder, f"tmp_{task.task.type}_{task.task.index}")
            gfile = tf.io.gfile
            if folder:
                gfile.makedirs(folder)
            self.model.save_weights(os.path.join(folder, name))
            if not task.is_chief:
                gfile.rmtree(folder)

    return ChiefCheckpoint()


def model_checkpoint(
    path: str,
    *,
    every: str | int = "epoch",
    save_best_only: bool = False,
    monitor: str = "val_loss",
    mode: str = "auto",
    save_weights_only: bool = True,
) -> Any:
    """Return a `tf.keras.callbacks.ModelCheckpoint` that raises if the epoch has no `monitor` value.

    On several workers, Keras writes to a different path on each and removes all files except the chief's.

    Args:
        path: The path of the files, with `{epoch}` (from 1) and names of metrics.
        every: "epoch", or a number of batches (`save_freq`).
        save_best_only: Whether to save only a model that is better than all before it in this run. A resumed run
            starts the comparison again.
        monitor: The value to compare.
        mode: "min", "max", or "auto" to infer it from the name.
        save_weights_only: Whether to save the weights with the optimizer state, or the whole model.

    Returns:
        The callback. It raises `ConfigError` if an epoch has no value named `monitor`. Keras would only log a warning
        and save nothing.
    """
    tf = compat.tensorflow()
    _check_every("model_checkpoint", every)
    base: Any = tf.keras.callbacks.ModelCheckpoint

    class BestOfWhatThereIs(base):
        def on_epoch_end(self, epoch, logs=None):
            if save_best_only and every == "epoch" and monitor not in (logs or {}):
                raise ConfigError(
                    f"model_checkpoint monitors {monitor!r}, and the epoch has no such value",
                    code="argument/unknown-name",
                    found=f"its values: {', '.join(logs or {})}",
                    hint="use one of these; val_ values exist only if checkpoints are evaluated during training",
                )
            super().on_epoch_end(epoch, logs)

    return BestOfWhatThereIs(
        path,
        monitor=monitor,
        save_best_only=save_best_only,
        save_weights_only=save_weights_only,
        mode=mode,
        save_freq=every,
    )


def learning_rate_by_epoch(*, boundaries: Sequence[int], values: Sequence[float]) -> Any:
    """Return a `tf.keras.callbacks.LearningRateScheduler` with a constant rate between epoch boundaries.

    Args:
        boundaries: The epochs, counted from 0, at which the next value starts; increasing.
        values: The learning rates, one more than boundaries.

    Returns:
        The callback. It raises `ConfigError` if the optimizer has a learning-rate schedule.
    """
    tf = compat.tensorflow()
    bounds, rates = list(boundaries), [float(value) for value in values]
    if len(rates) != len(bounds) + 1 or sorted(set(bounds)) != bounds:
        raise ConfigError(
            "learning_rate_by_epoch needs increasing boundaries, and one value more than boundaries",
            code="argument/bad-value",
            found=f"boundaries {bounds}, values {rates}",
            hint="give one value for the epochs before each boundary, and one for those from the last boundary on",
        )
    base: Any = tf.keras.callbacks.LearningRateScheduler

    class ByEpoch(base):
        def on_train_begin(self, logs=None):
            if callable(self.model.optimizer.learning_rate):
                raise ConfigError(
                    "the learning rate is set by epoch, and the optimizer has a schedule by step",
                    code="argument/conflict",
                    found=type(self.model.optimizer.learning_rate).__name__,
                    hint="keep one of the two",
                )

    return ByEpoch(lambda epoch, rate=None: rates[sum(epoch >= bound for bound in bounds)])


def print_learning_rate(
    *,
    write: Callable[[str], Any] = print,
    tf_config: TFConfig | None = None,
    environ: Mapping[str, str] | None = None,
) -> Any:
    """Print the learning rate at the end of each epoch, only on the chief.

    Args:
        write: Called with the line.
        tf_config: The cluster and the task of this process; by default read from `environ`.
        environ: The mapping with TF_CONFIG; `os.environ` by default.

    Returns:
        A `tf.keras.callbacks.Callback`.
    """
    task = _task(tf_config, environ)
    tf = compat.tensorflow()
    base: Any = tf.keras.callbacks.Callback

    class PrintLearningRate(base):
        _supports_tf_logs = True

        def on_epoch_end(self, epoch, logs=None):
            if not task.is_chief:
                return
            optimizer = self.model.optimizer
            rate = optimizer.learning_rate
            # A schedule returns the rate of the next step.
            value = rate(tf.convert_to_tensor(optimizer.iterations)) if callable(rate) else rate
            write(f"Learning rate for epoch {epoch + 1} is {float(tf.convert_to_tensor(value)):.6g}")

    return PrintLearningRate()


def _task(tf_config: TFConfig | None, environ: Mapping[str, str] | None) -> TFConfig:
    return tf_config if tf_config is not None else from_environ(os.environ if environ is None else environ)


def _check_every(name: str, every: str | int) -> None:
    good = every == "epoch" or (isinstance(every, int) and not isinstance(every, bool) and every >= 1)
    if not good:
        raise ConfigError(
            f"{name}: every is {every!r}",
            code="argument/bad-value",
            hint="give 'epoch', or a number of batches, 1 or more",
        )
