"""The result of a finished job, the same on every task of the cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

# Why training ended.
REACHED = "max_steps reached"
DATA_ENDED = "data ended"
STOPPED = "stopped"  # by a hook: a time limit, early stopping of tf.estimator
STOPPED_EARLY = "stopped early"  # by eval.early_stopping


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    """One checkpoint's evaluation. `metrics` has plain floats (and lists, for metrics that are arrays)."""

    global_step: int
    metrics: Mapping[str, Any]
    checkpoint: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskReport:
    """The report of one training task.

    Attributes:
        steps: Training steps that this task ran in this run.
        records: Records that it read for them; None if the batch size of the input is unknown.
    """

    steps: int
    records: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainResult:
    """The result of a job. Equal on every task: comparison ignores `task`.

    Attributes:
        global_step: The step of the final checkpoint.
        metrics: The final checkpoint's evaluation: name -> value, including `loss` and `global_step`. With early
            stopping, metrics and checkpoint are those of the best step.
        checkpoint: Path of the final checkpoint.
        exports: Paths of the SavedModels that the exporters wrote, in order.
        exporters: Name of an exporter -> the last of its paths.
        ended: Why training ended: "max_steps reached", "data ended", "stopped early" or "stopped".
        best_step: The step with the best evaluation; None without early stopping.
        reason: Why training was stopped early; "" if it was not.
        evaluations: Every evaluation of this run, in order of the step.
        tasks: Training task ("worker:1") -> its report.
        evaluated_by: The task that evaluated ("evaluator:0", "chief:0", …).
        model_dir: The model directory.
        task: The task that returned this object.
    """

    global_step: int
    metrics: Mapping[str, Any]
    checkpoint: str | None
    exports: tuple[str, ...] = ()
    exporters: Mapping[str, str] = dataclasses.field(default_factory=dict)
    ended: str = REACHED
    best_step: int | None = None
    reason: str = ""
    evaluations: tuple[EvaluationResult, ...] = ()
    tasks: Mapping[str, TaskReport] = dataclasses.field(default_factory=dict)
    evaluated_by: str = ""
    model_dir: str = ""
    task: str = dataclasses.field(default="", compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for `json.dumps`, without `task`: the rest is the same on every task."""
        plain = dataclasses.asdict(self)
        del plain["task"]
        plain["exports"] = list(self.exports)
        plain["evaluations"] = [dataclasses.asdict(e) for e in self.evaluations]
        return plain

    def event_fields(self) -> dict[str, Any]:
        """Return the fields of the launcher's event `result`."""
        return {
            "status": self.ended,
            "global_step": self.global_step,
            **({} if self.best_step is None else {"best_step": self.best_step}),
            **({"reason": self.reason} if self.reason else {}),
            "metrics": dict(self.metrics),
            "exports": list(self.exports),
            "tasks": self.to_dict()["tasks"],
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any], task: str = "") -> TrainResult:
        evaluations = tuple(EvaluationResult(**e) for e in plain["evaluations"])
        tasks = {name: TaskReport(**report) for name, report in plain["tasks"].items()}
        values = {**plain, "exports": tuple(plain["exports"]), "evaluations": evaluations, "tasks": tasks, "task": task}
        return cls(**values)

    def __str__(self) -> str:
        numbers = ", ".join(f"{k} {v:.6g}" for k, v in self.metrics.items() if isinstance(v, float))
        ended = f"step {self.global_step} ({self.ended})"
        if self.best_step is not None:
            ended = f"best step {self.best_step} of {self.global_step} ({self.ended})"
        lines = [f"{ended}: {numbers or 'no metrics'}"]
        if self.reason:
            lines.append(f"stopped early at step {self.global_step}: {self.reason}")
        if self.evaluated_by:
            lines.append(f"evaluated by {self.evaluated_by}, {len(self.evaluations)} checkpoints in all")
        for name, report in self.tasks.items():
            records = "" if report.records is None else f", {report.records} records"
            lines.append(f"{name}: {report.steps} steps{records}")
        lines += [f"export: {path}" for path in self.exports]
        lines.append(f"model_dir: {self.model_dir}")
        return "\n".join(lines)


def plain_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return metrics as JSON values without loss: NumPy scalars as Python numbers, arrays as lists, bytes as text."""

    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray | np.generic):
            return plain(value.tolist())
        if isinstance(value, bytes):
            return value.decode(errors="replace")
        return [plain(v) for v in value] if isinstance(value, list) else value

    return {name: plain(value) for name, value in metrics.items()}
