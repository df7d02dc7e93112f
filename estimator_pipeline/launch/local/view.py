"""Console output of a launch: a live table on a terminal, lines elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from estimator_pipeline.launch.exit_codes import BAD_INPUT
from estimator_pipeline.launch.history import attempts_text
from estimator_pipeline.launch.local.outcome import Failure, LaunchOutcome, TaskEnd
from estimator_pipeline.launch.local.plan import LaunchPlan
from estimator_pipeline.launch.local.processes import end_name
from estimator_pipeline.launch.logs.terminal import harmless
from estimator_pipeline.progress.progress_file import TaskState
from estimator_pipeline.utils.remaining_time import percent, seconds_left, step_text, time_text
from estimator_pipeline.utils.text import counted

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

__all__ = ["ForwardingView", "LineView", "LiveView", "SilentView", "View", "summary", "view_for"]


def view_for(stream: TextIO) -> View:
    """Return a live table for a terminal, and lines for a file or a pipe."""
    return LiveView(stream) if stream.isatty() else LineView(stream)


class View:
    """Base class of views: the callbacks of the launcher, which show nothing here."""

    def start(self, plan: LaunchPlan, states: Sequence[TaskState]) -> None:
        """Handle the start of all tasks; the launcher updates the states later."""

    def event(self, state: TaskState, event: Mapping[str, Any]) -> None:
        """Handle an event of a task. Its state includes this event and maybe later ones."""

    def ended(self, state: TaskState) -> None:
        """Handle the end of a task's process."""

    def failed(self, reason: str, failure: Failure) -> None:
        """Handle a failed, hung, diverged or preempted job, whose tasks are stopping."""

    def note(self, text: str) -> None:
        """Show a message of the launcher."""

    def refresh(self) -> None:
        """Update the output; called several times a second."""

    def finish(self, outcome: LaunchOutcome) -> None:
        """Show the outcome of the launch."""

    def close(self) -> None:
        """Release resources; called once, also after an error."""

    def __enter__(self) -> View:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SilentView(View):
    """Shows nothing."""


class ForwardingView(View):
    """Base class of views that forward to a different view.

    Args:
        inner: That view; None for none.
    """

    def __init__(self, inner: View | None) -> None:
        self._inner = inner or SilentView()

    def start(self, plan: LaunchPlan, states: Sequence[TaskState]) -> None:
        self._inner.start(plan, states)

    def event(self, state: TaskState, event: Mapping[str, Any]) -> None:
        self._inner.event(state, event)

    def ended(self, state: TaskState) -> None:
        self._inner.ended(state)

    def failed(self, reason: str, failure: Failure) -> None:
        self._inner.failed(reason, failure)

    def note(self, text: str) -> None:
        self._inner.note(text)

    def refresh(self) -> None:
        self._inner.refresh()

    def finish(self, outcome: LaunchOutcome) -> None:
        self._inner.finish(outcome)

    def close(self) -> None:
        self._inner.close()


