"""The report of a run: one self-contained HTML page without scripts."""

from __future__ import annotations

import datetime
import importlib.resources
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import markupsafe

from estimator_pipeline.errors import PipelineError
from estimator_pipeline.inputs import ledger
from estimator_pipeline.job import dump_job
from estimator_pipeline.results.comparison import number
from estimator_pipeline.results.launches import RunLaunch, launches_of
from estimator_pipeline.results.run import RunResults
from estimator_pipeline.utils import charts
from estimator_pipeline.utils.remaining_time import time_text
from estimator_pipeline.utils.version import __version__

__all__ = ["render"]

_TEMPLATE = "report.html.jinja"
_VERSION = "the version of "


def render(run: RunResults) -> str:
    """Return the page, as text."""
    launches = launches_of(run.model_dir)
    jinja = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    jinja.filters |= {"metric": number, "duration": _duration, "moment": _moment}
    text = importlib.resources.files(__package__).joinpath(_TEMPLATE).read_text(encoding="utf-8")
    metrics = sorted({name for values in run.evaluations.values() for name in values})
    recorded = run.training.get("job") or {}
    versions = {name.removeprefix(_VERSION): v for name, v in recorded.items() if name.startswith(_VERSION)}
    return jinja.from_string(text).render(
        run=run,
        title=run.job.name if run.job is not None else run.model_dir.name,
        head=_head(run, launches),
        charts=_charts(run, metrics),
        metrics=metrics,
        launches=launches,
        tasks=run.result.get("tasks") or {},
        job=None if run.job is None else dump_job(run.job),
        ledger=_ledger(run),
        versions=versions,
        version=__version__,
        # Charts are generated here; everything else on the page is escaped.
        svg=markupsafe.Markup,
    )


def _head(run: RunResults, launches: Sequence[RunLaunch]) -> dict[str, str]:
    max_steps = run.training.get("max_steps") or (run.job.train.max_steps if run.job is not None else None)
    seconds = sum(launch.seconds or 0 for launch in launches)
    last = run.evaluations[max(run.evaluations)] if run.evaluations else {}
    rows = {
        "model directory": str(run.model_dir),
        "engine": run.engine,
        "global step": "" if run.step is None else f"{run.step}" + (f" of {max_steps}" if max_steps else ""),
        "ended": str(run.result.get("ended") or run.training.get("ended") or ""),
        "launched": _duration(seconds) if seconds else "",
        "result": ", ".join(f"{name} {number(value)}" for name, value in sorted(last.items())),
        "evaluated by": str(run.result.get("evaluated_by", "")),
        "exports": ", ".join(run.result.get("exports") or ()),
    }
    return {name: value for name, value in rows.items() if value}


def _charts(run: RunResults, metrics: Sequence[str]) -> list[dict[str, str]]:
    series: dict[str, Mapping[int, float]] = {"training loss": run.losses}
    series |= {f"evaluation: {name}": run.curve(name) for name in metrics}
    return [
        {
            "title": title,
            "svg": charts.svg_of(
                charts.curves({title: points}, ylabel=title.removeprefix("evaluation: ")), f"chart{i}"
            ),
        }
        for i, (title, points) in enumerate(series.items())
        if points
    ]


def _ledger(run: RunResults) -> str:
    """Return the check of the run's ledger as text; "" without a ledger."""
    named = run.job.run.ledger if run.job is not None else True
    folder = Path(named) if isinstance(named, str) else run.model_dir / "ledger"
    if not any(folder.glob("*.ledger")):
        return ""
    try:
        return str(ledger.check(ledger.read(folder)))
    except PipelineError as error:
        return f"not read: {error.message}"


def _duration(seconds: Any) -> str:
    return time_text(seconds) if isinstance(seconds, int | float) else ""


def _moment(seconds: float) -> str:
    if not seconds:
        return ""
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
