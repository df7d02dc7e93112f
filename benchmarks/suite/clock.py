"""Time marks inside a measured process: (seconds, global step), some hundred a second.

A mark costs a fetch of the global step, so not every session run has one. A contender that makes several steps in one
run is counted right, for steps are read and not counted. Seconds are those of the machine's monotonic clock, one for
all processes.
"""

from __future__ import annotations

import json
import os
import resource
import time
from pathlib import Path
from typing import Any

APART_SECS = 0.01
# Of a task that steps on its own: the global step says nothing about how warm it is.
WARM_MARKS = 50
FIRST_STEP_VARIABLE = "ESTIMATOR_PIPELINE_BENCH_FIRST_STEP"


class Clock:
    """The marks of one process.

    Args:
        out: where they are written when training is over.
        last: the global step at which training ends; None: when the file `stop` appears.
        warm: steps that are not counted.
        facts: what is written beside the marks.
    """

    def __init__(self, out: str, *, last: int | None, warm: int, facts: dict[str, Any]) -> None:
        self.out, self.last, self.warm, self.facts = Path(out), last, warm, dict(facts)
        self.marks: list[tuple[float, int]] = []
        self.stop = self.out.with_name("stop")
        self._told_warm = False

    def mark(self, step: int) -> bool:
        """Note the step; whether training should end, where no number of steps ends it."""
        self.marks.append((time.monotonic(), step))
        is_warm = step >= self.warm if self.last is not None else len(self.marks) > WARM_MARKS
        if is_warm and not self._told_warm:
            self._told_warm = True
            self.out.with_suffix(".warm").touch()
        return self.last is None and self.stop.exists()

    def save(self, **more: Any) -> None:
        """Write all that is known; readers see a whole file."""
        from estimator_pipeline import compat

        # What plain contenders must have none of.
        patches = sum(patch.on for patch in compat.status().patches)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        told = {**self.facts, "marks": self.marks, "peak_mib": peak, "patches": patches, **more}
        part = self.out.with_suffix(".part")
        part.write_text(json.dumps(told))
        part.replace(self.out)

    def hook(self) -> Any:
        """For an Estimator: a `tf.estimator.SessionRunHook`."""
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
                """Told by an engine that makes several steps a call: a mark needs none of those between."""

            def end(self, session):
                clock.facts |= {"final_step": int(session.run(self._step)), "calls": self._calls}
                clock.save()

        return Marks()

    def callback(self, *, steps_per_epoch: int) -> Any:
        """For `Model.fit`: a callback."""
        import tensorflow as tf

        clock = self

        class Marks(tf.keras.callbacks.Callback):
            # Without it Keras would wait for each step's loss, for the sake of this callback.
            _supports_tf_logs = True

            def wanted_steps(self, start):
                """Return the engine need not end an execution for it: a mark has the number of its step."""
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


def tell_first_step() -> None:
    """Write down that the first step has been made, and when."""
    path = Path(os.environ[FIRST_STEP_VARIABLE])
    if not path.exists():
        part = path.with_suffix(".part")
        part.write_text(json.dumps({"time": time.monotonic()}))
        part.replace(path)


def first_step_callback() -> Any:
    """Return a callback for job files that tells of the first step."""
    import tensorflow as tf

    class First(tf.keras.callbacks.Callback):
        _supports_tf_logs = True

        def on_train_batch_end(self, batch, logs=None):
            tell_first_step()

    return First()


def first_step_hook() -> Any:
    """Return the same for an Estimator."""
    import tensorflow as tf

    class First(tf.compat.v1.train.SessionRunHook):
        def after_run(self, run_context, run_values):
            tell_first_step()

    return First()
