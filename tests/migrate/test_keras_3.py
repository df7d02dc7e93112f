"""`migrate convert --target keras3`: what is written, what is declined and for which line, and that it trains alike."""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.migrate import code as migrate_code
from estimator_pipeline.migrate.code import diff, summary
from estimator_pipeline.migrate.code.to_keras3.convert_text import convert_text, model_functions
from estimator_pipeline.migrate.code.to_keras3.operations import ACTIVATIONS, INITIALIZERS, OPERATIONS
from estimator_pipeline.migrate.code.to_keras3.support import PARTS, module_text
from tests.migrate.test_convert import run

HERE = Path(__file__).resolve().parent
PROGRAM = HERE / "keras_3" / "typical.py"
convert = functools.partial(migrate_code.convert, to="keras3")


@functools.cache
def made_of(name: str):
    return convert(HERE / "corpus" / f"{name}.py")


@pytest.mark.parametrize("name", ["digit_convnet", "typical", "wine_keras_layers"])
def test_golden(name):
    """To accept a change: estimator-pipeline migrate convert --target keras3, and copy it to keras_3/NAME/."""
    converted = convert(PROGRAM) if name == "typical" else made_of(name)
    (made,) = converted.files
    assert made.keras and not made.left
    folder = HERE / "keras_3" / name
    assert made.after == (folder / f"{name}.py").read_text(encoding="utf-8")
    assert converted.beside == {"keras_support.py": (folder / "keras_support.py").read_text(encoding="utf-8")}


@pytest.mark.parametrize("path", sorted((HERE / "keras_3").glob("*/*.py")), ids=lambda path: path.parent.name)
def test_nothing_of_this_package_or_of_keras_2_is_asked(path):
    names = {name.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Import)
             for name in node.names}  # fmt: skip
    names |= {node.module for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)}
    assert not any(name.startswith(("estimator_pipeline", "tf_keras", "tensorflow.keras")) for name in names)
    assert not re.search(r"\btf\.(keras|estimator|compat)\.(?!.*Was)", re.sub("#.*", "", path.read_text()))


def test_names_that_a_person_would_give(tmp_path):
    """No MyModelModel, no data set called input_fn, predictions worked out once, comments at their lines."""
    source = tmp_path / "my_model.py"
    source.write_text(PROGRAM.read_text().replace("my_model_fn", "model_fn"))
    text = convert(source).files[0].after
    assert "class MyModel(keras.Model):" in text and "ModelModel" not in text
    assert "def make_model(" in text and "predict_data = batches(" in text and "predict_input_fn" not in text
    assert text.count("keras.ops.argmax(logits, 1)") == 1 and "predictions = self.predictions(x, y_pred)" in text
    assert "name='hidden')(net)  # wide\n" in text and "# Labels are numbers of classes.\n        loss = " in text


@pytest.mark.parametrize(
    ("name", "line", "construct"),
    [
        ("census_wide_deep", 112, "a canned Estimator"),
        ("demand_rnn", 0, "rnn_cell"),
        ("mnist_multiworker", 0, "MultiWorkerMirroredStrategy"),
        ("mnist_tf1", 0, "averages of the weights"),
        ("movie_deepfm", 0, "a variable that is no layer's"),
        ("review_sentiment", 0, "tf.lookup.StaticVocabularyTable"),
        ("warm_start_transfer", 0, "a warm start"),
    ],
)
def test_declined_with_the_line_and_the_construct(name, line, construct):
    (made,) = made_of(name).files
    assert not made.keras and construct in made.kept_as_estimator
    found = re.match(r"line (\d+): ", made.kept_as_estimator)
    assert found and (not line or int(found[1]) == line) and int(found[1]) > 1
    assert made.verdict.source and not made_of(name).beside


def test_a_program_of_two_files_becomes_keras_3_together(tmp_path):
    folder = tmp_path / "trainer"
    folder.mkdir()
    text = PROGRAM.read_text()
    before, main = text.split("def main(_):")
    (folder / "model.py").write_text(before)
    head = "import tensorflow as tf\nfrom trainer.model import my_model_fn, input_fn, arrays\n\n\n"
    (folder / "task.py").write_text(f"{head}def main(_):{main}")
    converted = convert(tmp_path)
    texts = {one.path: one.after for one in converted.files}
    if all(one.keras for one in converted.files):
        assert "from trainer.keras_support import" in texts["trainer/task.py"]
        assert list(converted.beside) == ["trainer/keras_support.py"]
    else:
        assert not any(one.keras for one in converted.files)


