"""Early stopping that stops every task of a cluster, and at the same step in synchronous training.

The bugs of `tf.estimator.experimental.make_early_stopping_hook` and of the `stop_if_*` hooks built on it
(tensorflow#40443):

** with any strategy, `run_every_secs` (60 by default) is rejected;
* under MultiWorkerMirroredStrategy each worker decides separately whether a check is due, from a global step that is
  being written at the same time. Sometimes workers disagree, and wait for each other forever. Each worker also decides
  separately from event files that change meanwhile;
* the stop flag is a variable of the model: the final checkpoint has it, so that a resumed run stops immediately, and a
  checkpoint from before the hook was added cannot be restored.

Here only the chief decides, and the model has no extra variable:

============================== ==================================================================================
training                       how the other tasks get the decision
============================== ==================================================================================
one process                    not needed
MultiWorkerMirroredStrategy    every N steps, counted exactly, the chief publishes its decision and the others wait
                               for it: all stop after the same step
parameter servers              a flag on the first parameter server, which is read with each step
============================== ==================================================================================

The `stop_if_*` hooks read the folder `eval` by default. An evaluation with a name is written to `eval_NAME`, so the
hook never stops (tensorflow#25272). Here, while `eval` has no evaluation, the hook reads the only `eval_NAME` folder to
which this run has written the metric. If there are several, it warns.

Private use: the module of the estimator package that makes the hooks.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

from estimator_pipeline.compat.internals import coordination_service as coordination
from estimator_pipeline.compat.patches import replacing
from estimator_pipeline.utils.logger import logger

NAME = "early-stopping"
WHAT = (
    "early-stopping hooks stop every task of a cluster, at the same step in synchronous training; "
    "run_every_secs works with a strategy; no variable is added to the model; the metrics of an evaluation with a name "
    "are found"
)

# Steps between decisions if the program sets seconds: all tasks count steps in the same way.
AGREE_EVERY_STEPS = 10
DECISION_SECS = 1800.0
_MARK = "estimator_pipeline/early_stopping"


def apply() -> None:
    from tensorflow_estimator.python.estimator import early_stopping as module

    original = module.make_early_stopping_hook

    @functools.wraps(original)
    def make_early_stopping_hook(
        estimator: Any,
        should_stop_fn: Callable[[], bool],
        run_every_secs: float | None = 60,
        run_every_steps: int | None = None,
    ) -> Any:
        # The argument checks of the original, with its messages.
        _check_arguments(original, estimator, should_stop_fn, run_every_secs, run_every_steps)
        return stop_together_hook(
            estimator, should_stop_fn, run_every_secs=run_every_secs, run_every_steps=run_every_steps
        )

    replacing.everywhere(original, make_early_stopping_hook)
    _find_named_evaluations(module)


def _find_named_evaluations(module: Any) -> None:
    read = module.read_eval_metrics

    def with_default_dir(make_hook: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(make_hook)
        def make(*, estimator: Any, metric_name: str, eval_dir: str | None, **options: Any) -> Any:
            if eval_dir is None:
                eval_dir = _DefaultDir(estimator.eval_dir(), metric_name=metric_name)
            return make_hook(estimator=estimator, metric_name=metric_name, eval_dir=eval_dir, **options)

        return make

    @functools.wraps(read)
    def read_eval_metrics(eval_dir: str) -> Mapping[int, Mapping[str, float]]:
        metrics: Mapping[int, Mapping[str, float]] = read(eval_dir)
        if metrics or not isinstance(eval_dir, _DefaultDir):
            return metrics
        return eval_dir.read_named(read) or metrics

    module.read_eval_metrics = read_eval_metrics
    for name in ("_stop_if_threshold_crossed_hook", "_stop_if_no_metric_improvement_hook"):
        setattr(module, name, with_default_dir(getattr(module, name)))


class _DefaultDir(str):
    """The folder of evaluations without a name, which the program did not pass as `eval_dir`."""

    def __new__(cls, path: str, *, metric_name: str) -> _DefaultDir:
        return super().__new__(cls, path)

    def __init__(self, path: str, *, metric_name: str) -> None:
        self._metric_name = metric_name
        # An earlier run may have used other names: a folder that stays the same is not read.
        self._sizes = {folder: _size(folder) for folder in self._named()}
        self._reported: set[str] = set()

    def _named(self) -> list[str]:
        import tensorflow as tf

        model_dir, unnamed = os.path.split(self)
        names = tf.io.gfile.listdir(model_dir) if tf.io.gfile.isdir(model_dir) else []
        # Object stores end the names of folders with a slash.
        named = sorted(name.rstrip("/") for name in names if name.startswith(f"{unnamed}_"))
        return [path for name in named if tf.io.gfile.isdir(path := os.path.join(model_dir, name))]

    def read_named(self, read: Callable[[str], Any]) -> Mapping[int, Mapping[str, float]]:
        """Return the metrics of the only evaluation with a name, by step."""
        new = [folder for folder in self._named() if _size(folder) != self._sizes.get(folder, 0)]
        metrics = {
            folder: {step: values for step, values in read(folder).items() if self._metric_name in values}
            for folder in new
        }
        folders = [folder for folder in new if metrics[folder]]
        if len(folders) == 1:
            self._report(logger.info, f"Early stopping reads {folders[0]}: {os.path.basename(self)} has no evaluation")
            return metrics[folders[0]]
        if folders:
            self._report(
                logger.warning,
                f"Early stopping does not know which evaluation to read, and will not stop: "
                f"{os.path.basename(self)} has none, and {', '.join(map(os.path.basename, folders))} have some. "
                f"Pass eval_dir=estimator.eval_dir(NAME) to the hook",
            )
        return {}

    def _report(self, log: Callable[[str], None], message: str) -> None:
        if message not in self._reported:
            self._reported.add(message)
            log(message)


def _size(folder: str) -> int:
    import tensorflow as tf

    return sum(int(tf.io.gfile.stat(os.path.join(folder, name)).length) for name in tf.io.gfile.listdir(folder))


def _strategy(estimator: Any) -> Any:
    return getattr(getattr(estimator, "config", None), "train_distribute", None)


def _check_arguments(
    original: Callable[..., Any], estimator: Any, should_stop_fn: Any, secs: float | None, steps: int | None
) -> None:
    if _strategy(estimator) is not None and secs is not None and steps is None:
        # The original rejects this, but it works here: run only its other checks.
        secs, steps = None, AGREE_EVERY_STEPS
    original(estimator, should_stop_fn, run_every_secs=secs, run_every_steps=steps)


def stop_together_hook(
    estimator: Any, should_stop_fn: Callable[[], bool], *, run_every_secs: float | None, run_every_steps: int | None
) -> Any:
    """Return the hook; it detects the kind of training when a session begins, as the coordinator decides it."""
    import tensorflow as tf

    class StopTogetherHook(tf.compat.v1.train.SessionRunHook):
        """Stops training when the chief decides so."""

        def __init__(self) -> None:
            self._timer = tf.compat.v1.train.SecondOrStepTimer(every_secs=run_every_secs, every_steps=run_every_steps)
            self._session_number = 0

        def begin(self):
            self._session_number += 1
            self._chief, workers, ps = _where(estimator)
            self._together = workers > 1 and ps == 0 and coordination.available()
            self._step = tf.compat.v1.train.get_global_step()
            self._mark = None
            if ps > 0:
                with tf.device("/job:ps/task:0/device:CPU:0"):
                    handle = tf.raw_ops.VarHandleOp(dtype=tf.bool, shape=[], shared_name=_MARK, container="")
                    self._mark = tf.raw_ops.VarIsInitializedOp(resource=handle)
                    self._set = tf.raw_ops.AssignVariableOp(resource=handle, value=tf.constant(True))
                    self._clear = tf.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=True)

        def after_create_session(self, session, coord):
            self._count = int(session.run(self._step))
            if self._mark is not None and self._chief:
                # Parameter servers may still run after a training that was stopped.
                session.run(self._clear)

        def before_run(self, run_context):
            wanted = {} if self._together else {"step": self._step}
            if self._mark is not None and not self._chief:
                wanted["mark"] = self._mark
            return tf.compat.v1.train.SessionRunArgs(wanted)

        def after_run(self, run_context, run_values):
            self._count += 1
            if self._together:
                stop = self._agreed()
            elif self._chief:
                stop = self._due(int(run_values.results["step"])) and bool(should_stop_fn())
            else:
                stop = bool(run_values.results.get("mark", False))
            if not stop:
                return
            # TensorFlow's logger, whose level these programs configure.
            tf.compat.v1.logging.info("Early stopping at global step %d", self._count)
            if self._mark is not None and self._chief:
                run_context.session.run(self._set)
            run_context.request_stop()

        def _due(self, step):
            if not self._timer.should_trigger_for_step(step):
                return False
            self._timer.update_last_triggered_step(step)
            return True

        def _agreed(self):
            """Return the chief's decision after this step, the same on every worker."""
            every = run_every_steps or AGREE_EVERY_STEPS
            if self._count % every != 0:
                return False
            key = f"early stopping/{self._session_number}/"
            if not self._chief:
                decision = coordination.receive(
                    f"{key}{self._count}", timeout=DECISION_SECS, description="the chief's decision on early stopping"
                )
                return decision == "stop"
            stop = self._due(self._count) and bool(should_stop_fn())
            coordination.publish(f"{key}{self._count}", "stop" if stop else "continue")
            if self._count > 2 * every:
                # All have read it, since they have finished a step together.
                coordination.forget(f"{key}{self._count - 2 * every}")
            return stop

    return StopTogetherHook()


def _where(estimator: Any) -> tuple[bool, int, int]:
    """Return (is this the chief, number of training tasks, number of parameter servers)."""
    from estimator_pipeline.compat.internals import distribute_coordinator as coordinator

    task = coordinator.training_task(estimator.config)
    if task is None:
        return True, 1, 0
    jobs, _, is_chief = task
    return is_chief, sum(len(jobs.get(job, ())) for job in ("chief", "master", "worker")), len(jobs.get("ps", ()))
