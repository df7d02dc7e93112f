"""What a comparison is told in: the verdict, the summary, the report's tables and the messages of bad tolerances."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import numpy as np
import pytest

from estimator_pipeline.cli import library_logging as quiet
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.parity import Tolerance, Tolerances, compare, run_parity, summaries, text
from estimator_pipeline.parity.comparison import compare_checksums
from estimator_pipeline.parity.models.matching import to_compare
from estimator_pipeline.parity.report.html import render
from estimator_pipeline.parity.report.sections import MOST_ROWS, sections
from estimator_pipeline.parity.result import ENGINES, Parity, StepParity
from tests.support.processes import ROOT

KERNEL = np.linspace(-1, 1, 6, dtype=np.float32)
ROUNDING = {"tolerance": Tolerance(rtol=1e-4, reason="the same sums in a different order"), "sides": ENGINES}
RECORDS = "records of worker-0, batch 3"
OF_PROGRAM = {"estimator": "model_fn make_fc", "model": "Sequential sequential"}


def made(*, steps=5, metrics=({}, {}), finals=None, answers=None, read=None, variables=None, **more):
    """A comparison whose training is equal.

    Args:
        metrics: of both sides, those that are compared.
        finals: of both sides, all of them.
        answers: of both sides.
        read: step -> the checksums of both sides' records.
        variables: of both sides, the same after every step.
    """
    variables = {"dense/kernel": KERNEL, "global_step": np.int64(7)} if variables is None else variables
    metrics = [{name: np.asarray(value, np.float32) for name, value in side.items()} for side in metrics]
    same = compare(variables, variables, sides=ENGINES)
    numbers = {"loss": np.float32(0.5)}
    return Parity(
        steps=tuple(
            StepParity(
                step=step, losses=(0.5, 0.5), learning_rates=(None, None), update_norms=(0.1, 0.1), variables=same
            )
            for step in range(1, steps + 1)
        ),
        initial=same,
        metrics=compare(*metrics, **ROUNDING),
        numbers={step: compare(numbers, numbers, **ROUNDING) for step in range(1, steps + 1)},
        records={
            step: compare_checksums(*({RECORDS: np.array(side, np.uint32)} for side in pair), sides=ENGINES)
            for step, pair in (read or {}).items()
        },
        answers=None if answers is None else compare(*answers, **ROUNDING),
        finals=dict(zip(ENGINES, finals or metrics, strict=True)),
        folder=Path("/runs/parity"),
        **more,
    )  # fmt: skip


def headline(parity):
    return text.summary(parity).splitlines()[0]


def cells(parity, title):
    """The section's rows: name -> the other cells, a note after a "|"."""
    (found,) = [section for section in sections(parity) if section.title == title]
    return {
        row[0].text: [cell.text + (f"|{cell.note}" if cell.note else "") for cell in row[1:]]
        for table in found.tables
        for row in table.rows
    }


# Where they part after the training ------------------------------------------------------------------------------

PREDICTED = ({"predictions logits": np.zeros(2, np.float32)}, {"predictions logits": np.float32([0, 1])})
EXPORTED = tuple({f"signature predict, output {name}": v for name, v in side.items()} for side in PREDICTED)
MAE = ({"mae": 0.25}, {"mae": 0.5})
TYPES = ({"signature predict, input x": np.array("float32")}, {"signature predict, input x": np.array("float64")})


@pytest.mark.parametrize(
    ("ends", "where", "says"),
    [
        ({"metrics": MAE}, "the final evaluation: mae 0.25 in estimator and 0.5 in keras", ""),
        ({"answers": PREDICTED}, "the predictions", ": logits, by 1 (relative 1)"),
        (
            {"answers": EXPORTED},
            "the answers of the exports",
            ": signature predict, output predictions logits, by 1 (relative 1)",
        ),
        (
            {"answers": TYPES},
            "the answers of the exports",
            ": signature predict, input x: 'float32' in estimator, 'float64' in keras",
        ),
        (
            {"answers": ({"signature a, output b": KERNEL}, {})},
            "the answers of the exports",
            ": signature a, output b: estimator has it, keras has not",
        ),
        (
            {"metrics": MAE, "answers": PREDICTED},
            "the final evaluation and the predictions: mae 0.25 in estimator and 0.5 in keras",
            "",
        ),
    ],
    ids=["metrics", "predictions", "exports", "signatures", "one-sided", "both"],
)
def test_equal_training_is_called_so(ends, where, says):
    found = made(**ends)
    assert headline(found) == f"not equal: 5 steps are equal, they differ in {where}"
    assert (
        summaries.verdict(found)
        == f"Not equal: 5 steps of estimator and keras are equal, they differ in {where}{says}."
    )
    assert "at step" not in text.summary(found) and "first difference: step" not in render(found)
    assert headline(made(steps=1, **ends)).startswith("not equal: 1 step is equal, they differ in the")


