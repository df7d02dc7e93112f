"""`migrate convert --target keras3` of feature columns: what is written, and that it trains as the Estimator does."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

from estimator_pipeline.migrate import code as migrate_code
from tests.migrate.test_convert import run
from tests.migrate.test_keras_3 import run_program

FOLDER = Path(__file__).resolve().parent / "keras_3"
PROGRAM = FOLDER / "columns.py"
convert = functools.partial(migrate_code.convert, to="keras3")


def test_golden():
    """To accept a change: estimator-pipeline migrate convert --target keras3, and copy it to keras_3/columns/."""
    converted = convert(PROGRAM)
    (made,) = converted.files
    assert made.after == (FOLDER / "columns" / "columns.py").read_text(encoding="utf-8"), made.kept_as_estimator
    assert converted.beside == {"keras_support.py": (FOLDER / "columns" / "keras_support.py").read_text("utf-8")}


def test_a_variable_with_the_name_of_a_column(tmp_path):
    """`city = ...` there is `embedding_column = ...` here: the function is asked by its module."""
    source = tmp_path / "names.py"
    source.write_text(PROGRAM.read_text().replace("buckets = ", "bucketized_column = ").replace("buckets,", "0,"))
    text = convert(source).files[0].after
    assert "import keras_support\nfrom keras_support import (\n    AdagradWithDenseGradients,\n" in text
    assert "bucketized_column = keras_support.bucketized_column(numeric_column('age'), [20, 30, 60])\n" in text


def test_data_of_the_name_of_a_parameter_is_no_function_of_the_model(tmp_path):
    source = tmp_path / "names.py"
    source.write_text(PROGRAM.read_text().replace("input_fn(True)", "data(True)").replace("def input_fn", "def data"))
    text = convert(source).files[0].after
    assert "def data(training):\n    dataset = tf.data.Dataset.from_tensor_slices(arrays())\n" in text


PROOF = """
import tensorflow as tf

def data(module):
    return tf.data.Dataset.from_tensor_slices(module.arrays()).batch(20)

def params(module):
    return {"feature_columns": module.feature_columns(), "hidden_units": [10, 10], "n_classes": 3}

def estimator(program):
    return tf.compat.v1.estimator.Estimator(program.my_model, params=params(program))

def model(made):
    return made.make_my_model(made.model_inputs(data(made)), params(made))

def input_fn(program):
    return data(program).repeat()

def eval_input_fn(program):
    return data(program)
"""


@pytest.mark.nightly
@pytest.mark.keras_3
def test_it_trains_as_the_estimator_did(tmp_path, capsys):
    """Ids, hashes, crosses, unknown words, the order of the columns, rows of tables that are read twice."""
    source, proof, out = tmp_path / "columns.py", tmp_path / "proof.py", tmp_path / "out"
    source.write_text(PROGRAM.read_text())
    proof.write_text(PROOF)
    command = ["migrate", "convert", source, "--target", "keras3", "--parity", proof, "--steps", "8", "--output", out]
    code, told, wrong = run(command, capsys)
    assert code == 0 and "columns.py: converted to Keras" in told, wrong
    assert json.loads((out / "parity.json").read_text())["equal"] is True


@pytest.mark.nightly
@pytest.mark.keras_3
def test_its_checkpoint_is_moved(tmp_path, capsys):
    """Tables of embeddings among the weights, and the program evaluates to what the Estimator did."""
    old, out = tmp_path / "old", tmp_path / "out"
    for target, folder in (("estimator", old), ("keras3", out)):
        assert run(["migrate", "convert", PROGRAM, "--target", target, "--output", folder], capsys)[0] == 0
    tool = ("-m", "estimator_pipeline")
    expected = run_program(old, "tensorflow", command=(*tool, "exec", "columns.py")).split()[-1]
    (out / "moved.py").write_text(f"import columns\n{PROOF}\ndef make():\n    return model(columns)\n")
    move = (*tool, "migrate", "checkpoint", str(old / "model"), "--to", "keras3", "--model", "moved.py:make")
    run_program(out, "tensorflow", command=(*move, "--output", "start.weights.h5", "--drop-optimizer-state"))
    (out / "load.py").write_text(
        "import moved, columns\nmodel = moved.make()\nmodel.load_weights('start.weights.h5')\n"
        "print(model.evaluate(columns.input_fn(False), verbose=0, return_dict=True)['accuracy'])\n"
    )
    assert abs(float(run_program(out, "tensorflow", command=("load.py",))) - float(expected)) < 1e-6


NUMBERS = """
import columns, tensorflow as tf

