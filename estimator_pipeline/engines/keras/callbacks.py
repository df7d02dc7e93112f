"""Callbacks of the Keras engine. Each counts by the optimizer's iterations, which are the job's global step."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.distribute import replica_sync as replica_means
from estimator_pipeline.engines.lifecycle.divergence import diverged
from estimator_pipeline.models import histograms
from estimator_pipeline.models import summaries as event_files
from estimator_pipeline.models.optimizers import moving_averages
from estimator_pipeline.models.optimizers.inspection import rate_of, step_of
from estimator_pipeline.progress.progress_file import ProgressWriter
from estimator_pipeline.utils.logger import logger


def counting_callback() -> Any:
    """The base of callbacks that count: it is called with the numbers of an execution's first and last step."""
    base: Any = compat.tensorflow().keras.callbacks.Callback

    class Counting(base):
        # Logs come as tensors then, and cost nothing where they are not read.
        _supports_tf_logs = True
        _first: int | None = None

        def on_train_batch_begin(self, batch, logs=None):
            self._first = batch

        def made(self, batch: int) -> int:
            """Steps of the execution that ends with a batch."""
            # After a restored backup Keras counts in numbers of NumPy's.
            return 1 if self._first is None else int(batch) - int(self._first) + 1

    return Counting


def progress_callback(
    progress: ProgressWriter, *, start_step: int, log_every: int | None = None, interval_secs: float = 1.0
) -> Any:
    """Counts this task's steps, tells the launcher how far it is, and logs it.

    The loss is read once in `interval_secs`: each reading waits for the step to be computed. It is Keras's running mean
    over the epoch.

    Args:
        progress: the launcher's file.
        start_step: the global step at which training begins.
        log_every: steps between two lines of the log; None: no lines, for all tasks but the chief.
        interval_secs: seconds between two words to the launcher.

    Raises:
        DivergedError: by the callback, when it reads a loss that is no finite number.

    Returns:
        A `tf.keras.callbacks.Callback` with the attributes `finished` (steps run by this task), `step` (the global
        step) and `ended` (whether training has left the last one).
    """
    base: Any = counting_callback()

    class Progress(base):
        def __init__(self) -> None:
            super().__init__()
            # MultiWorkerMirroredStrategy is not made without all workers.
            self.begun, self.finished, self.step, self.ended = True, 0, start_step, False
            self._due = time.monotonic() + interval_secs
            self._mark: tuple[float, int] | None = None

        def on_train_batch_end(self, batch, logs=None):
            made = self.made(batch)
            self.finished += made
            self.step += made
            now = time.monotonic()
            if now >= self._due:
                self._due = now + interval_secs
                self._emit(now, logs)
            if log_every and self.finished % log_every == 0:
                logger.info("loss = %.6g, step = %d", float(logs["loss"]), self.step)

        def on_epoch_end(self, epoch, logs=None):
            if log_every:
                found = ", ".join(f"{name} = {float(value):.6g}" for name, value in (logs or {}).items())
                logger.info("Epoch %d ends with step %d: %s", epoch + 1, self.step, found)

        def on_train_end(self, logs=None):
            self.ended = True
            self._emit(time.monotonic(), logs)

        def _emit(self, now, logs):
            rate = None
            if self._mark is not None and now > self._mark[0]:
                rate = (self.finished - self._mark[1]) / (now - self._mark[0])
            self._mark = (now, self.finished)
            loss = None if not logs or "loss" not in logs else float(logs["loss"])
            progress.emit("step", step=self.step, loss=loss, steps_per_sec=rate, steps=self.finished)
            if loss is not None and not math.isfinite(loss):
                raise diverged(f"by step {self.step} the loss is {loss}")

    return Progress()


def stop_callback(max_steps: int, *, start_step: int) -> Any:
    """Ends training with the step `max_steps`, in the middle of an epoch as well; the same one on every worker."""
    base: Any = counting_callback()

    class StopAtStep(base):
        def __init__(self) -> None:
            super().__init__()
            self.step = start_step

        def on_train_batch_end(self, batch, logs=None):
            self.step += self.made(batch)
            if self.step >= max_steps:
                self.model.stop_training = True

    return StopAtStep()


