"""Evaluating checkpoints: one of them with its exports, and the evaluator's whole life."""

from __future__ import annotations

import abc
import os
import time
from collections.abc import Mapping
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.cluster.peers import PeerWatch
from estimator_pipeline.compat.patches import missing_peers
from estimator_pipeline.engines.lifecycle.rendezvous.chief_status import in_state, raise_if_over
from estimator_pipeline.engines.lifecycle.rendezvous.rendezvous import POLL_SECS, Rendezvous
from estimator_pipeline.engines.lifecycle.result import EvaluationResult, TrainResult, plain_metrics
from estimator_pipeline.engines.model_dir.layout import checkpoint_step
from estimator_pipeline.errors import TaskFailedError, WaitError
from estimator_pipeline.progress.progress_file import ProgressWriter
from estimator_pipeline.utils.logger import logger

# The defaults of tf.estimator.EvalSpec. A person who wants every checkpoint evaluated writes neither of them, so
# these two values are read as "not set"; any other value is kept to.
DEFAULT_START_DELAY_SECS = 120
DEFAULT_THROTTLE_SECS = 600


class CheckpointEvaluator(abc.ABC):
    """Evaluates checkpoints one by one and lets the exporters see each, the last one as the last.

    Close it at the end, or use it in a `with` statement: it may hold a graph and a session.

    Args:
        eval_spec: a `tf.estimator.EvalSpec`.
        exported: what the exporters get as their `estimator`: it has `model_dir` and `export_saved_model`.
        checkpoint_steps: how many steps there are from one checkpoint to the next; None: they are written by time.
        progress: told of each evaluation and export.
        literal_delays: whether EvalSpec's own defaults for its two delays mean what they say, and an evaluation that
            had to wait takes the newest checkpoint alone, as in tf.estimator.

    Attributes:
        evaluations: what was evaluated, in order.
        exports: paths of what the exporters wrote.
        exporters: exporter's name -> the last path that it gave.
        checkpoint_steps: as given.
        literal_delays: as given.
    """

    def __init__(
        self,
        eval_spec: Any,
        *,
        exported: Any,
        checkpoint_steps: int | None,
        progress: ProgressWriter,
        literal_delays: bool = False,
    ) -> None:
        self._spec = eval_spec
        self._subject = exported
        self._progress = progress
        self._exported: set[tuple[str, int]] = set()
        self._last_start = float("-inf")
        self.checkpoint_steps = checkpoint_steps
        self.literal_delays = literal_delays
        self.evaluations: list[EvaluationResult] = []
        self.exports: list[str] = []
        self.exporters: dict[str, str] = {}

    @abc.abstractmethod
    def metrics_of(self, checkpoint: str) -> Mapping[str, Any] | None:
        """Evaluates one checkpoint: name -> value, `loss` and `global_step` among them.

        None where a program's own `evaluate` gives nothing.
        """

    def close(self) -> None:  # noqa: B027 - an engine that keeps nothing has nothing to close
        """Lets go of what is kept between evaluations. An evaluation after it makes it anew."""

    def __enter__(self) -> CheckpointEvaluator:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def last_step(self) -> int:
        """The step that was evaluated last; -1 before the first."""
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
        """Whether, of several new checkpoints, all but the newest are passed over."""
        return self.literal_delays or self.throttle_secs > 0

    def seconds_to_wait(self) -> float:
        """How long EvalSpec.throttle_secs asks to wait before the next evaluation may start."""
        return max(0.0, self._last_start + self.throttle_secs - time.monotonic())

    def evaluate(self, checkpoint: str, *, final: bool) -> EvaluationResult:
        """Evaluates one checkpoint, unless it was the last one evaluated, and lets the exporters see it."""
        step = checkpoint_step(checkpoint)
        if step != self.last_step:
            self._last_start = time.monotonic()
            self._note(checkpoint, step, self.metrics_of(checkpoint))
        self._export(checkpoint, step, final=final)
        return self.evaluations[-1]

    def take(self, checkpoint: str, metrics: Mapping[str, Any]) -> None:
        """Takes over what the evaluation of a checkpoint gave elsewhere, and lets the exporters see it."""
        step = checkpoint_step(checkpoint)
        self._note(checkpoint, step, metrics)
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
        base = os.path.join(self._subject.model_dir, "export")
        for exporter in self._spec.exporters or ():
            if (exporter.name, step) in self._exported:
                # It exported this very checkpoint before the end of training was known.
                continue
            path = exporter.export(
                estimator=self._subject,
                export_path=os.path.join(base, exporter.name),
                checkpoint_path=checkpoint,
                eval_result=self._raw_metrics,
                is_the_final_export=final,
            )
            if path:
                path = path.decode() if isinstance(path, bytes) else os.fspath(path)
                self._exported.add((exporter.name, step))
                self.exports.append(path)
                self.exporters[exporter.name] = path
                self._progress.emit("export", path=path)


