"""The report of a comparison, from comparisons made by hand: what it says, that it stands alone, that it is whole."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.parity import Tolerance, compare, text
from estimator_pipeline.parity.diagnosis.diagnose import ParityFinding
from estimator_pipeline.parity.report.html import prepare, write_report
from estimator_pipeline.parity.report.sections import MOST_ROWS
from estimator_pipeline.parity.result import ENGINES, Parity, StepParity
from estimator_pipeline.utils.jsonable import finite
from tests.support.processes import ROOT

ROUNDING = Tolerance(rtol=1e-4, reason="the same sums in a different order")
WEIGHTS = {
    "dense/kernel": np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3),
    "dense/bias": np.full(3, 0.5, np.float32),
    "dense/kernel @m": np.full((4, 3), 0.25, np.float32),
    "global_step": np.int64(7),
}


def made(*, steps=5, variables=WEIGHTS, change=None, losses=None, only=(), finals=None, **more):
    """A comparison of `steps` steps.

    Args:
        variables: of both sides, the same after every step.
        change: (step, variables) -> the Estimator's variables.
        losses: step -> both losses.
        finals: engine -> metrics.
    """
    change = change or (lambda step, values: values)
    losses = losses or (lambda step: (1.0 / step, 1.0 / step))
    finals = finals or {engine: {"accuracy": 0.875, "average_loss": 0.25, "loss": 0.3} for engine in ENGINES}
    rounding = {"tolerance": ROUNDING, "sides": ENGINES}
    numbers = {
        step: compare(*({"loss": loss, "learning_rate": 0.1} for loss in losses(step)), **rounding)
        for step in range(1, steps + 1)
    }
    kept = [{name: value for name, value in finals[engine].items() if name != "loss"} for engine in ENGINES]
    start = [change(0, dict(variables)), variables]
    return Parity(
        steps=tuple(
            StepParity(
                step=step,
                losses=losses(step),
                learning_rates=(0.1, 0.1),
                update_norms=(0.5, 0.5),
                variables=compare(change(step, dict(variables)), variables, **rounding),
            )
            for step in range(1, steps + 1)
        ),
        initial=compare(*start, sides=ENGINES),
        metrics=compare(*kept, **rounding),
        numbers=numbers,
        folder=Path("/runs/parity"),
        only=only,
        finals=finals,
        arrays={engine: {name: (np.shape(value), str(np.asarray(value).dtype)) for name, value in side.items()}
                for engine, side in zip(ENGINES, start, strict=True)},
        **more,
    )  # fmt: skip


def changed(name, index, by, *, since):
    """A change of one element, from a step on; a function of it where it is no number to add."""

    def change(step, values):
        if step >= since:
            value = values[name].copy()
            value[index] = by(value[index]) if callable(by) else value[index] + by
            values[name] = value
        return values

    return change


class Page(HTMLParser):
    """What stands in a page.

    Attributes:
        tags: every tag with its attributes.
        said: the text of the page outside of charts and style, blank space made single.
        tables: section's title -> rows, each a list of cells; a cell's note stands after a "|".
        charts: section's title -> the texts in its charts.
        style: the style sheet.
        declared: declarations and processing instructions.
    """

    VOID = ("meta", "br", "wbr", "hr", "img", "link")

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.charts: dict[str, list[str]] = {}
        self.style = ""
        self.declared: list[str] = []
        self._open: list[str] = []
        self._texts: list[str] = []
        self._title = ""
        self.feed(content)
        self.close()
        assert not self._open, f"never closed: {self._open}"
        self.said = " ".join(" ".join(self._texts).split())

    def handle_decl(self, decl):
        self.declared.append(decl)

    handle_pi = handle_decl

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag in self.VOID:
            return
        self._open.append(tag)
        if tag == "h2":
            self._title = ""
        elif tag == "tr":
            self.tables.setdefault(self._title, []).append([])
        elif tag in ("td", "th"):
            self.tables[self._title][-1].append("")
        elif tag == "small":
            self.tables[self._title][-1][-1] += "|"

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag, f"</{tag}> at {self.getpos()}"

    def handle_data(self, data):
        if "style" in self._open:
            self.style += data
        elif "svg" in self._open:
            if "text" in self._open and data.strip():
                self.charts.setdefault(self._title, []).append(data.strip())
        else:
            self._texts.append(data)
            if "h2" in self._open:
                self._title += data
            if "td" in self._open or "th" in self._open:
                self.tables[self._title][-1][-1] += data.strip()

    def row(self, section: str, name: str) -> list[str]:
        (found,) = [row for row in self.tables[section] if row[0].partition("|")[0] == name]
        return found[1:]


class Reports:
    """Writes reports into one folder and reads them; each is whole, and its JSON is the comparison's document."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, parity: Parity) -> Page:
        path = write_report(parity, self.folder)
        assert path == self.folder / "report.html"
        assert sorted(os.listdir(self.folder)) == ["report.html", "report.json"], "nothing unfinished is left"
        assert self.document == json.loads(json.dumps(finite(text.document(parity))))
        return Page(self.content)

    @property
    def content(self) -> str:
        return (self.folder / "report.html").read_text(encoding="utf-8")

    @property
    def document(self) -> dict:
        return json.loads((self.folder / "report.json").read_text(encoding="utf-8"))


