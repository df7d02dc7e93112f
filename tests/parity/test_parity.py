"""`estimator-pipeline parity`: both engines as real processes, held against each other; planted faults are found."""

from __future__ import annotations

import json
import platform

import pytest

from tests.support.launched_jobs import CONFIGS

pytestmark = pytest.mark.cluster

STEPS = 10


@pytest.fixture
def parity(run_python, tmp_path):
    def parity(job, *options, settings=()):
        changes = [x for s in settings for x in ("--set", s)]
        command = ["-m", "estimator_pipeline", "parity", job, "--steps", STEPS, "--folder", tmp_path / "parity"]
        return run_python([*command, *options, *changes], timeout=240)

    return parity


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ([], ["model.optimizer={name: adam, learning_rate: 0.01}"]),
        (["--workers", "2"], ["model.optimizer={name: momentum, learning_rate: 0.05}", "model.params={l2: 0.001}"]),
    ],
    ids=["one-process", "two-workers"],
)
def test_a_job_agrees_with_itself(parity, tmp_path, options, settings):
    folder = tmp_path / "report"
    done = parity(CONFIGS / "single.yaml", "--json", "--report", folder, *options, settings=settings)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["equal"] and found["first_fault"] is None and not found["only"]
    assert [step["step"] for step in found["steps"]] == list(range(1, STEPS + 1))
    assert found["initial"]["differences"] == []
    # Six weights, one or two slots of each, and the step.
    assert {step["variables"]["compared"] for step in found["steps"]} == {13 if options else 19}
    assert found["steps"][-1]["losses"][0] < found["steps"][0]["losses"][0]
    assert found["metrics"]["compared"] >= 3
    assert all(step["records"]["equal"] and step["records"]["compared"] for step in found["steps"])
    # The signatures, their inputs and outputs, and what both exports answer.
    assert found["answers"]["equal"] and found["answers"]["compared"] >= 6 and found["notes"] == []
    # Not to a tolerance: the same bits, of all that was trained, and of what the exports answer.
    assert {found["tolerances"][kind] for kind in ("weights", "slots", "predictions")} == {"bit-equal"}
    assert not [step for step in found["steps"] if step["variables"]["differences"]]
    # The report says the same, and where the training processes ran.
    workers = 2 if options else 1
    assert done.stderr.splitlines()[-1] == f"report: {folder / 'report.html'}"
    assert json.loads((folder / "report.json").read_text()) == found
    assert found["about"]["workers"] == workers and found["about"]["settings"] == settings
    for facts in found["environments"].values():
        assert facts["replicas"] == workers and facts["python"] == platform.python_version()
        assert facts["strategy"] == ("CollectiveAllReduceStrategy" if options else "none")
    page = (folder / "report.html").read_text()
    assert "dense/<wbr>kernel" in page and "TF_ENABLE_ONEDNN_OPTS" in page and page.count("<svg ") >= 1


SEQUENTIAL = """
import tensorflow as tf

def layers():
    return tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(10, name="logits")])
"""


@pytest.mark.nightly
@pytest.mark.parametrize("engines", ["estimator,keras", pytest.param("keras,keras3", marks=pytest.mark.keras_3)])
def test_layers_that_do_not_declare_their_input(parity, tmp_path, engines):
    (tmp_path / "network.py").write_text(SEQUENTIAL)
    settings = [f"model.function={tmp_path / 'network.py'}:layers", "model.name=null", "model.params={}"]
    settings += ["model.loss=sparse_categorical_crossentropy"]
    done = parity(CONFIGS / "single.yaml", "--engines", engines, settings=settings)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "equal: 10 steps" in done.stdout and "10 answers of the exports" in done.stdout


def test_the_fixture_compares_a_job(assert_parity):
    """As a team's own test does it."""
    found = assert_parity(CONFIGS / "single.yaml", steps=3)
    assert len(found.steps) == found.asked == 3 and len(found.records) == 3
    assert found.metrics.names and found.answers.names and not found.notes


FAULT = """
import tensorflow as tf

def layers(params):
    in_a_graph = not tf.compat.v1.executing_eagerly_outside_functions()
    l2 = tf.keras.regularizers.L2(0.1) if in_a_graph and params["fault"] == "regulariser" else None
    name = "hidden" if in_a_graph and params["fault"] == "name" else "dense"
    return tf.keras.Sequential([
        tf.keras.layers.InputLayer(input_shape=(8, 8, 1)),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(10, kernel_regularizer=l2, name=name),
    ])
"""


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("fault", "says", "page_says"),
    [
        (
            "regulariser",
            ["not equal: they first differ at step 1 of 10", "  loss: beyond"],
            "Not equal: estimator and keras first differ at step 1 of 10, in the loss, by",
        ),
        (
            "name",
            ["not equal: they first differ before the first step",
             "  variables: hidden/kernel: estimator has it, keras has",
             "note: estimator was not trained, because it cannot start from the other's values: its logs: "],
            "Not equal: estimator and keras first differ before the first step: hidden/kernel: estimator has it",
        ),
    ],
    ids=["regulariser", "name"],
)  # fmt: skip
def test_planted_faults_are_named(parity, tmp_path, fault, says, page_says):
    (tmp_path / "own.py").write_text(FAULT)
    settings = ["model.name=null", f"model.function={tmp_path}/own.py:layers", "model.metrics=[]",
                "model.loss=sparse_categorical_crossentropy", f"model.params={{fault: {fault}}}"]  # fmt: skip
    folder = tmp_path / "report"
    done = parity(CONFIGS / "single.yaml", "--report", folder, settings=settings)
    assert done.returncode == 1
    told = done.stdout + done.stderr
    assert all(line in told for line in says), told[-4000:]
    assert "Traceback" not in done.stdout
    assert page_says in (folder / "report.html").read_text()
    # Nothing is said to be equal that was not compared.
    assert ("largest difference" in done.stdout) == (fault != "name")


@pytest.mark.parametrize(
    ("job", "settings", "options", "says"),
    [
        ("chief_workers_ps", [], [], "parity compares synchronous training"),
        ("single", ["run.seed=null"], [], "parity needs the same records in the same order"),
        ("single", [], ["--engines", "keras,keras"], "the engine keras cannot be compared with itself"),
        ("single", [], ["--engines", "keras"], "parity compares two engines, and two must be named"),
    ],
)
def test_what_cannot_be_compared(parity, job, settings, options, says):
    done = parity(CONFIGS / f"{job}.yaml", *options, settings=settings)
    assert done.returncode == 2 and done.stderr.startswith(f"error: {says}"), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("settings", "code", "says"),
    [
        (
            ["model.params={classes: 3}"],
            2,
            "error: the engine keras cannot run this job: the model 'cnn' has 3 classes",
        ),
        (
            ["model.optimizer={name: sgd, learning_rate: 1.0e+30}"],
            3,
            "error: the run of the engine keras failed: worker:0",
        ),
    ],
    ids=["refused", "diverged"],
)
def test_a_run_that_fails_is_no_verdict(parity, settings, code, says):
    """What an engine refuses is bad input, and says so as the engine does; neither is "not equal"."""
    done = parity(CONFIGS / "single.yaml", settings=settings)
    assert done.returncode == code and done.stdout == "", done.stdout
    assert says in done.stderr and "Traceback" not in done.stderr, done.stderr
