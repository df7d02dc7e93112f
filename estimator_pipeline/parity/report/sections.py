"""Sections of a report as plain objects: text, charts, tables. The template only lays them out.

To add a section, write a function from a comparison to a `ReportSection` (or None, to leave it out), and list it in
`SECTIONS`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from estimator_pipeline.parity import summaries
from estimator_pipeline.parity.report import charts
from estimator_pipeline.parity.result import Parity
from estimator_pipeline.utils.arrays import Difference
from estimator_pipeline.utils.charts import Chart
from estimator_pipeline.utils.text import counted

__all__ = ["MOST_ROWS", "SECTIONS", "HtmlTable", "ReportCell", "ReportSection", "sections"]

# Elements of an array in a cell.
_MOST_ELEMENTS = 4
# Rows of the table of variables; the worst are shown, report.json has all.
MOST_ROWS = 200
_NONE = "–"
# The largest ULP error, between NaN and a number.
_NOT_COUNTED = 2.0**63 - 1


@dataclasses.dataclass(frozen=True)
class ReportCell:
    """A cell of a table.

    Attributes:
        text: its text.
        note: small text below it.
        mark: "good", "bad", "differs" or nothing.
    """

    text: str
    note: str = ""
    mark: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HtmlTable:
    """A table.

    Attributes:
        head: titles of the columns; empty for a table of names and values.
        rows: its rows; the first cell of each is the row's name.
        numbers: columns of numbers, which are right-aligned.
        left_out: what is not shown, in a sentence.
    """

    rows: tuple[tuple[ReportCell, ...], ...]
    head: tuple[str, ...] = ()
    numbers: frozenset[int] = frozenset()
    left_out: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportSection:
    """A section of the report: title, sentences, charts, tables and notes, in this order.

    Attributes:
        title: title of the section.
        text: paragraphs.
        charts: charts with their notes.
        tables: tables.
        notes: paragraphs at the end.
    """

    title: str
    text: tuple[str, ...] = ()
    charts: tuple[Chart, ...] = ()
    tables: tuple[HtmlTable, ...] = ()
    notes: tuple[str, ...] = ()


def sections(parity: Parity) -> tuple[ReportSection, ...]:
    """Return all sections with content."""
    built = (section(parity) for section in SECTIONS)
    return tuple(section for section in built if section is not None)


def _what_was_run(parity: Parity) -> ReportSection | None:
    about = {name: value for name, value in parity.about.items() if value not in (None, [], {}, "")}
    about.setdefault("engines", list(parity.initial.sides))
    about["steps"] = _steps(parity, about.get("steps"))
    replicas = {name: facts["replicas"] for name, facts in parity.environments.items() if "replicas" in facts}
    if replicas:
        same = len(set(replicas.values())) == 1
        about["replicas"] = next(iter(replicas.values())) if same else replicas
    tolerances = about.pop("tolerances", {})
    about["tolerances"] = [f"{name}: {tolerance}" for name, tolerance in tolerances.items()]
    order = [name for name in _ORDER if name in about]
    rows = [
        (ReportCell(name.replace("_", " ")), ReportCell(_plain(about[name])))
        for name in (*order, *(name for name in about if name not in _ORDER))
        if about[name] not in ([], {})
    ]
    return ReportSection(
        title="What was run", text=(_OF_TOLERANCES,) if tolerances else (), tables=(HtmlTable(rows=tuple(rows)),)
    )


_ORDER = ("job", "settings", "engines", "workers", "replicas", "strategy", "steps", "estimator", "model", "optimizer",
          "global_batch_size", "run.seed", "input.seed", "tf_random_seed", "input_fn", "eval_input_fn", "eval_steps",
          "keras_input_fn", "keras_eval_input_fn", "mapping", "metric_names", "predictions", "tolerances")  # fmt: skip


_OF_TOLERANCES = (
    "A tolerance is met where any of its limits is: rtol is relative to the value itself, rtol_of_max to the largest "
    "value of its array, atol absolute; a named tolerance is limited to a share of the largest value of its "
    "series, such as the losses of all steps. ULP are units in the last place."
)


def _steps(parity: Parity, asked: Any) -> str:
    run = len(parity.steps)
    return f"{run}" if asked in (None, run) else f"{run} run by both, of {asked} requested"


def _findings(parity: Parity) -> ReportSection | None:
    if not parity.findings and not parity.notes:
        return None
    rows = tuple(
        (
            ReportCell(finding.name, mark="bad"),
            ReportCell(finding.message, note=f"look at: {finding.hint}" if finding.hint else ""),
        )
        for finding in parity.findings
    )
    return ReportSection(
        title="Cause of the difference" if parity.findings else "Notes",
        tables=(HtmlTable(rows=rows),) if rows else (),
        notes=tuple(f"Note: {note}." for note in parity.notes),
    )


def _losses(parity: Parity) -> ReportSection | None:
    if not parity.steps:
        return None
    sides = parity.initial.sides
    steps = [step.step for step in parity.steps]
    values = {side: [step.losses[number] for step in parity.steps] for number, side in enumerate(sides)}
    chart = charts.losses(steps, values, parted=_parted(parity))
    last = parity.steps[-1]
    text = f"At step {last.step}: {_exact(last.losses[0])} with {sides[0]}, {_exact(last.losses[1])} with {sides[1]}."
    return ReportSection(title="Losses", text=(text,), charts=(chart,))


def _learning_rates(parity: Parity) -> ReportSection | None:
    """Return the learning rates of sides that recorded them at every step: constant, or by step."""
    sides = parity.initial.sides
    recorded = {side: [step.learning_rates[number] for step in parity.steps] for number, side in enumerate(sides)}
    rates = {side: [float(rate) for rate in values if rate is not None] for side, values in recorded.items()}
    rates = {side: values for side, values in rates.items() if values and len(values) == len(parity.steps)}
    if not rates:
        return None
    title, constant = "Learning rate", {side: values[0] for side, values in rates.items() if len({*values}) == 1}
    unrecorded = "".join(f" {side} did not record its learning rate by step." for side in sides if side not in rates)
    if len(constant) == len(rates):
        if len(rates) == 2 and len({*constant.values()}) == 1:
            return ReportSection(title=title, text=(f"{constant[sides[0]]:.7g} at every step, with both.",))
        text = ", ".join(f"{rate:.7g} with {side}" for side, rate in constant.items())
        return ReportSection(title=title, text=(f"At every step {text}.{unrecorded}",))
    chart = charts.losses(
        [step.step for step in parity.steps],
        rates,
        parted=_parted(parity),
        name="rates",
        quantity="learning rate",
        begin=sides.index(next(iter(rates))),
        ylabel="learning rate",
    )
    return ReportSection(title=title, text=(f"The learning rate of each step.{unrecorded}",), charts=(chart,))


def _differences(parity: Parity) -> ReportSection | None:
    if not parity.steps:
        return None
    title = "Largest difference by step"
    series = summaries.largest_by_step(parity)
    if not any(error for points in series.values() for _, error in points):
        return ReportSection(title=title, text=(f"Bit-equal at every step: {', '.join(series)}.",))
    equal = [name for name, points in series.items() if not any(error for _, error in points)]
    text = "The largest absolute error of any element, after each step; of the loss, at each step."
    more = (f"Bit-equal at every step: {', '.join(equal)}.",) if equal else ()
    chart = charts.differences(series, parted=_parted(parity))
    return ReportSection(title=title, text=(text, *more), charts=(chart,))


def _parted(parity: Parity) -> int | None:
    """Return the step that charts mark; None if only results after the training differ."""
    return None if parity.first_fault is None or summaries.is_after_training(parity) else parity.first_fault[0]


def _metrics(parity: Parity) -> ReportSection | None:
    sides = parity.metrics.sides
    first, second = ({**parity.finals.get(side, {})} for side in sides)
    differences = {difference.name: difference for difference in parity.metrics.differences}
    names = dict.fromkeys([*parity.metrics.names, *differences, *first, *second])
    if not names:
        return None
    rows = [
        (
            ReportCell(name),
            ReportCell(_exact(first[name]) if name in first else _NONE),
            ReportCell(_exact(second[name]) if name in second else _NONE),
            *_metric(
                differences.get(name), compared=name in parity.metrics.names or name in differences, elements=True
            ),
        )
        for name in names
    ]
    table = HtmlTable(
        head=("metric", *sides, "absolute", "relative", "verdict"),
        rows=tuple(rows),
        numbers=frozenset((1, 2, 3, 4)),
    )
    text: tuple[str, ...] = ()
    if (
        "average_loss" in parity.metrics.names
        and "loss" in names
        and "loss" not in {*parity.metrics.names, *differences}
    ):
        text = ("Estimator's loss is the mean of the batches' means, which gives a small last batch too much "
                "weight. average_loss is compared instead.",)  # fmt: skip
    return ReportSection(title="Metrics of the final evaluation", text=text, tables=(table,))


def _answers(parity: Parity) -> ReportSection | None:
    if parity.answers is None:
        return None
    title, names = "Answers of the exported models", parity.answers.names
    text = "Plain TensorFlow loads both SavedModels and evaluates them on the first records of the evaluation data. "
    noun = "input or output" if len(names) == 1 else "inputs and outputs"
    if not summaries.of_exports(parity):
        title, text = "Predictions", "Predictions of both for the first batch of the evaluation data. "
        noun = "output" if len(names) == 1 else "outputs"
    if not parity.answers.differences:
        are = "is" if len(names) == 1 else "are"
        return ReportSection(title=title, text=(f"{text}Their {len(names)} {noun} {are} bit-equal.",))
    rows = tuple(
        (ReportCell(d.name, note="" if d.within else d.message.removeprefix(f"{d.name}: ")), *_metric(d, compared=True))
        for d in parity.answers.differences
    )  # fmt: skip
    table = HtmlTable(
        head=("", "largest absolute", "largest relative", "verdict"), rows=rows, numbers=frozenset((1, 2))
    )
    text += f"{len(names)} {noun} {'was' if len(names) == 1 else 'were'} compared; not bit-equal:"
    return ReportSection(title=title, text=(text,), tables=(table,))


def _metric(
    difference: Difference | None, *, compared: bool, elements: bool = False
) -> tuple[ReportCell, ReportCell, ReportCell]:
    if not compared:
        return ReportCell(_NONE), ReportCell(_NONE), ReportCell("not compared")
    if difference is None:
        return ReportCell("0"), ReportCell("0"), _state("bit-equal")
    state = "beyond" if difference.kind == "value" else difference.kind
    if not difference.sized:
        return ReportCell(_NONE), ReportCell(_NONE), _state(state)
    sizes = ReportCell(_number(difference.largest_absolute)), ReportCell(_number(difference.largest_relative))
    return *sizes, _state(state, _elements(difference) if elements else "")


def _elements(difference: Difference) -> str:
    """Return the number of elements beyond tolerance, and both values of the worst."""
    if difference.size < 2:
        return ""
    place = f"[{', '.join(map(str, difference.index))}]"
    values = " and ".join(summaries.pair(difference.first, difference.second))
    beyond = f"{difference.count} of {counted(difference.size, 'element')}, " if difference.count else ""
    return f"{beyond}the worst {place}: {values}"


def _variables(parity: Parity) -> ReportSection | None:
    rows = summaries.variables(parity)
    if not rows:
        return None
    counts = [(state, sum(row.state == state for row in rows)) for state in summaries.STATES]
    states = ", ".join(f"{count} {_STATES[state]}" for state, count in counts if count)
    shown, rest = rows[:MOST_ROWS], rows[MOST_ROWS:]
    left = ", ".join(f"{sum(row.state == state for row in rest)} {_STATES[state]}"
                     for state in summaries.STATES if any(row.state == state for row in rest))  # fmt: skip
    table = HtmlTable(
        head=("variable", "verdict", "shape", "dtype", "elements", "absolute", "relative", "ULP", "unequal from"),
        rows=tuple(_variable(row) for row in shown),
        numbers=frozenset((4, 5, 6, 7, 8)),
        left_out=f"{counted(len(rest), 'more variable')} {'is' if len(rest) == 1 else 'are'} left out here: {left}. "
        "All of them are in report.json."
        if rest
        else "",
    )
    subject = "1 variable" if len(rows) == 1 else f"{len(rows)} variables and optimizer slots"
    text = f"{subject} over all steps, the worst first: {states}. "
    text += "Each error is the largest of any element after any step; the step is below it."
    return ReportSection(title="Variables", text=(text,), tables=(table,))


def _variable(row: summaries.VariableSummary) -> tuple[ReportCell, ...]:
    sized = row.state in ("beyond", "within", "bit-equal")
    first = _NONE if row.first is None else "the start" if row.first == 0 else f"step {row.first}"
    return (
        ReportCell(row.name, note="" if sized else row.message.removeprefix(f"{row.name}: ")),
        _state(row.state, "" if row.beyond is None or not sized else f"from step {row.beyond}"),
        ReportCell(_NONE if row.shape is None else _shape(row.shape)),
        ReportCell(row.dtype or _NONE),
        ReportCell(_NONE if row.size is None else f"{row.size:,}"),
        *(_largest(error if sized else None) for error in (row.absolute, row.relative)),
        _largest(row.ulp if sized else None, counted=True),
        ReportCell(first),
    )


def _largest(error: summaries.Largest | None, *, counted: bool = False) -> ReportCell:
    if error is None:
        return ReportCell(_NONE)
    note = "" if error.step is None else "at the start" if error.step == 0 else f"step {error.step}"
    return ReportCell(_ulp(error.value) if counted else _number(error.value), note=note)


_STATES = {
    "missing": "on one side only",
    "shape": "of different shape",
    "dtype": "of different type",
    "beyond": "beyond tolerance",
    "within": "within tolerance",
    "bit-equal": "bit-equal",
    "not compared": "not compared",
}


def _state(state: str, note: str = "") -> ReportCell:
    mark = "good" if state in ("within", "bit-equal") else "" if state == "not compared" else "bad"
    return ReportCell(_STATES[state], note=note, mark=mark)


def _environments(parity: Parity) -> ReportSection | None:
    flat = {side: _flat(facts) for side, facts in parity.environments.items() if facts}
    if not flat:
        return None
    names = dict.fromkeys(name for facts in flat.values() for name in facts)
    rows = []
    for name in names:
        values = [_plain(facts.get(name), none="not set") for facts in flat.values()]
        mark = "differs" if len(set(values)) > 1 else ""
        rows.append((ReportCell(name), *(ReportCell(value, mark=mark) for value in values)))
    return ReportSection(title="Environment", tables=(HtmlTable(head=("", *flat), rows=tuple(rows)),))


def _flat(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts with nested mappings, such as environment variables, flattened and last."""
    plain = {name: value for name, value in facts.items() if not isinstance(value, Mapping)}
    for inner in facts.values():
        if isinstance(inner, Mapping):
            plain |= inner
    return plain