@pytest.fixture
def report(tmp_path):
    return Reports(tmp_path / "report")


def test_bit_equal(report):
    page = report(made())
    assert "Bit-equal: estimator and keras over 5 steps, with 4 variables after each, and in the final" in page.said
    assert "Bit-equal at every step: loss, weights and statistics, optimizer slots." in page.said
    assert list(page.charts) == ["Losses"]
    assert {"estimator", "keras", "step"} <= set(page.charts["Losses"])
    assert page.row("Variables", "dense/kernel") == ["bit-equal", "4 × 3", "float32", "12", "0", "0", "0", "–"]
    assert page.row("Variables", "global_step") == ["bit-equal", "scalar", "int64", "1", "0", "0", "–", "–"]
    assert page.row("Metrics of the final evaluation", "accuracy") == ["0.875", "0.875", "0", "0", "bit-equal"]
    # Not compared, and shown.
    assert page.row("Metrics of the final evaluation", "loss") == ["0.3", "0.3", "–", "–", "not compared"]
    assert [attributes["class"] for tag, attributes in page.tags if attributes.get("id") == "verdict"] == [
        "verdict good"
    ]


def test_within_the_tolerances(report):
    last = np.float32(0.5)
    page = report(made(change=changed("dense/bias", 1, np.nextafter(last, np.float32(1)) - last, since=2)))
    assert "Equal within the tolerances: estimator and keras over 5 steps" in page.said
    assert "variables differ by 5.96e-08 at most (dense/bias, step 2)." in page.said
    assert page.row("Variables", "dense/bias") == [
        "within tolerance", "3", "float32", "3", "5.96e-08|step 2", "1.19e-07|step 2", "1|step 2", "step 2"
    ]  # fmt: skip
    assert page.tables["Variables"][1][0] == "dense/bias", "the worst comes first"
    chart = page.charts["Largest difference by step"]
    assert "bit-equal" in chart and "10⁻⁸" in chart and "NaN or ∞" not in chart
    assert "Bit-equal at every step: loss, optimizer slots." in page.said


def test_a_difference_at_step_3(report):
    """Small from step 2 on, which is allowed, and beyond the tolerance from step 3 on; largest at step 4."""

    def change(step, values):
        by = {2: 1e-6, 3: 0.125, 4: 0.25, 5: 0.125}.get(step, 0.0)
        return changed("dense/bias", 0, by, since=0)(step, values)

    finals = {"estimator": {"accuracy": 0.75}, "keras": {"accuracy": 0.5}}
    page = report(made(change=change, finals=finals, losses=lambda step: (1.0, 1.0 if step < 4 else 1.5)))
    assert (
        "Not equal: estimator and keras first differ at step 3 of 5, in the variable dense/bias, by 0.125" in page.said
    )
    assert [attributes["class"] for tag, attributes in page.tags if attributes.get("id") == "verdict"] == [
        "verdict bad"
    ]
    shown = page.row("Variables", "dense/bias")
    assert shown[0] == "beyond tolerance|from step 3" and shown[7] == "step 2"
    assert shown[4:6] == ["0.25|step 4", "0.333|step 4"]
    assert int(shown[6].partition("|")[0].replace(",", "")) == 2**22, "half of the numbers from 0.5 to 1"
    assert page.row("Metrics of the final evaluation", "accuracy") == [
        "0.75", "0.5", "0.25", "0.333", "beyond tolerance"
    ]  # fmt: skip
    assert "At step 5: 1 with estimator, 1.5 with keras." in page.said
    for chart in ("Losses", "Largest difference by step"):
        assert "first difference: step 3" in page.charts[chart]


