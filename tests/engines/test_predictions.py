"""`predict`, `evaluate` and `export`: what people do with the checkpoints of a job, on the files that they have."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

import estimator_pipeline as ep
from estimator_pipeline.engines.jobs.exported import is_export, predict_with_export
from estimator_pipeline.engines.jobs.loaded import Predictions
from estimator_pipeline.engines.jobs.prediction_files import write_predictions
from estimator_pipeline.engines.jobs.run import run_job
from estimator_pipeline.errors import ConfigError, InputError
from estimator_pipeline.job import make_job
from tests.support.command_line import call
from tests.support.processes import tensorflow_with_three_cpus
from tests.support.tables import write_table

tf = tensorflow_with_three_cpus()


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def without_label(path, new):
    rows = read(path)
    with open(new, "w", newline="") as file:
        writer = csv.DictWriter(file, [name for name in rows[0] if name != "churned"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return str(new)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A folder with a table, its job file as `new` writes it, and later records with and without their label."""
    folder = tmp_path_factory.mktemp("table")
    write_table("churn", folder / "churn.csv")
    done = call("new", "churn.csv", "--label", "churned", "--workers", "1", cwd=folder)
    assert done.returncode == 0, done.stderr
    write_table("churn", folder / "later.csv", records=100)
    without_label(folder / "later.csv", folder / "new.csv")
    return folder


def loaded(folder, engine="estimator"):
    settings = ["train.max_steps=20", "run.save_checkpoints_steps=10", f"run.engine={engine}", "eval.exporters=[]"]
    settings += [f"input.train={folder}/churn.csv", f"run.model_dir={folder}/{engine}"]
    return ep.load_job(folder / "churn.yaml", overrides=settings)


@pytest.fixture(scope="module")
def job(table):
    """The job, trained by tf.estimator."""
    job = loaded(table)
    run_job(job.job, environ={})
    return job


def rows(predictions, name="probabilities"):
    return np.concatenate([batch[name] for batch in predictions.batches])


@pytest.mark.parametrize("engine", ["estimator", "keras"])
def test_a_checkpoint_its_export_and_two_workers_predict_the_same_of_records_without_labels(table, engine, tmp_path):
    job = loaded(table, engine)
    result = job.train()
    before = sorted(path.relative_to(table) for path in (table / engine).rglob("*"))
    files = [str(table / "new.csv")]
    whole = job.predict(files)
    predicted = rows(whole)
    assert [name for chunk in whole.kept for name in chunk["customer id"]] == [
        row["customer id"].encode() for row in read(table / "new.csv")
    ]
    assert whole.class_names == ["no", "yes"] and whole.num_records == 100
    shares = [rows(job.predict(files, share=(index, 3))) for index in range(3)]
    np.testing.assert_allclose(np.concatenate(shares), predicted, rtol=1e-5)
    folder = job.export(tmp_path / "export")
    assert is_export(folder)
    np.testing.assert_allclose(rows(predict_with_export(folder, files)), predicted, rtol=1e-5)
    assert job.evaluate() == pytest.approx(dict(result.metrics))
    earlier = job.evaluate([str(table / "later.csv")], checkpoint=10)
    assert earlier["global_step"] == 10 and earlier["loss"] > 0
    assert before == sorted(path.relative_to(table) for path in (table / engine).rglob("*"))


def test_what_cannot_be_predicted_is_one_error(job, table, tmp_path):
    with pytest.raises(ConfigError, match="there is no checkpoint 15") as error:
        job.predict([str(table / "new.csv")], checkpoint=15)
    assert error.value.found.endswith("steps 0, 10, 20")
    (tmp_path / "other.csv").write_text("tenure,plan\n1,basic\n")
    with pytest.raises(InputError, match="The column 'monthly charges' is not there"):
        job.predict([str(tmp_path / "other.csv")])
    with pytest.raises(ConfigError, match="file/exists"):
        job.export(table)
    with pytest.raises(ConfigError, match="has no prediction 'probability'"):
        write_predictions(job.predict([str(table / "new.csv")]), str(tmp_path / "out.csv"), names=["probability"])
    assert not list(tmp_path.glob("out*"))
    with pytest.raises(ConfigError, match="not those of a Keras model"):
        job.model()


