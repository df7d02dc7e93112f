"""Time marks inside a measured process: (seconds, global step), about a hundred per second.

A mark costs a fetch of the global step, so not every session run has one. The global step is read, not counted, so
contenders that make several steps per call are measured correctly. Seconds are those of the machine's monotonic clock,
which all processes share.
"""

from __future__ import annotations

import json
import os
import resource
import time
from pathlib import Path
from typing import Any

APART_SECS = 0.01
# For a task of asynchronous training, whose warm-up does not depend on the global step.
WARM_MARKS = 50
FIRST_STEP_VARIABLE = "ESTIMATOR_PIPELINE_BENCH_FIRST_STEP"


class Clock:
    """The marks of one process.

    Args:
        out: File that they are written to when training ends.
        last: Global step at which training ends; None: when the file `stop` appears.
        warm: Warm-up steps, which are not counted.
        facts: Further values that are written with the marks.
    """

    def __init__(self, out: str, *, last: int | None, warm: int, facts: dict[str, Any]) -> None:
        self.out, self.last, self.warm, self.facts = Path(out), last, warm, dict(facts)
        self.marks: list[tuple[float, int]] = []
        self.stop = self.out.with_name("stop")
        self._was_warm = False

    def mark(self, step: int) -> bool:
        """Record the step; return whether training should stop, if no number of steps limits it."""
        self.marks.append((time.monotonic(), step))
        is_warm = step >= self.warm if self.last is not None else len(self.marks) > WARM_MARKS
        if is_warm and not self._was_warm:
            self._was_warm = True
            self.out.with_suffix(".warm").touch()
        return self.last is None and self.stop.exists()

    def save(self, **more: Any) -> None:
        """Write all marks and facts atomically."""
        from estimator_pipeline import compat

        # Plain contenders must have no patches.
        patches = sum(patch.on for patch in compat.status().patches)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        document = {**self.facts, "marks": self.marks, "peak_mib": peak, "patches": patches, **more}
        part = self.out.with_suffix(".part")
        part.write_text(json.dumps(document))
        part.replace(self.out)

    def hook(self) -> Any:
        """Return a `tf.estimator.SessionRunHook` that makes the marks of an Estimator."""
        import tensorflow as tf

        clock = self

        class Marks(tf.compat.v1.train.SessionRunHook):
            def __init__(self) -> None:
                self._due = 0.0
                self._calls = 0

            def begin(self):
                self._step = tf.compat.v1.train.get_global_step()
                trained = tf.compat.v1.trainable_variables()
                clock.facts["parameters"] = sum(variable.shape.num_elements() for variable in trained)

            def before_run(self, run_context):
                now = time.monotonic()
                if now < self._due:
                    return None
                self._due = now + APART_SECS
                return tf.compat.v1.train.SessionRunArgs(self._step)

            def after_run(self, run_context, run_values):
                self._calls += 1
                if run_values.results is not None and clock.mark(int(run_values.results)):
                    run_context.request_stop()

            def steps_passed(self, count):
                """Ignore the steps of a multi-step call: a mark does not need those between."""

            def end(self, session):
                clock.facts |= {"final_step": int(session.run(self._step)), "calls": self._calls}
                clock.save()

        return Marks()

    def callback(self, *, steps_per_epoch: int) -> Any:
        """Return a Keras callback that makes the marks of `Model.fit`."""
        import tensorflow as tf

        clock = self

        class Marks(tf.keras.callbacks.Callback):
            # Without it Keras would wait for the loss of each step because of this callback.
            _supports_tf_logs = True

            def wanted_steps(self, start):
                """Return no steps: a mark reads the step number, so no execution has to end for it."""
                return []

            def on_epoch_begin(self, epoch, logs=None):
                self._before, self._due = epoch * steps_per_epoch, 0.0

            def on_train_batch_end(self, batch, logs=None):
                now = time.monotonic()
                if now >= self._due:
                    self._due = now + APART_SECS
                    clock.mark(self._before + batch + 1)

            def on_train_end(self, logs=None):
                clock.facts["final_step"] = int(self.model.optimizer.iterations.numpy())
                clock.facts["parameters"] = self.model.count_params()
                clock.save()

        return Marks()


def write_first_step() -> None:
    """Write the time of the first step, once."""
    path = Path(os.environ[FIRST_STEP_VARIABLE])
    if not path.exists():
        part = path.with_suffix(".part")
        part.write_text(json.dumps({"time": time.monotonic()}))
        part.replace(path)


def first_step_callback() -> Any:
    """Return a callback for job files that writes the time of the first step."""
    import tensorflow as tf

    class First(tf.keras.callbacks.Callback):
        _supports_tf_logs = True

        def on_train_batch_end(self, batch, logs=None):
            write_first_step()

    return First()


def first_step_hook() -> Any:
    """Return a hook that writes the time of an Estimator's first step."""
    import tensorflow as tf

    class First(tf.compat.v1.train.SessionRunHook):
        def after_run(self, run_context, run_values):
            write_first_step()

    return First()