def checkpoints(model_dir: str) -> list[str]:
    """Paths of the trained checkpoints in a model directory, oldest first; that of step 0 is left out."""
    tf = compat.tensorflow()
    state = tf.train.get_checkpoint_state(model_dir)
    paths = [seen_here(path, model_dir) for path in state.all_model_checkpoint_paths] if state is not None else []
    return [path for path in paths if checkpoint_step(path) > 0 and tf.io.gfile.exists(path + ".index")]


def seen_here(checkpoint: str, model_dir: str) -> str:
    """A checkpoint's path as this task sees it. What is written down is the path of the task that wrote it, where the
    model directory may be mounted elsewhere, or may have been then."""
    return os.path.join(model_dir, os.path.basename(checkpoint))


def conclude(evaluator: CheckpointEvaluator, training: Mapping[str, Any], *, model_dir: str, task: str) -> TrainResult:
    """Evaluates the final checkpoint; the result lacks only what the training tasks say of themselves.

    Args:
        evaluator: evaluates it.
        training: the chief's word of the end of training.
        model_dir: this task's.
        task: this task's name.

    Raises:
        TaskFailedError: there is no checkpoint.
    """
    if training["checkpoint"] is None:
        raise TaskFailedError(
            "training ended without a checkpoint, so there is nothing to evaluate",
            code="training/no-checkpoint",
            found=f"no checkpoint in {model_dir}",
            hint="see whether the input has any records, and whether save_checkpoints_steps is set",
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
    """The evaluator's life: evaluates each checkpoint as it appears and the final one last, then returns.

    Args:
        evaluator: what evaluates, and knows EvalSpec's delays.
        rendezvous: says when training has ended, and how.
        model_dir: where the checkpoints are.
        checkpoint_timeout: seconds without any new checkpoint or word from the chief after which it gives up.

    Returns:
        The chief's last word: state, global step, final checkpoint. None: its model directory is another one.

    Raises:
        TaskFailedError: training failed.
        WaitError: nothing new for `checkpoint_timeout` seconds, or the chief's server went away, or never came.
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
        # Read before the checkpoints: what is finished then has written all of them.
        said = rendezvous.training()
        if rendezvous.apart:
            return None
        rendezvous.raise_if_other_job(said)
        training = in_state(said, "finished")
        pending = queue.pending()
        if training is not None:
            while pending and not evaluator.newest_only:
                path = queue.take()
                if os.path.basename(path) != os.path.basename(training["checkpoint"] or ""):
                    _evaluate_if_there(evaluator, path)
                pending = queue.pending()
            return training
        raise_if_over(said, rendezvous.tf_config.task)
        if pending and time.monotonic() >= not_before and evaluator.seconds_to_wait() == 0:
            _evaluate_if_there(evaluator, queue.take())
            news = time.monotonic()
            continue
        if watch is not None:
            watch.check("the next checkpoint")
            # A chief that trains alone has no server, and says something.
            silent = not (rendezvous.answered or watch.seen)
            if silent and calls is not None and calls.due and (line := calls.look_for_missing()):
                logger.warning("%s", line)
        if time.monotonic() - news > checkpoint_timeout:
            last = queue.last_step
            raise WaitError(
                f"{rendezvous.tf_config.task} saw no new checkpoint for {checkpoint_timeout:.0f} s",
                found=f"none in {model_dir}" if not last else f"latest in {model_dir}: step {last}",
                hint="see the chief's log; where checkpoints are farther apart, raise checkpoint_timeout",
            )
        time.sleep(POLL_SECS)


class _Queue:
    """The checkpoints of a run in progress that wait for their evaluation, oldest first.

    Says so where checkpoints were deleted (RunConfig's keep_checkpoint_max) before their turn came.
    """

    def __init__(self, evaluator: CheckpointEvaluator, rendezvous: Rendezvous, model_dir: str) -> None:
        self._evaluator = evaluator
        self._rendezvous = rendezvous
        self._model_dir = model_dir
        self._pending: list[str] = []
        self._seen: set[int] = set()
        self._begun = False
        self.last_step: int | None = None

    def _begin(self) -> None:
        said = self._rendezvous.training() or {}
        steps = [checkpoint_step(path) for path in checkpoints(self._model_dir)]
        # Of what an earlier run left, only its last checkpoint is worth an evaluation. Without the chief's word
        # this run has not written any yet.
        first: int | None = said.get("from_step", steps[-1] if steps else None)
        self._seen = {step for step in steps if first is not None and step < first}
        self.last_step = said.get("from_step", max(self._seen, default=None))
        self._begun = True

    def pending(self) -> list[str]:
        """The paths that wait now."""
        if not self._begun:
            if self._rendezvous.is_unanswered():
                # Only the chief's word tells an earlier run's checkpoints from those that it has written by now.
                return []
            self._begin()
        known = {checkpoint_step(path) for path in self._pending}
        found = {checkpoint_step(path): path for path in checkpoints(self._model_dir)}
        self._pending = [path for step, path in found.items() if step not in self._seen]
        if not self._evaluator.newest_only:
            self._tell_of_lost(sorted(known - set(found)))
        return self._pending

    def take(self) -> str:
        """The path whose turn it is."""
        path = self._pending[-1 if self._evaluator.newest_only else 0]
        step = checkpoint_step(path)
        if not self._evaluator.newest_only:
            self._tell_of_gap(step)
        self._seen.update(checkpoint_step(p) for p in self._pending if checkpoint_step(p) <= step)
        self.last_step = step
        self._pending = [p for p in self._pending if checkpoint_step(p) > step]
        return path

    def _tell_of_lost(self, steps: list[int]) -> None:
        if steps:
            self._seen.update(steps)
            self.last_step = steps[-1]
            logger.warning("The checkpoints of steps %s were deleted before their evaluation; %s", steps, _HINT)

    def _tell_of_gap(self, step: int) -> None:
        """Of checkpoints that came and went during one evaluation, only the steps without one tell."""
        every = self._evaluator.checkpoint_steps
        if every and self.last_step is not None and step - self.last_step >= 2 * every:
            logger.warning(
                "There is no checkpoint between steps %d and %d, though one is written every %d steps: they were "
                "deleted before their evaluation; %s",
                *(self.last_step, step, every, _HINT),
            )


_HINT = (
    "evaluation is slower than training. Raise keep_checkpoint_max to keep them until then, or write fewer "
    "(save_checkpoints_steps)"
)


def _evaluate_if_there(evaluator: CheckpointEvaluator, path: str) -> None:
    """Evaluates a checkpoint that the chief may be deleting at this moment (keep_checkpoint_max)."""
    tf = compat.tensorflow()
    try:
        evaluator.evaluate(path, final=False)
    except (tf.errors.NotFoundError, tf.errors.DataLossError, ValueError):
        if tf.io.gfile.exists(path + ".index"):
            raise
        logger.warning("%s was deleted before its evaluation; %s", path, _HINT)