def test_json_lines_and_parquet_are_predicted_as_the_same_records_of_a_csv_file(job, table, tmp_path):
    """A missing number is null, or is left out of the object."""
    records = read(table / "new.csv")
    with open(tmp_path / "new.jsonl", "w") as file:
        for record in records:
            known = {k: v for k, v in record.items() if k != "tenure" or v}
            print(json.dumps(known), file=file)
    columns = {name: [record[name] or None for record in records] for name in records[0]}
    columns["tenure"] = [None if v is None else int(v) for v in columns["tenure"]]
    columns["monthly charges"] = [None if v == "NA" else v for v in columns["monthly charges"]]
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "new.parquet")
    expected = rows(job.predict([str(table / "new.csv")]))
    for name in ("new.jsonl", "new.parquet"):
        np.testing.assert_array_equal(rows(job.predict([str(tmp_path / name)])), expected)


def test_the_commands_on_the_files_of_a_user(job, table, tmp_path):
    """The output is complete or not there; a second run does not replace it."""
    at = ["--set", f"run.model_dir={table}/estimator", "--set", f"input.train={table}/churn.csv"]
    out = tmp_path / "out.csv"
    command = ["predict", str(table / "churn.yaml"), str(table / "new.csv"), "-o", str(out), *at]
    done = call(*command, "--checkpoint", "10", "--keep", "plan")
    assert done.returncode == 0, done.stderr
    written = read(out)
    assert list(written[0]) == ["customer id", "note", "plan", "probabilities_no", "probabilities_yes", "class_ids",
                                "classes"]  # fmt: skip
    assert [row["plan"] for row in written] == [row["plan"] for row in read(table / "new.csv")]
    assert "100 predictions" in done.stderr and "model.ckpt-10" in done.stderr
    again = call(*command)
    assert again.returncode == 2 and "file/exists" in again.stderr and "Traceback" not in again.stderr
    done = call("evaluate", str(table / "churn.yaml"), "--checkpoint", "best", "--json", *at)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["metrics"]["global_step"] == 20
    done = call("export", str(table / "churn.yaml"), "-o", str(tmp_path / "served/1"), *at)
    assert done.returncode == 0, done.stderr
    done = call("predict", str(tmp_path / "served/1"), str(table / "new.csv"), "--output", "classes")
    assert done.returncode == 0 and set(done.stdout.split()) == {"classes", "no", "yes"}, done.stderr


@pytest.mark.keras_3
@pytest.mark.nightly
def test_the_engine_keras3(table, run_python):
    """In processes of their own: this one has Keras 2."""
    settings = ["run.engine=keras3", "train.max_steps=20", f"input.train={table}/churn.csv"]
    at = [word for setting in [*settings, f"run.model_dir={table}/keras3"] for word in ("--set", setting)]
    for command in ("train",), ("predict", str(table / "new.csv"), "-o", str(table / "k3.parquet")):
        name, *rest = command
        done = run_python(["-m", "estimator_pipeline", name, str(table / "churn.yaml"), *rest, *at], timeout=120)
        assert done.returncode == 0, done.stderr
    assert pyarrow.parquet.read_table(table / "k3.parquet").num_rows == 100


OWN = """
import estimator_pipeline as ep
tf = ep.compat.tensorflow()

def data(input_context=None):
    x = tf.random.stateless_uniform([64, 4], seed=(1, 2))
    return tf.data.Dataset.from_tensor_slices((x, tf.cast(tf.reduce_sum(x, 1) > 2, tf.int64))).repeat(2).batch(16)

def layers(params):
    return tf.keras.Sequential([tf.keras.layers.InputLayer(input_shape=(4,)), tf.keras.layers.Dense(2)])

def features():
    return {name: tf.TensorSpec([], tf.float32) for name in "abcd"}, lambda t: tf.stack([t[n] for n in "abcd"], 1)

def no_features():
    return {"a": 7}
"""


