"""Metrics of a launch in Prometheus's text format, for node_exporter.

https://prometheus.io/docs/instrumenting/exposition_formats/: a metric family has HELP and TYPE lines and escaped
labels. Samples have no timestamps, which the collector rejects. The label is `job_name`, the file name without its
suffix: `job` is the label of the scrape target, and the collector rejects all files if two have the same sample.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.launch.local.outcome import LaunchOutcome
from estimator_pipeline.launch.local.plan import LaunchPlan
from estimator_pipeline.launch.local.view import ForwardingView, View
from estimator_pipeline.progress.progress_file import TaskState
from estimator_pipeline.utils import durable_files as durable

__all__ = ["MetricsView", "exposition"]

_EVERY_SECS = 5.0
_PREFIX = "estimator_pipeline"
_PROGRESS = ("step", "evaluation", "checkpoint", "export", "result")
_ENDED_BY_ERROR = "error"

Samples = Sequence[tuple[Mapping[str, str], float]]


def _runs(state: TaskState) -> bool:
    return state.state in ("running", "ending")


def _number(value: Any) -> float | None:
    """Return a metric as a number; events have NaN and infinities as strings."""
    if isinstance(value, int | float):
        return value
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else None


def _sample(value: float | None, **labels: str) -> Samples:
    return [] if value is None else [(labels, value)]


def _evaluation(state: TaskState) -> Samples:
    metrics = {} if state.evaluation is None else state.evaluation["metrics"]
    named = sorted((name, value) for name, value in metrics.items() if name != "global_step")
    return [sample for name, value in named for sample in _sample(_number(value), metric=name)]


# Each family of the tasks: the text of HELP, and the samples of a task.
_OF_TASKS: Mapping[str, tuple[str, Callable[[TaskState], Samples]]] = {
    "task_running": ("Whether the task's process runs.", lambda state: _sample(float(_runs(state)))),
    "global_step": ("The last global step that the task reported.", lambda state: _sample(state.step)),
    "max_steps": ("The global step at which training ends.", lambda state: _sample(state.max_steps)),
    "steps_per_second": (
        "Global steps per second, while the task runs.",
        lambda state: _sample(state.steps_per_sec if _runs(state) else None),
    ),
    "loss": ("The last loss that the task reported.", lambda state: _sample(state.loss)),
    "checkpoint_step": (
        "The step of the last checkpoint that the task wrote.",
        lambda state: _sample(state.checkpoint),
    ),
    "evaluation_step": (
        "The step of the checkpoint that was evaluated last.",
        lambda state: _sample(None if state.evaluation is None else _number(state.evaluation["step"])),
    ),
    "evaluation_metric": ("The metrics of the last evaluation.", _evaluation),
}


class MetricsView(ForwardingView):
    """View that writes a metrics file and forwards everything to another view.

    The file is replaced as a whole: after the start, every five seconds, and at each end. If it cannot be written
    later, the view logs one warning and the launch continues.

    Args:
        inner: The view to forward to; None for none.
        path: The file. The collector reads names that end with ".prom".
        every: Seconds between two writes.
        clock: Returns seconds since any start; for tests.

    Raises:
        ConfigError: The file cannot be written.
    """

    def __init__(
        self,
        inner: View | None,
        path: Path,
        *,
        every: float = _EVERY_SECS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(inner)
        self._path, self._every, self._clock = path, every, clock
        self._states: Sequence[TaskState] = ()
        self._progress: dict[str, float] = {}
        self._attempts = 0
        self._began = time.time()
        self._reason: str | None = None
        self._written = -math.inf
        self._noted = False
        error = self._write()
        if error is not None:
            raise ConfigError(
                f"--metrics {path}: the file cannot be written.",
                code="file/unwritable",
                found=error.strerror or str(error),
                hint="name a file in a folder that is there and can be written to.",
            )

    def start(self, plan: LaunchPlan, states: Sequence[TaskState]) -> None:
        self._states = states
        self._attempts += 1
        super().start(plan, states)
        self._update()

    def event(self, state: TaskState, event: Mapping[str, Any]) -> None:
        at = event.get("time")
        if event["event"] in _PROGRESS:
            self._progress[state.task] = float(at) if isinstance(at, int | float) else time.time()
        super().event(state, event)

    def refresh(self) -> None:
        super().refresh()
        if self._clock() - self._written >= self._every:
            self._update()

    def finish(self, outcome: LaunchOutcome) -> None:
        self._reason = outcome.reason
        self._update()
        super().finish(outcome)

    def close(self) -> None:
        # Also between two attempts, when `refresh` is not called.
        self._update()
        super().close()

    def __exit__(self, *exception: object) -> None:
        if self._reason is None:
            self._reason = _ENDED_BY_ERROR
        super().__exit__(*exception)

    def text(self) -> str:
        """Return the current content of the file."""
        families: list[tuple[str, str, str, Samples]] = []
        for name, (text, of) in _OF_TASKS.items():
            samples = [({"task": state.task, **labels}, n) for state in self._states for labels, n in of(state)]
            families.append((name, "gauge", text, samples))
        progress = [({"task": task}, at) for task, at in self._progress.items()]
        ended: Samples = [] if self._reason is None else [({"reason": self._reason}, 1.0)]
        families += [
            (
                "last_progress_timestamp_seconds",
                "gauge",
                "When the task last reported a step, a checkpoint, an evaluation, an export or its result.",
                progress,
            ),
            ("start_time_seconds", "gauge", "When the launch began.", [({}, self._began)]),
            ("restarts_total", "counter", "How often the job was started again.", [({}, max(0, self._attempts - 1))]),
            ("job_running", "gauge", "Whether the launch is still running.", [({}, float(self._reason is None))]),
            ("job_ended", "gauge", "How the launch has ended.", ended),
        ]
        job = {"job_name": self._path.stem}
        return "".join(
            exposition(f"{_PREFIX}_{name}", kind, text, [({**job, **labels}, value) for labels, value in samples])
            for name, kind, text, samples in families
        )

    def _update(self) -> None:
        error = self._write()
        if error is not None and not self._noted:
            self._noted = True
            self.note(f"warning: {self._path} could not be written ({error.strerror or error}); the job continues")

    def _write(self) -> OSError | None:
        """Write the file atomically; return the error if that fails."""
        self._written = self._clock()
        # The temporary file is hidden and lacks the suffix that the collector selects by.
        try:
            durable.write(self._path, self.text().encode(errors="replace"), to_disk=False)
        except OSError as error:
            return error
        return None


def exposition(name: str, kind: str, text: str, samples: Samples) -> str:
    """Format a metric family with its labelled samples; "" if it has none. The name has its prefix and unit."""
    if not samples:
        return ""
    lines = [f"# HELP {name} {_escaped(text)}", f"# TYPE {name} {kind}"]
    for labels, value in samples:
        inner = ",".join(f'{key}="{_escaped(label, quotes=True)}"' for key, label in labels.items())
        lines.append(f"{name}{{{inner}}} {_value(value)}")
    return "\n".join(lines) + "\n"


def _escaped(text: str, *, quotes: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text


def _value(value: float) -> str:
    if isinstance(value, int):
        return str(int(value))
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
