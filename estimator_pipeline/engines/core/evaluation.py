"""Evaluation of checkpoints with their exports, and the main loop of the evaluator."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.cluster.peers import PeerWatch
from estimator_pipeline.compat.patches import missing_peers
from estimator_pipeline.engines.core.backend import Evaluation
from estimator_pipeline.engines.core.context import TaskContext
from estimator_pipeline.engines.core.early_stopping import EarlyStopping
from estimator_pipeline.engines.core.rendezvous.rendezvous import POLL_SECS, in_state, raise_if_over
from estimator_pipeline.engines.core.result import EvaluationResult, TrainResult, plain_metrics
from estimator_pipeline.engines.model_dir.layout import checkpoint_step
from estimator_pipeline.errors import TaskFailedError, WaitError
from estimator_pipeline.progress.progress_file import ProgressWriter
from estimator_pipeline.utils.logger import logger

# The defaults of tf.estimator.EvalSpec. Users who want every checkpoint evaluated set neither of them, so these two
# values count as "not set"; any other value applies.
DEFAULT_START_DELAY_SECS = 120
DEFAULT_THROTTLE_SECS = 600

_HINT = (
    "evaluation is slower than training. Increase keep_checkpoint_max to keep them until then, or write fewer "
    "(save_checkpoints_steps)"
)


class CheckpointEvaluator:
    """Evaluates checkpoints one by one and calls the exporters for each, and for the final one.

    Use it in a `with` statement: it may hold a graph and a session between evaluations.

    Args:
        eval_spec: A `tf.estimator.EvalSpec`.
        evaluation: Creates the engine's evaluation, before the first one.
        checkpoint_steps: Steps between two checkpoints; None: they are written by time.
        progress: Receives an event for each evaluation and export.
        early: Early stopping of the job, if any.
        literal_delays: See `TrainOptions`. An evaluation that had to wait then uses only the newest checkpoint.

    Attributes:
        evaluations: The evaluations, in order.
        exports: Paths that the exporters wrote.
        exporters: Name of an exporter -> the last path that it wrote.
        start_delay_secs: Seconds that an evaluator waits before its first evaluation.
        throttle_secs: Seconds from the start of one evaluation to the earliest start of the next; 0: no such limit.
        newest_only: Whether only the newest of several new checkpoints is evaluated.
        checkpoint_steps: See above.
    """

    def __init__(
        self,
        eval_spec: Any,
        evaluation: Callable[[], Evaluation],
        *,
        checkpoint_steps: int | None,
        progress: ProgressWriter,
        early: EarlyStopping | None = None,
        literal_delays: bool = False,
    ) -> None:
        self.early = early
        self._spec, self._create, self._progress = eval_spec, evaluation, progress
        self._exported: set[tuple[str, int]] = set()
        self._last_start = float("-inf")
        self.checkpoint_steps = checkpoint_steps
        self.evaluations: list[EvaluationResult] = []
        self.exports: list[str] = []
        self.exporters: dict[str, str] = {}

        def delay(seconds: float | None, default: int) -> float:
            return 0.0 if not seconds or (seconds == default and not literal_delays) else float(seconds)

        self.start_delay_secs = delay(eval_spec.start_delay_secs, DEFAULT_START_DELAY_SECS)
        self.throttle_secs = delay(eval_spec.throttle_secs, DEFAULT_THROTTLE_SECS)
        self.newest_only = literal_delays or self.throttle_secs > 0

    @cached_property
    def _evaluation(self) -> Evaluation:
        return self._create()

    def __enter__(self) -> CheckpointEvaluator:
        return self

    def __exit__(self, *exception: object) -> None:
        if "_evaluation" in vars(self):
            self._evaluation.close()

    def seconds_to_wait(self) -> float:
        """Return the seconds until EvalSpec.throttle_secs allows the next evaluation."""
        return max(0.0, self._last_start + self.throttle_secs - time.monotonic())

    def evaluate(self, checkpoint: str, *, final: bool) -> EvaluationResult:
        """Evaluate one checkpoint, unless it was evaluated last, and call the exporters."""
        step = checkpoint_step(checkpoint)
        if not self.evaluations or step != self.evaluations[-1].global_step:
            self._last_start = time.monotonic()
            held = checkpoint if self.early is None else self.early.hold(checkpoint)
            self._note(checkpoint, step, self._evaluation.metrics_of(held))
        self._export(checkpoint, step, final=final)
        if final:
            self._write_final(checkpoint)
        return self.evaluations[-1]

    def export_best(self, checkpoint: str, metrics: Mapping[str, Any]) -> None:
        """Call the exporters for the best checkpoint, which was evaluated before, as the final one."""
        self._raw_metrics = metrics
        self._export(checkpoint, checkpoint_step(checkpoint), final=True)
        self._write_final(checkpoint)

    def _write_final(self, checkpoint: str) -> None:
        for path in self._evaluation.write_final(checkpoint):
            self._note_export(path)

    def take(self, checkpoint: str, metrics: Mapping[str, Any]) -> None:
        """Add the metrics of a checkpoint that was evaluated elsewhere, and call the exporters."""
        step = checkpoint_step(checkpoint)
        if self.early is not None:
            self.early.hold(checkpoint)
        self._note(checkpoint, step, metrics)
        self._evaluation.summarize(metrics, step)
        self._export(checkpoint, step, final=False)

    def _note(self, checkpoint: str, step: int, metrics: Mapping[str, Any] | None) -> None:
        if metrics is None:
            logger.warning("the evaluation of %s gave no metrics", checkpoint)
            metrics = {}
        evaluation = EvaluationResult(global_step=step, metrics=plain_metrics(metrics), checkpoint=checkpoint)
        self.evaluations.append(evaluation)
        self._progress.emit("evaluation", step=step, metrics=dict(evaluation.metrics))
        self._raw_metrics = metrics
        if self.early is not None:
            self.early.record(step, evaluation.metrics)

    def _export(self, checkpoint: str, step: int, *, final: bool) -> None:
        for exporter in self._spec.exporters or ():
            if (exporter.name, step) in self._exported:
                # It has exported this checkpoint before the end of training was known.
                continue
            exported = self._evaluation.exported
            path = exporter.export(
                estimator=exported,
                export_path=os.path.join(exported.model_dir, "export", exporter.name),
                checkpoint_path=checkpoint,
                eval_result=self._raw_metrics,
                is_the_final_export=final,
            )
            if path:
                path = os.fsdecode(path)
                self._exported.add((exporter.name, step))
                self.exporters[exporter.name] = path
                self._note_export(path)

    def _note_export(self, path: str) -> None:
        self.exports.append(path)
        self._progress.emit("export", path=path)


def conclude(context: TaskContext, evaluator: CheckpointEvaluator, training: Mapping[str, Any]) -> TrainResult:
    """Evaluate the final checkpoint of the chief's last status; return the result without the other tasks' reports.

    Raises:
        TaskFailedError: There is no checkpoint.
    """
    model_dir, task = context.model_dir, str(context.task)
    if training["checkpoint"] is None:
        raise TaskFailedError(
            "training ended without a checkpoint, so there is nothing to evaluate",
            code="training/no-checkpoint",
            found=f"no checkpoint in {model_dir}",
            hint="check that the input has records, and that save_checkpoints_steps is set",
        )
    checkpoint = _seen_here(training["checkpoint"], model_dir)
    early = evaluator.early
    final = evaluator.evaluate(checkpoint, final=early is None)
    metrics, best_step = final.metrics, None
    if early is not None:
        best_step, checkpoint, metrics = early.best() or (final.global_step, checkpoint, final.metrics)
        evaluator.export_best(checkpoint, metrics)
    return TrainResult(
        global_step=training["global_step"],
        metrics=metrics,
        checkpoint=checkpoint,
        best_step=best_step,
        reason=training.get("reason", ""),
        exports=tuple(evaluator.exports),
        exporters=dict(evaluator.exporters),
        ended=training["ended"],
        evaluations=tuple(evaluator.evaluations),
        evaluated_by=task,
        model_dir=model_dir,
        task=task,
    )


def follow_training(context: TaskContext, evaluator: CheckpointEvaluator) -> Mapping[str, Any] | None:
    """Evaluate each checkpoint when it appears, until training has ended.

    Returns:
        The chief's last status: state, global step, final checkpoint. None: the chief has a different model directory.

    Raises:
        TaskFailedError: Training failed.
        WaitError: There was no new checkpoint for `checkpoint_timeout` seconds; or the connection to the chief's server
            was lost, or it never started.
    """
    task, cluster, rendezvous = context.task, context.tf_config.cluster, context.rendezvous
    checkpoint_timeout = context.options.checkpoint_timeout
    watch = calls = None
    if cluster is not None:
        chief = cluster.address(cluster.chief)
        watch = PeerWatch(cluster.chief, chief)
        calls = missing_peers.roll_call(str(task), {str(cluster.chief): chief})
    not_before = time.monotonic() + evaluator.start_delay_secs
    news = time.monotonic()
    queue = _Queue(context, evaluator)
    while True:
        # Read before the checkpoints: if training is finished, all of them are written.
        status = rendezvous.training()
        if rendezvous.apart:
            return None
        rendezvous.raise_if_other_job(status)
        training = in_state(status, "finished")
        pending = queue.pending()
        if training is not None:
            while pending and not evaluator.newest_only:
                path = queue.take()
                if os.path.basename(path) != os.path.basename(training["checkpoint"] or ""):
                    _evaluate_if_there(evaluator, path)
                pending = queue.pending()
            return training
        raise_if_over(status, task)
        if pending and time.monotonic() >= not_before and evaluator.seconds_to_wait() == 0:
            _evaluate_if_there(evaluator, queue.take())
            news = time.monotonic()
            continue
        if watch is not None and calls is not None:
            watch.check("the next checkpoint")
            # A chief that trains without workers has no server, but publishes its status.
            silent = not (rendezvous.answered or watch.seen)
            if silent and calls.due and (line := calls.look_for_missing()):
                logger.warning("%s", line)
        if time.monotonic() - news > checkpoint_timeout:
            last = queue.last_step
            raise WaitError(
                f"{task} saw no new checkpoint for {checkpoint_timeout:.0f} s",
                found=f"none in {context.model_dir}" if not last else f"latest in {context.model_dir}: step {last}",
                hint="read the chief's log; if checkpoints are farther apart, increase checkpoint_timeout",
            )
        time.sleep(POLL_SECS)


class _Queue:
    """The checkpoints of a run in progress that wait for their evaluation, oldest first.

    It warns of checkpoints that were deleted (RunConfig's keep_checkpoint_max) before their evaluation.
    """

    def __init__(self, context: TaskContext, evaluator: CheckpointEvaluator) -> None:
        self._evaluator, self._rendezvous, self._model_dir = evaluator, context.rendezvous, context.model_dir
        self._pending: dict[int, str] = {}
        self._seen: set[int] = set()
        self._begun = self._has_evaluated = False
        self.last_step: int | None = None

    def pending(self) -> bool:
        """Look for new checkpoints, and return whether any waits for its evaluation."""
        if not self._begun:
            if self._rendezvous.is_unanswered():
                # Only the chief's status distinguishes an earlier run's checkpoints from those of this run.
                return False
            if self._evaluator.early is not None and self._rendezvous.training() is None:
                # It distinguishes an earlier run's evaluations, too: without it the best checkpoint is unknown.
                return False
            self._begin()
        existing = self._checkpoints()
        lost = sorted(self._pending.keys() - existing)
        self._pending = {step: path for step, path in existing.items() if step not in self._seen}
        if lost and not self._evaluator.newest_only:
            self._seen.update(lost)
            self.last_step = lost[-1]
            logger.warning("The checkpoints of steps %s were deleted before their evaluation; %s", lost, _HINT)
        return bool(self._pending)

    def _begin(self) -> None:
        status = self._rendezvous.training() or {}
        steps = list(self._checkpoints())
        # Only the last checkpoint of an earlier run is worth an evaluation. Without a status of the chief, this run
        # has not written any checkpoint yet.
        first: int | None = status.get("from_step", steps[-1] if steps else None)
        self._seen = {step for step in steps if first is not None and step < first}
        self.last_step = status.get("from_step", max(self._seen, default=None))
        self._begun = True

    def _checkpoints(self) -> dict[int, str]:
        """Return step -> path of the checkpoints in the model directory, oldest first, without that of step 0."""
        tf = compat.tensorflow()
        state = tf.train.get_checkpoint_state(self._model_dir)
        paths = [] if state is None else [_seen_here(p, self._model_dir) for p in state.all_model_checkpoint_paths]
        steps = {checkpoint_step(path): path for path in paths}
        return {step: path for step, path in steps.items() if step > 0 and tf.io.gfile.exists(path + ".index")}

    def take(self) -> str:
        """Remove and return the path to evaluate next; warn of checkpoints before it that were deleted unseen."""
        newest = self._evaluator.newest_only
        step = list(self._pending)[-1 if newest else 0]
        path, every = self._pending[step], self._evaluator.checkpoint_steps
        if not newest and every and self.last_step is not None and step - self.last_step >= 2 * every:
            # They were written and deleted during one evaluation.
            if self._has_evaluated:
                why = f"they were deleted before their evaluation; {_HINT}"
            else:
                why = "they were deleted before this evaluator started; an earlier start of it may have evaluated them"
            logger.warning(
                "There is no checkpoint between steps %d and %d, though one is written every %d steps: %s",
                *(self.last_step, step, every, why),
            )
        self._seen.update(other for other in self._pending if other <= step)
        self._pending = {other: later for other, later in self._pending.items() if other > step}
        self.last_step, self._has_evaluated = step, True
        return path


def _seen_here(checkpoint: str, model_dir: str) -> str:
    """Return a checkpoint's path in this task's model directory.

    The stored path is that of the task that wrote it, where the model directory may be mounted at a different path.
    """
    return os.path.join(model_dir, os.path.basename(checkpoint))


def _evaluate_if_there(evaluator: CheckpointEvaluator, path: str) -> None:
    """Evaluate a checkpoint that the chief may be deleting at this moment (keep_checkpoint_max)."""
    tf = compat.tensorflow()
    try:
        evaluator.evaluate(path, final=False)
    except (tf.errors.NotFoundError, tf.errors.DataLossError, ValueError):
        if tf.io.gfile.exists(path + ".index"):
            raise
        logger.warning("%s was deleted before its evaluation; %s", path, _HINT)
