"""`migrate convert --target keras3` of canned Estimators: what is written, and that it trains as the Estimator does."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

from estimator_pipeline.migrate import code as migrate_code
from tests.migrate.test_convert import run
from tests.migrate.test_keras_3 import run_program

FOLDER = Path(__file__).resolve().parent / "keras_3"
PROGRAM = FOLDER / "canned.py"
convert = functools.partial(migrate_code.convert, to="keras3")


def test_golden():
    """To accept a change: estimator-pipeline migrate convert --target keras3, and copy it to keras_3/canned/."""
    converted = convert(PROGRAM)
    (made,) = converted.files
    assert made.after == (FOLDER / "canned" / "canned.py").read_text(encoding="utf-8"), made.kept_as_estimator
    assert converted.beside == {"keras_support.py": (FOLDER / "canned" / "keras_support.py").read_text("utf-8")}


def test_an_optimizer_that_is_called_later(tmp_path):
    """Keras 3 squares the gradients of a row one by one, where a batch reads it more than once."""
    source = tmp_path / "later.py"
    source.write_text(PROGRAM.read_text().replace("Adagrad(0.05)", "Adam"))
    text = convert(source).files[0].after
    assert "n_classes=3, optimizer=AdamWithDenseGradients)\n" in text


def test_rmsprop_is_declined(tmp_path):
    source = tmp_path / "named.py"
    source.write_text(PROGRAM.read_text().replace("'Adam'", "'RMSProp'"))
    (made,) = convert(source).files
    assert not made.keras and "RMSProp of a canned Estimator" in made.kept_as_estimator
    line = next(number for number, one in enumerate(source.read_text().splitlines(), 1) if "RMSProp" in one)
    assert made.kept_as_estimator.startswith(f"line {line}: ")


PROOF = """
import tensorflow as tf

def data(module):
    return tf.data.Dataset.from_tensor_slices(module.arrays()).batch(16)

def made_by(estimators, module):
    columns = (module.{columns},) if {linear} else ([8, 4], module.{columns})
    return estimators.{kind}(*columns, **{options})

def estimator(program):
    return made_by(tf.estimator, program)

def model(made):
    import keras_support
    return made_by(keras_support, made)

def input_fn(program):
    return data(program).repeat()

def eval_input_fn(program):
    return data(program)
"""


@pytest.mark.nightly
@pytest.mark.keras_3
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("LinearClassifier", {"weight_column": "age"}),
        ("LinearRegressor", {}),
        ("DNNClassifier", {"n_classes": 3, "optimizer": "Adam"}),
        ("DNNRegressor", {"loss_reduction": "sum"}),
    ],
)
def test_it_trains_as_the_estimator_did(kind, options, tmp_path, capsys):
    """The optimizers that they have by themselves, Ftrl and Adagrad, rows of tables that are read twice, metrics."""
    source, proof, out = tmp_path / "canned.py", tmp_path / "proof.py", tmp_path / "out"
    source.write_text(PROGRAM.read_text())
    linear = kind.startswith("Linear")
    columns = "linear_columns()" if linear else "deep_columns()"
    proof.write_text(PROOF.format(kind=kind, options=options, linear=linear, columns=columns))
    command = ["migrate", "convert", source, "--target", "keras3", "--parity", proof, "--steps", "8", "--output", out]
    code, told, wrong = run(command, capsys)
    assert code == 0 and "canned.py: converted to Keras" in told, wrong
    assert json.loads((out / "parity.json").read_text())["equal"] is True


@pytest.mark.nightly
@pytest.mark.keras_3
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_it_runs(backend, tmp_path, capsys):
    """Trains, evaluates, predicts; on JAX without the column of words."""
    if backend != "tensorflow":
        pytest.importorskip(backend)
    source, out = tmp_path / "canned.py", tmp_path / "out"
    text = PROGRAM.read_text()
    if backend != "tensorflow":
        text = text.replace("[64, 2]),\n    }", "[64, 2]),\n    }\n    del features['city']")
        text = text.replace("buckets, city]", "buckets]").replace("buckets, city =", "buckets =")
        text = text.replace("buckets, tf.feature_column.embedding_column(city, 3)]", "buckets]")
    source.write_text(text)
    assert run(["migrate", "convert", source, "--target", "keras3", "--output", out], capsys)[0] == 0
    told = run_program(out, backend, command=("canned.py",))
    assert "b'" in told and "evaluation at step 12: " in told and "average_loss" in told
    assert (out / "linear" / "model.weights.h5").exists()