def preemption_callback(
    after_step: Callable[[int, int], bool],
    save: Callable[[], None],
    *,
    on_begin: Callable[[], None],
    asked: Callable[[], bool],
    coming: Callable[[], int] = lambda: 1,
) -> Any:
    """Ends training after the step for which `after_step()` says so, on every worker, with its checkpoint written.

    Args:
        after_step: called after each execution with the number of its steps, and that of the next one's.
        save: writes the checkpoint, before Keras validates what it has trained so far.
        on_begin: called when training begins.
        asked: whether this process, being by itself, is asked to end. A validation may be long, and the epoch before
            it has no checkpoint yet.
        coming: how many steps the next execution makes.
    """
    base: Any = counting_callback()

    class Preempted(base):
        def on_train_begin(self, logs=None):
            on_begin()

        def on_train_batch_end(self, batch, logs=None):
            if after_step(self.made(batch), coming()):
                save()
                self.model.stop_training = True

        def on_test_batch_end(self, batch, logs=None):
            if asked():
                save()

    return Preempted()


def tensorboard_callback(folder: str, *, every_steps: int, start_step: int = 0, shown: Sequence[str] = ()) -> Any:
    """A TensorBoard callback that goes by the global step, where Keras's counts the steps of this call of `fit`.

    It can be left in the middle of `Model.fit`; see :func:`left_whole`.

    Args:
        folder: of the model.
        every_steps: entries of batches are written at the steps that it divides.
        start_step: the global step at which training begins.
        shown: of :data:`~estimator_pipeline.models.histograms.HISTOGRAMS`.
    """
    tf: Any = compat.tensorflow()
    base: Any = tf.keras.callbacks.TensorBoard

    class TensorBoard(base):
        def __init__(self) -> None:
            super().__init__(log_dir=folder, update_freq=every_steps, write_graph=False, profile_batch=0)
            # What would end what has begun, the last begun last.
            self._open: list[Callable[[dict[str, Any]], None]] = []
            self._step, self._first = start_step, 0

        def _implements_train_batch_hooks(self):
            return "weights" in shown or super()._implements_train_batch_hooks()

        def on_train_begin(self, logs=None):
            # Every entry of a batch has this for its step; `fit` has set it to 0.
            self.model._train_counter.assign(start_step)
            super().on_train_begin(logs)
            self._open.append(super().on_train_end)
            if "gradients" in shown:
                recording = histograms.recording_gradients(self.model.optimizer, self._record)
                recording.__enter__()
                self._open.append(lambda logs: self._leave(recording))

        def on_train_batch_begin(self, batch, logs=None):
            super().on_train_batch_begin(batch, logs)
            self._first = int(batch)

        def on_train_batch_end(self, batch, logs=None):
            super().on_train_batch_end(batch, logs)
            self._step += int(batch) - self._first + 1
            if "weights" in shown and self._step % every_steps == 0:
                histograms.write_weights(self._train_writer, self.model, step=self._step)

        def _leave(self, recording):
            recording.__exit__(None, None, None)
            # What was traced writes with a writer that ends here: another `fit` makes its own.
            self.model.train_function = None

        def _record(self, variables, gradients):
            step = self.model.optimizer.iterations + 1
            due = tf.equal(step % every_steps, 0)
            histograms.write_gradients(self._train_writer, variables, gradients, step=step, when=due)

        def on_train_end(self, logs=None):
            self._end(logs)

        def on_test_begin(self, logs=None):
            super().on_test_begin(logs)
            self._open.append(super().on_test_end)

        def on_test_end(self, logs=None):
            super().on_test_end(logs)
            self._open.pop()

        def end_where_it_stands(self) -> None:
            self._end({})

        def _end(self, logs):
            while self._open:
                self._open.pop()(logs)

    return TensorBoard()


@contextlib.contextmanager
def left_whole(callbacks: Sequence[Any]) -> Iterator[None]:
    """Around `Model.fit`: however it ends, its TensorBoard callbacks end too.

    Keras tells callbacks nothing of an error. TensorBoard's then leaves its writer and its condition (`update_freq`) in
    place for all that this thread writes afterwards, until the garbage collector comes by.
    """
    try:
        yield
    except BaseException:
        for callback in callbacks:
            # Not a name that a user's own callback would have.
            if hasattr(callback, "end_where_it_stands"):
                try:
                    callback.end_where_it_stands()
                except Exception as error:
                    # What ended training is what is told: this may be its echo, as on a full disk.
                    logger.warning("TensorBoard's files may lack their last entries: %s", error)
        raise


