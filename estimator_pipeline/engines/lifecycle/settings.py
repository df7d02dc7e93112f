"""Options common to all engines, and the outcome of a training."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from estimator_pipeline.cluster.peers import start_secs
from estimator_pipeline.engines.model_dir.run_identity import RunIdentity

__all__ = ["TrainOptions", "TrainingOutcome"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingOutcome:
    """The outcome of this task's training: the steps that it ran, and whether its data ended."""

    steps: int
    data_ended: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Options common to all engines.

    Attributes:
        evaluator: Whether the job has an evaluator task. None: as set by the launcher or TF_CONFIG; if neither does, an
            evaluator that has connected by the end of training is used.
        evaluate_during_training: Whether the chief evaluates each checkpoint during training. None: a single process
            and a `master` do, a chief does not.
        result_timeout: Seconds that a task waits for the result after the end of training.
        checkpoint_timeout: Seconds without a new checkpoint after which the evaluator gives up.
        startup_timeout: Seconds that a task waits for the other tasks to start; by default the environment variable
            ESTIMATOR_PIPELINE_START_SECS, or 1800.
        identity: Returns the run identity; None: the seed and the description of the input function.
        shared: Settings of a job file that all tasks must share, without reading the data
            (`same_job`). None: a program, whose tasks may differ.
        accept_changes: Whether the run may resume from a checkpoint of a run with a different identity.
        preemption_signals: Names of the signals that stop a task with a checkpoint. None: the environment variable
            ESTIMATOR_PIPELINE_PREEMPTION_SIGNALS, or SIGTERM.
    """

    evaluator: bool | None = None
    evaluate_during_training: bool | None = None
    result_timeout: float = 1800.0
    checkpoint_timeout: float = 7200.0
    startup_timeout: float = dataclasses.field(default_factory=start_secs)
    identity: Callable[[], RunIdentity] | None = None
    shared: Mapping[str, Any] | None = None
    accept_changes: bool = False
    preemption_signals: Sequence[str] | None = None
