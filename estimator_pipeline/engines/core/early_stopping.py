"""Early stopping: training ends when a metric of the evaluations no longer improves, and the best checkpoint is kept.

The task that evaluates records the metrics of each step in the model directory. The decision is a function of these
records, so it survives a restart of any task, and a job that has stopped and is started again stops at once. The chief
reads the decision and stops all tasks after one step, as a stop request does (`stopping/synchronized_stop.py`).

=============================================== ==============================================================
below the model directory                       content
=============================================== ==============================================================
`estimator_pipeline/evaluations/TASK.json`      step -> metrics, and the session of the chief; one writer
`best_checkpoint/`                              the best checkpoint so far, which `keep_checkpoint_max` does not delete
=============================================== ==============================================================
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.engines.core.context import TaskContext
from estimator_pipeline.engines.model_dir.checkpoints import files_of
from estimator_pipeline.engines.model_dir.disk_errors import read_whole, write_whole
from estimator_pipeline.engines.model_dir.layout import BEST_CHECKPOINT, DIRECTORY
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job.sections.training import EarlyStoppingSection
from estimator_pipeline.utils.logger import logger
from estimator_pipeline.utils.text import counted, nearest

__all__ = ["EarlyStopping", "Verdict", "judge"]

_RECORDS = "evaluations"
# Interval in which the chief looks for the decision of an evaluator task.
_LOOK_SECS = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """What follows from the evaluations so far.

    Attributes:
        best_step: The step with the best metric, the first of equal ones; None: there is no number yet.
        reason: Why training stops; "" if it does not.
    """

    best_step: int | None = None
    reason: str = ""


def judge(evaluations: Mapping[int, float], section: EarlyStoppingSection) -> Verdict:
    """Decide whether training stops.

    Later evaluations, such as that of the last checkpoint, do not change a decision to stop.

    Args:
        evaluations: Global step -> value of the metric.
        section: The criterion.
    """
    sign = -1.0 if section.direction == "max" else 1.0
    best, best_step = math.inf, None
    # A sequence of small improvements counts as one when it exceeds min_delta, as in Keras' EarlyStopping.
    reference, without, reason = math.inf, 0, ""
    for step, value in sorted(evaluations.items()):
        current = math.inf if math.isnan(value) else sign * value
        if current < best:
            best, best_step = current, step
        without += 1
        if current < reference - section.min_delta:
            reference, without = current, 0
        if not reason and without >= section.patience and step >= section.min_steps:
            reason = f"{section.metric} has not improved for {counted(without, 'evaluation')}"
    return Verdict(best_step=best_step, reason=reason)


class EarlyStopping:
    """Early stopping of a job, in the task that evaluates and in the chief.

    Args:
        context: The task.
        section: The criterion.
    """

    def __init__(self, context: TaskContext, section: EarlyStoppingSection) -> None:
        self._section, self._rendezvous = section, context.rendezvous
        self._folder = os.path.join(context.model_dir, DIRECTORY, _RECORDS)
        self._best = os.path.join(context.model_dir, BEST_CHECKPOINT)
        self._file = os.path.join(self._folder, f"{str(context.task).replace(':', '-')}.json")
        self._stop: Callable[[], None] = lambda: None

    # -- records --------------------------------------------------------------------------------------------------

    def evaluations(self, *, from_step: int | None = None) -> dict[int, dict[str, Any]]:
        """Return the recorded evaluations of this training: step -> metrics.

        An earlier session may have evaluated later steps than the one from which training resumes: these are left out.

        Args:
            from_step: The step from which training resumes; None: as the chief has published.
        """
        if from_step is None:
            from_step = int((self._rendezvous.training() or {}).get("from_step", 0))
        gfile = compat.tensorflow().io.gfile
        names = sorted(gfile.listdir(self._folder)) if gfile.isdir(self._folder) else []
        entries: dict[int, dict[str, Any]] = {}
        for name in names:
            for step, entry in _read(os.path.join(self._folder, name)).items():
                if entry["session"] == self._rendezvous.session or int(step) <= from_step:
                    entries[int(step)] = entry["metrics"]
        return entries

    def verdict(self, *, from_step: int | None = None) -> Verdict:
        """Return what follows from the recorded evaluations; see `evaluations`."""
        name = self._section.metric
        values = {step: float(metrics[name]) for step, metrics in self.evaluations(from_step=from_step).items()
                  if name in metrics}  # fmt: skip
        return judge(values, self._section)

    def record(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Record an evaluation, keep its checkpoint if it is the best, and stop training if that is decided.

        Raises:
            ConfigError: The evaluation does not have the metric.
        """
        name = self._section.metric
        if not isinstance(metrics.get(name), int | float):
            others = [other for other, value in metrics.items() if isinstance(value, int | float)]
            close = nearest(name, others)
            raise ConfigError(
                f"eval.early_stopping.metric is {name!r}, and the evaluation of step {step} has no such number",
                code="argument/unknown-name",
                found=f"metrics: {', '.join(others)}",
                hint=f"did you mean {close!r}?" if close else "name one of these",
            )
        numbers = {key: value for key, value in metrics.items() if isinstance(value, int | float)}
        records = _read(self._file)
        records[str(step)] = {"session": self._rendezvous.session, "metrics": numbers}
        compat.tensorflow().io.gfile.makedirs(self._folder)
        write_whole(self._file, json.dumps(records))
        verdict = self.verdict()
        self._keep(verdict.best_step)
        if verdict.reason:
            self._stop()

    # -- the best checkpoint --------------------------------------------------------------------------------------

    def hold(self, checkpoint: str) -> str:
        """Copy a checkpoint that is about to be evaluated: the chief may delete it before the result is known.

        Returns:
            The path of the copy; of the checkpoint itself if it was deleted meanwhile.
        """
        gfile = compat.tensorflow().io.gfile
        gfile.makedirs(self._best)
        try:
            for path in files_of(checkpoint):
                to = os.path.join(self._best, os.path.basename(path))
                if gfile.exists(to):
                    gfile.remove(to)
                _copy(path, to)
        except (FileNotFoundError, compat.tensorflow().errors.NotFoundError):
            return checkpoint
        held = os.path.join(self._best, os.path.basename(checkpoint))
        return held if gfile.exists(f"{held}.index") else checkpoint

    def _keep(self, best_step: int | None) -> None:
        """Remove all checkpoints from the folder except that of the best step."""
        tf = compat.tensorflow()
        best = self.checkpoint_of(best_step)
        if best is None:
            return
        name = os.path.basename(best)
        state = f'model_checkpoint_path: "{name}"\nall_model_checkpoint_paths: "{name}"\n'
        write_whole(os.path.join(self._best, "checkpoint"), state)
        kept = {"checkpoint", *map(os.path.basename, files_of(best))}
        for other in tf.io.gfile.listdir(self._best):
            if other not in kept:
                tf.io.gfile.remove(os.path.join(self._best, other))

    def checkpoint_of(self, step: int | None) -> str | None:
        """Return the path of the kept checkpoint of a step; None if it does not exist."""
        gfile = compat.tensorflow().io.gfile
        names = gfile.listdir(self._best) if gfile.isdir(self._best) else []
        indexes = [name for name in names if name.endswith(f"-{step}.index")]
        return os.path.join(self._best, indexes[0].removesuffix(".index")) if indexes else None

    def best(self) -> tuple[int, str, dict[str, Any]] | None:
        """Return step, checkpoint and metrics of the best evaluation; None, with a warning, if it was not kept."""
        step = self.verdict().best_step
        checkpoint = self.checkpoint_of(step)
        if step is None or checkpoint is None:
            logger.warning("There is no checkpoint of the best step in %s: the result is the last step's", self._best)
            return None
        return step, checkpoint, self.evaluations()[step]

    # -- the chief ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def watching(self, stop: Callable[[], None], *, elsewhere: bool) -> Iterator[None]:
        """Call `stop` when the decision is made, within the block.

        Args:
            stop: Stops training on all tasks.
            elsewhere: Whether a different task evaluates, whose records are then looked for.
        """
        over = threading.Event()

        def look() -> None:
            while not over.wait(_LOOK_SECS):
                with contextlib.suppress(OSError, compat.tensorflow().errors.OpError):
                    if self.verdict().reason:
                        stop()
                        return

        self._stop = stop
        thread = threading.Thread(target=look, name="estimator_pipeline-early-stopping", daemon=True)
        if elsewhere:
            thread.start()
        try:
            yield
        finally:
            over.set()
            self._stop = lambda: None
            if elsewhere:
                thread.join(_LOOK_SECS)


def _copy(path: str, to: str) -> None:
    """Copy a file, by a hard link where the file system has them."""
    try:
        os.link(path, to)
    except FileNotFoundError:
        raise
    except OSError:
        compat.tensorflow().io.gfile.copy(path, to, overwrite=True)


def _read(path: str) -> dict[str, Any]:
    """Return the records in a file: step as text -> session and metrics; empty if it does not exist."""
    try:
        records = json.loads(read_whole(path) or "{}")
    except ValueError:
        return {}
    return records if isinstance(records, dict) else {}
