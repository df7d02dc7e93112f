"""Runs that continue on new data (`--continue-with`): each record once, from the latest weights; refusals."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from estimator_pipeline.engines.jobs.continuing import nothing_new
from estimator_pipeline.engines.jobs.run import run_job
from estimator_pipeline.engines.model_dir.continuations import read_continuations
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.inputs import ledger
from estimator_pipeline.job import make_job
from estimator_pipeline.results.page import render
from estimator_pipeline.results.run import read_run
from tests.support.processes import tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()

OWN = """
import os
import signal

import estimator_pipeline as ep
tf = ep.compat.tensorflow()

def layers(params):
    columns = {name: tf.keras.Input([], name=name) for name in "ab"}
    both = tf.keras.layers.Concatenate()([tf.keras.layers.Reshape([1])(value) for value in columns.values()])
    return tf.keras.Model(columns, tf.keras.layers.Dense(1)(tf.keras.layers.Dense(8, "relu")(both)))

Hook = tf.estimator.SessionRunHook if ep.compat.keras_generation() != 3 else object

class Stop(Hook):
    def begin(self):
        self.step = tf.compat.v1.train.get_global_step()

    def after_run(self, context, values):
        if context.session.run(self.step) >= 9:
            raise RuntimeError("the machine is lost")

def stop():
    return Stop()

