"""Evaluation of checkpoints with their exports, and the main loop of the evaluator."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.cluster.peers import PeerWatch
from estimator_pipeline.compat.patches import missing_peers
from estimator_pipeline.engines.core.backend import Evaluation
from estimator_pipeline.engines.core.rendezvous.rendezvous import POLL_SECS, Rendezvous, in_state, raise_if_over
from estimator_pipeline.engines.core.result import EvaluationResult, TrainResult, plain_metrics
from estimator_pipeline.engines.model_dir.layout import checkpoint_step
from estimator_pipeline.errors import TaskFailedError, WaitError
from estimator_pipeline.progress.progress_file import ProgressWriter
from estimator_pipeline.utils.logger import logger

# The defaults of tf.estimator.EvalSpec. Users who want every checkpoint evaluated set neither of them, so these two
# values count as "not set"; any other value applies.
DEFAULT_START_DELAY_SECS = 120
DEFAULT_THROTTLE_SECS = 600


class CheckpointEvaluator:
    """Evaluates checkpoints one by one and calls the exporters for each, and for the final one.

    Close it at the end, or use it in a `with` statement: it may hold a graph and a session.

    Args:
        eval_spec: A `tf.estimator.EvalSpec`.
        evaluation: Creates the engine's evaluation, before the first one.
        checkpoint_steps: Steps between two checkpoints; None: they are written by time.
        progress: Receives an event for each evaluation and export.
        literal_delays: Whether EvalSpec's defaults of its two delays apply literally, and an evaluation that had to
            wait uses only the newest checkpoint, as in tf.estimator.

    Attributes:
        evaluations: The evaluations, in order.
        exports: Paths that the exporters wrote.
        exporters: Name of an exporter -> the last path that it wrote.
        checkpoint_steps: See above.
        literal_delays: See above.
    """

    def __init__(
        self,
        eval_spec: Any,
        evaluation: Callable[[], Evaluation],
        *,
        checkpoint_steps: int | None,
        progress: ProgressWriter,
        literal_delays: bool = False,
    ) -> None:
        self._spec = eval_spec
        self._create = evaluation
        self._created: Evaluation | None = None
        self._progress = progress
        self._exported: set[tuple[str, int]] = set()
        self._last_start = float("-inf")
        self.checkpoint_steps = checkpoint_steps
        self.literal_delays = literal_delays
        self.evaluations: list[EvaluationResult] = []
        self.exports: list[str] = []
        self.exporters: dict[str, str] = {}

    @property
    def _evaluation(self) -> Evaluation:
        if self._created is None:
            self._created = self._create()
        return self._created

    def close(self) -> None:
        """Release what is kept between evaluations. A later evaluation creates it again."""
        if self._created is not None:
            self._created.close()

    def __enter__(self) -> CheckpointEvaluator:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def last_step(self) -> int:
        """The last evaluated step; -1 before the first evaluation."""
        return self.evaluations[-1].global_step if self.evaluations else -1

    @property
    def throttle_secs(self) -> float:
        """Seconds from the start of one evaluation to the earliest start of the next; 0: no such limit."""
        return self._asked(self._spec.throttle_secs, default=DEFAULT_THROTTLE_SECS)

    @property
    def start_delay_secs(self) -> float:
        """Seconds that an evaluator waits before its first evaluation."""
        return self._asked(self._spec.start_delay_secs, default=DEFAULT_START_DELAY_SECS)

    def _asked(self, seconds: float | None, *, default: int) -> float:
        return 0.0 if not seconds or (seconds == default and not self.literal_delays) else float(seconds)

    @property
    def newest_only(self) -> bool:
        """Whether only the newest of several new checkpoints is evaluated."""
        return self.literal_delays or self.throttle_secs > 0

    def seconds_to_wait(self) -> float:
        """Return the seconds until EvalSpec.throttle_secs allows the next evaluation."""
        return max(0.0, self._last_start + self.throttle_secs - time.monotonic())

    def evaluate(self, checkpoint: str, *, final: bool) -> EvaluationResult:
        """Evaluate one checkpoint, unless it was evaluated last, and call the exporters."""
        step = checkpoint_step(checkpoint)
        if step != self.last_step:
            self._last_start = time.monotonic()
            self._note(checkpoint, step, self._evaluation.metrics_of(checkpoint))
        self._export(checkpoint, step, final=final)
        if final:
            for path in self._evaluation.write_final(checkpoint):
                self._note_export(path)
        return self.evaluations[-1]

    def take(self, checkpoint: str, metrics: Mapping[str, Any]) -> None:
        """Add the metrics of a checkpoint that was evaluated elsewhere, and call the exporters."""
        step = checkpoint_step(checkpoint)
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
                path = path.decode() if isinstance(path, bytes) else os.fspath(path)
                self._exported.add((exporter.name, step))
                self.exporters[exporter.name] = path
                self._note_export(path)

    def _note_export(self, path: str) -> None:
        self.exports.append(path)
        self._progress.emit("export", path=path)


def checkpoints(model_dir: str) -> list[str]:
    """Return the paths of the checkpoints in a model directory, oldest first, without that of step 0."""
    tf = compat.tensorflow()
    state = tf.train.get_checkpoint_state(model_dir)
    paths = [seen_here(path, model_dir) for path in state.all_model_checkpoint_paths] if state is not None else []
    return [path for path in paths if checkpoint_step(path) > 0 and tf.io.gfile.exists(path + ".index")]


def seen_here(checkpoint: str, model_dir: str) -> str:
    """Return a checkpoint's path in this task's model directory.

    The stored path is that of the task that wrote it, where the model directory may be mounted at a different path.
    """
    return os.path.join(model_dir, os.path.basename(checkpoint))


def conclude(evaluator: CheckpointEvaluator, training: Mapping[str, Any], *, model_dir: str, task: str) -> TrainResult:
    """Evaluate the final checkpoint, and return the result without the reports of the training tasks.

    Args:
        evaluator: The evaluator.
        training: The chief's status at the end of training.
        model_dir: This task's model directory.
        task: This task's name.

    Raises:
        TaskFailedError: There is no checkpoint.
    """
    if training["checkpoint"] is None:
        raise TaskFailedError(
            "training ended without a checkpoint, so there is nothing to evaluate",
            code="training/no-checkpoint",
            found=f"no checkpoint in {model_dir}",
            hint="check that the input has records, and that save_checkpoints_steps is set",
        )
    checkpoint = seen_here(training["checkpoint"], model_dir)
    final = evaluator.evaluate(checkpoint, final=True)
    return TrainResult(
        global_step=training["global_step"],
        metrics=final.metrics,
        checkpoint=checkpoint,
        exports=tuple(evaluator.exports),
        exporters=dict(evaluator.exporters),
        ended=training["ended"],
        evaluations=tuple(evaluator.evaluations),
        evaluated_by=task,
        model_dir=model_dir,
        task=task,
    )


def follow_training(
    evaluator: CheckpointEvaluator,
    *,
    rendezvous: Rendezvous,
    model_dir: str,
    checkpoint_timeout: float,
) -> Mapping[str, Any] | None:
    """Evaluate each checkpoint when it appears, until training has ended.

    Args:
        evaluator: The evaluator, with EvalSpec's delays.
        rendezvous: Has the status of training.
        model_dir: Folder of the checkpoints.
        checkpoint_timeout: Seconds without a new checkpoint or status of the chief after which to give up.

    Returns:
        The chief's last status: state, global step, final checkpoint. None: the chief has a different model directory.

    Raises:
        TaskFailedError: Training failed.
        WaitError: Nothing new for `checkpoint_timeout` seconds; or the connection to the chief's server was lost, or
            it never started.
    """
    watch = calls = None
    cluster = rendezvous.tf_config.cluster
    if cluster is not None:
        chief = cluster.address(cluster.chief)
        watch = PeerWatch(cluster.chief, chief)
        calls = missing_peers.roll_call(str(rendezvous.tf_config.task), {str(cluster.chief): chief})
    not_before = time.monotonic() + evaluator.start_delay_secs
    news = time.monotonic()
    queue = _Queue(evaluator, rendezvous, model_dir)
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
        raise_if_over(status, rendezvous.tf_config.task)
        if pending and time.monotonic() >= not_before and evaluator.seconds_to_wait() == 0:
            _evaluate_if_there(evaluator, queue.take())
            news = time.monotonic()
            continue
        if watch is not None:
            watch.check("the next checkpoint")
            # A chief that trains without workers has no server, but publishes its status.
            silent = not (rendezvous.answered or watch.seen)
            if silent and calls is not None and calls.due and (line := calls.look_for_missing()):
                logger.warning("%s", line)
        if time.monotonic() - news > checkpoint_timeout:
            last = queue.last_step
            raise WaitError(
                f"{rendezvous.tf_config.task} saw no new checkpoint for {checkpoint_timeout:.0f} s",
                found=f"none in {model_dir}" if not last else f"latest in {model_dir}: step {last}",
                hint="read the chief's log; if checkpoints are farther apart, increase checkpoint_timeout",
            )
        time.sleep(POLL_SECS)


class _Queue:
    """The checkpoints of a run in progress that wait for their evaluation, oldest first.

    It warns of checkpoints that were deleted (RunConfig's keep_checkpoint_max) before their evaluation.
    """

    def __init__(self, evaluator: CheckpointEvaluator, rendezvous: Rendezvous, model_dir: str) -> None:
        self._evaluator = evaluator
        self._rendezvous = rendezvous
        self._model_dir = model_dir
        self._pending: list[str] = []
        self._seen: set[int] = set()
        self._begun = self._has_evaluated = False
        self.last_step: int | None = None

    def _begin(self) -> None:
        status = self._rendezvous.training() or {}
        steps = [checkpoint_step(path) for path in checkpoints(self._model_dir)]
        # Only the last checkpoint of an earlier run is worth an evaluation. Without a status of the chief, this run
        # has not written any checkpoint yet.
        first: int | None = status.get("from_step", steps[-1] if steps else None)
        self._seen = {step for step in steps if first is not None and step < first}
        self.last_step = status.get("from_step", max(self._seen, default=None))
        self._begun = True

    def pending(self) -> list[str]:
        """Return the paths that wait for evaluation."""
        if not self._begun:
            if self._rendezvous.is_unanswered():
                # Only the chief's status distinguishes an earlier run's checkpoints from those of this run.
                return []
            self._begin()
        known = {checkpoint_step(path) for path in self._pending}
        existing = {checkpoint_step(path): path for path in checkpoints(self._model_dir)}
        self._pending = [path for step, path in existing.items() if step not in self._seen]
        if not self._evaluator.newest_only:
            self._warn_of_lost(sorted(known - set(existing)))
        return self._pending

    def take(self) -> str:
        """Remove and return the path to evaluate next."""
        path = self._pending[-1 if self._evaluator.newest_only else 0]
        step = checkpoint_step(path)
        if not self._evaluator.newest_only:
            self._warn_of_gap(step)
        self._seen.update(checkpoint_step(p) for p in self._pending if checkpoint_step(p) <= step)
        self.last_step, self._has_evaluated = step, True
        self._pending = [p for p in self._pending if checkpoint_step(p) > step]
        return path

    def _warn_of_lost(self, steps: list[int]) -> None:
        if steps:
            self._seen.update(steps)
            self.last_step = steps[-1]
            logger.warning("The checkpoints of steps %s were deleted before their evaluation; %s", steps, _HINT)

    def _warn_of_gap(self, step: int) -> None:
        """Warn of checkpoints that were written and deleted during one evaluation, detected by missing steps."""
        every = self._evaluator.checkpoint_steps
        if not every or self.last_step is None or step - self.last_step < 2 * every:
            return
        if self._has_evaluated:
            why = f"they were deleted before their evaluation; {_HINT}"
        else:
            why = "they were deleted before this evaluator started; an earlier start of it may have evaluated them"
        logger.warning(
            "There is no checkpoint between steps %d and %d, though one is written every %d steps: %s",
            *(self.last_step, step, every, why),
        )


_HINT = (
    "evaluation is slower than training. Increase keep_checkpoint_max to keep them until then, or write fewer "
    "(save_checkpoints_steps)"
)


def _evaluate_if_there(evaluator: CheckpointEvaluator, path: str) -> None:
    """Evaluate a checkpoint that the chief may be deleting at this moment (keep_checkpoint_max)."""
    tf = compat.tensorflow()
    try:
        evaluator.evaluate(path, final=False)
    except (tf.errors.NotFoundError, tf.errors.DataLossError, ValueError):
        if tf.io.gfile.exists(path + ".index"):
            raise
        logger.warning("%s was deleted before its evaluation; %s", path, _HINT)