def test_more_than_one_answer_is_counted():
    answers = (
        {"predictions a": KERNEL, "predictions b": KERNEL},
        {"predictions a": -KERNEL, "predictions b": 2 * KERNEL},
    )
    assert summaries.verdict(made(answers=answers)).endswith("in the predictions: a, by 2 (relative 2), and 1 more.")


def test_fewer_steps_that_are_equal():
    found = made(steps=2, asked=5, metrics=MAE)
    assert headline(found).startswith(
        "not equal: 2 steps are equal of 5 requested, they differ in the final evaluation"
    )
    none = made(steps=0, metrics=MAE)
    assert headline(none).startswith("not equal: estimator and keras have run no step in common, they differ in the")


def test_what_parts_in_training_is_told_as_before():
    found = made(read={3: ([1, 2], [1, 3])}, metrics=MAE)
    assert headline(found) == "not equal: they first differ at step 3 of 5"
    assert summaries.verdict(found).startswith(
        "Not equal: estimator and keras first differ at step 3 of 5, in the records of"
    )
    assert "first difference: step 3" in render(found)


# Metrics ---------------------------------------------------------------------------------------------------------


def test_all_metrics_that_differ_are_named():
    one = {"a": 0.5, "b": 0.5, "c": 0.5, "same": 0.5, "d": 0.5, "e": 0.5, "f": 0.5}
    other = {**one, "a": 0.75, "b": 1.0, "c": 0.6, "d": 0.50008, "e": 0.50007, "f": 0.50006}
    told = headline(made(metrics=(one, other))).partition("evaluation: ")[2]
    assert told == "b 0.5 in estimator and 1 in keras, a 0.5 and 0.75, c 0.5 and 0.6, d 0.5 and 0.50008, and 2 more"
    assert told in summaries.verdict(made(metrics=(one, other)))
    fewer = made(metrics=({"a": 0.5, "b": 0.25}, {"a": 0.75, "b": 1.0}))
    assert headline(fewer).endswith(": b 0.25 in estimator and 1 in keras, a 0.5 and 0.75")


def test_metrics_of_one_side_and_arrays_are_named():
    found = made(
        metrics=(
            {"f1": 0.5, "precision": [0.5, 0.6], "recall": [0.5, 0.6]},
            {"f2": 0.5, "precision": [0.5, 0.9], "recall": 0.5},
        )
    )
    assert headline(found).endswith(
        "f1 only in estimator, f2 only in keras, recall of different shape, "
        "precision[1] 0.6 in estimator and 0.9 in keras"
    )


def test_values_have_the_digits_that_tell_them_apart():
    found = made(metrics=({"auc": 1.0}, {"auc": np.float32(1) - np.float32(6e-8)}))
    assert headline(found).startswith("equal")
    strict = compare({"auc": np.float32(1)}, {"auc": np.nextafter(np.float32(1), np.float32(0))}, sides=ENGINES)
    found = Parity(steps=found.steps, initial=found.initial, metrics=strict, numbers=found.numbers, folder=found.folder)
    assert headline(found).endswith("auc 1 in estimator and 0.99999994 in keras")


NOTE = re.compile(r"of the evaluation (?:only (.*) was compared, and not |nothing was compared: )(.*?): match metrics")