class Kill(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if os.path.exists(f"{__file__}.kill") and "worker-1" in os.environ["ESTIMATOR_PIPELINE_PROGRESS"]:
            os.remove(f"{__file__}.kill")
            os.kill(os.getpid(), signal.SIGKILL)

class KillSession(Hook):
    def after_run(self, context, values):
        Kill().on_train_batch_end(0)

def kill():
    return KillSession()

def kill_keras():
    return Kill()
"""
RECORDS = {"base": 64, "monday": 16, "tuesday": 35, "wednesday": 21}


def write(path, records, *, seed):
    random = np.random.RandomState(seed)
    a, b = random.uniform(size=(2, records))
    rows = [f"{x:.4f},{y:.4f},{int(x > y)}" for x, y in zip(a, b, strict=True)]
    path.write_text("\n".join(["a,b,label", *rows]) + "\n")
    return str(path)


@pytest.fixture
def days(tmp_path):
    (tmp_path / "own_continuing.py").write_text(OWN)
    return {
        day: write(tmp_path / f"{day}.csv", records, seed=seed) for seed, (day, records) in enumerate(RECORDS.items())
    }


@pytest.fixture
def job(days, tmp_path):
    """`job(field=value, ...)`: a job with the columns a and b; `continue_with` names days."""

    def job(*, train=("base",), continue_with=None, model_dir="model", **settings):
        document = {
            "model": {"function": f"{tmp_path}/own_continuing.py:layers", "loss": "binary_crossentropy"},
            "input": {
                "source": "csv",
                "train": [days[day] for day in train],
                "eval": days["base"],
                "columns": {"a": "float32", "b": "float32", "label": "int64"},
                "global_batch_size": 16,
            },
            "train": {"max_steps": 4},
            "run": {"model_dir": str(tmp_path / model_dir), "seed": 1, "ledger": True, "save_checkpoints_steps": 2},
        }
        if continue_with is not None:
            document["input"]["continue_with"] = [days.get(day, day) for day in continue_with]
        overrides = [f"{name.replace('__', '.')}={json.dumps(value)}" for name, value in settings.items()]
        return make_job(document, overrides=overrides)

    return job


def train(job):
    return run_job(job, environ={})


def variables(model_dir):
    reader = tf.train.load_checkpoint(str(model_dir))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map() if "OBJECT" not in name}


def check(model_dir):
    report = ledger.check(model_dir / "ledger")
    assert report.well, str(report)
    return report


@pytest.mark.parametrize("engine", ["estimator", "keras"])
def test_day_after_day_is_one_run_over_all_data_in_this_order(job, days, tmp_path, engine):
    """Bit-equal, where the order is that of the files and each day fills its batches."""
    plain = {"input__shuffle": False, "run__engine": engine}
    train(job(**plain))
    assert train(job(continue_with=["monday"], **plain)).global_step == 5
    write(tmp_path / "tuesday.csv", 32, seed=7)
    assert train(job(continue_with=["tuesday"], **plain)).global_step == 7
    # Two steps more on the data with which it began: the first of its second epoch.
    assert train(job(train__max_steps=6, **plain)).global_step == 9
    check(tmp_path / "model")
    days["again"] = write(tmp_path / "again.csv", 64, seed=0)
    train(job(train=("base", "monday", "tuesday", "again"), model_dir="whole", train__max_steps=9, **plain))
    expected, resumed = (variables(tmp_path / name) for name in ("whole", "model"))
    assert expected.keys() == resumed.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(resumed[name], value, err_msg=name)


def test_every_new_record_is_read_once_and_the_history_names_its_files(job, days, tmp_path):
    train(job())
    assert nothing_new(job(continue_with=["base"])).startswith("nothing new")
    train(job(continue_with=["monday", "tuesday", "base"]))  # 51 records: two batches, and one of 19
    result = train(job(continue_with=["wednesday"], input__continue_epochs=2))  # 42: two batches, and one of 10
    assert result.global_step == 4 + 3 + 3
    report = check(tmp_path / "model")
    assert sum(share.records for share in report.shares) == 64 + 51 + 42
    first, second = read_continuations(str(tmp_path / "model"))
    assert (first.origin, first.steps, list(first.files)) == (4, 3, [days["monday"], days["tuesday"]])
    assert (second.origin, second.steps, second.records, second.epochs) == (7, 3, 21, 2)
    assert nothing_new(job(continue_with=["monday", "wednesday"])).endswith("up to step 10")
    run = read_run(str(tmp_path / "model"))
    assert run.fields["continuations"] == "monday.csv, tuesday.csv, wednesday.csv"
    assert f"<td>{days['wednesday']}</td>" in render(run)
    # Renamed files are not new.
    (tmp_path / "renamed.csv").write_bytes((tmp_path / "monday.csv").read_bytes())
    assert nothing_new(job(continue_with=[str(tmp_path / "renamed.csv")])) is not None
    with pytest.raises(ConfigError, match="nothing new"):
        train(job(continue_with=["wednesday"]))


def test_an_interrupted_continuation_is_finished_first(job, days, tmp_path):
    hooks = [f"{tmp_path}/own_continuing.py:stop"]
    train(job())
    with pytest.raises(RuntimeError, match="the machine is lost"):
        train(job(continue_with=["tuesday"], input__continue_epochs=4, train__hooks=hooks))
    for other in (["monday"], None):
        with pytest.raises(ConfigError, match=r"has not finished .*tuesday\.csv") as error:
            train(job(continue_with=other))
        assert error.value.hint == f"finish it first: --continue-with {days['tuesday']}"
    shutil.copytree(tmp_path / "model", tmp_path / "left")
    # With newer files: it is finished, and they wait. Epochs are those with which it began.
    result = train(job(continue_with=["monday", "tuesday"]))
    (continuation,) = read_continuations(str(tmp_path / "model"))
    assert result.global_step == continuation.end == 4 + 9 and continuation.epochs == 4
    assert train(job(continue_with=["monday", "tuesday"])).global_step == 14
    check(tmp_path / "model")
    # Or its rest is left untrained, which the ledger names.
    left = train(job(continue_with=["monday"], run__accept_changes=True, model_dir="left"))
    first, second = read_continuations(str(tmp_path / "left"))
    assert first.end == second.origin == left.global_step - 1
    assert "the run left of continuation 1" in str(ledger.check(tmp_path / "left" / "ledger"))


def test_what_is_refused(job, days, tmp_path):
    with pytest.raises(ConfigError, match="has not trained yet"):
        train(job(continue_with=["monday"]))
    train(job())
    train(job(continue_with=["monday"]))
    write(tmp_path / "monday.csv", 20, seed=9)
    with pytest.raises(ConfigError, match=r"monday\.csv has other content") as error:
        train(job(continue_with=["monday"]))
    assert "--accept-changes" in error.value.hint
    assert train(job(continue_with=["monday"], run__accept_changes=True)).global_step == 6
    (tmp_path / "same.csv").write_bytes((tmp_path / "tuesday.csv").read_bytes())
    with pytest.raises(ConfigError, match="two files have the same content"):
        train(job(continue_with=["tuesday", str(tmp_path / "same.csv")]))
    for field, value in (("input.shard_policy", "file"), ("run.train_distribute", "parameter_server")):
        with pytest.raises(ConfigError, match=r"input\.continue_with"):
            job(continue_with=["tuesday"], **{field.replace(".", "__"): value})


def test_tfrecord_files(job, tmp_path):
    def write(day, records):
        path = str(tmp_path / f"{day}.tfrecord")
        with tf.io.TFRecordWriter(path) as file:
            for number in range(records):
                features = {
                    "a": tf.train.Feature(float_list=tf.train.FloatList(value=[number / records])),
                    "b": tf.train.Feature(float_list=tf.train.FloatList(value=[0.5])),
                    "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[number % 2])),
                }
                file.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
        return path

    document = job().model_dump(mode="json", exclude_unset=True)
    base = write("base", 64)
    document["input"] = {
        "source": "tfrecord",
        "train": base,
        "eval": base,
        "features": {"a": {"dtype": "float32"}, "b": {"dtype": "float32"}, "label": {"dtype": "int64"}},
        "global_batch_size": 16,
    }
    assert train(make_job(document)).global_step == 4
    document["input"]["continue_with"] = str(tmp_path / "day*.tfrecord")
    for day, records in enumerate((20, 12), 1):
        write(f"day{day}", records)
        assert train(make_job(document)).global_step == 4 + day
    check(tmp_path / "model")


@pytest.mark.cluster
@pytest.mark.gate("estimator")
@pytest.mark.parametrize("engine", ["estimator", "keras", pytest.param("keras3", marks=pytest.mark.keras_3)])
def test_two_workers_share_the_new_records_also_after_a_kill(job, days, tmp_path, launch, engine):
    """The last step has 19 records for two workers; one of them is killed on the second day."""
    path, tasks = tmp_path / "job.yaml", ["--workers", "2", "--evaluator", "--max-restarts", "1"]
    kill = f"{tmp_path}/own_continuing.py:{'kill' if engine == 'estimator' else 'kill_keras'}"
    plain = {"run__engine": engine, "run__train_distribute": "multi_worker_mirrored", "train__hooks": [kill]}
    path.write_text(json.dumps(job(**plain).model_dump(mode="json", exclude_unset=True)))
    launch(path, *tasks, settings=[])
    (tmp_path / "own_continuing.py.kill").touch()
    document = launch(path, *tasks, "--continue-with", days["tuesday"], "--continue-with", days["monday"], settings=[])
    assert document["result"]["global_step"] == 4 + 3 and len(document["attempts"]) == 2
    assert {task["state"] for task in document["tasks"]} == {"done"}
    again = launch(path, *tasks, "--continue-with", days["tuesday"], settings=[])
    assert again["nothing_new"].endswith("up to step 7")
    assert sum(share.records for share in check(tmp_path / "model").shares) == 64 + 35 + 16
