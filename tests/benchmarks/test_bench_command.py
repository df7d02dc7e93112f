"""`python -m benchmarks.suite`: its smallest case for real, and what it refuses."""

from __future__ import annotations

import json
import math

import pytest

from benchmarks.suite.__main__ import main
from benchmarks.suite.cases import CASES

COMMAND = ["-m", "benchmarks.suite"]


@pytest.mark.nightly
@pytest.mark.slow
def test_the_smallest_case_end_to_end(run_python, tmp_path):
    """Each contender makes the same steps of the same model on the same number of records; the document is whole."""
    folder = tmp_path / "run"
    done = run_python([*COMMAND, "train-softmax-1", "--size", "tiny", "--json", "--output", folder], timeout=280)
    assert done.returncode == 0, done.stderr[-4000:]
    document = json.loads(done.stdout)
    assert document == json.loads((folder / "results.json").read_text())
    (case,) = document["cases"]
    found = {one["contender"]: one["figures"] for one in document["measurements"]}
    assert list(found) == list(case["contenders"]) == ["plain_estimator", "estimator", "plain_keras", "keras", "limit"]
    assert {figures["parameters"] for figures in found.values()} == {28 * 28 * 10 + 10}
    (steps,) = {figures["final_step"] for figures in found.values()}
    assert {figures["records"] for figures in found.values()} == {steps * 64}
    # What is plain has nothing of ours.
    assert {name for name, figures in found.items() if figures["patches"]} == {"estimator", "keras"}
    for figures in found.values():
        assert figures["peak_mib"] > 100
        assert figures["records_per_sec"] == pytest.approx(64 * figures["steps_per_sec"])
        assert math.isfinite(figures["records_per_sec"]) and figures["records_per_sec"] > 0
    assert found["limit"]["steps_per_sec"] == max(found["limit"]["singly"], found["limit"]["looped"])
    for target in case["targets"]:
        assert target["state"] in ("met", "not met") and target["ratio"]["runs"] == 1
        above, below = (found[target[name]]["records_per_sec"] for name in ("contender", "against"))
        assert target["ratio"]["median"] == pytest.approx(above / below)
    assert document["made_of"]["machine"]["cores"] >= 1 and document["made_of"]["profile"]["name"] == "tiny"
    assert {path.name for path in folder.iterdir()} >= {"results.md", "throughput.png", "ratios.png"}
    assert not list((folder / "work").iterdir())
    # Measured once; the table is made again.
    again = run_python([*COMMAND, "train-softmax-1", "--size", "tiny", "--output", folder], timeout=60)
    assert again.returncode == 0 and "to go" not in again.stderr
    assert "plain tf.estimator" in again.stdout and "targets met" in again.stdout


def test_list(run_python, capsys):
    done = run_python([*COMMAND, "--list"])
    assert done.returncode == 0
    for case in CASES:
        assert f"{case.name}: {case.title}" in done.stdout
    assert "Estimator engine / 2 x Estimator engine of train-cnn-1 >= 0.8" in done.stdout
    assert ended("--list", "--json", "evaluation") == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in told] == ["evaluation"]
    assert told[0]["targets"][0] == {"ratio": "Estimator engine / plain tf.estimator", "target": "<= 0.5"}


def ended(*arguments):
    """The exit code of the command, run in this process."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return ended.value.code


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train-cnm-1"], "there is no case 'train-cnm-1'"),
        (["--runs", "0"], "--runs 0 is out of range"),
        (["--runs", "1000"], "--runs 1000 is out of range"),
        (["--size", "huge"], "unknown --size huge\n  found: allowed: full, quick, tiny"),
        (["--quick", "--size", "full"], "--quick and --size full were both given"),
    ],
)
def test_bad_input_is_one_clear_error(capsys, arguments, says):
    assert ended(*arguments) == 2
    assert capsys.readouterr().err.startswith(f"error: {says}")


def test_an_output_that_cannot_be_written(capsys, tmp_path):
    (tmp_path / "file").touch()
    assert ended("simulated", "--size", "tiny", "--output", tmp_path / "file") == 2
    assert "cannot be written to" in capsys.readouterr().err


@pytest.mark.nightly
def test_the_simulated_case_by_itself(run_python, tmp_path):
    """It needs no data, and no TensorFlow."""
    done = run_python([*COMMAND, "simulated", "--size", "tiny", "--json", "--output", tmp_path], timeout=100)
    assert done.returncode == 0, done.stderr[-3000:]
    document = json.loads(done.stdout)
    (one,) = document["measurements"]
    assert {row["axis"] for row in one["figures"]["rows"]} >= {"records", "workers", "steps", "files"}
    assert "| a step of all workers | 64 |" in (tmp_path / "results.md").read_text()
    assert (tmp_path / "simulated.png").exists() and not (tmp_path / "data").exists()