@pytest.mark.parametrize("loss", [0.5, None], ids=["one replica", "several"])
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ((), ()),
        (("average_loss",), ()),
        ((), ("average_loss",)),
        (("average_loss",), ("average_loss",)),
        (("mae",), ("mae",)),
        (("mae", "auc"), ("mae",)),
        (("mae",), ("mae", "auc", "acc")),
        (("average_loss", "mae", "label/mean"), ("mae",)),
        (("average_loss", "mae", "label/mean"), ("mae", "acc", "average_loss")),
        (("mae",), ("acc",)),
    ],
    ids=lambda names: "+".join(names) or "loss",
)
def test_the_headline_counts_what_the_note_names(theirs, ours, loss):
    finals, notes = to_compare({"loss": 0.5, **dict.fromkeys(theirs, 0.5)}, dict.fromkeys(ours, 0.5), {}, loss)
    both = [name for name in finals["estimator"] if name in finals["keras"]]
    compared = tuple({name: finals[engine][name] for name in both} for engine in ENGINES)
    found = made(metrics=compared, finals=[finals[engine] for engine in ENGINES], notes=tuple(notes))
    said = summaries.metrics(found)
    named = [match for match in map(NOTE.match, notes) if match]
    if named:
        (match,) = named
        only = match[1].split(", ") if match[1] else []
        left = [name for part in match[2].split("; ") for name in part.partition(" (")[0].split(", ")]
        total = len(only) + len(left)
        assert said.startswith(f"{len(only)} of {total} final metric{'s' * (total != 1)}"), (said, notes)
    else:
        assert said.startswith("the final metrics"), (said, notes)
    without = not {"loss", "average_loss"} & set(both)
    assert said.endswith(" (not the loss)") == without
    assert without <= any(note.startswith("the loss of the evaluation was not compared") for note in notes)
    if both:
        assert f", {said}" in headline(found)


def test_a_job_leaves_the_loss_out_beside_its_average():
    finals = {"loss": 0.5, "average_loss": 0.4, "acc": 0.5}
    compared = {"average_loss": 0.4, "acc": 0.5}
    found = made(metrics=(compared, compared), finals=(finals, finals))
    assert headline(found).endswith(", the final metrics") and "average_loss is compared instead" in render(found)
    plain = made(metrics=({"acc": 0.5},) * 2, finals=({"loss": 0.5, "acc": 0.5}, {"acc": 0.5}))
    assert headline(plain).endswith(", the final metrics (not the loss)")
    assert "average_loss is compared instead" not in render(plain)


def test_arrays_are_readable_in_the_table():
    long = [0.1 * number for number in range(10)]
    found = made(
        metrics=(
            {"precision": [0.5, 0.6], "curve": long, "one": 0.5, "same": [0.5, 0.6]},
            {"precision": [0.5, 0.75], "curve": [*long[:7], 0.8, *long[8:]], "one": 0.75, "same": [0.5, 0.6]},
        )
    )
    rows = cells(found, "Metrics of the final evaluation")
    assert rows["precision"] == [
        "[0.5, 0.600000024]", "[0.5, 0.75]", "0.15", "0.2", "beyond tolerance|1 of 2 elements, the worst [1]: "
        "0.6 and 0.75",
    ]  # fmt: skip
    assert rows["curve"][0] == "[0, 0.100000001, 0.200000003, 0.300000012, … (10 in all)]"
    assert rows["curve"][2:] == [
        "0.1", "0.125", "beyond tolerance|1 of 10 elements, the worst [7]: 0.7 and 0.8"
    ]  # fmt: skip
    assert rows["one"] == ["0.5", "0.75", "0.25", "0.333", "beyond tolerance"]
    assert rows["same"][2:] == ["0", "0", "bit-equal"]


# Records ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "says"),
    [([9, 8, 7, 6, *range(5, 17)], "4 of 16 are different"), ([9, *range(2, 17)], "1 of 16 is different")],
)
def test_checksums_are_counted_and_not_measured(other, says):
    found = made(read={step: (range(1, 17), other if step == 2 else range(1, 17)) for step in range(1, 6)})
    said = text.summary(found).splitlines()
    assert said[:2] == ["not equal: they first differ at step 2 of 5", f"  {RECORDS}: {says}"]
    assert found.first_fault[1].message == f"{RECORDS}: {says}"
    assert (
        summaries.verdict(found)
        == f"Not equal: estimator and keras first differ at step 2 of 5, in the {RECORDS}: {says}."
    )
    document = json.loads(json.dumps(text.document(found)))
    sizes = ("absolute", "relative", "rtol_of_max", "ulp", "largest_absolute", "largest_relative", "largest_ulp")
    for told in (document["first_fault"], *document["steps"][1]["records"]["differences"]):
        assert {told[size] for size in sizes} == {None} and told["count"] == int(says.partition(" ")[0])
    assert "absolute 8" not in render(found)


