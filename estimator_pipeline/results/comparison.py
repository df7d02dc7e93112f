"""Comparison of runs: what differs between their jobs, and their evaluations, the best run first."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from estimator_pipeline.engines.model_dir.layout import BEST_CHECKPOINT, checkpoint_step
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job.sections.training import direction_of
from estimator_pipeline.results.run import RunResults, read_run
from estimator_pipeline.utils.jsonable import finite
from estimator_pipeline.utils.paths import real_path
from estimator_pipeline.utils.text import few, nearest

__all__ = ["ComparedRun", "RunComparison", "best_step", "compare_runs", "mode_of", "number"]

_MODES = ("min", "max")
_NOTHING = "-"
_WIDEST = 40


@dataclasses.dataclass(frozen=True)
class ComparedRun:
    """A run in a comparison.

    Attributes:
        run: The run.
        settings: Its values of the settings that differ; a setting that it does not have is missing.
        evaluated: The step of the evaluation that counts; None without one.
        metrics: The metrics of that evaluation.
    """

    run: RunResults
    settings: Mapping[str, Any]
    evaluated: int | None
    metrics: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class RunComparison:
    """A comparison of runs.

    Attributes:
        by: The metric that orders the runs.
        mode: "min" or "max": which of its values is the best.
        runs: The runs, the best first, then those whose value is NaN, then those without it.
    """

    by: str
    mode: str
    runs: Sequence[ComparedRun]

    def document(self) -> dict[str, Any]:
        """Return it as a JSON document."""
        runs = [
            {
                "run": compared.run.name,
                "model_dir": str(compared.run.model_dir),
                "engine": compared.run.engine,
                "settings": dict(compared.settings),
                "global_step": compared.run.step,
                "evaluated_step": compared.evaluated,
                "metrics": dict(compared.metrics),
                "notes": list(compared.run.notes),
            }
            for compared in self.runs
        ]
        document: dict[str, Any] = finite({"by": self.by, "mode": self.mode, "runs": runs})
        return document

    def lines(self) -> list[str]:
        """Format it as a table, with the notes of the runs below it."""
        names = list(dict.fromkeys(name for compared in self.runs for name in compared.settings))
        metrics = sorted({name for compared in self.runs for name in compared.metrics}, key=lambda n: (n != self.by, n))
        short = _short(names)
        # The evaluation that counts is mostly that of the last step.
        evaluated = any(compared.evaluated not in (None, compared.run.step) for compared in self.runs)
        rows = [["run", *(short[name] for name in names), "step", *(["evaluated"] if evaluated else []), *metrics]]
        for compared in self.runs:
            cells = [compared.run.name, *(_cell(compared.settings, name) for name in names), _step(compared.run.step)]
            cells += [_step(compared.evaluated)] if evaluated else []
            rows.append([*cells, *(number(compared.metrics.get(name)) for name in metrics)])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return lines + [f"note: {note}" for compared in self.runs for note in compared.run.notes]


def compare_runs(
    names: Sequence[str], *, by: str = "loss", mode: str | None = None, best: bool = False
) -> RunComparison:
    """Compare runs.

    Args:
        names: Their model directories or job files.
        by: The metric that orders them.
        mode: Its direction of improvement; by default that of the metric, see `mode_of`.
        best: Whether the best evaluation by this metric counts, not the last one.

    Raises:
        ConfigError: A run cannot be read, or is named twice; there is only one; `by` was not evaluated; or
            its direction is unknown.
    """
    if len(names) < 2:
        raise ConfigError(
            "compare needs two runs or more",
            code="argument/missing",
            found=f"one run: {names[0]}" if names else "no run",
            hint="name further model directories; `estimator-pipeline report` shows a single run",
        )
    if mode not in (None, *_MODES):
        raise ConfigError(
            f"--mode {mode} is not a direction of improvement",
            code="argument/bad-value",
            found=f"{mode!r}; allowed: {', '.join(_MODES)}",
        )
    runs = _read(names)
    known = sorted({metric for run in runs for metrics in run.evaluations.values() for metric in metrics})
    if known and by not in known:
        close = nearest(by, known)
        raise ConfigError(
            f"these runs have not evaluated the metric {by!r}",
            code="argument/unknown-name",
            found=f"metrics: {', '.join(known)}",
            hint=f"did you mean --by {close}?" if close else "name one of them: --by METRIC",
        )
    mode = mode or mode_of(by, runs)
    settings = differing_settings(runs)
    compared = [_compared(run, settings, by, mode, best=best) for run in runs]
    return RunComparison(by, mode, sorted(compared, key=lambda run: _rank(run.metrics.get(by), mode)))


def best_step(run: RunResults) -> int:
    """Return the step of the best evaluated checkpoint that still exists.

    It is the best by the metric of the job's `best` exporter or early stopping, otherwise by the loss.

    Raises:
        ConfigError: No checkpoint in the model directory has been evaluated.
    """
    metric = next((name for name, _ in _criteria(run)), "loss")
    folders = (run.model_dir, run.model_dir / BEST_CHECKPOINT)
    steps = {checkpoint_step(path.stem) for folder in folders for path in folder.glob("*-[0-9]*.index")}
    curve = {step: value for step, value in run.curve(metric).items() if step in steps}
    if not curve:
        raise ConfigError(
            f"no checkpoint of the run has an evaluation with the metric {metric!r}",
            code="file/not-found",
            found=f"{run.model_dir}: steps {', '.join(map(str, sorted(steps))) or 'none'}",
            hint="name a step, or latest",
        )
    mode = mode_of(metric, [run])
    return min(curve, key=lambda step: _rank(curve[step], mode))


def mode_of(metric: str, runs: Iterable[RunResults]) -> str:
    """Return the direction of improvement of a metric: "min" or "max".

    It is that of the `best` exporter or early stopping of the jobs, otherwise known by the metric's name.

    Raises:
        ConfigError: It is not known.
    """
    modes = {mode for run in runs for name, mode in _criteria(run) if name == metric}
    if len(modes) == 1:
        return modes.pop()
    if (direction := direction_of(metric)) is not None:
        return direction
    raise ConfigError(
        f"whether a small or a large {metric!r} is better is not known",
        code="argument/missing",
        hint="set --mode min or --mode max",
    )


def _criteria(run: RunResults) -> Iterator[tuple[str, str]]:
    """Yield the metrics by which the job of a run chooses a best step, each with its direction of improvement."""
    if run.job is None:
        return
    for exporter in run.job.eval.exporters:
        if exporter.kind == "best":
            yield exporter.metric or "loss", exporter.mode or "min"
    early = run.job.eval.early_stopping
    if early is not None:
        yield early.metric, early.direction or "min"


def differing_settings(runs: Sequence[RunResults]) -> list[str]:
    """Return the names of the settings that differ between runs, in the order of the job file.

    A run whose job is not known has recorded only some of them: what it lacks is not known to differ.
    """
    jobs = [run for run in runs if run.job is not None]
    names = dict.fromkeys(name for run in [*jobs, *runs] for name in run.fields)
    return [
        name
        for name in names
        if len({_text(run.fields[name]) for run in runs if name in run.fields}) > 1
        or len({name in run.fields for run in jobs}) > 1
    ]


def number(value: float | None) -> str:
    """Format a metric; a dash for none."""
    return _NOTHING if value is None else f"{value:.4g}"


def _read(names: Sequence[str]) -> list[RunResults]:
    runs: dict[str, RunResults] = {}
    for name in names:
        run = read_run(name.rstrip("/") or name)
        before = runs.setdefault(real_path(str(run.model_dir)), run)
        if before is not run:
            raise ConfigError(
                f"{name} and {before.name} are the same run",
                code="argument/conflict",
                found=f"the model directory {run.model_dir}",
                hint="name each run once",
            )
    return list(runs.values())


def _compared(run: RunResults, settings: Iterable[str], by: str, mode: str, *, best: bool) -> ComparedRun:
    curve = run.curve(by)
    if best and curve:
        step: int | None = min(curve, key=lambda step: _rank(curve[step], mode))
    else:
        step = max(run.evaluations, default=None)
    values = {name: run.fields[name] for name in settings if name in run.fields}
    return ComparedRun(run, values, step, {} if step is None else run.evaluations[step])


def _rank(value: float | None, mode: str) -> tuple[int, float]:
    """Return the sort key of a value: the best first, then NaN, then none."""
    if value is None or math.isnan(value):
        return (2 if value is None else 1), 0.0
    return 0, -value if mode == "max" else value


# Text ------------------------------------------------------------------------------------------------------------


def _short(names: Sequence[str]) -> dict[str, str]:
    """Return the shortest ends of dotted names that distinguish them."""
    short = {}
    for name in names:
        parts = name.split(".")
        ends = (".".join(parts[-length:]) for length in range(1, len(parts) + 1))
        short[name] = next(
            end for end in ends if sum(other == end or other.endswith(f".{end}") for other in names) == 1 or end == name
        )
    return short


def _cell(settings: Mapping[str, Any], name: str) -> str:
    if name not in settings:
        return _NOTHING
    value = settings[name]
    text = few(value, 3) if isinstance(value, list) and value else _text(value).strip('"')
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


def _step(step: int | None) -> str:
    return _NOTHING if step is None else str(step)


def _text(value: Any) -> str:
    return json.dumps(value, default=str, ensure_ascii=False)
