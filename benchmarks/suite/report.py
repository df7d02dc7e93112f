"""Output of the results: a table on the terminal, Markdown, and files in the folder of the run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.suite.cases import CONTENDERS
from benchmarks.suite.figures import Figure, Verdict
from benchmarks.suite.results import CaseResult, Results
from estimator_pipeline.utils.jsonable import finite

__all__ = ["JSON", "MARKDOWN", "markdown", "show", "write"]

JSON, MARKDOWN = "results.json", "results.md"
_HEADS = ("case", "contender", "median", "unit", "spread", "of the limit", "peak MiB")
_TARGET_HEADS = ("case", "ratio", "median", "least to most", "target", "verdict")


def format_number(value: float) -> str:
    """Format a number with three significant digits, or as a whole number from 1,000 on."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def rows(results: Results) -> list[tuple[str, ...]]:
    """Return the table of figures, one row per contender."""
    return [row for case in results.cases for row in _case_rows(case)]


def _case_rows(result: CaseResult) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = []
    for contender, figures in result.figures.items():
        figure = figures.get(result.case.metric)
        if figure is None:
            continue
        peak = figures.get("peak_mib")
        lines.append(
            (
                result.case.name,
                CONTENDERS[contender],
                format_number(figure.median),
                result.case.unit,
                f"{figure.spread:.0%}" if figure.runs > 1 else "one run",
                f"{result.of_limit[contender]:.2f}" if contender in result.of_limit else "",
                format_number(peak.median) if peak else "",
            )
        )
    return lines


def target_rows(results: Results) -> list[tuple[str, ...]]:
    """Return the table of targets, in order."""
    return [
        (
            verdict.case,
            ratio_words(verdict),
            "" if verdict.ratio is None else f"{verdict.ratio.median:.2f}",
            _range(verdict.ratio),
            verdict.target.bound,
            verdict.state,
        )
        for verdict in results.verdicts
    ]


def ratio_words(verdict: Verdict) -> str:
    """Return the name of the ratio of a target, such as "Estimator engine / plain tf.estimator"."""
    target = verdict.target
    if target.against_metric:
        return CONTENDERS[target.contender]
    below = f"{target.times:g} x " if target.times != 1 else ""
    below += CONTENDERS[target.against] + (f" of {target.case}" if target.case else "")
    return f"{CONTENDERS[target.contender]} / {below}"


def _range(ratio: Figure | None) -> str:
    return "" if ratio is None or ratio.runs == 1 else f"{ratio.least:.2f} to {ratio.most:.2f}"


def summary(results: Results) -> str:
    """Return a summary such as "12 of 20 targets met, 6 not met, 2 not measured"."""
    states = [verdict.state for verdict in results.verdicts]
    if not states:
        return "no targets"
    parts = [f"{states.count('met')} of {len(states)} targets met"]
    parts += [f"{states.count(state)} {state}" for state in ("not met", "not measured") if state in states]
    return ", ".join(parts)


def machine_words(results: Results) -> str:
    """Return one line with the size of the machine and the versions."""
    about, profile = results.conditions["machine"], results.conditions["profile"]
    loads = [m.load for m in results.measurements if m.load is not None]
    busy = f"; load before a measurement {min(loads):g} to {max(loads):g}" if loads else ""
    return (
        f"{about['cores']} cores ({about['processor'] or about['architecture']}), {about['memory_gib']} GiB, "
        f"{about['system']}; TensorFlow {about['tensorflow']}, tf_keras {about['tf_keras']}, Python "
        f"{about['python']}; size {profile['name']}{busy}"
    )


def show(results: Results) -> None:
    """Print both tables on standard output."""
    from rich.console import Console
    from rich.table import Table

    # Without a terminal the lines are not wrapped.
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(f"\n{machine_words(results)}\n", highlight=False)
    table = Table(*_HEADS, box=None, pad_edge=False)
    before = None
    for row in rows(results):
        if before not in (None, row[0]):
            table.add_section()
        table.add_row(row[0] if row[0] != before else "", *row[1:])
        before = row[0]
    console.print(table)
    verdicts = Table(*_TARGET_HEADS, box=None, pad_edge=False)
    colours = {"met": "green", "not met": "red"}
    for row in target_rows(results):
        verdicts.add_row(*row[:-1], f"[{colours.get(row[-1], 'yellow')}]{row[-1]}[/]")
    console.print()
    console.print(verdicts)
    console.print(f"\n{summary(results)}", highlight=False)


def markdown(results: Results, *, plots: list[str] | None = None) -> str:
    """Return the results as a page; docs/internals/benchmarks.md describes the measurement."""
    lines = ["# Results of the benchmark", "", f"Measured on {machine_words(results)}.", ""]
    lines += [f"{summary(results)}. Ratios are medians of the ratios within each run; spread is from the least to the "]
    lines[-1] += "most, as a part of the median."
    lines += ["", "## Targets", "", *_table(_TARGET_HEADS, target_rows(results))]
    lines += ["", "## Figures", "", *_table(_HEADS, rows(results))]
    simulated = [m for m in results.measurements if "rows" in m.figures]
    for measurement in simulated:
        lines += ["", "## Shards and schedules, simulated", ""]
        simulated_rows: list[tuple[str, ...]] = [
            (row["axis"], f"{row['size']:,}", f"{row['seconds'] * 1000:.3g}", f"{row['bytes'] / 1024:.1f}")
            for row in measurement.figures["rows"]
        ]
        lines += _table(("what grows", "size", "ms", "KiB"), simulated_rows)
    for plot in plots or []:
        lines += ["", f"![{Path(plot).stem}]({plot})"]
    return "\n".join(lines) + "\n"


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    return [
        f"| {' | '.join(heads)} |",
        f"| {' | '.join('---' for _ in heads)} |",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def write(results: Results, folder: Path) -> dict[str, Any]:
    """Write `results.json`, `results.md` and the plots to the folder, and return the JSON document."""
    from benchmarks.suite import charts

    document: dict[str, Any] = finite(results.document())
    _replace(folder / JSON, json.dumps(document, indent=1) + "\n")
    plots = [path.name for path in charts.draw(results, folder)]
    _replace(folder / MARKDOWN, markdown(results, plots=plots))
    return document


def _replace(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