def test_the_largest_errors_need_not_be_in_one_element(report):
    """The worst element is the one with the largest relative error; another has the largest absolute one."""

    def change(step, values):
        return {"dense/bias": values["dense/bias"] + np.array([0.5, 0.001, 0], np.float32) * step}

    base = {"dense/bias": np.array([100.0, 0.001, 0.5], np.float32)}
    page = report(made(steps=1, variables=base, change=change))
    assert page.row("Variables", "dense/bias")[4:6] == ["0.5|step 1", "0.5|step 1"]
    assert "by 0.001 (relative 0.5)" in page.said


def test_the_worst_comes_first(report):
    """What is not allowed before what is; within that by the relative error, which does not depend on the scale."""
    scales = {"a/small": 1e-3, "b/large": 1e3, "c/beyond": 1.0, "d/equal": 1.0}
    errors = {"a/small": 4e-5, "b/large": 2e-5, "c/beyond": 2e-4, "d/equal": 0.0}
    variables = {name: np.full(2, scale, np.float32) for name, scale in scales.items()}

    def change(step, values):
        return {name: (value * (1 + errors[name] * bool(step))).astype(np.float32) for name, value in values.items()}

    page = report(made(variables=variables, change=change))
    assert [row[0] for row in page.tables["Variables"][1:]] == ["c/beyond", "a/small", "b/large", "d/equal"]


def test_names_and_steps_of_one_side(report):
    def change(step, values):
        del values["dense/bias"]
        values["dense/offset"] = np.zeros(3, np.float32)
        return values

    page = report(made(change=change, only=(("keras", 6), ("keras", 7), ("keras", 9))))
    assert (
        "Not equal: estimator and keras first differ before the first step: dense/offset: estimator has it" in page.said
    )
    for sentence in (
        "variable dense/offset: estimator has it, keras has not",
        "variable dense/bias: keras has it, estimator has not",
        "steps 6 to 7, 9: run by keras only",
    ):
        assert page.said.count(sentence) == 1
    for name, (has, has_not) in {"dense/offset": ENGINES, "dense/bias": ENGINES[::-1]}.items():
        (row,) = [row for row in page.tables["Variables"] if row[0].startswith(name)]
        assert row[0] == f"{name}|{has} has it, {has_not} has not"
        assert row[1:5] == ["on one side only", "3", "float32", "3"] and row[5:8] == ["–"] * 3


def test_many_names_of_one_side(report):
    many = {f"layer_{number:02d}/kernel": np.ones(2, np.float32) for number in range(20)}
    page = report(made(steps=2, variables=many, change=lambda step, values: {"other": np.ones(1, np.float32)}))
    assert page.said.count("estimator has not") == 8 - 1 + 20, "a few below the verdict, all in the table"
    assert "and 13 more; report.json has all of them" in page.said
    assert sum(row[1] == "on one side only" for row in page.tables["Variables"]) == 21


def test_shapes_and_types(report):
    def change(step, values):
        return {**values, "dense/kernel": np.zeros((3, 4), np.float32), "dense/bias": np.zeros(3)}

    page = report(made(change=change))
    states = [(row[0].partition("|")[0], row[1]) for row in page.tables["Variables"][1:3]]
    assert states == [("dense/kernel", "of different shape"), ("dense/bias", "of different type")]
    assert page.tables["Variables"][2][0] == "dense/bias|dtype float64 in estimator, float32 in keras"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number(report, value):
    change = changed("dense/bias", 1, lambda _: value, since=3)
    page = report(made(change=change, losses=lambda step: (value if step >= 4 else 0.5, 0.5)))
    assert f"in the variable dense/bias: {value} in estimator, 0.5 in keras." in page.said
    cells = page.row("Variables", "dense/bias")
    assert cells[4:6] == ["∞|step 3", "∞|step 3"] and cells[0] == "beyond tolerance|from step 3"
    assert "NaN or ∞" in page.charts["Largest difference by step"]
    assert "bit-equal" in page.charts["Largest difference by step"]
    assert "The loss of estimator at step 4 and of 1 further step is not a finite number" in page.said
    assert not re.search(r'\b(d|x|y)="[^"]*(nan|inf)', report.content, re.IGNORECASE)


