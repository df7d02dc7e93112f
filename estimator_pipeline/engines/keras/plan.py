"""What a job is for Keras."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from estimator_pipeline.engines.keras.backup import Backup
from estimator_pipeline.engines.keras.serving import KerasServing

__all__ = ["KerasPlan"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class KerasPlan:
    """What a job is for Keras.

    Attributes:
        build_model: makes the compiled model; called in the scope of the strategy that trains or evaluates.
        train_input_fn: `train_input_fn(input_context)` -> a `tf.data.Dataset` of one worker's batches, each of one
            replica's size.
        eval_spec: a `tf.estimator.EvalSpec`: input, steps, delays, exporters.
        serving: what the exporters get.
        model_dir: shared by all tasks.
        max_steps: the global step to stop at; None: until the data end.
        strategy: the training strategy of a training task.
        eval_strategy: the strategy of an evaluation in this process alone.
        epoch_steps: steps from one checkpoint to the next, which is Keras's epoch; None: one epoch for all.
        save_checkpoints_secs: seconds from one checkpoint to the next instead, for a process by itself.
        keep_checkpoint_max: how many checkpoints are kept; None or 0: all.
        keep_checkpoint_every_n_hours: one in so many hours is kept besides.
        summary_steps: steps between the chief's TensorBoard summaries; None: no summaries.
        histograms: what they have beside the scalars, see :mod:`estimator_pipeline.models.histograms`.
        log_steps: steps between two lines of the chief's log.
        completed: from what Keras has evaluated the metrics that are reported.
        weighted: from a dataset of (features, labels), of training or evaluation, the one that Keras reads: labels in
            numbers, with weights, where there are any.
        callbacks: makes further callbacks for `Model.fit`, for a task that trains.
        backup: of a run that may be killed between two checkpoints; needs `epoch_steps`.
        watched: whether these read the loss of every step, as that of all workers.
        seed: of Keras, NumPy, Python and TensorFlow.
        ledger: the folder in which each task writes down the records that it consumes.
        steps_per_execution: train steps in a call of the compiled function at most, or "auto".
    """

    build_model: Callable[[], Any]
    train_input_fn: Callable[..., Any]
    eval_spec: Any
    serving: KerasServing
    model_dir: str
    max_steps: int | None
    strategy: Any = None
    eval_strategy: Any = None
    epoch_steps: int | None = None
    save_checkpoints_secs: float | None = None
    keep_checkpoint_max: int | None = 5
    keep_checkpoint_every_n_hours: float | None = None
    summary_steps: int | None = 100
    histograms: tuple[str, ...] = ()
    log_steps: int | None = 100
    completed: Callable[[Mapping[str, float]], dict[str, float]] = dict
    weighted: Callable[[Any], Any] = lambda dataset: dataset
    callbacks: Callable[[], Sequence[Any]] = tuple
    backup: Backup | None = None
    watched: bool = False
    seed: int | None = None
    ledger: str | None = None
    steps_per_execution: int | str = 1