def test_numbers_have_sizes_and_texts_have_none():
    found = text.document(made(metrics=MAE, answers=TYPES))
    assert found["first_fault"]["absolute"] == found["first_fault"]["largest_absolute"] == 0.25
    (told,) = found["answers"]["differences"]
    assert told["absolute"] is None and told["message"].endswith("'float32' in estimator, 'float64' in keras")
    assert cells(made(answers=TYPES), "Answers of the exported models")["signature predict, input x"][:2] == ["–", "–"]


def test_arrays_are_no_checksums_whatever_they_are_called():
    """Checksums are counted where they are compared: a name says nothing of what an array is."""
    (found,) = compare({RECORDS: np.uint32([1])}, {RECORDS: np.uint32([4])}).faults
    assert (found.absolute, found.sized) == (3.0, True)
    (found,) = compare_checksums({"any": np.uint32([1, 2])}, {"any": np.uint32([4, 2])}, sides=ENGINES).faults
    assert (found.sized, found.count, found.message) == (False, 1, "any: 1 of 2 is different")


@pytest.mark.parametrize(("joined", "more"), [(True, ", and each replica reads its own batches"), (False, "")])
def test_other_numbers_of_records_are_told_as_such(joined, more):
    pair = [{RECORDS: np.arange(count, dtype=np.uint32)} for count in (1, 4)]
    (found,) = compare_checksums(*pair, sides=ENGINES, joined=joined).faults
    assert (found.kind, found.message) == ("shape", f"estimator reads 1 record for the step, keras 4{more}")


def test_records_that_were_compared_in_part():
    read = {step: ([1, 2], [1, 2]) for step in range(1, 6)}
    assert ", the same records for each, 2 variables" in headline(made(read=read))
    note = "of the records only labels were compared: Keras reads the features in a different format"
    assert ", the same records for each" in headline(made(read=read, notes=(note,))), "what a note says is no fact"
    partly = made(read=read, records_in_part=True)
    assert headline(partly) == ("equal: 5 steps, the same records (compared in part) for each, 2 variables after each")
    assert "records" not in headline(made())


# One of a kind ---------------------------------------------------------------------------------------------------


def test_one_of_a_kind_is_no_plural():
    one = {"dense/kernel": KERNEL}
    answers = ({"signature a, output b": KERNEL},) * 2
    found = made(steps=1, variables=one, read={1: ([1], [1])}, metrics=({"loss": 1.0},) * 2, answers=answers)
    assert headline(found) == (
        "equal: 1 step, the same records for it, 1 variable after it, the final metrics, 1 answer of the exports"
    )
    assert summaries.verdict(found) == (
        "Bit-equal: estimator and keras over 1 step, with 1 variable after it, and in the final metrics, and in the "
        "answers of the exports."
    )
    page = render(found)
    assert "Their 1 input or output is bit-equal" in page and "1 variable over all steps, the worst first" in page
    assert headline(made(steps=2, only=(("keras", 3),))) == "not equal: 1 step was run by only one of them"
    assert headline(made(steps=2, only=(("keras", 3), ("keras", 4)))).startswith(
        "not equal: 2 steps were run by only one"
    )
    many = {f"layer_{number:03d}/kernel": KERNEL for number in range(MOST_ROWS + 1)}
    assert "1 more variable is left out here: 1 bit-equal" in render(made(variables=many))
    answers = ({"predictions a": KERNEL}, {"predictions a": -KERNEL})
    assert "1 output was compared; not bit-equal" in render(made(answers=answers))
    assert str(compare(one, one)) == "1 array is bit-equal"
    for told in (headline(found), summaries.verdict(found), page, render(made(steps=1, asked=3))):
        assert not re.search(r"\b1 (steps|variables|answers|outputs|inputs|elements|arrays|metrics)\b", told), told


