"""`compare`: what differs between runs, their evaluations, the best run first."""

from __future__ import annotations

import json

import pytest

from tests.repository.test_stored import unpack
from tests.support.command_line import call
from tests.support.trained_runs import EVALUATIONS, write_run


def table(text):
    """The cells of each line."""
    return [line.split() for line in text.splitlines()]


@pytest.fixture
def runs(tmp_path):
    """Runs with two learning rates, of which one got worse, and one that has not evaluated yet."""
    worse = {10: {"loss": 0.125, "accuracy": 0.5}, 20: {"loss": 0.375, "accuracy": 0.25}}
    write_run(tmp_path / "worse", ["model.optimizer.learning_rate=5"], evaluations=worse)
    write_run(tmp_path / "better", ["eval.steps=7"])
    write_run(tmp_path / "started", evaluations={})
    return tmp_path


def test_the_best_run_is_first_with_what_differs(runs):
    done = call("compare", "worse", "started", "better", cwd=runs)
    assert done.returncode == 0 and table(done.stdout) == [
        ["run", "learning_rate", "steps", "step", "loss", "accuracy"],
        ["better", "0.5", "7", "20", "0.25", "0.875"],
        ["worse", "5.0", "null", "20", "0.375", "0.25"],
        ["started", "0.5", "null", "20", "-", "-"],
    ]


@pytest.mark.parametrize(
    ("options", "order", "steps"),
    [
        (["--best"], ["worse", "better"], [10, 20]),
        (["--by", "accuracy"], ["better", "worse"], [20, 20]),
        (["--by", "accuracy", "--mode", "min"], ["worse", "better"], [20, 20]),
    ],
)
def test_order(runs, options, order, steps):
    document = json.loads(call("compare", "worse", "better", *options, "--json", cwd=runs).stdout)
    assert [run["run"] for run in document["runs"]] == order
    assert [run["evaluated_step"] for run in document["runs"]] == steps
    assert document["runs"][order.index("worse")]["settings"]["model.optimizer.learning_rate"] == 5.0


def test_the_direction_is_that_of_the_best_exporter(tmp_path):
    exporters = "eval.exporters=[{kind: best, metric: label_mean, mode: max}]"
    for number in (1, 2):
        write_run(tmp_path / f"{number}", [exporters], evaluations={20: {"loss": 1.0, "label_mean": number}})
    document = json.loads(call("compare", "1", "2", "--by", "label_mean", "--json", cwd=tmp_path).stdout)
    assert document["mode"] == "max" and [run["run"] for run in document["runs"]] == ["2", "1"]


def test_nan_is_the_worst_value(runs):
    write_run(runs / "diverged", evaluations={20: {"loss": float("nan"), "accuracy": 0.5}})
    order = [row[0] for row in table(call("compare", "started", "diverged", "better", cwd=runs).stdout)]
    assert order == ["run", "better", "diverged", "started"]


def test_a_job_file_means_its_model_directory(runs):
    text = f"{{model: {{name: linear}}, input: {{source: digits_}}, run: {{model_dir: {runs / 'better'}}}}}"
    (runs / "job.yaml").write_text(text.replace("digits_", "tfds, name: digits, global_batch_size: 8"))
    assert table(call("compare", "job.yaml", "worse", cwd=runs).stdout)[1][0] == "job.yaml"


def test_runs_of_an_earlier_version_have_recorded_fewer_settings(tmp_path):
    """These differ only in what both have recorded; evaluations are in result.json, without event files."""
    folders = [unpack(name, tmp_path) / "model" for name in ("estimator", "keras")]
    rows = json.loads(call("compare", *folders, write_run(tmp_path / "new"), "--json").stdout)["runs"]
    assert all(run["evaluated_step"] == 20 and run["metrics"]["accuracy"] for run in rows)
    assert {run["settings"]["run.engine"] for run in rows} == {"estimator", "keras"}
    assert not any(name.startswith(("input.fingerprint", "run.model_dir")) for run in rows for name in run["settings"])


def test_a_second_evaluation_has_a_prefix(tmp_path):
    for name in ("a", "b"):
        write_run(tmp_path / name, ["eval.name=test"], evaluated="eval_test")
        write_run(tmp_path / f"other-{name}", evaluated="eval_train")
        (tmp_path / f"other-{name}" / "eval_train").rename(tmp_path / name / "eval_train")
    metrics = json.loads(call("compare", "a", "b", "--json", cwd=tmp_path).stdout)["runs"][0]["metrics"]
    assert metrics == {**EVALUATIONS[20], **{f"train/{name}": value for name, value in EVALUATIONS[20].items()}}


def test_event_files_that_are_written_or_damaged(runs):
    """An incomplete last record is being written; one that does not match its checksum is reported."""
    path = next((runs / "better" / "eval").glob("events*"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    assert table(call("compare", "better", "worse", "--by", "accuracy", cwd=runs).stdout)[1][3:] == [
        "20",
        "10",
        "0.75",
        "0.5",
    ]
    path.write_bytes(whole[:-6] + b"\0" + whole[-5:])
    done = call("compare", "better", "worse", cwd=runs)
    assert "note: better/eval/events.out.tfevents.1700000000.host is damaged" in done.stdout


def test_curves(runs):
    done = call("compare", "better", "worse", "--plot", "curves.png", cwd=runs)
    assert "curves: curves.png" in done.stdout and (runs / "curves.png").read_bytes().startswith(b"\x89PNG")
    done = call("compare", "better", "worse", "--plot", "curves.png", cwd=runs)
    assert done.returncode == 2 and "[file/exists]" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["better"], "argument/missing"),
        (["better", "better/"], "argument/conflict"),
        (["better", "nowhere"], "file/not-found"),
        (["better", "."], "file/not-found"),
        (["better", "gs://bucket/run"], "argument/not-applicable"),
        (["better", "worse", "--by", "accurcy"], "argument/unknown-name"),
        (["better", "worse", "--mode", "up"], "argument/bad-value"),
        (["better", "worse", "--plot", "curves.pdf"], "argument/bad-value"),
        (["better", "worse", "--plot", "nowhere/curves.png"], "file/not-found"),
    ],
)
def test_bad_input(runs, arguments, code):
    done = call("compare", *arguments, cwd=runs)
    assert done.returncode == 2 and f"[{code}]" in done.stderr and not done.stdout
