"""What an engine provides: training, evaluation and parameter servers on one library. `roles.py` does the rest.

An engine is a frozen object with the job's model and data. To add one, write a class with the three methods of
`Backend` in a folder of `engines/`; `tests/engines/test_result_exchange.py` runs the roles with a small one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from estimator_pipeline.engines.core.context import TaskContext
from estimator_pipeline.engines.core.stopping.synchronized_stop import SingleProcessStop

__all__ = ["Backend", "Evaluation", "TrainingOutcome"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingOutcome:
    """The outcome of this task's training.

    Attributes:
        steps: The steps that this task ran.
        data_ended: Whether its data ended.
        conclude: Called on the chief when all training tasks have reported their steps.
    """

    steps: int
    data_ended: bool
    conclude: Callable[[], None] = lambda: None


class Evaluation(Protocol):
    """Evaluates checkpoints of one engine in this process.

    Attributes:
        exported: The `estimator` argument of exporters; has `model_dir` and `export_saved_model`.
    """

    @property
    def exported(self) -> Any: ...

    def metrics_of(self, checkpoint: str) -> Mapping[str, Any] | None:
        """Evaluate a checkpoint, and return name -> value, including `loss` and `global_step`.

        None if a user-defined `evaluate` returns nothing.
        """

    def summarize(self, metrics: Mapping[str, Any], step: int) -> None:
        """Write the metrics of a checkpoint for TensorBoard, unless `metrics_of` has."""

    def write_final(self, checkpoint: str) -> Sequence[str]:
        """Write the files of the final checkpoint that no exporter writes, and return their paths."""

    def close(self) -> None:
        """Release what is kept between evaluations. A later evaluation creates it again."""


class Backend(Protocol):
    """An engine with a job's model and data."""

    def train(self, context: TaskContext, stop: SingleProcessStop) -> TrainingOutcome:
        """Train to the end of this task's training, and write checkpoints.

        Args:
            context: This task. Training starts at `context.start_step` with `context.input_fn`, and each checkpoint
                that the chief writes goes through `context.after_checkpoint`.
            stop: `stop.after_step` is called after every step; training ends with a checkpoint when it returns True.
        """

    def evaluator(self, context: TaskContext) -> Evaluation:
        """Return the evaluation of checkpoints in this process."""

    def server(self, context: TaskContext) -> Any:
        """Start the server of a parameter server; it runs as long as the returned object exists.

        Raises:
            ConfigError: The engine has no parameter servers.
        """
