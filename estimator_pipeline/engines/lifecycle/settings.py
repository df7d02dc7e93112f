"""What every engine lets its caller say, and what its training gives back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from estimator_pipeline.cluster.peers import start_secs
from estimator_pipeline.engines.model_dir.run_identity import RunIdentity

__all__ = ["TrainOptions", "TrainingOutcome"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingOutcome:
    """What this task's training came to: steps that it ran, and whether its data came to their end."""

    steps: int
    data_ended: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What every engine lets its caller say.

    Attributes:
        evaluator: whether the job has an evaluator task. None: it has one if the launcher or TF_CONFIG says so,
            or, where neither says anything, if one has greeted by the time training ends.
        evaluate_during_training: whether the chief evaluates each checkpoint. None: a single process and a `master`
            do, a chief does not.
        result_timeout: seconds that a task waits for the result once training has ended.
        checkpoint_timeout: seconds without a new checkpoint after which the evaluator gives up.
        startup_timeout: seconds that a task waits for the others to appear; by default what the environment variable
            ESTIMATOR_PIPELINE_START_SECS says, or 1800.
        identity: what this run is made of; None: what its seed and its input function tell.
        shared: what every task of a job file must have in common
            (:mod:`~estimator_pipeline.engines.lifecycle.rendezvous.same_job`), as far as it is known without a look at
            the data;
            None: this is a program's, whose tasks may differ.
        accept_changes: whether a run may go on from the checkpoint of a run that was made of other things.
        preemption_signals: names of the signals that ask a task to end with a checkpoint. None: what the environment
            variable ESTIMATOR_PIPELINE_PREEMPTION_SIGNALS says, or SIGTERM.
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