@pytest.mark.parametrize("engine", ["estimator", "keras"])
def test_functions_of_a_user_are_exported_and_predict_with_their_serving_inputs(engine, tmp_path):
    (tmp_path / "own_serving.py").write_text(OWN)
    functions = f"{tmp_path}/own_serving.py:"
    document = {
        "model": {"function": f"{functions}layers", "loss": "sparse_categorical_crossentropy"},
        "input": {
            "source": "function",
            "train": f"{functions}data",
            "eval": f"{functions}data",
            "global_batch_size": 16,
        },
        "train": {"max_steps": 2},
        "eval": {"exporters": [{"kind": "final"}]},
        "run": {"model_dir": str(tmp_path / "model"), "engine": engine},
    }
    from estimator_pipeline.engines.jobs.loaded import LoadedJob

    with pytest.raises(ConfigError, match="the features of a user-defined input function are unknown") as error:
        run_job(make_job(document), environ={})
    assert "input.serving" in error.value.hint
    document["input"]["serving"] = f"{functions}no_features"
    with pytest.raises(ConfigError, match="does not return the inputs of the export") as error:
        run_job(make_job(document), environ={})
    assert error.value.found == "a: an int"
    document["input"]["serving"] = f"{functions}features"
    job = LoadedJob(make_job(document))
    result = job.train()
    (tmp_path / "new.csv").write_text("id,a,b,c,d\n7,0.1,0.2,0.3,0.4\n8,0.9,0.9,0.9,0.9\n")
    files = [str(tmp_path / "new.csv")]
    predictions = job.predict(files, keep=["id"])
    assert [chunk["id"].tolist() for chunk in predictions.kept] == [[b"7", b"8"]]
    predicted = rows(predictions)
    exported = predict_with_export(result.exporters["final"], files)
    np.testing.assert_allclose(rows(exported), predicted, rtol=1e-5)


def predictions(**values):
    batches = iter([{name: np.array(value) for name, value in values.items()}])
    kept = iter([{"id": np.array([b"007", "zoë".encode()], object)}])
    return Predictions("model.ckpt-1", 0, 2, batches, kept, class_names=("no", "yes"))


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet", "tfrecord"])
def test_a_file_has_the_keys_and_the_numbers_as_they_are(ending, tmp_path):
    path = str(tmp_path / f"out.{ending}")
    values = predictions(
        logits=np.float32([[1], [2]]), probabilities=np.float32([[0.1, 0.9], [1 / 3, np.nan]]),
        classes=np.array([[b"yes"], [b"no"]], object), class_ids=[[1], [0]],
    )  # fmt: skip
    assert write_predictions(values, path)[1] == ["logits"]
    if ending in ("csv", "tsv"):
        expected = "id,probabilities_no,probabilities_yes,classes,class_ids\n007,0.1,0.9,yes,1\n"
        text = Path(path).read_text()
        assert text == (expected + "zoë,0.33333334,nan,no,0\n").replace(",", "\t" if ending == "tsv" else ",")
    elif ending == "jsonl":
        first, second = map(json.loads, Path(path).read_text().splitlines())
        assert first == {"id": "007", "probabilities": [0.1, 0.9], "classes": "yes", "class_ids": 1}
        assert second["probabilities"] == [0.33333334, None] and second["id"] == "zoë"
    elif ending == "parquet":
        table = pyarrow.parquet.read_table(path)
        assert table.column("id").to_pylist() == ["007", "zoë"] and table.column("class_ids").to_pylist() == [1, 0]
        assert table.column("probabilities").to_pylist()[0] == [np.float32(0.1), np.float32(0.9)]
    else:
        (first, _) = (tf.train.Example.FromString(r.numpy()) for r in tf.data.TFRecordDataset(path))
        assert first.features.feature["id"].bytes_list.value == [b"007"]
        assert first.features.feature["probabilities"].float_list.value == [np.float32(0.1), np.float32(0.9)]
