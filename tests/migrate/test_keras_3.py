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


@pytest.mark.parametrize(
    ("call", "after"),
    [
        ("tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)",
         "keras.ops.sparse_categorical_crossentropy(target=labels, output=logits, from_logits=True)"),
        ("tf.reduce_sum(logits, 1, keep_dims=True)", "keras.ops.sum(logits, 1, keepdims=True)"),
        ("tf.nn.softmax(logits, dim=1)", "keras.ops.softmax(logits, axis=1)"),
    ],
)  # fmt: skip
def test_functions_of_tensorflow_1_by_arguments_that_both_have(call, after, tmp_path):
    source = tmp_path / "v1.py"
    loss = "tf.losses.sparse_softmax_cross_entropy(labels=labels, logits=logits)"
    source.write_text(PROGRAM.read_text().replace(loss, f"tf.reduce_mean({call})"))
    (made,) = convert(source).files
    assert f"loss = keras.ops.mean({after})\n" in made.after, made.kept_as_estimator


def test_names_that_a_person_would_give(tmp_path):
    """No MyModelModel, predictions worked out once, comments at their lines."""
    source = tmp_path / "my_model.py"
    source.write_text(PROGRAM.read_text().replace("my_model_fn", "model_fn"))
    text = convert(source).files[0].after
    assert "class MyModel(keras.Model):" in text and "ModelModel" not in text
    assert "def make_model(" in text
    assert text.count("keras.ops.argmax(logits, 1)") == 1 and "predictions = self.predictions(x, y_pred)" in text
    assert "name='hidden')(net)  # wide\n" in text and "# Labels are numbers of classes.\n        loss = " in text


def test_a_notebook(tmp_path):
    """Its cells stay, with what they hand to IPython; nothing switches to Keras 2."""
    before, main = PROGRAM.read_text().split("def main(_):")
    head, functions = before.split("RATE = 0.1\n")
    main = "".join(line.removeprefix("    ") for line in main.split("if __name__")[0].splitlines(keepends=True))
    cells = [f"%matplotlib inline\n{head}", "!ls data", functions.strip("\n"), main.strip("\n")]
    book = {"cells": [{"cell_type": "code", "execution_count": 1, "metadata": {}, "outputs": [], "source": cell}
                      for cell in cells], "metadata": {}, "nbformat": 4, "nbformat_minor": 2}  # fmt: skip
    (tmp_path / "typical.ipynb").write_text(json.dumps(book))
    converted = convert(tmp_path)
    (made,) = converted.files
    assert made.keras and list(converted.beside) == ["keras_support.py"], made.kept_as_estimator
    cells = ["".join(cell["source"]) for cell in json.loads(made.after)["cells"]]
    assert cells[0].startswith("%matplotlib inline\n") and "import keras\n" in cells[0] and cells[1] == "!ls data"
    assert "class MyModel(keras.Model):" in cells[2] and "model.fit(" in cells[3]
    assert "TF_USE_LEGACY_KERAS" not in made.after


def test_a_function_of_the_program_with_the_name_of_one_beside_it(tmp_path):
    source = tmp_path / "own.py"
    text = PROGRAM.read_text().replace("arrays()[0]", "stop_if_lower()")
    source.write_text(text.replace("def arrays():", "def stop_if_lower():\n    return arrays()[0]\n\n\ndef arrays():"))
    converted = convert(source)
    (made,) = converted.files
    assert made.keras and "def stop_if_lower():\n    return arrays()[0]\n" in made.after
    assert "stop_if_lower" not in converted.beside["keras_support.py"]