# In the order of the report, below the verdict.
SECTIONS: tuple[Callable[[Parity], ReportSection | None], ...] = (
    _findings,
    _what_was_run,
    _losses,
    _learning_rates,
    _differences,
    _metrics,
    _answers,
    _variables,
    _environments,
)


def _number(value: float) -> str:
    """Return an error, to three digits."""
    if not math.isfinite(value):
        return "∞"
    return "0" if value == 0 else f"{value:.3g}"


def _ulp(value: float) -> str:
    if value >= _NOT_COUNTED:
        return "∞"
    return f"{int(value):,}" if value < 1e7 else f"{value:.2g}"


def _exact(value: Any) -> str:
    """Return a value with nine digits, which identify a float32; of an array the first elements."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float):
        return f"{value:.9g}"
    if isinstance(value, list | tuple):
        more = f", … ({len(value)} in all)" if len(value) > _MOST_ELEMENTS else ""
        return f"[{', '.join(map(_exact, value[:_MOST_ELEMENTS]))}{more}]"
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _shape(shape: Sequence[int]) -> str:
    return " × ".join(map(str, shape)) if shape else "scalar"


def _plain(value: Any, *, none: str = _NONE) -> str:
    if value is None:
        return none
    if isinstance(value, Mapping):
        pairs = [f"{name}: {_plain(item)}" for name, item in value.items()]
        return ("\n" if any("," in item for item in pairs) else ", ").join(pairs)
    if isinstance(value, list | tuple):
        return "\n".join(map(str, value)) if any(" " in str(item) for item in value) else ", ".join(map(str, value))
    return str(value)
