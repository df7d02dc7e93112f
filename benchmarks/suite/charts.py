"""Plots of the results as PNG files: throughput, ratios and their targets, simulated growth.

They use matplotlib without pyplot, so there are no windows and no global state.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from benchmarks.suite.cases import CONTENDERS
from benchmarks.suite.report import ratio_words
from benchmarks.suite.results import Results

__all__ = ["draw"]

_COLOURS = {
    "plain_estimator": "#a9c7e8",
    "estimator": "#1f5fa8",
    "plain_keras": "#f2c6a0",
    "keras": "#b3490b",
    "limit": "#57606a",
}
_TICKS = (0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 20, 50, 100)
_STATES = {"met": "#1a7f37", "not met": "#cf222e"}


def draw(results: Results, folder: Path) -> list[Path]:
    """Draw the plots for which there are results, and return their paths."""
    paths = []
    for name, figure in (
        ("throughput", _throughput(results)),
        ("ratios", _ratios(results)),
        ("simulated", _simulated(results)),
    ):
        if figure is not None:
            path = folder / f"{name}.png"
            figure.savefig(path, dpi=130, metadata={"Software": None})
            paths.append(path)
    return paths


def _throughput(results: Results) -> Figure | None:
    """Return bars of records per second, one panel per case, with whiskers from the minimum to the maximum."""
    cases = [case for case in results.cases if case.case.measure == "training"]
    if not cases:
        return None
    columns = min(3, len(cases))
    lines = -(-len(cases) // columns)
    figure = Figure(figsize=(4.4 * columns, 2.9 * lines), layout="constrained")
    for number, case in enumerate(cases, start=1):
        axes = figure.add_subplot(lines, columns, number)
        shown = [name for name in case.case.contenders if name in case.figures]
        medians = [case.figures[name][case.case.metric] for name in shown]
        below, above = [f.median - f.least for f in medians], [f.most - f.median for f in medians]
        axes.bar(
            range(len(shown)),
            [figure.median for figure in medians],
            yerr=[below, above] if any(figure.runs > 1 for figure in medians) else None,
            color=[_COLOURS[name] for name in shown],
            capsize=3,
        )
        axes.set_xticks(range(len(shown)), [CONTENDERS[name].replace(" ", "\n") for name in shown], fontsize=7)
        axes.set_title(case.case.name, fontsize=10)
        axes.set_ylabel(case.case.unit, fontsize=8)
        axes.tick_params(axis="y", labelsize=7)
        _plain(axes)
    return figure


def _ratios(results: Results) -> Figure | None:
    """Return the ratio of each target relative to its bound, on a logarithmic axis: larger than 1 is better."""
    measured = [verdict for verdict in results.verdicts if verdict.ratio is not None]
    if not measured:
        return None
    figure = Figure(figsize=(9.5, 1.2 + 0.27 * len(measured)), layout="constrained")
    axes = figure.add_subplot()
    for height, verdict in enumerate(reversed(measured)):
        ratio, target = verdict.ratio, verdict.target
        assert ratio is not None
        values = [ratio.least, ratio.median, ratio.most]
        bound = target.least if target.least is not None else target.most
        assert bound is not None
        parts = [value / bound if target.least is not None else bound / value for value in values]
        axes.plot([min(parts), max(parts)], [height, height], color="#d0d7de", linewidth=3, zorder=1)
        axes.plot(parts[1], height, "o", color=_STATES[verdict.state], zorder=2)
    axes.axvline(1, color="#57606a", linewidth=1)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(_TICKS))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, place: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    texts = [f"{v.case}: {ratio_words(v)} {v.target.bound}" for v in reversed(measured)]
    axes.set_yticks(range(len(measured)), texts, fontsize=7)
    axes.set_xlabel("how far beyond the target (1: just met; to the right: better)", fontsize=8)
    _plain(axes)
    return figure


def _simulated(results: Results) -> Figure | None:
    rows = next((m.figures["rows"] for m in results.measurements if "rows" in m.figures), None)
    if not rows:
        return None
    figure = Figure(figsize=(9.5, 3.4), layout="constrained")
    for number, (key, label, factor) in enumerate((("seconds", "ms", 1e3), ("bytes", "KiB", 1 / 1024)), start=1):
        axes = figure.add_subplot(1, 2, number)
        for axis in dict.fromkeys(row["axis"] for row in rows):
            points = [row for row in rows if row["axis"] == axis]
            axes.plot([row["size"] for row in points], [row[key] * factor for row in points], marker="o", markersize=3,
                      label=axis)  # fmt: skip
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("size", fontsize=8)
        axes.set_ylabel(label, fontsize=8)
        axes.legend(fontsize=7, frameon=False, title="what grows", title_fontsize=7)
        _plain(axes)
    return figure


def _plain(axes: Any) -> None:
    axes.grid(color="#d0d7de", linewidth=0.5)
    axes.set_axisbelow(True)
    for place in ("top", "right"):
        axes.spines[place].set_visible(False)
