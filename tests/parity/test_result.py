"""Comparing what two runs have recorded, from records made by hand: what is not compared is told, and nothing passes by
itself. What a difference comes from is in test_causes.py."""

from __future__ import annotations

import numpy as np
import pytest

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.parity import summaries, text
from estimator_pipeline.parity.comparison import compare_records
from estimator_pipeline.parity.findings import Facts
from estimator_pipeline.parity.result import ENGINES
from estimator_pipeline.parity.step_records import BatchWriter, StepWriter

RANDOM = np.random.default_rng(0)
RATES = [0.1, 0.09, 0.08, 0.07, 0.06, 0.05]
KERNEL = RANDOM.normal(size=(4, 3)).astype(np.float32)
GRADIENTS = [RANDOM.normal(size=(4, 3)) for _ in RATES]


def sgd(rates=RATES):
    """Kernel by kernel, of plain gradient descent."""
    kernel = KERNEL.astype(np.float64)
    yield {"dense/kernel": KERNEL}
    for rate, gradient in zip(rates, GRADIENTS, strict=True):
        kernel = kernel - rate * gradient
        yield {"dense/kernel": kernel.astype(np.float32)}


@pytest.fixture
def compared(tmp_path):
    """Writes both records and compares them."""

    def record(engine, states, *, rates=RATES, batches=RATES, loss=0.5):
        writer = StepWriter(tmp_path / engine / "record")
        first, *after = states
        writer.initial({**first, "global_step": np.int64(0)})
        for step, values in enumerate(after, 1):
            rate = None if rates is None else rates[step - 1]
            writer.step(step, loss=loss, learning_rate=rate, variables={**values, "global_step": np.int64(step)})
        reader = BatchWriter(tmp_path / engine / "record", "worker:0")
        for batch, _ in enumerate(batches or []):
            reader.batch([10 * batch + record for record in range(4)])

    def compared(estimator, keras, *, of_estimator=None, of_keras=None, **options):
        record("estimator", list(estimator), **(of_estimator or {}))
        record("keras", list(keras), **(of_keras or {}))
        options.setdefault("metrics", {engine: {"accuracy": 0.5} for engine in ENGINES})
        return compare_records(tmp_path, **options)

    return compared


def names(parity):
    return [finding.name for finding in parity.findings]


# Nothing passes by itself ----------------------------------------------------------------------------------------


def test_equal(compared):
    found = compared(sgd(), sgd(), steps=6)
    assert found.equal and not found.notes and not found.findings
    assert summaries.verdict(found) == (
        "Bit-equal: estimator and keras over 6 steps, with 2 variables after each, and in the final metrics."
    )


@pytest.mark.parametrize("slots", [True, False], ids=["compared", "left out"])
def test_slots_that_differ_alone(compared, slots):
    def kept(value):
        return [{**values, "dense/kernel @momentum": np.full((4, 3), value, np.float32)} for values in sgd()]

    found = compared(kept(0.0), kept(0.5), steps=6, slots=slots)
    assert found.equal is not slots
    assert [finding.name for finding in found.findings] == (["optimizer options"] if slots else [])


def test_no_step_is_no_proof(compared, tmp_path):
    with pytest.raises(ConfigError, match="holds no record of a run"):
        compare_records(tmp_path, metrics={engine: {} for engine in ENGINES})
    found = compared(list(sgd())[:1], list(sgd())[:1])
    assert not found.equal and names(found) == ["steps"]
    for engine in ENGINES:  # a step whose variables were not kept
        StepWriter(tmp_path / engine / "record").step(1, loss=0.5)
    found = compare_records(tmp_path, metrics={engine: {} for engine in ENGINES})
    assert not found.equal and names(found) == ["steps"]
    assert summaries.verdict(found) == "Not equal: estimator and keras have run no step in common."
    assert text.summary(found).startswith("not equal: estimator and keras have run no step in common")


def test_of_other_variables_no_step_is_asked_for(compared):
    """One side could not begin: that is told, and no steps that the other made alone, nor a table of nothing."""
    found = compared([{"hidden/kernel": KERNEL}], sgd(), steps=6, metrics={engine: {} for engine in ENGINES})
    assert not found.equal and names(found) == ["variables"] and not found.only
    said = text.summary(found)
    assert said.startswith(
        "not equal: they first differ before the first step\n  hidden/kernel: estimator has it, keras has not"
    )
    assert "largest difference" not in said and "alone" not in said


def test_fewer_steps_than_asked(compared):
    found = compared(list(sgd())[:4], list(sgd())[:4], steps=6)
    assert not found.equal and names(found) == ["steps"]
    assert summaries.verdict(found) == "Not equal: estimator and keras both ran 3 of the 6 steps."
    assert "3 steps of the 6 requested were run by both" in found.findings[0].message


@pytest.mark.parametrize("asked", [6, None])
def test_steps_of_one_side_alone(compared, asked):
    found = compared(list(sgd())[:4], sgd(), steps=asked)  # None: as many as both have made
    assert not found.equal and names(found) == ["steps"]
    assert found.only == (("keras", 4), ("keras", 5), ("keras", 6))
    assert "only keras ran 3 steps, the first is 4" in found.findings[0].message


def test_after_other_steps_nothing_is_said_of_metrics(compared):
    metrics = {"estimator": {"accuracy": 0.5}, "keras": {"accuracy": 0.6}}
    answers = ({"predictions logits": np.zeros(2, np.float32)}, {"predictions logits": np.ones(2, np.float32)})
    found = compared(list(sgd())[:4], sgd(), metrics=metrics, answers=answers)
    assert names(found) == ["steps"] and not found.metrics.names and found.answers is None
    assert found.finals == metrics
    assert "metrics and predictions were not compared, because the two did not run the same steps" in found.notes