def test_no_number_on_either_side(report):
    page = report(made(losses=lambda step: (math.nan, math.nan)))
    assert "Bit-equal: estimator and keras over 5 steps" in page.said
    for engine in ENGINES:
        assert f"The loss of {engine} at step 1 and of 4 further steps is not a finite number" in page.said


def test_one_step(report):
    page = report(made(steps=1, change=changed("dense/bias", 0, 0.25, since=1)))
    assert "first differ at step 1 of 1, in the variable dense/bias, by 0.25" in page.said
    assert set(page.charts) == {"Losses", "Largest difference by step"}


def test_no_steps_in_common(report):
    page = report(made(steps=0, only=(("keras", 1),)))
    assert "step 1: run by keras only" in page.said and not page.charts


def test_many_variables(report):
    """The table stays usable: the worst are shown, the others counted, and all are in the JSON."""
    many = {f"layer_{number:03d}/kernel": np.ones(2, np.float32) for number in range(500)}
    change = changed("layer_444/kernel", 1, 0.5, since=2)
    page = report(made(steps=3, variables=many, change=change))
    rows = page.tables["Variables"][1:]
    assert len(rows) == MOST_ROWS and rows[0][0] == "layer_444/kernel"
    assert (
        "500 variables and optimizer slots over all steps, the worst first: 1 beyond tolerance, 499 bit-equal"
        in page.said
    )
    assert (
        f"{500 - MOST_ROWS} more variables are left out here: {500 - MOST_ROWS} bit-equal. All of them are in"
        in page.said
    )
    assert {variable["name"] for variable in report.document["variables"]} == set(many)


def test_what_was_run_and_where(report):
    about = {
        "job": "jobs/digits.yaml", "settings": ["model.optimizer.name=adam"], "engines": list(ENGINES), "workers": 2,
        "steps": 5, "model": "cnn", "optimizer": "adam, learning_rate 0.01", "strategy": "multi_worker_mirrored",
        "run.seed": 3, "input.seed": None,
        "tolerances": {"initial values": "bit-equal", "variables": "rtol 0.0001: the same sums in a different order"},
    }  # fmt: skip
    environments = {
        "estimator": {"tensorflow": "2.21.0", "replicas": 2, "devices": ["CPU"], "variables": {"XLA_FLAGS": "--x"}},
        "keras": {"tensorflow": "2.15.1", "replicas": 2, "devices": ["CPU"], "variables": {"XLA_FLAGS": None}},
    }
    page = report(made(about=about, environments=environments))
    assert page.row("What was run", "job") == ["jobs/digits.yaml"]
    assert page.row("What was run", "replicas") == ["2"] and page.row("What was run", "steps") == ["5"]
    assert "variables: rtol 0.0001: the same sums in a different order" in page.row("What was run", "tolerances")[0]
    assert not [row for row in page.tables["What was run"] if row[0] == "input.seed"]
    assert page.row("Environment", "tensorflow") == ["2.21.0", "2.15.1"]
    assert page.row("Environment", "XLA_FLAGS") == ["--x", "not set"]
    differs = [tag for tag, attributes in page.tags if tag == "td" and "differs" in (attributes.get("class") or "")]
    assert len(differs) == 4, "two rows differ, and are marked on both sides"
    assert "<title>Parity of digits.yaml</title>" in report.content
    # One that a run did not tell.
    given = report(made(about=about, environments={"estimator": {"tensorflow": "2.17.0"}, "keras": {}}))
    assert given.row("Environment", "tensorflow") == ["2.17.0"]
    assert "Environment" not in report(made(about=about)).tables


def rated(parity, rates):
    """With the learning rates of each step, (estimator's, keras's)."""
    steps = tuple(dataclasses.replace(one, learning_rates=rates(one.step)) for one in parity.steps)
    return dataclasses.replace(parity, steps=steps)