# Titles ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("about", "title"),
    [
        ({"job": "jobs/digits.yaml", "model": "cnn"}, "digits.yaml"),
        (OF_PROGRAM, "make_fc and Sequential"),
        ({"estimator": "DNNClassifier", "model": "Functional wide_deep"}, "DNNClassifier and Functional wide_deep"),
        ({}, "a job"),
    ],
)
def test_a_report_is_called_by_what_was_run(about, title):
    assert f"<h1>Parity of {title}</h1>" in render(made(about=about))


# Tolerances ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "meant"),
    [("weigths", "weights"), ("weight", "weights"), ("Loss", "loss"), ("METRICS", "metrics"),
     ("learning rate", "learning_rate"), ("prediction", "predictions"), ("slot", "slots")],
)  # fmt: skip
def test_a_misspelt_kind_is_refused(given, meant):
    with pytest.raises(ConfigError) as error:
        Tolerances.of({"loss": "rounding", given: "rounding"})
    assert f"tolerances.{given}: {given!r} is not a compared quantity" in str(error.value)
    assert "compared: loss, learning_rate" in error.value.found
    assert error.value.hint == f"did you mean {meant!r}? For a variable of that name write {given + '*'!r}"
    assert error.value.exit_code == 2
    # As the message says.
    assert Tolerances.of({f"{given}*": "rounding"}).explicit


@pytest.mark.parametrize("name", ["dense/kernel", "weight/bias", "loss*", "w", "kernel", "bias", "dense/kernel @m"])
def test_names_of_variables_are_none(name):
    assert list(Tolerances.of({name: "rounding"}).explicit) == [name]


@pytest.mark.parametrize("section", ["parity", "tolerances"])
def test_a_whole_section_is_told_to_be_one(section):
    with pytest.raises(ConfigError, match=f"tolerances.{section}: this is the name of the section") as error:
        Tolerances.of({section: {"weights": "rounding"}})
    assert "below it: weights" in str(error.value) and "only" in error.value.hint


def test_a_job_is_told_before_it_runs(tmp_path):
    job = ROOT / "legacy_configs" / "single.yaml"
    with pytest.raises(ConfigError, match="did you mean 'weights'"):
        run_parity(job, settings=["parity.tolerances={weigths: rounding}"], folder=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


# The command -----------------------------------------------------------------------------------------------------

PROGRAM = """
import sys
import warnings

import tensorflow as tf

tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.INFO)
print("printed", file=sys.stderr)
tf.compat.v1.logging.info("logged")
warnings.warn("warned")
speaks = tf.keras.callbacks.LambdaCallback(on_epoch_begin=lambda *given: tf.get_logger().info("called back"))
tf.keras.callbacks.CallbackList([speaks]).on_epoch_begin(0)

def estimator():
    return tf.estimator.Estimator(lambda features, labels, mode: None)

def data():
    return None
"""


@pytest.fixture
def program(run_python, tmp_path):
    def program(*options, **more):
        (tmp_path / "train.py").write_text(PROGRAM)
        command = ["-m", "estimator_pipeline", "parity", "--estimator", tmp_path / "train.py:estimator"]
        command += ["--model", tmp_path / "train.py:estimator", "--input-fn", tmp_path / "train.py:data"]
        return run_python([*command, *options], timeout=100, **more)

    return program


@pytest.mark.nightly
def test_errors_of_a_program_stand_alone(program):
    """Not below pages of warnings of TensorFlow; what the program says by itself stays."""
    done = program()
    assert done.returncode == 2 and not done.stdout
    said = [line for line in done.stderr.splitlines() if "warn" not in line]
    own = ["printed", "INFO:tensorflow:logged", "INFO:tensorflow:called back"]
    assert said[:3] == own and "UserWarning: warned" in done.stderr, done.stderr
    assert said[3].startswith("error: --model: ") and "returns an Estimator" in said[3] and len(said) == 5, done.stderr


@pytest.mark.tf
def test_libraries_speak_again_after_it(monkeypatch):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
    loggers = [logging.getLogger(name) for name in ("absl", "tensorflow")]
    before = [list(logger.filters) for logger in loggers]
    with quiet.quiet_libraries():
        assert [list(logger.filters) for logger in loggers] != before
    assert [list(logger.filters) for logger in loggers] == before