class LineView(View):
    """View that writes lines for a file, a pipe or a CI log.

    Steps are shown every few seconds, everything else at once.

    Args:
        stream: The stream to write to.
        every: Seconds between two lines about the steps of one task.
        clock: Returns seconds since any start; for tests.
    """

    def __init__(self, stream: TextIO, *, every: float = 5.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._every = every
        self._clock = clock
        self._began = clock()
        self._shown: dict[str, tuple[float, int | None]] = {}

    def _write(self, text: str) -> None:
        # A closed pipe or terminal (`| head`) must not end the job.
        with contextlib.suppress(OSError):
            print(f"{self._clock() - self._began:7.1f}s  {harmless(text)}", file=self._stream, flush=True)

    def start(self, plan: LaunchPlan, states: Sequence[TaskState]) -> None:
        self._shown.clear()
        self._write(f"run {plan.run_id}: {counted(len(states), 'task')}, logs in {plan.log_dir}")
        for state in states:
            self._write(f"{state.task} started, pid {state.pid}")

    def event(self, state: TaskState, event: Mapping[str, Any]) -> None:
        kind = event["event"]
        if kind == "evaluation" and isinstance(event.get("metrics"), Mapping):
            # The state may hold a later evaluation of the same poll.
            self._write(f"{state.task} evaluated {_evaluation(event)}")
        elif kind == "export" and event.get("path"):
            self._write(f"{state.task} exported {event['path']}")
        elif kind in _NOTES:
            self._write(_NOTES[kind](event))
        elif kind == "step":
            self._steps(state)

    def _steps(self, state: TaskState) -> None:
        before, step = self._shown.get(state.task, (None, None))
        now = self._clock()
        if state.step is None or state.step == step or (before is not None and now - before < self._every):
            return
        self._shown[state.task] = (now, state.step)
        parts = [f"{state.task} {step_text(state.step, state.max_steps)}"]
        if state.steps_per_sec is not None:
            parts.append(f"{_short(state.steps_per_sec)} steps/s")
        left = seconds_left(state.step, state.max_steps, state.steps_per_sec)
        if left and left >= 1:
            parts.append(f"{time_text(left)} left")
        if state.step_loss is not None:
            parts.append(f"loss {_short(state.step_loss)}")
        self._write(", ".join(parts))

    def ended(self, state: TaskState) -> None:
        how = "" if _ended_well(state) or state.exit_code is None else f" ({end_name(state.exit_code)})"
        self._write(f"{state.task} {state.state}{how}")

    def note(self, text: str) -> None:
        self._write(text)

    def finish(self, outcome: LaunchOutcome) -> None:
        with contextlib.suppress(OSError):
            print(f"\n{harmless(summary(outcome))}", file=self._stream, flush=True)


class LiveView(View):
    """View with a table that is redrawn in place; notes are printed above it.

    Args:
        stream: A terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console

        self._console = Console(file=stream, highlight=False, markup=False)
        self._states: Sequence[TaskState] = ()
        self._live: Live | None = None
        self._drawn = 0.0

    def start(self, plan: LaunchPlan, states: Sequence[TaskState]) -> None:
        from rich.live import Live

        self._states = states
        self.note(f"run {plan.run_id}, logs in {plan.log_dir}")
        # The launcher's loop redraws it: a thread of rich would run during a fork and would have to be stopped.
        self._live = Live(self._table(), console=self._console, auto_refresh=False, transient=True)
        with contextlib.suppress(OSError):
            self._live.start()

    def note(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._console.print(harmless(text), soft_wrap=True)

    def event(self, state: TaskState, event: Mapping[str, Any]) -> None:
        if event["event"] in _NOTES:
            self.note(_NOTES[event["event"]](event))

    def ended(self, state: TaskState) -> None:
        if state.state == "failed" and state.exit_code is not None:
            self.note(f"{state.task} failed with {end_name(state.exit_code)}")

    def refresh(self) -> None:
        if self._live is not None and time.monotonic() - self._drawn > 0.25:
            with contextlib.suppress(OSError):
                self._live.update(self._table(), refresh=True)
            self._drawn = time.monotonic()

    def finish(self, outcome: LaunchOutcome) -> None:
        self.close()
        self.note(summary(outcome))

    def close(self) -> None:
        if self._live is not None:
            with contextlib.suppress(OSError):
                self._live.stop()
            self._live = None

    def _table(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="dim")
        for name in ("task", "pid", "state", "step", "%", "steps/s", "left", "loss", "last evaluation"):
            right = name not in ("task", "state", "last evaluation")
            table.add_column(name, justify="right" if right else "left", no_wrap=True)
        colours = {"failed": "red", "preempted": "yellow", "running": "green", "done": "dim", "released": "dim"}
        for state in self._states:
            left = seconds_left(state.step, state.max_steps, state.steps_per_sec)
            table.add_row(
                state.task,
                str(state.pid or ""),
                Text(state.state, style=colours.get(state.state, "")),
                "" if state.step is None else str(state.step),
                _short(percent(state.step, state.max_steps)),
                _short(state.steps_per_sec),
                time_text(left) if left and state.trains else "",
                _short(state.step_loss),
                Text("" if state.evaluation is None else harmless(_evaluation(state.evaluation))),
            )
        return table


def _features(event: Mapping[str, Any]) -> str:
    return f"the columns of {event.get('records')} training records ({event.get('path')}):\n{event.get('table')}"


_NOTES = {"features": _features, "stage": lambda event: str(event.get("text"))}
"""How events are shown that are no numbers of a task."""


def summary(outcome: LaunchOutcome) -> str:
    """Format the outcome of a launch: each task, and the job's result; after bad input only how it ended."""
    ended = f"{outcome.reason} after {outcome.seconds:.1f} s"
    refused = outcome.failure is not None and outcome.failure.refusal is not None
    if refused and outcome.exit_code == BAD_INPUT and len(outcome.attempts) < 2:
        return ended
    header = ("task", "end", "time", "step", "log")
    rows = [
        (
            task.task,
            task.state if _ended_well(task) or task.exit_code is None else f"{task.state}, {end_name(task.exit_code)}",
            "" if task.seconds is None else f"{task.seconds:.1f} s",
            "" if task.step is None else str(task.step),
            str(task.log),
        )
        for task in outcome.tasks
    ]
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [header, *rows]
    ]
    result = outcome.result
    if result is not None:
        at = "" if result.get("global_step") is None else f" at step {result['global_step']}"
        if result.get("best_step") is not None:
            at = f" of the best step {result['best_step']} of {result['global_step']}"
        at += f" ({result['status']})" if result.get("status") in ("data ended", "stopped") else ""
        metrics = result.get("metrics") or {}
        lines += ["", f"result{at}: {_metrics(metrics) or 'no evaluation'}"]
        if result.get("reason"):
            lines.append(f"stopped early at step {result['global_step']}: {result['reason']}")
        if len(result["steps"]) > 1:
            lines.append("; ".join(_share(task, steps, result) for task, steps in result["steps"].items()))
        lines += [f"export: {path}" for path in result["exports"]]
    if len(outcome.attempts) > 1:
        lines += ["", attempts_text(outcome.attempts)]
    if outcome.warnings:
        lines += ["", *outcome.warnings]
    lines += ["", ended]
    return "\n".join(lines)


def _ended_well(task: TaskState | TaskEnd) -> bool:
    """Return whether a task succeeded. One that exits early with code 0 has failed."""
    return not task.exit_code and task.state != "failed"


def _share(task: str, steps: int, result: Mapping[str, Any]) -> str:
    """Format a task's share of the training, as it reported it or by the steps seen."""
    records = (result.get("tasks") or {}).get(task, {}).get("records")
    return f"{task} trained {counted(steps, 'step')}" + ("" if records is None else f" on {counted(records, 'record')}")


def _evaluation(evaluation: Mapping[str, Any]) -> str:
    return f"step {evaluation.get('step')}: {_metrics(evaluation['metrics'])}"


def _metrics(metrics: Mapping[str, Any]) -> str:
    # Estimators have the step among the metrics; it is shown separately.
    shown = sorted((name, value) for name, value in metrics.items() if name != "global_step")
    return ", ".join(f"{name} {_short(value)}" for name, value in shown)


def _short(value: Any) -> str:
    if value is None:
        return ""
    try:
        return f"{float(value):.4g}"
    except (TypeError, ValueError):
        return str(value)