@pytest.mark.parametrize(
    ("rates", "says"),
    [
        (lambda step: (float(np.float32(0.1)),) * 2, "0.1 at every step, with both."),
        (lambda step: (0.1, 0.2), "At every step 0.1 with estimator, 0.2 with keras."),
        (lambda step: (None, 0.2), "At every step 0.2 with keras. estimator did not record its learning rate by step."),
        (lambda step: (None, 0.2 / step), "estimator did not record its learning rate by step."),
        (lambda step: (0.2 / step, 0.2 / step), "The learning rate of each step."),
    ],
    ids=["one", "two", "one side", "by step, one side", "by step"],
)
def test_learning_rates(report, rates, says):
    page = report(rated(made(), rates))
    assert says in page.said
    drawn = page.charts.get("Learning rate", [])
    assert ("learning rate" in drawn) == (rates(1) != rates(2))
    if drawn:
        assert "keras" in drawn and ("estimator" in drawn) == (rates(1)[0] is not None)


def test_a_rate_that_neither_tells(report):
    assert "Learning rate" not in report(rated(made(), lambda step: (None, None))).said


def test_slots_that_were_not_compared_stand_in_the_table(report):
    """They mean something else on either side; what is compared is bit-equal."""
    parity = made()
    shape = ((3,), "float32")
    own = {"estimator": "dense/bias @momentum", "keras": "dense/bias @rms"}
    arrays = {engine: {**parity.arrays[engine], own[engine]: shape, "dense/bias @both": shape} for engine in ENGINES}
    page = report(dataclasses.replace(parity, arrays=arrays))
    assert page.said.count("Bit-equal: estimator and keras over 5 steps") == 1
    last = page.tables["Variables"][-3:]
    assert {row[0]: row[1] for row in last} == {
        "dense/bias @momentum|only estimator has it": "not compared",
        "dense/bias @rms|only keras has it": "not compared",
        "dense/bias @both": "not compared",
    }
    assert all(set(row[5:]) == {"–"} for row in last), last
    assert "4 bit-equal, 3 not compared." in page.said


def test_findings_notes_and_answers(report):
    """What a difference comes from stands first; the exports' answers after the metrics."""
    finding = ParityFinding(
        name="loss scaling", message="2 times <the> other's", step=1, side="keras", hint="divide by it"
    )
    name = "signature predict, output logits"
    answers = compare({name: np.float32([1, 2])}, {name: np.float32([1, 2.5])}, sides=ENGINES)
    page = report(made(findings=(finding,), notes=("random layers (dropout)",), answers=answers))
    assert page.tables["Cause of the difference"] == [["loss scaling", "2 times <the> other's|look at: divide by it"]]
    assert "Note: random layers (dropout)." in page.said
    ((told, absolute, *_, verdict),) = page.tables["Answers of the exported models"][1:]
    assert told.startswith(f"{name}|") and (absolute, verdict) == ("0.5", "beyond tolerance")
    assert next(iter(page.tables)) == "Cause of the difference"
    same = report(made(answers=compare({name: np.zeros(2)}, {name: np.zeros(2)})))
    assert "Their 1 input or output is bit-equal." in same.said


def test_predictions_of_a_program_are_no_exports(report):
    """There is no SavedModel of it."""
    name = "predictions dense"
    page = report(made(answers=compare({name: np.zeros(2)}, {name: np.zeros(2)})))
    assert "Predictions" in page.said and "Their 1 output is bit-equal." in page.said
    assert "SavedModel" not in page.said and "exports" not in page.said


def test_the_order_of_the_sections(report):
    parity = made(environments={"estimator": {"python": "3.11"}, "keras": {"python": "3.11"}})
    page = report(parity)
    places = [page.said.index(title) for title in (
        "Bit-equal:", "What was run", "Losses", "Largest difference by step", "Metrics of the final evaluation",
        "Variables", "Environment")]  # fmt: skip
    assert places == sorted(places)


NASTY = "<script>alert('x')</script>\"&{{ 7*7 }}"


def test_what_others_have_named_is_text(report):
    """Names, texts and settings are shown as they are; none of them becomes a part of the page."""
    variables = {NASTY: np.ones(2, np.float32), "$\\frac{1}{2}$": np.ones(2, np.float32)}
    page = report(
        made(
            variables=variables,
            change=changed(NASTY, 0, 0.5, since=1),
            finals={engine: {f"metric {NASTY}": 0.5} for engine in ENGINES},
            about={"job": NASTY, "settings": [NASTY], "steps": 5, "tolerances": {NASTY: NASTY}},
            environments={engine: {NASTY: NASTY, "variables": {"XLA_FLAGS": NASTY}} for engine in ENGINES},
        )
    )
    assert "script" not in {tag for tag, _ in page.tags}
    assert page.row("Variables", NASTY)[0].startswith("beyond") and page.row("Variables", "$\\frac{1}{2}$")
    assert page.row("Environment", NASTY) == [NASTY, NASTY]
    assert page.said.count("{{ 7*7 }}") >= 8 and "49" not in page.said