features, labels = columns.arrays()
features = {name: features[name] for name in ("age", "size", "floor")}
data = tf.data.Dataset.from_tensor_slices((features, labels)).batch(20)
of = columns.categorical_column_with_identity("floor", 6)
found = [*columns.numeric_columns(), columns.bucketized_column(columns.numeric_column("age"), [20, 30]),
         columns.indicator_column(of), columns.embedding_column(of, 2)]
params = {"feature_columns": found, "hidden_units": [4], "n_classes": 3}
model = columns.make_my_model(columns.model_inputs(data), params)
model.fit(data, epochs=2, verbose=0)
print(model.count_params())
"""


@pytest.mark.nightly
@pytest.mark.keras_3
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_columns_of_numbers_on_each_backend(backend, tmp_path, capsys):
    if backend != "tensorflow":
        pytest.importorskip(backend)
    out = tmp_path / "out"
    assert run(["migrate", "convert", PROGRAM, "--target", "keras3", "--output", out], capsys)[0] == 0
    (out / "some.py").write_text(NUMBERS)
    assert run_program(out, backend, command=("some.py",)).split()[-1] == str(12 + 4 * (14 + 1) + 3 * 5)


SPARSE = """
import columns, tensorflow as tf

def feature(value):
    if isinstance(value, str):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value.encode()]))
    if isinstance(value, int):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
    return tf.train.Feature(float_list=tf.train.FloatList(value=value))

records = [{"age": [30.0], "size": [1.0, 2.0], "city": "oslo", "street": "a", "kind": 5, "floor": 1}, {"age": [1.0],
           "size": [3.0, 4.0]}]
texts = [tf.train.Example(features=tf.train.Features(feature={name: feature(one) for name, one in record.items()}))
         .SerializeToString() for record in records]
found = columns.feature_columns()
spec = columns.spec()
data = tf.data.Dataset.from_tensor_slices((texts, [0, 1])).batch(2).map(
    lambda text, label: (tf.io.parse_example(text, spec), label))
params = {"feature_columns": found, "hidden_units": [], "n_classes": 3}
model = columns.make_my_model(columns.model_inputs(data), params)
model.fit(data, epochs=2, verbose=0)
values = columns.feature_layer(found)(next(iter(data))[0]).numpy()
expected = [(1 - 40) / 20, 1, *[0] * 25, 3, 4, 0, 0]  # nothing but age and size
print(abs(values[1] - expected).max() < 1e-6)
model.export("exported", verbose=False)
loaded = tf.saved_model.load("exported")
dense = {name: tf.sparse.to_dense(one) if isinstance(one, tf.SparseTensor) else one
         for name, one in next(iter(data))[0].items()}
print(loaded.serve(dense).shape)
"""


@pytest.mark.nightly
@pytest.mark.keras_3
def test_features_of_parsed_records(tmp_path, capsys):
    """Sparse ones of texts and numbers, some of them empty; its SavedModel takes them dense."""
    source, out = tmp_path / "columns.py", tmp_path / "out"
    spec = "def spec():\n    return tf.feature_column.make_parse_example_spec(feature_columns())\n\n\ndef main("
    source.write_text(PROGRAM.read_text().replace("def main(", spec))
    assert run(["migrate", "convert", source, "--target", "keras3", "--output", out], capsys)[0] == 0
    (out / "sparse.py").write_text(SPARSE)
    assert run_program(out, "tensorflow", command=("sparse.py",)).splitlines() == ["True", "(2, 3)"]
