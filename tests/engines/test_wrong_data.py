"""Wrong data: one error that names feature and record, before training or, where only training shows it, after."""

from __future__ import annotations

import itertools
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from estimator_pipeline import compat
from estimator_pipeline.engines.core import data_errors
from estimator_pipeline.engines.core.failures import diverged
from estimator_pipeline.engines.jobs.build import BuiltJob
from estimator_pipeline.engines.jobs.run import run_job
from estimator_pipeline.errors import InputError
from estimator_pipeline.inputs import value_checks
from estimator_pipeline.job import dump_job, make_job
from estimator_pipeline.utils.fixes import of_job_file

tf = compat.install()
MODEL = {"name": "wide_deep", "params": {"numeric": ["x"], "categorical": {"device": 8}}}
FEATURES = {"x": {"dtype": "float32"}, "device": {"dtype": "int64"}, "label": {"dtype": "int64"}}


def job(tmp_path, source, train, evaluate, engine="estimator", **section):
    return make_job(
        {
            "model": MODEL,
            "input": {"source": source, "train": train, "eval": evaluate, "global_batch_size": 20, **section},
            "train": {"max_steps": 10},
            "run": {"model_dir": str(tmp_path / "model"), "engine": engine},
        }
    )


def write_records(path, change=None):
    """Two TFRecord files of 100 records; `change(features)` is applied to record 23 of the second."""
    for part in range(2):
        with tf.io.TFRecordWriter(f"{path}-{part}.tfrecord") as writer:
            for number in range(100):
                values = {
                    "x": [number / 100],
                    "device": [number % 8],
                    "label": [number % 2],
                    "tags": [1] * (number % 3),
                }
                if change is not None and (part, number) == (1, 23):
                    change(values)
                features = {name: feature(value) for name, value in values.items() if value}
                writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    return f"{path}-*.tfrecord"