def test_the_page_stands_alone(report):
    """Nothing is asked for from elsewhere: no script, no style, font or image but what is in the page."""
    page = report(made(change=changed("dense/bias", 0, 0.25, since=3)))
    assert page.declared == ["DOCTYPE html"], "a chart's own would name a document type elsewhere"
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "link", "img", "iframe", "object", "embed", "audio", "video", "source", "base", "form"}
    assert "@import" not in page.style and "url(" not in page.style and "@font-face" not in page.style
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids)), "two charts, and no id twice"
    assert sum(tag == "svg" for tag, _ in page.tags) == 2
    used = set()
    for tag, attributes in page.tags:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            for inner in re.findall(r"url\(([^)]*)\)", value or ""):
                used.add(inner)
            if name in ("href", "xlink:href", "src", "srcset", "data", "action"):
                used.add(value)
            elif not name.startswith("xmlns"):
                assert "//" not in (value or ""), (tag, name, value)
    assert used and all(value.startswith("#") for value in used), used
    assert {value[1:] for value in used} <= set(ids)
    # The page's colours, so that charts are seen on a dark screen too: none that matplotlib has set.
    content = report.content
    chart = content[content.index("<svg") : content.rindex("</svg>")]
    # A colour stands there as what is used where a page has none.
    assert not re.search(r"(?<!, )#[0-9a-f]{6}\b", chart) and "var(--one, " in chart
    assert set(re.findall(r"var\((--\w+)", chart)) <= set(re.findall(r"(--[\w-]+):", page.style))


def test_the_same_comparison_is_the_same_page(report):
    parity = made(change=changed("dense/bias", 0, 0.25, since=3))
    report(parity)
    first = report.content
    report(parity)
    assert report.content == first


def test_a_page_that_fails_leaves_the_earlier_one(report, monkeypatch):
    report(made())
    before = report.content

    def full(path, *args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_report(made(steps=2), report.folder)
    assert report.content == before
    assert sorted(os.listdir(report.folder)) == ["report.html", "report.json"]


def test_a_place_that_is_none(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "odd" / "report.html").mkdir(parents=True)
    for folder, found in (
        (tmp_path / "file", "it is a file"),
        (tmp_path / "file" / "below", f"{tmp_path}/file/below: Not a directory"),
        (tmp_path / "odd", f"{tmp_path}/odd/report.html is a folder"),
        (Path("/proc/report"), "/proc/report: No such file or directory"),
    ):
        with pytest.raises(ConfigError) as error:
            prepare(folder)
        assert (error.value.code, error.value.found) == ("file/unwritable", found)
        assert error.value.what.startswith(f"--report {folder}: ") and error.value.hint
    assert prepare(tmp_path / "new" / "folder").is_dir() and not list((tmp_path / "new" / "folder").iterdir())


def test_a_place_that_is_none_is_told_before_the_runs(run_python, tmp_path):
    (tmp_path / "file").write_text("")
    done = run_python(["-m", "estimator_pipeline", "parity", ROOT / "legacy_configs" / "single.yaml", "--report",
                       tmp_path / "file", "--folder", tmp_path / "runs"])  # fmt: skip
    assert done.returncode == 2 and not done.stdout and not (tmp_path / "runs").exists()
    assert done.stderr.startswith(f"error: --report {tmp_path}/file: ") and "[file/unwritable]\n" in done.stderr


def test_what_draws_is_imported_for_a_report_alone():
    code = (
        "import sys, estimator_pipeline.cli.parity\n"
        "import estimator_pipeline.parity.jobs.run, estimator_pipeline.parity.text\n"
        "drawn = {'matplotlib', 'jinja2', 'tensorflow'} & set(sys.modules); assert not drawn, drawn\n"
        "import estimator_pipeline.parity.report.html\n"
        "assert {'matplotlib', 'jinja2'} <= set(sys.modules) and 'tensorflow' not in sys.modules\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=ROOT)
