"""Programs in the styles of 2016 to 2019 under `exec --tf1`, unchanged: they train, evaluate, export, and end."""

from __future__ import annotations

import gzip
import importlib.util
import json
import re
import struct

import pytest
from sklearn.datasets import load_digits

from estimator_pipeline.compat.tf1.contrib import files
from estimator_pipeline.migrate.code import convert
from tests.support.tasks_by_hand import EXEC, Tasks

SLIM = pytest.mark.skipif(importlib.util.find_spec("tf_slim") is None, reason="no tf-slim")
FILES = pytest.mark.skipif(not files.installed(), reason="no files: estimator-pipeline contrib install")


@pytest.fixture
def mnist(tmp_path):
    """A folder with the four files of MNIST, of scikit-learn's digits."""
    folder = tmp_path / "mnist"
    folder.mkdir()
    pixels, labels = load_digits(return_X_y=True)
    images = (pixels * 15).astype("uint8").reshape(-1, 8, 8)
    for part, rows in (("train", slice(0, 1500)), ("t10k", slice(1500, None))):
        head = struct.pack(">4I", 2051, len(images[rows]), 8, 8)
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(head + images[rows].tobytes()))
        head = struct.pack(">2I", 2049, len(labels[rows]))
        content = head + labels[rows].astype("uint8").tobytes()
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(content))
    return folder


@pytest.fixture
def ran(run_warm, programs, tmp_path):
    """`ran(name, *arguments)`: what a program printed as JSON."""

    def run(name, *arguments):
        done = run_warm([*EXEC[1:], "--tf1", programs / "tf1" / name, *arguments], cwd=tmp_path, timeout=240)
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run


def test_tpu_estimator_on_the_cpu(ran, tmp_path):
    """With the names that programs use most: TPUEstimator, host_call, map_and_batch, tables, Dimension.value."""
    found = ran("tpu_text_classifier.py", tmp_path / "model")
    assert found["accuracy"] > 0.95 and found["predicted"] > 0.95
    assert found["step"] == 250 and found["events"] >= 1


def test_layers_and_metrics(ran, tmp_path):
    """tf.layers, tf.metrics, tf.losses, tf.app, np.float; its export and its checkpoint answer alike."""
    found = ran("layers_and_metrics.py", f"--model_dir={tmp_path / 'model'}", "--steps=150")
    assert found["accuracy"] > 0.85 and found["auc"] > 0.95 and found["pearson"] > 0.7
    assert found["served"] == pytest.approx(found["accuracy"]) and found["same"]
    assert found["global_step"] == 150 and found["signatures"] == ["serving_default"]


@SLIM
@pytest.mark.nightly
def test_experiment(ran, tmp_path, mnist):
    found = ran("experiment_digits.py", tmp_path / "model", mnist)
    assert found["accuracy"] > 0.9 and found["served"] > 0.8 and found["step"] == 150 and found["units"] == 48


@SLIM
@pytest.mark.nightly
def test_slim(ran, tmp_path):
    found = ran("slim_digits.py", tmp_path / "model")
    assert found["accuracy"] > 0.85 and found["step"] == 150 and found["averages"]


@pytest.mark.nightly
def test_crf(ran, tmp_path):
    found = ran("crf_tagger.py", tmp_path / "model")
    assert found["accuracy"] > 0.98 and found["recall"] > 0.95 and found["tags"]


@pytest.mark.nightly
def test_records(ran, tmp_path):
    found = ran("records_pipeline.py", tmp_path / "model", tmp_path / "data")
    assert found == {"accuracy": pytest.approx(0.95, abs=0.05), "step": 300, "strategy": True}


@FILES
@SLIM
@pytest.mark.nightly
def test_seq2seq(ran, tmp_path):
    """Attention and decoders of TensorFlow 1.15's own files."""
    found = ran("seq2seq_reverse.py", tmp_path / "model")
    assert found["accuracy"] > 0.95 and found["right"] > 0.9


