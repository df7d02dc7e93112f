"""`estimator-pipeline parity` on the functions of a program."""

from __future__ import annotations

import json

import pytest

MAPPING = "dense/kernel: fc/weights\ndense/bias: fc/biases\n"


@pytest.fixture
def parity(run_python, programs, tmp_path):
    def parity(*options, estimator="make_estimator", mapping=MAPPING, model="make_model"):
        program = programs / "parity_program.py"
        command = ["-m", "estimator_pipeline", "parity", "--folder", tmp_path / "runs", "--steps", "5"]
        command += ["--estimator", f"{program}:{estimator}", "--model", f"{program}:{model}"]
        command += ["--input-fn", f"{program}:train_input_fn", "--eval-input-fn", f"{program}:eval_input_fn"]
        if mapping is not None:
            (tmp_path / "names.yaml").write_text(mapping)
            command += ["--mapping", tmp_path / "names.yaml"]
        return run_python([*command, *options], timeout=200)

    return parity


@pytest.mark.nightly
def test_a_program_and_its_keras_model(parity):
    done = parity("--json")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["equal"] and len(found["steps"]) == 5 and found["metrics"]["compared"] == 2
    # V1's Adam and the newer one of Keras keep the same moments; their epsilons are the same, of which nothing is said.
    assert {step["variables"]["compared"] for step in found["steps"]} == {7}
    assert not any("AdamOptimizer (tf.compat.v1.train) against Adam" in note for note in found["notes"])
    # What the report says was run.
    assert found["about"]["estimator"] == "model_fn" and found["about"]["input_fn"] == "train_input_fn"
    optimizers = found["about"]["optimizer"]
    assert optimizers["estimator"].startswith("adam, ") and "epsilon 1e-08" in optimizers["estimator"]
    assert optimizers["keras"].startswith("Adam, ") and "epsilon 1e-08" in optimizers["keras"]
    assert "jit_compile" not in optimizers["keras"] and "use_ema" not in optimizers["keras"]


@pytest.mark.nightly
def test_one_that_differs_is_told(parity):
    done = parity(estimator="make_wrong_estimator")
    assert done.returncode == 1, done.stderr[-3000:]
    assert done.stdout.startswith("not equal: they first differ at step 1 of 5")
    assert "  first difference: step 1, loss is " in done.stdout


@pytest.mark.nightly
def test_metrics_that_have_another_threshold_are_explained(parity):
    done = parity(estimator="make_estimator_with_recall", model="make_model_with_recall")
    assert done.returncode == 1, done.stdout[-2000:] + done.stderr[-3000:]
    assert "  first difference: step 5, metric recall is " in done.stdout
    assert "note: the training is equal, and metrics differ: tf.compat.v1.metrics and Keras define" in done.stdout


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"mapping": "dense/kernel: [fc/weights]\n"}, "is not a mapping of names to names"),
        ({"mapping": None}, "weights have no counterpart on the other side"),
        ({"model": "make_estimator"}, "returns an Estimator"),
        ({"model": "nothing"}, "has no function 'nothing'"),
    ],
)
def test_bad_input(parity, options, says):
    done = parity(**options)
    assert done.returncode == 2 and done.stderr.splitlines()[-4:], done.stderr
    assert any(line.startswith("error: ") and says in line for line in done.stderr.splitlines()), done.stderr[-2000:]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ([], "parity needs a job file, or --estimator, --model and --input-fn"),
        (["--estimator", "a.py:b"], "parity needs a job file, or --estimator, --model and --input-fn"),
        (["job.yaml", "--model", "a.py:b"], "--model cannot be combined with the job file job.yaml"),
        (["--workers", "2"], "--workers requires a job file"),
    ],
)
def test_a_job_file_or_a_program(run_python, command, says):
    done = run_python(["-m", "estimator_pipeline", "parity", *command], timeout=60)
    assert done.returncode == 2 and done.stderr.startswith(f"error: {says}"), done.stderr
