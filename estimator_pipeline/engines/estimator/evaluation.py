"""Evaluation of an Estimator's checkpoints; `engines/core/evaluation.py` has the part shared by all engines."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.compat.internals import distribute_coordinator as coordinator
from estimator_pipeline.compat.internals.cached_evaluation import RepeatedEvaluation, batch_counter
from estimator_pipeline.compat.internals.data_end.even_batches import UNEVEN, even_batches
from estimator_pipeline.distribute.strategies import of_this_process
from estimator_pipeline.engines.model_dir.layout import checkpoint_step
from estimator_pipeline.errors import InputError
from estimator_pipeline.inputs.input_fn import InputFn
from estimator_pipeline.inputs.wrapping import wrap_input_fn
from estimator_pipeline.progress.progress_file import ProgressWriter
from estimator_pipeline.progress.stages import LongStep, reporter_of
from estimator_pipeline.utils.logger import logger

__all__ = ["EstimatorEvaluation", "in_even_batches"]


class EstimatorEvaluation:
    """Evaluates the checkpoints of an Estimator in this process; see `Evaluation`.

    Args:
        estimator: The program's Estimator.
        eval_spec: A `tf.estimator.EvalSpec`.
        progress: Receives an event every second while an evaluation runs.
        keep: Whether to keep graph and session between evaluations, if that does not change results
            (docs/guides/evaluation.md). `input_fn` and `model_fn` are then called once, not for each evaluation.
        needs_data: Whether an evaluation without any batch is an error instead of a warning.
    """

    def __init__(
        self, estimator: Any, eval_spec: Any, *, progress: ProgressWriter, keep: bool = True, needs_data: bool = True
    ) -> None:
        self._spec, self._progress, self._needs_data, self._due = eval_spec, progress, needs_data, 0.0
        self._step: LongStep | None = None
        local = of_this_process(estimator._config.eval_distribute)
        self._estimator = coordinator.bind_to_task(estimator, eval_strategy=local)
        strategy = self._estimator._eval_distribution
        self._replicas = 1 if strategy is None else len(strategy.extended.worker_devices)
        self._input_fn = in_even_batches(eval_spec.input_fn, self._replicas)
        self._kept: RepeatedEvaluation | None = None
        if keep:
            spec = eval_spec
            self._kept = RepeatedEvaluation(
                self._estimator,
                self._input_fn,
                steps=spec.steps,
                hooks=spec.hooks,
                name=spec.name,
                # The Python functions of this package's inputs read records by number: they are stateless.
                input_restarts=isinstance(spec.input_fn, InputFn),
                on_batch=self._on_batch,
            )

    @property
    def exported(self) -> Any:
        return self._estimator

    def _on_batch(self, batches: int) -> None:
        """Report that the evaluation has begun, or evaluated a further batch: once a second."""
        now = time.monotonic()
        if self._step is not None:
            self._step.done(batches, noun="batches")
        if not batches or now >= self._due:
            self._due = now + 1.0
            self._progress.emit("evaluating")

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()

    def summarize(self, metrics: Mapping[str, Any], step: int) -> None:
        pass  # tf.estimator writes the metrics of each evaluation

    def write_final(self, checkpoint: str) -> Sequence[str]:
        return ()

    def metrics_of(self, checkpoint: str) -> Mapping[str, Any]:
        try:
            metrics, batches = self._metrics_of(checkpoint)
        except compat.tensorflow().errors.InvalidArgumentError as error:
            if UNEVEN not in str(error):
                raise
            raise InputError(
                f"the evaluation of {checkpoint} could not distribute its batches to the replicas",
                code="training/evaluation-failed",
                found="a number of batches that the replicas cannot share, with batches of one size "
                "(drop_remainder=True), or with fewer records than replicas",
                hint="use a number of batches that the replicas can share, leave drop_remainder out, use larger "
                "batches, or set eval_distribute to none",
            ) from error
        if not batches:
            # Without data all metrics are 0.0: a loss that no model reaches again.
            message = f"the evaluation of {checkpoint} had not a single batch, and its metrics are meaningless"
            if self._needs_data:
                raise InputError(
                    message,
                    code="training/evaluation-failed",
                    found="an input that ended at once",
                    hint="check what EvalSpec.input_fn reads: its files, a filter, drop_remainder with fewer records "
                    "than a batch, a generator that was used up before",
                )
            logger.warning("%s", message)
        return metrics

    def _metrics_of(self, checkpoint: str) -> tuple[Mapping[str, Any], int]:
        """Return the metrics and the number of batches."""
        total = self._spec.steps
        if isinstance(self._spec.input_fn, InputFn):
            steps = self._spec.input_fn.eval_steps(self._replicas)
            total = steps if total is None else min(steps, total)
        if total is not None:
            text = f"evaluating step {checkpoint_step(checkpoint)}"
            self._step = LongStep(text, total, reporter_of(self._progress), first=False)
        if self._kept is not None:
            return self._kept.evaluate(checkpoint), self._kept.batches
        counter = batch_counter(self._on_batch)
        metrics: Mapping[str, Any] = self._estimator.evaluate(
            input_fn=self._input_fn,
            steps=self._spec.steps,
            hooks=[*self._spec.hooks, counter],
            checkpoint_path=checkpoint,
            name=self._spec.name,
        )
        return metrics, counter.batches


def in_even_batches(input_fn: Callable[..., Any], replicas: int) -> Callable[..., Any]:
    """Return an input function whose dataset has an equal number of batches per replica.

    Args:
        input_fn: Input function of an evaluation in one process. Those of this package are unchanged, and so are those
            that return no dataset.
        replicas: Number of replicas of this process.
    """
    if replicas < 2 or isinstance(input_fn, InputFn):
        return input_fn

    def evened(input_fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        data = input_fn(*args, **kwargs)
        tf: Any = compat.tensorflow()
        return even_batches(data, replicas) if isinstance(data, tf.data.Dataset | tf.compat.v1.data.Dataset) else data

    return wrap_input_fn(input_fn, evened)