@pytest.mark.parametrize(
    ("name", "line", "construct"),
    [
        ("census_wide_deep", 123, "a canned Estimator of two optimizers"),
        ("churn_exporters", 97, "export of a canned Estimator"),
        ("demand_rnn", 0, "rnn_cell"),
        ("mnist_multiworker", 0, "MultiWorkerMirroredStrategy"),
        ("mnist_tf1", 0, "averages of the weights"),
        ("tumour_linear", 69, "names of variables of a canned Estimator"),
        ("movie_deepfm", 0, "a variable outside of layers"),
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


def test_the_module_beside_is_written_and_told(tmp_path, capsys):
    out = tmp_path / "out"
    code, told, _ = run(["migrate", "convert", PROGRAM, "--target", "keras3", "--output", out], capsys)
    assert code == 0 and "keras_support.py: helpers that Keras 3 lacks" in told
    assert sorted(path.name for path in out.iterdir()) == ["keras_support.py", "typical.py"]
    made = convert(PROGRAM)
    assert "+++ b/keras_support.py" in diff(made) and "typical.py: converted to Keras" in summary(made)
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
    assert f"    return {after}\n" in convert_text(text, model_functions([text])).step.after


def test_each_part_of_the_module_stands_alone():
    for name in PARTS:
        text = module_text([name])
        compile(text, name, "exec")
        assert name in text
    assert "def _without_progress" in module_text(["stop_if_no_decrease"])


def run_program(folder: Path, backend: str, *, command: tuple[str, ...] = ("typical.py",)) -> str:
    """What a program tells, on a backend of Keras 3, in a process of its own."""
    environ = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    environ.pop("TF_USE_LEGACY_KERAS", None)
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.nightly
@pytest.mark.keras_3
def test_keras_3_has_what_is_written(tmp_path):
    """In a process of its own: this one has Keras 2."""
    names = [*(one.target for one in OPERATIONS.values()), *ACTIVATIONS.values(),
             *(f"keras.initializers.{one}" for one in INITIALIZERS.values())]  # fmt: skip
    (tmp_path / "names.py").write_text("\n".join(["import keras", *dict.fromkeys(names)]))
    run_program(tmp_path, "tensorflow", command=("names.py",))


@pytest.mark.nightly
@pytest.mark.keras_3
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_it_runs(backend, tmp_path, capsys):
    """On each backend that is there: trains, evaluates, predicts."""
    if backend != "tensorflow":
        pytest.importorskip(backend)
    out = tmp_path / "out"
    assert run(["migrate", "convert", PROGRAM, "--target", "keras3", "--output", out], capsys)[0] == 0
    told = run_program(out, backend)
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


def embedding():
    """The program with a table in place of the convolution, a row of which many records of a batch read; Adam."""
    text = PROGRAM.read_text()
    first, last = text.index("    images = "), text.index("    net = tf.layers.flatten(net)")
    table = "    ids = tf.cast(features['x'] * 5, tf.int32)\n    net = tf.keras.layers.Embedding(9, 4)(ids)\n"
    return (text[:first] + table + text[last:]).replace("RMSPropOptimizer(0.01, momentum=0.5)", "AdamOptimizer(0.01)")


def test_an_optimizer_of_a_model_with_embeddings(tmp_path):
    """Keras 3 squares the gradients of a row one by one, where a batch reads it more than once."""
    source = tmp_path / "typical.py"
    source.write_text(embedding())
    converted = convert(source)
    assert "optimizer=AdamWithDenseGradients(0.01, epsilon=1e-8)" in converted.files[0].after
    assert "class AdamWithDenseGradients(DenseGradients, keras.optimizers.Adam)" in converted.beside["keras_support.py"]


@pytest.mark.parametrize(
    "optimizer",
    ["FtrlOptimizer(0.01)", "RMSPropOptimizer(0.01)", "MomentumOptimizer(0.01, 0.9)"],
)
def test_optimizers_that_change_the_rows_alone_that_a_batch_reads(tmp_path, optimizer):
    source = tmp_path / "typical.py"
    source.write_text(embedding().replace("AdamOptimizer(0.01)", optimizer))
    (made,) = convert(source).files
    assert not made.keras and "rows" in made.kept_as_estimator
    assert optimizer.split("(")[0] in made.verdict.source


@pytest.mark.nightly
@pytest.mark.keras_3
@pytest.mark.parametrize("program", [PROGRAM.read_text(), embedding()], ids=["convolution", "embedding"])
def test_it_trains_as_the_estimator_did(program, tmp_path, capsys):
    """RMSProp of TensorFlow 1, or rows of a table that are read twice: loss and weights of each step, metrics, answers.

    The last batch is smaller.
    """
    source, proof, out = tmp_path / "typical.py", tmp_path / "proof.py", tmp_path / "out"
    source.write_text(program)
    proof.write_text(PROOF)
    command = ["migrate", "convert", source, "--target", "keras3", "--parity", proof, "--steps", "8", "--output", out]
    code, told, wrong = run(command, capsys)
    assert code == 0 and "typical.py: converted to Keras" in told, wrong
    assert json.loads((out / "parity.json").read_text())["equal"] is True


RESUMED = """
import os, sys
import keras
import typical

data = typical.input_fn(True)
model = typical.make_my_model(typical.model_inputs(data), {"dropout": 0.4})
backup = keras.callbacks.BackupAndRestore("backup", save_freq=5)

class Interrupted(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if sys.argv[1] == "interrupted" and batch == 6:
            os._exit(0)

callbacks = [typical.StopAfter(12), backup, Interrupted()]
model.fit(data, steps_per_epoch=12, callbacks=callbacks, verbose=0)
print("steps", int(model.optimizer.iterations))
"""


@pytest.mark.nightly
@pytest.mark.keras_3
def test_an_interrupted_training_ends_at_the_same_step(tmp_path, capsys):
    """Two processes that train: BackupAndRestore alone would make all steps of the epoch again."""
    out = tmp_path / "out"
    run(["migrate", "convert", PROGRAM, "--target", "keras3", "--output", out], capsys)
    (out / "again.py").write_text(RESUMED)
    assert "steps" not in run_program(out, "tensorflow", command=("again.py", "interrupted"))
    assert run_program(out, "tensorflow", command=("again.py", "resumed")).strip() == "steps 12"


MOVED = """
import tensorflow as tf
import typical

def make():
    data = tf.data.Dataset.from_tensor_slices(typical.arrays()).batch(20)
    return typical.make_my_model(typical.model_inputs(data), {"dropout": 0.4})
"""


@pytest.mark.nightly
@pytest.mark.keras_3
def test_its_checkpoint_is_moved(tmp_path, capsys):
    """An Estimator's checkpoint: weights for `load_weights`, and with the slots of RMSProp."""
    old, out = tmp_path / "old", tmp_path / "out"
    for target, folder in (("estimator", old), ("keras3", out)):
        assert run(["migrate", "convert", PROGRAM, "--target", target, "--output", folder], capsys)[0] == 0
    tool = ("-m", "estimator_pipeline")
    run_program(old, "tensorflow", command=(*tool, "exec", "typical.py"))
    (out / "moved.py").write_text(MOVED)
    move = (
        *tool,
        "migrate",
        "checkpoint",
        str(old / "model"),
        "--to",
        "keras3",
        "--model",
        "moved.py:make",
        "--output",
    )
    run_program(out, "tensorflow", command=(*move, "start.weights.h5", "--drop-optimizer-state"))
    told = run_program(out, "tensorflow", command=(*move, "folder"))
    assert "hidden/kernel/rms" in told and "step 12" in told
    (out / "load.py").write_text(
        "import moved, typical\nmodel = moved.make()\nmodel.load_weights('start.weights.h5')\n"
        "print(model.evaluate(typical.input_fn(False), verbose=0, return_dict=True)['accuracy'])\n"
    )
    expected = run_program(old, "tensorflow", command=(*tool, "exec", "typical.py")).split()[-2]
    assert abs(float(run_program(out, "tensorflow", command=("load.py",))) - float(expected)) < 1e-6
