"""Metrics of a launch in Prometheus's text format, for node_exporter.

https://prometheus.io/docs/instrumenting/exposition_formats/: a metric family has HELP and TYPE lines and escaped
labels. Samples have no timestamps, which the collector rejects. The label is `job_name`, the file name without its
suffix: `job` is the label of the scrape target, and the collector rejects all files if two have the same sample.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.launch.local.outcome import Failure, LaunchOutcome
from estimator_pipeline.launch.local.plan import LaunchPlan
from estimator_pipeline.launch.local.view import SilentView, View
from estimator_pipeline.progress.progress_file import TaskState
from estimator_pipeline.utils import durable_files as durable

__all__ = ["MetricsView", "exposition"]

_EVERY_SECS = 5.0
_PREFIX = "estimator_pipeline"
_PROGRESS = ("step", "evaluation", "checkpoint", "export", "result")
_ENDED_BY_ERROR = "error"

Samples = Sequence[tuple[Mapping[str, str], float]]


class MetricsView(View):
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
        self._inner, self._path = inner or SilentView(), path
        self._every, self._clock = every, clock
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

    # -- View -------------------------------------------------------------------------------------------------------

    def start(self, plan: LaunchPlan, states: Sequence[TaskState]) -> None:
        self._states = states
        self._attempts += 1
        self._inner.start(plan, states)
        self._update()

    def event(self, state: TaskState, event: Mapping[str, Any]) -> None:
        at = event.get("time")
        if event["event"] in _PROGRESS:
            self._progress[state.task] = float(at) if isinstance(at, int | float) else time.time()
        self._inner.event(state, event)

    def ended(self, state: TaskState) -> None:
        self._inner.ended(state)

    def failed(self, reason: str, failure: Failure) -> None:
        self._inner.failed(reason, failure)

    def note(self, text: str) -> None:
        self._inner.note(text)

    def refresh(self) -> None:
        self._inner.refresh()
        if self._clock() - self._written >= self._every:
            self._update()

    def finish(self, outcome: LaunchOutcome) -> None:
        self._reason = outcome.reason
        self._update()
        self._inner.finish(outcome)

    def close(self) -> None:
        # Also between two attempts, when `refresh` is not called.
        self._update()
        self._inner.close()

    def __exit__(self, *exception: object) -> None:
        if self._reason is None:
            self._reason = _ENDED_BY_ERROR
        super().__exit__(*exception)

    # -- the file ---------------------------------------------------------------------------------------------------

    def text(self) -> str:
        """Return the current content of the file."""
        families = []
        for name, kind, text, family in [*self._of_tasks(), *self._of_job()]:
            samples = [({"job_name": self._path.stem, **labels}, value) for labels, value in family]
            families.append(exposition(f"{_PREFIX}_{name}", kind, text, samples))
        return "".join(families)

    def _of_tasks(self) -> Iterator[tuple[str, str, str, Samples]]:
        def each(value: Callable[[TaskState], float | None]) -> Samples:
            return [({"task": state.task}, number) for state in self._states if (number := value(state)) is not None]

        yield "task_running", "gauge", "Whether the task's process runs.", each(lambda state: float(_runs(state)))
        yield "global_step", "gauge", "The last global step that the task reported.", each(lambda state: state.step)
        yield "max_steps", "gauge", "The global step at which training ends.", each(lambda state: state.max_steps)
        yield (
            "steps_per_second",
            "gauge",
            "Global steps per second, while the task runs.",
            each(lambda state: state.steps_per_sec if _runs(state) else None),
        )
        yield "loss", "gauge", "The last loss that the task reported.", each(lambda state: state.loss)
        yield (
            "checkpoint_step",
            "gauge",
            "The step of the last checkpoint that the task wrote.",
            each(lambda state: state.checkpoint),
        )
        evaluations = [(state.task, state.evaluation) for state in self._states if state.evaluation is not None]
        yield (
            "evaluation_step",
            "gauge",
            "The step of the checkpoint that was evaluated last.",
            [({"task": task}, step) for task, last in evaluations if (step := _number(last["step"])) is not None],
        )
        yield (
            "evaluation_metric",
            "gauge",
            "The metrics of the last evaluation.",
            [
                ({"task": task, "metric": name}, number)
                for task, last in evaluations
                for name, value in sorted(last["metrics"].items())
                if name != "global_step" and (number := _number(value)) is not None
            ],
        )
        yield (
            "last_progress_timestamp_seconds",
            "gauge",
            "When the task last reported a step, a checkpoint, an evaluation, an export or its result.",
            [({"task": task}, at) for task, at in self._progress.items()],
        )

    def _of_job(self) -> Iterator[tuple[str, str, str, Samples]]:
        yield "start_time_seconds", "gauge", "When the launch began.", [({}, self._began)]
        yield "restarts_total", "counter", "How often the job was started again.", [({}, max(0, self._attempts - 1))]
        yield "job_running", "gauge", "Whether the launch is still running.", [({}, float(self._reason is None))]
        ended: Samples = [] if self._reason is None else [({"reason": self._reason}, 1.0)]
        yield "job_ended", "gauge", "How the launch has ended.", ended

    def _update(self) -> None:
        error = self._write()
        if error is not None and not self._noted:
            self._noted = True
            self._inner.note(
                f"warning: {self._path} could not be written ({error.strerror or error}); the job continues"
            )

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
    """Format a metric family; "" if it has no samples.

    Args:
        name: The name with its prefix and unit.
        kind: "gauge" or "counter".
        text: The text of HELP.
        samples: Labels and value of each sample.
    """
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


def _runs(state: TaskState) -> bool:
    return state.state in ("running", "ending")


def _number(value: Any) -> float | None:
    """Return a metric as a number; events have NaN and infinities as strings."""
    if isinstance(value, int | float):
        return value
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else None
