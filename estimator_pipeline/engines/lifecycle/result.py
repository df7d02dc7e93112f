"""What a finished job gives back, the same on every task of the cluster."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

# Why training ended.
REACHED = "max_steps reached"
DATA_ENDED = "data ended"
STOPPED = "stopped"  # a hook asked for it: early stopping, a time limit


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    """One checkpoint's evaluation. `metrics` holds plain floats (and lists, for metrics that are arrays)."""

    global_step: int
    metrics: Mapping[str, Any]
    checkpoint: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskReport:
    """What one training task did.

    Attributes:
        steps: training steps that this task itself ran in this run.
        records: records that it read for them; None where the input's batch size is not known.
    """

    steps: int
    records: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainResult:
    """The result of a job. Equal on every task: `task` is left out of the comparison.

    Attributes:
        global_step: the step of the final checkpoint.
        metrics: the final checkpoint's evaluation: name -> value, `loss` and `global_step` among them.
        checkpoint: path of the final checkpoint.
        exports: paths of the SavedModels that the exporters wrote, in order.
        exporters: exporter's name -> the last of these paths that is its own.
        ended: why training ended: "max_steps reached", "data ended" or "stopped".
        evaluations: every evaluation of this run, in order of the step.
        tasks: training task ("worker:1") -> what it did.
        evaluated_by: the task that evaluated ("evaluator:0", "chief:0", …).
        model_dir: where all of it lies.
        task: the task that this object was given to.
    """

    global_step: int
    metrics: Mapping[str, Any]
    checkpoint: str | None
    exports: tuple[str, ...] = ()
    exporters: Mapping[str, str] = dataclasses.field(default_factory=dict)
    ended: str = REACHED
    evaluations: tuple[EvaluationResult, ...] = ()
    tasks: Mapping[str, TaskReport] = dataclasses.field(default_factory=dict)
    evaluated_by: str = ""
    model_dir: str = ""
    task: str = dataclasses.field(default="", compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for `json.dumps`. `task` is left out: the rest is every task's."""
        plain = dataclasses.asdict(self)
        del plain["task"]
        plain["exports"] = list(self.exports)
        plain["evaluations"] = [dataclasses.asdict(e) for e in self.evaluations]
        return plain

    def told(self) -> dict[str, Any]:
        """What the launcher is told of it: the fields of the event `result`."""
        return {
            "status": self.ended,
            "global_step": self.global_step,
            "metrics": dict(self.metrics),
            "exports": list(self.exports),
            "tasks": self.to_dict()["tasks"],
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any], task: str = "") -> TrainResult:
        values = dict(plain)
        values["exports"] = tuple(values["exports"])
        values["evaluations"] = tuple(EvaluationResult(**e) for e in values["evaluations"])
        values["tasks"] = {name: TaskReport(**report) for name, report in values["tasks"].items()}
        return cls(**values, task=task)

    def __str__(self) -> str:
        numbers = ", ".join(f"{k} {v:.6g}" for k, v in self.metrics.items() if isinstance(v, float))
        lines = [f"step {self.global_step} ({self.ended}): {numbers or 'no metrics'}"]
        if self.evaluated_by:
            lines.append(f"evaluated by {self.evaluated_by}, {len(self.evaluations)} checkpoints in all")
        for name, report in self.tasks.items():
            records = "" if report.records is None else f", {report.records} records"
            lines.append(f"{name}: {report.steps} steps{records}")
        lines += [f"export: {path}" for path in self.exports]
        lines.append(f"model_dir: {self.model_dir}")
        return "\n".join(lines)


def plain_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics as JSON can hold them without loss: numpy scalars as Python numbers, arrays as lists, bytes as text."""
    return {name: _plain(value) for name, value in metrics.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return value


def dumps(document: Mapping[str, Any]) -> str:
    """JSON text, keys in order. NaN and infinities are written as Python's json does and read back by it."""
    return json.dumps(document, indent=1, sort_keys=True)


def records_of(input_fn: Any, strategy: Any, steps: int) -> int | None:
    """The records that this task has read for its steps; None: its input function does not say how large a batch is."""
    batch = getattr(input_fn, "global_batch_size", None)
    if batch is None:
        return None
    if strategy is None or strategy.num_replicas_in_sync <= 1:
        return int(steps * batch)
    own = len(strategy.extended.worker_devices)
    return int(steps * batch * own // strategy.num_replicas_in_sync)
