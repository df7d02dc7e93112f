"""`migrate convert --parity`: a conversion and its program, compared at once by a file of a few functions."""

from __future__ import annotations

import json

import pytest

from tests.migrate.convert.programs import program
from tests.migrate.test_convert import run

PROOF = """
import tensorflow as tf

PARAMS = {"rate": 0.1}


def estimator(program):
    return tf.estimator.Estimator(program.model_fn, params=PARAMS)


def model(made):
    return made.make_model(made.model_inputs(made.input_fn()), PARAMS)


def input_fn(program):
    return program.input_fn()


def eval_input_fn(program):
    return program.input_fn().take(2)
"""


@pytest.fixture
def command(tmp_path):
    (tmp_path / "program.py").write_text(program())
    return ["migrate", "convert", tmp_path / "program.py", "--parity", tmp_path / "proof.py"]


@pytest.mark.nightly
@pytest.mark.tf
def test_a_conversion_and_its_proof(command, tmp_path, capsys):
    proof, out = tmp_path / "proof.py", tmp_path / "out"
    proof.write_text(PROOF)
    command += ["--steps", "3"]
    code, shown, _ = run([*command, "--output", out], capsys)
    assert code == 0 and "program.py: converted to Keras" in shown and "equal" in shown
    assert json.loads((out / "parity.json").read_text())["equal"] is True
    proof.write_text(PROOF.replace("made.input_fn()), PARAMS", "made.input_fn()), {'rate': 1.0}"))
    code, shown, _ = run([*command, "--output", tmp_path / "other", "--json"], capsys)
    assert code == 1 and json.loads(shown)["parity"]["equal"] is False
    proof.write_text(PROOF + "\n\ndef metric_names(model):\n    return {'none': 'accuracy'}\n")
    code, _, error = run([*command, "--output", tmp_path / "named"], capsys)
    assert code == 2 and "the Keras model has no metric none" in error


REFUSED = [
    ("", [], "has no function estimator"),
    ("import absent_module", [], "cannot be imported: ModuleNotFoundError"),
    ("raise SystemExit(2)", [], "ends when it is imported, with code 2"),
    (None, [], "there is no file"),
    (
        "estimator = input_fn = print\ndef model(made):\n    return made.build",
        [],
        "the function model uses build, which",
    ),
    ("", ["--dry-run"], "compares what is written"),
]


@pytest.mark.nightly
@pytest.mark.tf
@pytest.mark.parametrize(("proof", "more", "message"), REFUSED)
def test_proofs_that_are_refused(command, tmp_path, capsys, proof, more, message):
    if proof is not None:
        (tmp_path / "proof.py").write_text(proof)
    code, _, error = run([*command, *more, "--output", tmp_path / "out"], capsys)
    assert code == 2 and message in " ".join(error.split())


@pytest.mark.nightly
def test_what_has_no_conversion_has_no_proof(tmp_path, capsys):
    (tmp_path / "proof.py").write_text("")
    alone = tmp_path / "alone.py"
    alone.write_text("import tensorflow as tf\n\ntf.estimator.BoostedTreesClassifier([], 1).train(lambda: None)\n")
    reasons = {alone: "remains an Estimator program, so there is no Keras model", tmp_path: f"{tmp_path} is a folder"}
    for path, reason in reasons.items():
        command = ["migrate", "convert", path, "--parity", tmp_path / "proof.py", "--output", tmp_path / "out"]
        code, _, error = run(command, capsys)
        assert code == 2 and reason in " ".join(error.split())


RUNTIME = "estimator_pipeline.models.keras_runtime"
STATEMENTS = [f"import {RUNTIME}.canned", f"from {RUNTIME} import evaluation as keras_evaluation"]


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_program_that_an_earlier_version_converted(run_python, statement):
    """One error and exit code 2, without a traceback, for plain python as well."""
    done = run_python(["-c", statement])
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert (
        done.stderr.startswith("error: this program was converted") and "[migrate/outdated-conversion]" in done.stderr
    )