def feature(values):
    if isinstance(values[0], float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def table(path, devices=(0, 7), income=0.5):
    path.write_text("x,device,label\n" + "".join(f"{income},{device},{n % 2}\n" for n, device in enumerate(devices)))
    return str(path)


TYPES = {"columns": {"x": "float32", "device": "int64", "label": "int64"}}


@pytest.mark.parametrize("use", ["training", "evaluation"])
def test_ids_of_a_table_are_checked_before_training(tmp_path, use):
    good, bad = table(tmp_path / "good.csv"), table(tmp_path / "bad.csv", [0, 1, 9])
    files = (bad, good) if use == "training" else (good, bad)
    with pytest.raises(InputError) as caught:
        run_job(job(tmp_path, "csv", *files, **TYPES), environ={})
    assert caught.value.code == "data/unknown-id" and f"bad.csv, line 4; 1 {use} record" in caught.value.found
    assert not (tmp_path / "model").exists()


def test_ids_of_arrays_are_checked_before_training(tmp_path):
    path = str(tmp_path / "a.npz")
    np.savez(path, x=np.ones(4, "float32"), device=np.array([0, 1, -1, 2]), label=np.zeros(4, "int64"))
    with pytest.raises(InputError) as caught:
        BuiltJob(job(tmp_path, "arrays", path, path)).check_values()
    assert caught.value.code == "data/unknown-id" and "record 2" in caught.value.found


def test_nan_in_arrays_is_an_error_before_training(tmp_path):
    path = str(tmp_path / "a.npz")
    x = np.array([1, 2, np.nan, np.inf], "float32")
    np.savez(path, x=x, device=np.zeros(4, "int64"), label=np.zeros(4, "int64"))
    with pytest.raises(InputError) as caught:
        BuiltJob(job(tmp_path, "arrays", path, path)).check_values()
    assert caught.value.code == "data/not-finite" and "record 2; 2 numbers of 'x'" in caught.value.found


def test_numbers_that_are_not_scaled_are_warned_of(tmp_path, logged):
    path = table(tmp_path / "t.csv", income=30000)
    BuiltJob(job(tmp_path, "csv", path, path, **TYPES)).check_values()
    (warned,) = [record.getMessage() for record in logged.records if record.levelname == "WARNING"]
    assert "'x' (30,000 to 30,000)" in warned and "{features: {x: numeric, device: categorical}}" in warned
    logged.clear()
    path = table(tmp_path / "scaled.csv")
    BuiltJob(job(tmp_path, "csv", path, path, **TYPES)).check_values()
    assert not [record for record in logged.records if record.levelname == "WARNING"]


def yaml_of(hint):
    """The change of a job file in a hint."""
    return yaml.safe_load(re.search(r"(?:input|model): \{.*\}\}", hint)[0])


# What is wrong in a record of TFRecord files, and of the error: its code, `found`, and the change of the job file.
RECORDS = {
    "unknown-id": (
        {"device": [9]}, "data/unknown-id", "1 training record with this id",
        {"model": {"params": {"categorical": {"device": 10}}}},
    ),
    "nan": (
        {"x": [float("nan")]}, "data/not-finite", "1 number of 'x' is NaN",
        {"input": {"features": {"x": {"dtype": "float32", "default": 0}}}},
    ),
    "missing": (
        {"x": []}, "data/missing-feature", "record 23 has device",
        {"input": {"features": {"x": {"dtype": "float32", "default": 0}}}},
    ),
    "type": (
        {"x": [3]}, "data/bad-feature", "has int64, the spec has float32",
        {"input": {"features": {"x": {"dtype": "int64"}}}},
    ),
    "length": (
        {"x": [3.0, 4.0]}, "data/bad-feature", "holds 2 value(s)",
        {"input": {"features": {"x": {"dtype": "float32", "shape": [2]}}}},
    ),
}  # fmt: skip
# Tags of any length keep the records out of memory: TensorFlow parses them step by step.
STREAMED = {"features": {**FEATURES, "tags": {"dtype": "int64", "kind": "varlen"}}, "features_key": ["x", "device"]}


def wrong_records(tmp_path, case):
    return write_records(tmp_path / "bad", lambda features: features.update(RECORDS[case][0]))


def check(error, case):
    _, code, place, change = RECORDS[case]
    assert (error.code, error.exit_code) == (code, 2)
    assert "bad-1.tfrecord, record 23" in error.found and place in error.found
    assert yaml_of(error.hint) == change


@pytest.mark.parametrize(("engine", "case"), [("estimator", "unknown-id"), ("keras", "nan"), ("keras", "missing")])
def test_records_that_only_training_reads(tmp_path, engine, case):
    bad, good = wrong_records(tmp_path, case), write_records(tmp_path / "good")
    with pytest.raises(InputError) as caught:
        run_job(job(tmp_path, "tfrecord", bad, good, engine, **STREAMED), environ={})
    check(caught.value, case)
    (status,) = (tmp_path / "model").glob("**/training.json")
    assert json.loads(status.read_text())["status"] == ("diverged" if case == "nan" else "failed")


def test_of_large_data_the_last_records_are_read(tmp_path, monkeypatch):
    """The time is enough for 60 of the 200 records; then the 40 of the last two steps are read."""
    for name in ("source", "value_checks"):
        monkeypatch.setattr(f"estimator_pipeline.inputs.{name}.DECODE_CHUNK", 20)
    monkeypatch.setattr(value_checks.time, "monotonic", itertools.count().__next__)
    monkeypatch.setattr(data_errors, "_READING_SECS", 3)
    monkeypatch.setattr(data_errors, "_LAST_RECORDS", 40)
    bad = wrong_records(tmp_path, "nan")
    input_fn = BuiltJob(job(tmp_path, "tfrecord", bad, bad, **STREAMED)).data.train_input_fn
    step = next(step for step in range(10) if 123 in input_fn.records_before(step, most=20))
    context = SimpleNamespace(input_fn=input_fn)
    for noticed in (step, step + 1):
        assert "record 23" in data_errors.explained(context, diverged("NaN", step=noticed)).found
    error = data_errors.explained(context, diverged("NaN", step=step + 2))
    assert error.found.startswith("the first training records are finite")


@pytest.mark.parametrize("case", ["missing", "type", "length"])
def test_a_record_that_differs_from_its_description(tmp_path, case):
    """In memory the records are decoded together, at the first step."""
    bad = wrong_records(tmp_path, case)
    source = BuiltJob(job(tmp_path, "tfrecord", bad, bad, features=FEATURES)).data.train_input_fn.source
    with of_job_file(), pytest.raises(InputError) as caught:
        source.load()
    check(caught.value, case)


@pytest.mark.nightly  # a process of Keras 3
@pytest.mark.keras_3
@pytest.mark.parametrize("case", ["unknown-id", "nan", "missing"])
def test_the_engine_keras3(tmp_path, run_python, case):
    bad, good = wrong_records(tmp_path, case), write_records(tmp_path / "good")
    (tmp_path / "job.yaml").write_text(dump_job(job(tmp_path, "tfrecord", bad, good, "keras3", **STREAMED)))
    done = run_python(["-m", "estimator_pipeline", "train", tmp_path / "job.yaml", "--quiet"])
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert f"[{RECORDS[case][1]}]" in done.stderr and "bad-1.tfrecord, record 23" in done.stderr
    assert len(done.stderr.splitlines()) <= 10, done.stderr


@pytest.mark.nightly  # training on two workers
@pytest.mark.cluster
@pytest.mark.parametrize("case", ["unknown-id", "nan"])
def test_two_workers(tmp_path, run_python, case):
    """Both end with the first failure; the launcher reports the error in place of the end of a log."""
    bad, good = wrong_records(tmp_path, case), write_records(tmp_path / "good")
    (tmp_path / "job.yaml").write_text(dump_job(job(tmp_path, "tfrecord", bad, good, **STREAMED)))
    options = ["--workers", "2", "--max-restarts", "3", "--set", "run.train_distribute=multi_worker_mirrored"]
    done = run_python(["-m", "estimator_pipeline", "launch", tmp_path / "job.yaml", *options], timeout=240)
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"[{RECORDS[case][1]}]" in done.stderr and "bad-1.tfrecord, record 23" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr and len(done.stderr.splitlines()) <= 10, done.stderr
    assert "bad input (exit code 2) would fail again" in done.stdout
    logs = [log.read_text() for log in tmp_path.glob("model/logs/**/worker-*.log")]
    assert any("Traceback" in log and f"[{RECORDS[case][1]}]" in log for log in logs)


def test_a_feature_whose_default_is_nan_may_be_nan(tmp_path):
    features = {**FEATURES, "x": {"dtype": "float32", "default": float("nan")}}
    path = write_records(tmp_path / "a", lambda values: values.update(x=[float("nan")]))
    assert BuiltJob(job(tmp_path, "tfrecord", path, path, features=features)).data.train_input_fn.source.nullable == {
        "x"
    }
