"""Callbacks of the Keras engines. They count the optimizer's iterations, which are the job's global step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.distribute import replica_sync as replica_means
from estimator_pipeline.engines.core.context import TaskContext
from estimator_pipeline.engines.core.failures import diverged
from estimator_pipeline.engines.core.multi_step import MultiStepExecution, StepInterval
from estimator_pipeline.engines.core.stopping.synchronized_stop import SingleProcessStop
from estimator_pipeline.models import histograms
from estimator_pipeline.models import summaries as event_files
from estimator_pipeline.models.optimizers import moving_averages
from estimator_pipeline.models.optimizers.inspection import rate_of, step_of
from estimator_pipeline.progress.progress_file import ProgressWriter
from estimator_pipeline.utils.logger import logger

_OF_STEPS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")


def counting_callback(start_step: int = 0) -> Any:
    """Return the base class of callbacks that count steps. It calls `steps_ended` after each execution of steps.

    `step` is the global step: `start_step`, and the steps since then.
    """
    base: Any = compat.tensorflow().keras.callbacks.Callback

    class Counting(base):
        # Logs are then tensors, which cost nothing unless they are read.
        _supports_tf_logs = True

        def __init__(self) -> None:
            super().__init__()
            self.step, self._first = start_step, 0

        def on_train_batch_begin(self, batch, logs=None):
            # After a restored backup, Keras counts with NumPy integers.
            self._first = int(batch)

        def on_train_batch_end(self, batch, logs=None):
            steps = int(batch) - self._first + 1
            self.step += steps
            self.steps_ended(steps, logs)

        def steps_ended(self, steps: int, logs: Any) -> None:
            """Handle the end of an execution of this number of steps."""

    return Counting


def batches_callback(passed: Callable[[int], object]) -> Any:
    """Return a callback that calls `passed` with the number of batches of an evaluation so far."""
    base: Any = compat.tensorflow().keras.callbacks.Callback

    class Batches(base):
        _supports_tf_logs = True

        def on_test_batch_end(self, batch, logs=None):
            passed(int(batch) + 1)

    return Batches()


def progress_callback(
    progress: ProgressWriter, *, start_step: int, log_every: int | None = None, interval_secs: float = 1.0
) -> Any:
    """Return a callback that counts this task's steps, reports progress to the launcher, and logs it.

    The loss is read once per `interval_secs`, because reading waits for the step to finish. It is Keras's running mean
    over the epoch. Attributes: `finished` (steps run by this task), `step` (the global step), `ended`.

    Args:
        progress: The launcher's progress file.
        start_step: The global step at which training starts.
        log_every: Steps between two log lines; None: no lines, for all tasks except the chief.
        interval_secs: Seconds between two progress events.

    Raises:
        DivergedError: By the callback, if the loss is NaN or infinite.
    """
    base: Any = counting_callback(start_step)

    class Progress(base):
        def __init__(self) -> None:
            super().__init__()
            # MultiWorkerMirroredStrategy is created only when all workers have started.
            self.begun, self.finished, self.ended = True, 0, False
            self._due = time.monotonic() + interval_secs
            self._mark: tuple[float, int] | None = None

        def steps_ended(self, steps, logs):
            self.finished += steps
            now = time.monotonic()
            if now >= self._due:
                self._due = now + interval_secs
                self._emit(now, logs)
            if log_every and self.finished % log_every == 0:
                logger.info("loss = %.6g, step = %d", float(logs["loss"]), self.step)

        def on_epoch_end(self, epoch, logs=None):
            if log_every:
                text = ", ".join(f"{name} = {float(value):.6g}" for name, value in (logs or {}).items())
                logger.info("Epoch %d ends with step %d: %s", epoch + 1, self.step, text)

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
                raise diverged(f"by step {self.step} the loss is {loss}", step=self.step)

    return Progress()


def stop_callback(max_steps: int, *, start_step: int) -> Any:
    """Return a callback that ends training after the step `max_steps`, also within an epoch, on every worker."""
    base: Any = counting_callback(start_step)

    class StopAtStep(base):
        def steps_ended(self, steps, logs):
            if self.step >= max_steps:
                self.model.stop_training = True

    return StopAtStep()


def tensorboard_callback(folder: str, *, every_steps: int, start_step: int = 0, shown: Sequence[str] = ()) -> Any:
    """Return a TensorBoard callback that uses the global step; Keras's counts the steps of this call of `fit`.

    It writes values of batches at multiples of `every_steps`, with the histograms `shown`, some of `HISTOGRAMS`.

    It is a context manager, which closes it if `Model.fit` raises an error: Keras does not notify callbacks, and its
    callback would leave its writer and its condition (`update_freq`) active for everything that this thread writes
    later, until it is garbage-collected.
    """
    tf: Any = compat.tensorflow()
    base: Any = tf.keras.callbacks.TensorBoard

    class TensorBoard(base):
        def __init__(self) -> None:
            super().__init__(log_dir=folder, update_freq=every_steps, write_graph=False, profile_batch=0)
            # Functions that close what is open, in the order of opening.
            self._open: list[Callable[[dict[str, Any]], None]] = []
            self._step, self._first = start_step, 0

        def _implements_train_batch_hooks(self):
            return "weights" in shown or super()._implements_train_batch_hooks()

        def on_train_begin(self, logs=None):
            # The step of every value of a batch; `fit` has set it to 0.
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
            # The traced function uses the writer that is closed here; another `fit` creates a new one.
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

        def _end(self, logs):
            while self._open:
                self._open.pop()(logs)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            try:
                self._end({})
            except Exception as second:
                # The first error is raised: this one may be a consequence, as on a full disk.
                logger.warning("TensorBoard's files may lack their last entries: %s", second)

    return TensorBoard()


def summary_callback(folder: str, *, every_steps: int, start_step: int, shown: Sequence[str] = ()) -> Any:
    """Return a callback that writes loss and learning rate for TensorBoard, for a loop other than `Model.fit`.

    See `tensorboard_callback`. The compiled step calls the method `record(variables, gradients)`.
    """
    tf: Any = compat.tensorflow()
    base: Any = counting_callback(start_step)

    class Summaries(base):
        def __init__(self) -> None:
            super().__init__()
            self._writer = tf.summary.create_file_writer(folder)

        def steps_ended(self, steps, logs):
            if self.step % every_steps == 0:
                values = {"loss": float(logs["loss"]), "learning_rate": rate_of(self.model)}
                event_files.write_scalars(self._writer, values, step=self.step)
                if "weights" in shown:
                    histograms.write_weights(self._writer, self.model, step=self.step)

        def record(self, variables, gradients):
            step = tf.cast(tf.convert_to_tensor(self.model.optimizer.iterations), tf.int64) + 1
            due = tf.equal(step % every_steps, 0)
            histograms.write_gradients(self._writer, variables, gradients, step=step, when=due)

        def on_train_end(self, logs=None):
            self._writer.close()

    return Summaries()


def saved_values_callback() -> Any:
    """Return a callback that makes `fit` validate the values that a checkpoint of the step has.

    These are the moving averages of the weights, if the optimizer has them, and the mean over replicas of
    replica-local variables.
    """
    base: Any = compat.tensorflow().keras.callbacks.Callback

    class SavedValues(base):
        _supports_tf_logs = True

        def on_test_begin(self, logs=None):
            moving_averages.exchange(self.model)
            self._local_values = replica_means.begin(self.model)

        def on_test_end(self, logs=None):
            replica_means.end(self._local_values)
            moving_averages.exchange(self.model)

    return SavedValues()


def check_finite(model: Any, step: int) -> None:
    """Check that all trainable variables are finite, before a checkpoint is written.

    Raises:
        DivergedError: A variable has NaN or infinite values.
    """
    tf: Any = compat.tensorflow()
    for variable in model.trainable_variables:
        if not bool(tf.reduce_all(tf.math.is_finite(tf.convert_to_tensor(variable)))):
            name = getattr(variable, "path", variable.name)
            raise diverged(f"after step {step} the variable {name} is not finite", step=step)


def checkpoint_callback(
    context: TaskContext,
    stop: SingleProcessStop,
    save: Callable[[int, dict[str, float]], None],
    *,
    every_secs: float | None,
    at_once: bool,
    coming: Callable[[], int],
) -> Any:
    """Return a callback that saves at the end of each epoch and of training, and where `stop` ends training.

    Args:
        context: This task.
        stop: Chooses the step at which all workers stop after a stop request.
        save: `save(global step, validation metrics)`, called once for a step. Called on every worker: gathering
            replica-local variables needs all of them.
        every_secs: Save at this interval in seconds instead of each epoch, between two steps; for a single-process job.
        at_once: Save before the first step too, after a backup was restored.
        coming: Returns the number of steps of the next execution.
    """
    base: Any = counting_callback()

    class Save(base):
        def __init__(self) -> None:
            super().__init__()
            self._last, self._at_once = -1, at_once
            self._next = float("inf") if every_secs is None else time.monotonic() + every_secs

        def on_train_begin(self, logs=None):
            context.preemption.rearm()

        def on_epoch_begin(self, epoch, logs=None):
            # Not in on_train_begin: the backup may not have been restored yet.
            if self._at_once:
                self._at_once = False
                self._save()

        def steps_ended(self, steps, logs):
            if time.monotonic() >= self._next:
                self._next = time.monotonic() + (every_secs or 0.0)
                self._save()
            if stop.after_step(steps, coming()):
                # Before Keras validates.
                self._save()
                self.model.stop_training = True

        def on_test_batch_end(self, batch, logs=None):
            # A validation may be long, and the epoch before it has no checkpoint yet.
            if context.tf_config.is_single_process and context.preemption.asked:
                self._save()

        def on_epoch_end(self, epoch, logs=None):
            values = {name: float(value) for name, value in (logs or {}).items()}
            validation = {name.removeprefix("val_"): v for name, v in values.items() if name.startswith("val_")}
            if every_secs is None or validation:
                self._save(validation)

        def on_train_end(self, logs=None):
            self._save()

        def _save(self, validation=()):
            step = step_of(self.model)
            if step != self._last:
                self._last = step
                save(step, dict(validation))

    return Save()


def sees_steps(callback: Any) -> bool:
    """Return whether a callback has a method for the steps of training."""
    base = compat.tensorflow().keras.callbacks.Callback
    return any(getattr(type(callback), name, None) is not getattr(base, name) for name in _OF_STEPS)


def wanted_by(callbacks: Sequence[Any], start: int) -> tuple[list[StepInterval], str]:
    """Return the steps at which callbacks must be called, or the reason why these may be all steps.

    A callback for batches can define them in a method `wanted_steps(start)`, as a session hook does: pairs (period,
    origin). A callback without this method may need every step.
    """
    ends: list[StepInterval] = []
    for callback in filter(sees_steps, callbacks):
        wanted = getattr(callback, "wanted_steps", None)
        if wanted is None:
            return [], f"the callback {type(callback).__name__} may want to see every step"
        ends += [StepInterval(*pair) for pair in wanted(start)]
    return ends, ""


def executions_callback(execution: MultiStepExecution, *, start_step: int, set_steps: Callable[[int], None]) -> Any:
    """Return the callback that sets the number of steps of each execution, `coming`; must be the first callback.

    Keras takes a fixed `steps_per_execution`, and callbacks see only multiples of it. Here every step that is logged,
    summarized or saved is the last of an execution, as with single steps.
    """
    base: Any = counting_callback(start_step)

    class Executions(base):
        def __init__(self) -> None:
            super().__init__()
            self.coming, self._executions = 1, 0

        def on_epoch_begin(self, epoch, logs=None):
            self._set_steps()

        def on_train_batch_begin(self, batch, logs=None):
            super().on_train_batch_begin(batch, logs)
            self._begun = time.perf_counter()

        def steps_ended(self, steps, logs):
            self._executions += 1
            self.coming = execution.call_ended(steps, time.perf_counter() - self._begun, step=self.step)
            self._set_steps()

        def on_test_begin(self, logs=None):
            # Evaluation data is finite.
            set_steps(1)

        def on_train_end(self, logs=None):
            if not execution.single:
                logger.info("%d steps in %d executions", self.step - start_step, self._executions)

        def _set_steps(self) -> None:
            if not execution.single:
                set_steps(self.coming)

    return Executions()
