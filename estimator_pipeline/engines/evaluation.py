"""Evaluating checkpoints: one of them with its exports, and the evaluator's whole life."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from absl import logging

from estimator_pipeline import compat
from estimator_pipeline.compat import coordinator
from estimator_pipeline.engines.board import POLL_SECS, Board, PeerWatch
from estimator_pipeline.engines.hooks import checkpoint_step
from estimator_pipeline.engines.result import Evaluation, plain_metrics
from estimator_pipeline.errors import WaitError
from estimator_pipeline.launch.progress import ProgressWriter

# The defaults of tf.estimator.EvalSpec. A person who wants every checkpoint evaluated writes neither of them, so
# these two values are read as "not set"; any other value is kept to.
DEFAULT_START_DELAY_SECS = 120
DEFAULT_THROTTLE_SECS = 600


class CheckpointEvaluator:
    """Evaluates checkpoints one by one and lets the exporters see each, the last one as the last.

    Args:
        estimator: the program's Estimator; evaluation runs in this process alone.
        eval_spec: a `tf.estimator.EvalSpec`.
        progress: told of each evaluation and export.
    """

    def __init__(self, estimator: Any, eval_spec: Any, *, progress: ProgressWriter) -> None:
        self._estimator = coordinator.bind_to_task(estimator, eval_strategy=estimator._config.eval_distribute)
        self._spec = eval_spec
        self._progress = progress
        self._exported: set[tuple[str, int]] = set()
        self._last_start = float("-inf")
        self.evaluations: list[Evaluation] = []
        self.exports: list[str] = []

    @property
    def last_step(self) -> int:
        """The step that was evaluated last; -1 before the first."""
        return self.evaluations[-1].global_step if self.evaluations else -1

    def seconds_to_wait(self) -> float:
        """How long EvalSpec.throttle_secs asks to wait before the next evaluation may start."""
        throttle = self._spec.throttle_secs or 0
        if throttle == DEFAULT_THROTTLE_SECS:
            return 0.0
        return max(0.0, self._last_start + throttle - time.monotonic())

    def evaluate(self, checkpoint: str, *, final: bool) -> Evaluation:
        """Evaluates one checkpoint, unless it was the last one evaluated, and lets the exporters see it."""
        step = checkpoint_step(checkpoint)
        if step != self.last_step:
            self._last_start = time.monotonic()
            metrics = self._estimator.evaluate(
                input_fn=self._spec.input_fn,
                steps=self._spec.steps,
                hooks=list(self._spec.hooks),
                checkpoint_path=checkpoint,
                name=self._spec.name,
            )
            evaluation = Evaluation(global_step=step, metrics=plain_metrics(metrics), checkpoint=checkpoint)
            self.evaluations.append(evaluation)
            self._progress.emit("evaluation", step=step, metrics=dict(evaluation.metrics))
            self._raw_metrics = metrics
        self._export(checkpoint, step, final=final)
        return self.evaluations[-1]

    def _export(self, checkpoint: str, step: int, *, final: bool) -> None:
        base = os.path.join(self._estimator.model_dir, "export")
        for exporter in self._spec.exporters or ():
            if (exporter.name, step) in self._exported:
                # It exported this very checkpoint before the end of training was known.
                continue
            path = exporter.export(
                estimator=self._estimator,
                export_path=os.path.join(base, exporter.name),
                checkpoint_path=checkpoint,
                eval_result=self._raw_metrics,
                is_the_final_export=final,
            )
            if path:
                path = path.decode() if isinstance(path, bytes) else os.fspath(path)
                self._exported.add((exporter.name, step))
                self.exports.append(path)
                self._progress.emit("export", path=path)


def checkpoints(model_dir: str) -> list[str]:
    """Paths of the trained checkpoints in a model directory, oldest first; that of step 0 is left out."""
    tf = compat.install()
    state = tf.train.get_checkpoint_state(model_dir)
    paths = list(state.all_model_checkpoint_paths) if state is not None else []
    return [path for path in paths if checkpoint_step(path) > 0 and tf.io.gfile.exists(path + ".index")]


def follow_training(
    evaluator: CheckpointEvaluator,
    *,
    board: Board,
    model_dir: str,
    eval_spec: Any,
    checkpoint_timeout: float,
    announce: Callable[[], None],
) -> Mapping[str, Any]:
    """The evaluator's life: evaluates each checkpoint as it appears and the final one last, then returns.

    Args:
        evaluator: what evaluates.
        board: says when training has ended, and how.
        model_dir: where the checkpoints are.
        eval_spec: for its delays.
        checkpoint_timeout: seconds without any new checkpoint or word from the chief after which it gives up.
        announce: says on the board that this evaluator is there; called again while it waits.

    Returns:
        The chief's last word: state, global step, final checkpoint.

    Raises:
        TaskFailedError: training failed.
        WaitError: nothing new for `checkpoint_timeout` seconds, or the chief's server went away.
    """
    watch = None
    cluster = board.tf_config.cluster
    if cluster is not None:
        watch = PeerWatch(cluster.chief, cluster.address(cluster.chief))
    delay = eval_spec.start_delay_secs or 0
    not_before = time.monotonic() + (0 if delay == DEFAULT_START_DELAY_SECS else delay)
    # Of what an earlier run left, only its last checkpoint is worth an evaluation.
    seen = {checkpoint_step(path) for path in checkpoints(model_dir)[:-1]}
    news = time.monotonic()
    board.doubt_what_is_there()
    while True:
        # Read before the checkpoints: what is finished then has written all of them.
        training = board.finished()
        pending = [path for path in checkpoints(model_dir) if checkpoint_step(path) not in seen]
        if training is not None:
            for path in pending:
                if path != training["checkpoint"]:
                    _evaluate_if_there(evaluator, path)
            return training
        board.raise_if_failed()
        may_start = time.monotonic() >= not_before and evaluator.seconds_to_wait() == 0
        if pending and may_start:
            throttled = (eval_spec.throttle_secs or 0) not in (0, DEFAULT_THROTTLE_SECS)
            if throttled:
                seen.update(checkpoint_step(path) for path in pending[:-1])
                pending = pending[-1:]
            seen.add(checkpoint_step(pending[0]))
            _evaluate_if_there(evaluator, pending[0])
            news = time.monotonic()
            continue
        announce()
        if watch is not None:
            watch.check("the next checkpoint")
        if time.monotonic() - news > checkpoint_timeout:
            raise WaitError(
                f"{board.tf_config.task} saw no new checkpoint for {checkpoint_timeout:.0f} s",
                found=f"latest in {model_dir}: step {evaluator.last_step}" if seen else f"none in {model_dir}",
                mend="see the chief's log; where checkpoints are farther apart, raise checkpoint_timeout",
            )
        time.sleep(POLL_SECS)


def _evaluate_if_there(evaluator: CheckpointEvaluator, path: str) -> None:
    """Evaluates a checkpoint that the chief may be deleting at this moment (keep_checkpoint_max)."""
    tf = compat.install()
    try:
        evaluator.evaluate(path, final=False)
    except (tf.errors.NotFoundError, tf.errors.DataLossError, ValueError):
        if tf.io.gfile.exists(path + ".index"):
            raise
        logging.warning("%s was deleted before it could be evaluated; raise keep_checkpoint_max to keep it", path)