def test_the_module_beside_is_written_and_told(tmp_path, capsys):
    out = tmp_path / "out"
    code, told, _ = run(["migrate", "convert", PROGRAM, "--target", "keras3", "--output", out], capsys)
    assert code == 0 and "keras_support.py: what Keras 3 lacks" in told
    assert sorted(path.name for path in out.iterdir()) == ["keras_support.py", "typical.py"]
    made = convert(PROGRAM)
    assert "+++ b/keras_support.py" in diff(made) and "typical.py: Keras now" in summary(made)
    assert made.document()["beside"]["keras_support.py"] == (out / "keras_support.py").read_text()


def test_a_file_of_that_name_is_the_programs_own(tmp_path):
    (tmp_path / "typical.py").write_text(PROGRAM.read_text())
    (tmp_path / "keras_support.py").write_text("import os\n")
    made = convert(tmp_path)
    with pytest.raises(ConfigError) as error:
        _ = made.beside
    assert error.value.code == "file/exists"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("tf.reduce_mean(x, axis=[1, 2], keepdims=True)", "keras.ops.mean(x, axis=[1, 2], keepdims=True)"),
        ("tf.argmax(x)", "keras.ops.argmax(x, axis=0)"),
        ("tf.argmax(x, 1, output_type=tf.int32)", "keras.ops.cast(keras.ops.argmax(x, 1), 'int32')"),
        ("tf.nn.softmax(x, name='p')", "keras.ops.softmax(x)"),
        ("tf.gather(x, i)", "keras.ops.take(x, i, axis=0)"),
        ("tf.nn.l2_loss(x)", "(keras.ops.sum(keras.ops.square(x)) / 2)"),
        ("tf.add_n(self.losses)", "sum(self.losses)"),
        ("x.get_shape().as_list()[1]", "list(x.shape)[1]"),
        ("tf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=x)",
         "keras.ops.binary_crossentropy(target=y, output=x, from_logits=True)"),
        ("tf.keras.layers.Dense(3, activation=tf.nn.relu)(x)",
         "keras.layers.Dense(3, activation=keras.activations.relu)(x)"),
    ],
)  # fmt: skip
def test_operations(before, after):
    text = f"import tensorflow as tf\n\n\ndef make_model(self, x, y, i):\n    return {before}\n"
    assert f"    return {after}\n" in convert_text(text, model_functions([text])).text


def test_each_part_of_the_module_stands_alone():
    for name in PARTS:
        text = module_text([name])
        compile(text, name, "exec")
        assert name in text
    assert "def _without_progress" in module_text(["stop_if_no_decrease"])


@pytest.mark.nightly
def test_keras_3_has_what_is_written():
    """Imports Keras 3, some seconds."""
    import keras

    for name in [*(one.target for one in OPERATIONS.values()), *ACTIVATIONS.values(),
                 *(f"keras.initializers.{one}" for one in INITIALIZERS.values())]:  # fmt: skip
        functools.reduce(getattr, name.split(".")[1:], keras)


def _run(folder: Path, backend: str, name: str = "typical.py") -> str:
    environ = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    environ.pop("TF_USE_LEGACY_KERAS", None)
    done = subprocess.run(
        [sys.executable, name], cwd=folder, env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.nightly
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_it_runs(backend, tmp_path, capsys):
    """On each backend that is there: trains, evaluates, predicts."""
    if backend != "tensorflow":
        pytest.importorskip(backend)
    out = tmp_path / "out"
    assert run(["migrate", "convert", PROGRAM, "--target", "keras3", "--output", out], capsys)[0] == 0
    told = _run(out, backend)
    assert "evaluation at step 12: " in told and told.rstrip().endswith("64")
    assert (out / "model" / "model.weights.h5").exists()


PROOF = """
import tensorflow as tf

def data(module):
    return tf.data.Dataset.from_tensor_slices(module.arrays()).batch(20)

def estimator(program):
    return tf.compat.v1.estimator.Estimator(program.my_model_fn, params={"dropout": 0.0})

def model(made):
    return made.make_my_model(made.model_inputs(data(made)), {"dropout": 0.0})

def input_fn(program):
    return data(program).repeat()

def eval_input_fn(program):
    return data(program)
"""


@pytest.mark.nightly
def test_it_trains_as_the_estimator_did(tmp_path, capsys):
    """RMSProp of TensorFlow 1, a convolution, a smaller last batch: loss and weights of each step, metrics, answers."""
    proof, out = tmp_path / "proof.py", tmp_path / "out"
    proof.write_text(PROOF)
    command = ["migrate", "convert", PROGRAM, "--target", "keras3", "--parity", proof, "--steps", "8", "--output", out]
    code, told, _ = run(command, capsys)
    assert code == 0, told
    document = json.loads((out / "parity.json").read_text())
    assert document["equal"] is True and np.isfinite(len(document))