@FILES
@SLIM
@pytest.mark.nightly
def test_canned_estimator_and_columns_of_contrib(ran, tmp_path):
    found = ran("learn_columns.py", tmp_path / "model")
    assert found["accuracy"] > 0.85 and found["precision"] > 0.8 and found["classes"] == 10


@SLIM
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "accuracy"),
    [("tpu_text_classifier", 0.95), ("layers_and_metrics", 0.85), ("slim_digits", 0.85), ("crf_tagger", 0.98),
     ("records_pipeline", 0.9)],
)  # fmt: skip
def test_converted(run_warm, programs, tmp_path, name, accuracy):
    """By `migrate convert --to estimator`; without --tf1, and none of tf.contrib is left."""
    (made,) = convert(programs / "tf1" / f"{name}.py", to="estimator").files
    assert not made.left and "tf.contrib" not in made.after
    (tmp_path / f"{name}.py").write_text(made.after)
    arguments = [tmp_path / "model", tmp_path / "data"]
    if name == "layers_and_metrics":
        arguments = [f"--model_dir={tmp_path / 'model'}", "--steps=150"]
    done = run_warm([*EXEC[1:], tmp_path / f"{name}.py", *arguments], cwd=tmp_path, timeout=240)
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout.splitlines()[-1])["accuracy"] > accuracy


# In clusters ----------------------------------------------------------------------------------------------------


def results(running):
    """What each task printed as JSON, by its name."""
    logs = {name: running.log(name) for name in running.processes}
    found = {name: re.findall(r"^(\{.+\})$", log, re.M) for name, log in logs.items()}
    return {name: json.loads(lines[-1]) for name, lines in found.items() if lines}


@SLIM
@pytest.mark.nightly
@pytest.mark.cluster
def test_experiment_with_a_master(programs, tmp_path, mnist):
    command = [*EXEC, "--tf1", programs / "tf1/experiment_digits.py", tmp_path / "model", mnist, "train_steps=120"]
    with Tasks({"master": 1, "worker": 1, "ps": 1}, command, tmp_path) as running:
        assert running.wait() == {"master0": 0, "worker0": 0, "ps0": 0}, running.tails()
        (found,) = results(running).values()
        assert found["accuracy"] > 0.8 and found["step"] >= 120


@pytest.mark.nightly
@pytest.mark.cluster
def test_canned_estimator_with_parameter_servers(programs, tmp_path):
    command = [*EXEC, "--tf1", programs / "tf1/flags_cluster.py", "--job-dir", tmp_path / "model", "--steps=200"]
    jobs = {"chief": 1, "worker": 1, "ps": 2, "evaluator": 1}
    with Tasks(jobs, command, tmp_path) as running:
        ended = running.wait()
        assert ended == dict.fromkeys(running.processes, 0), running.tails()
        found = results(running)
        assert found["evaluator0"]["accuracy"] > 0.85 and found["evaluator0"]["step"] >= 200
    assert len(list((tmp_path / "model/export/census").iterdir())) == 1


@pytest.mark.nightly
@pytest.mark.cluster
def test_cluster_by_hand(programs, tmp_path):
    """No Estimator and no TF_CONFIG: a parameter server of that time never ends by itself."""
    running: Tasks

    def command(job, index):
        hosts = [f"--{each}_hosts={','.join(running.cluster[each])}" for each in ("ps", "worker")]
        task = [f"--job_name={job}", f"--task_index={index}", f"--logdir={tmp_path / 'model'}"]
        return [*EXEC, "--tf1", programs / "tf1/session_cluster.py", *task, *hosts]

    running = Tasks({"ps": 1, "worker": 2}, command, tmp_path, env={"TF_CONFIG": ""})
    with running:
        ended = running.wait(names=["worker0", "worker1"])
        assert (ended["worker0"], ended["worker1"], ended["ps0"]) == (0, 0, None), running.tails()
        found = results(running)
        assert all(each["loss"] < 1e-3 and each["step"] >= 290 for each in found.values()) and len(found) == 2