def summary_callback(folder: str, *, every_steps: int, start_step: int = 0, shown: Sequence[str] = ()) -> Any:
    """Writes the loss and the learning rate of training for TensorBoard, for a loop that is not `Model.fit`.

    Args:
        folder: of the event files.
        every_steps: entries are written at the global steps that it divides.
        start_step: the global step at which training begins.
        shown: of :data:`~estimator_pipeline.models.histograms.HISTOGRAMS`.

    Returns:
        The callback; its method `record(variables, gradients)` is for the compiled step, and writes gradients.
    """
    tf: Any = compat.tensorflow()
    base: Any = counting_callback()

    class Summaries(base):
        def __init__(self) -> None:
            super().__init__()
            self._step = start_step
            self._writer = tf.summary.create_file_writer(folder)

        def on_train_batch_end(self, batch, logs=None):
            self._step += self.made(batch)
            if self._step % every_steps == 0:
                values = {"loss": float(logs["loss"]), "learning_rate": rate_of(self.model)}
                event_files.write_scalars(self._writer, values, step=self._step)
                if "weights" in shown:
                    histograms.write_weights(self._writer, self.model, step=self._step)

        def record(self, variables, gradients):
            step = tf.cast(tf.convert_to_tensor(self.model.optimizer.iterations), tf.int64) + 1
            due = tf.equal(step % every_steps, 0)
            histograms.write_gradients(self._writer, variables, gradients, step=step, when=due)

        def on_train_end(self, logs=None):
            self._writer.close()

    return Summaries()


def saved_values_callback() -> Any:
    """Has `fit` validate what a checkpoint of the step holds.

    That is: the moving averages of the weights, where the optimizer keeps them; and the mean of all replicas, of
    what each has of its own.
    """
    base: Any = compat.tensorflow().keras.callbacks.Callback

    class SavedValues(base):
        _supports_tf_logs = True

        def on_test_begin(self, logs=None):
            moving_averages.exchange(self.model)
            self._own = replica_means.begin(self.model)

        def on_test_end(self, logs=None):
            replica_means.end(self._own)
            moving_averages.exchange(self.model)

    return SavedValues()


def check_finite(model: Any, step: int) -> None:
    """Raises where a trainable variable of a model is no finite number; before a checkpoint is written.

    Raises:
        DivergedError: there is one.
    """
    tf: Any = compat.tensorflow()
    for variable in model.trainable_variables:
        if not bool(tf.reduce_all(tf.math.is_finite(tf.convert_to_tensor(variable)))):
            name = getattr(variable, "path", variable.name)
            raise diverged(f"after step {step} the variable {name} is no finite number")


def checkpoint_callback(
    save: Callable[[int], None],
    on_saved: Callable[[int, dict[str, float]], None],
    *,
    every_secs: float | None = None,
    at_once: bool = False,
) -> Any:
    """Saves at the end of each epoch and of training; then says so, with what the validation gave.

    Args:
        save: `save(global step)`. Called on every worker: gathering a replica's own variables needs all of them.
        on_saved: `on_saved(global step, validation metrics)`.
        every_secs: saves after so many seconds instead, between two steps; for a process by itself.
        at_once: saves before the first step as well, what a backup has brought back.
    """
    base: Any = compat.tensorflow().keras.callbacks.Callback

    class Save(base):
        _supports_tf_logs = True

        def __init__(self) -> None:
            super().__init__()
            self.last = -1
            self._at_once = at_once
            self._next = float("inf") if every_secs is None else time.monotonic() + every_secs

        def on_epoch_begin(self, epoch, logs=None):
            # Not when training begins, for then the backup may not have been restored yet.
            if self._at_once:
                self._at_once = False
                self._save({})

        def on_train_batch_end(self, batch, logs=None):
            if time.monotonic() >= self._next:
                self._next = time.monotonic() + (every_secs or 0.0)
                self._save({})

        def on_epoch_end(self, epoch, logs=None):
            found = {name: float(value) for name, value in (logs or {}).items()}
            validation = {name.removeprefix("val_"): v for name, v in found.items() if name.startswith("val_")}
            if every_secs is None or validation:
                self._save(validation)

        def on_train_end(self, logs=None):
            self._save({})

        def save_now(self) -> None:
            """Saves between two steps; an epoch that ends there does not save again."""
            self._save({})

        def _save(self, validation):
            step = step_of(self.model)
            if step == self.last:
                return
            self.last = step
            save(step)
            on_saved(step, validation)

    return Save()