@pytest.mark.parametrize(
    ("counts", "made", "told"),
    [
        ([2, 4, 6], 0, "2, 4, 6 in estimator; 1, 2, 3, 4, … in keras"),
        ([0], 0, "0 in estimator; 1, 2, 3, 4, … in keras"),
        ([1, 2, 4, 6], 2, "1, 2, 4, 6 in estimator; 1, 2, 3, 4, … in keras"),
    ],
    ids=["twice", "never", "twice from the third"],
)
def test_steps_that_are_counted_otherwise(tmp_path, counts, made, told):
    """Those of one number are not the same then, and are not held against each other."""
    first, *after = sgd()
    for engine, steps in zip(ENGINES, (counts, range(1, 7)), strict=True):
        writer = StepWriter(tmp_path / engine / "record")
        writer.initial({**first, "global_step": np.int64(0)})
        for step, values in zip(steps, after, strict=False):
            writer.step(step, loss=0.5, learning_rate=0.1, variables={**values, "global_step": np.int64(step)})
    found = compare_records(tmp_path, metrics={engine: {"loss": 0.5} for engine in ENGINES}, steps=6)
    assert [step.step for step in found.steps] == [*range(1, made + 1)] and not found.metrics.names
    assert names(found)[-1] == "steps" and not found.equal
    assert f"the steps do not correspond: the global step after each is {told}" in found.findings[-1].message


def test_a_rate_that_is_told_otherwise(compared):
    """With the same steps made: one side tells another rate than it trains with."""
    found = compared(sgd(), sgd(), of_keras={"rates": [*RATES[:3], RATES[3] * 1.5, *RATES[4:]]})
    assert not found.equal
    step, fault = found.first_fault
    assert (step, fault.name) == (4, "learning_rate")


@pytest.mark.parametrize(
    ("of_keras", "note"),
    [
        ({"batches": None}, "the records of the steps were not compared: keras did not record them"),
        ({"batches": RATES[:4]}, "the records of 2 of the 6 steps were not compared: one side recorded fewer batches"),
        ({"rates": None}, "the learning rate was not compared: only estimator recorded it"),
        (
            {"rates": [*RATES[:5], None]},
            "the learning rate of 1 of the 6 steps was not compared: only estimator recorded it",
        ),
    ],
)  # fmt: skip
def test_what_one_side_alone_tells_is_named(compared, of_keras, note):
    found = compared(sgd(), sgd(), of_keras=of_keras)
    assert found.equal and list(found.notes) == [note]


@pytest.mark.parametrize("other", [0.1, 0.2])
def test_a_rate_that_one_side_tells_by_its_graph_is_compared(compared, other):
    """As an option: that it was not compared would be wrong."""
    facts = Facts(options=({"kind": "sgd", "learning_rate": 0.1}, {"kind": "sgd", "learning_rate": other}))
    assert not compared(sgd(), sgd(), of_keras={"rates": None}, facts=facts).notes


def test_without_metrics_none_are_spoken_of(compared):
    found = compared(sgd(), sgd(), metrics={engine: {} for engine in ENGINES})
    assert found.equal and "metric" not in summaries.verdict(found) + text.summary(found).splitlines()[0]


# What is told of a difference -------------------------------------------------------------------------------------


def test_each_metric_that_differs_is_named(compared):
    one = {f"metric_{number}": 0.5 for number in range(6)}
    other = {**{name: 0.5 + 0.1 * number for number, name in enumerate(one)}, "alone": 1.0}
    found = compared(sgd(), sgd(), metrics={"estimator": one, "keras": other})
    (finding,) = found.findings
    assert (finding.name, finding.kind, finding.variable) == ("first difference", "metric", "alone")
    assert finding.message == "step 6, metric alone: keras has it, estimator has not"
    # Both values are told once, by the verdict; below it stands the worst of all with what was allowed.
    told = "alone only in keras, metric_5 0.5 in estimator and 1 in keras, metric_4 0.5 and 0.9"
    said = text.summary(found)
    assert told in summaries.verdict(found) and told in said
    assert said.count("metric_4 0.5 and 0.9") == 1 and "metric_4 is 0.5" not in said


def test_a_side_that_was_trained_before(tmp_path):
    first, *after = sgd()
    for engine, start in zip(ENGINES, (0, 3), strict=True):
        writer = StepWriter(tmp_path / engine / "record")
        writer.initial({**first, "global_step": np.int64(start)})
        for step, values in enumerate(after, start + 1):
            writer.step(step, loss=0.5, variables={**values, "global_step": np.int64(step)})
    found = compare_records(tmp_path, metrics={engine: {} for engine in ENGINES}, steps=6)
    assert "keras starts at step 3" in found.findings[-1].message and "trained before" in found.findings[-1].hint


def test_predictions(compared):
    answers = [
        {"predictions logits": np.zeros((2, 3), np.float32)},
        {"predictions logits": np.ones((2, 3), np.float32)},
    ]
    found = compared(sgd(), sgd(), answers=tuple(answers))
    assert [finding.kind for finding in found.findings] == ["prediction"] and not found.equal
    assert summaries.verdict(found) == (
        "Not equal: 6 steps of estimator and keras are equal, they differ in the predictions: logits, "
        "by 1 (relative 1)."
    )


def test_records_are_counted_and_not_measured(compared, tmp_path):
    BatchWriter(tmp_path / "keras" / "record", "worker:0").batch([4_000_000_000, 1, 2, 3])
    found = compared(sgd(), sgd())
    assert names(found) == ["records"]
    assert summaries.verdict(found).endswith("in the records of worker-0, batch 1: 1 of 4 is different.")
