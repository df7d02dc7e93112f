"""`Estimator.train`, called by itself: one process in a directory, and only from checkpoints that are whole."""

from __future__ import annotations

import concurrent.futures
import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from estimator_pipeline import compat
from estimator_pipeline.engines.estimator import legacy
from estimator_pipeline.engines.model_dir import checkpoints, lock
from estimator_pipeline.errors import ConfigError, TaskFailedError
from estimator_pipeline.utils.process_state import STATE

tf = compat.install()
v1 = tf.compat.v1
PATCHED = tf.estimator.Estimator.train
X = np.arange(8, dtype=np.float32)[:, None]


def model_fn(features, labels, mode):
    weight = v1.get_variable("weight", [1, 1], initializer=v1.ones_initializer())
    loss = tf.reduce_mean(tf.square(tf.matmul(features, weight) - labels))
    step = v1.train.get_or_create_global_step()
    train_op = v1.train.GradientDescentOptimizer(0.01).minimize(loss, step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def input_fn():
    return tf.data.Dataset.from_tensor_slices((X, 3 * X)).repeat().batch(8)


def estimator(model_dir, **options):
    return tf.estimator.Estimator(model_fn, config=tf.estimator.RunConfig(str(model_dir), **options))


def torn(model_dir: Path, step: int) -> None:
    next(model_dir.glob(f"model.ckpt-{step}.data*")).write_bytes(b"torn")


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    estimator(folder, save_checkpoints_steps=5).train(input_fn, steps=10)
    return folder


@pytest.fixture
def trained(trained_once, tmp_path, monkeypatch):
    """A directory with checkpoints of the steps 0, 5 and 10, as a process that has just started finds it."""
    monkeypatch.setattr(STATE, "examined", set())
    return shutil.copytree(trained_once, tmp_path / "model")


def test_a_torn_checkpoint_is_set_aside(trained, caplog, monkeypatch):
    weight = estimator(trained).get_variable_value("weight")
    torn(trained, 10)
    with monkeypatch.context() as without:
        without.setattr(tf.estimator.Estimator, "train", PATCHED.__wrapped__)
        with pytest.raises(tf.errors.OutOfRangeError, match="Read less bytes than requested"):
            estimator(trained).train(input_fn, max_steps=12)
    estimator(trained).train(input_fn, max_steps=10)
    np.testing.assert_array_equal(estimator(trained).get_variable_value("weight"), weight)
    assert [path.name for path in (trained / "damaged").glob("*/*.index")] == ["model.ckpt-10.index"]


def test_where_none_is_whole_training_does_not_begin_at_0(trained):
    for step in (0, 5, 10):
        torn(trained, step)
    with pytest.raises(TaskFailedError, match=r"no checkpoint in .* can be restored"):
        estimator(trained).train(input_fn, steps=1)


HOLD = """
import fcntl, sys
file = open(sys.argv[1], "r+")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_directory_in_which_another_process_trains_is_refused(trained, monkeypatch):
    path = trained / "estimator_pipeline" / "lock"
    monkeypatch.setattr(lock, "WAIT_SECS", 0.1)
    other = subprocess.Popen([sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(ConfigError, match="another job trains in"):
            estimator(trained).train(input_fn, steps=1)
    finally:
        other.communicate(timeout=30)
    estimator(trained).train(input_fn, steps=1)
    assert estimator(trained).latest_checkpoint().endswith("model.ckpt-11")


def test_a_process_reads_what_it_has_written_itself_no_second_time(trained, monkeypatch):
    calls = []
    monkeypatch.setattr(checkpoints, "rescue", calls.append)
    for _ in range(3):
        estimator(trained).train(input_fn, steps=1)
    assert calls == [str(trained)]


def test_what_is_held_already_is_not_asked_for_again(trained):
    with lock.hold(str(trained), owner="the engine", run_id="1"):
        assert lock.is_held(f"{trained}/../{trained.name}")
        estimator(trained).train(input_fn, steps=1)
    assert not lock.is_held(str(trained))


def test_tasks_in_threads_of_one_process_share_it(trained, monkeypatch):
    """They start at the same time, and train at the same time."""
    writes, started, inside = (
        legacy._writes_checkpoints,
        threading.Barrier(3, timeout=60),
        threading.Barrier(3, timeout=60),
    )
    monkeypatch.setattr(lock, "WAIT_SECS", 0.1)
    monkeypatch.setattr(legacy, "_writes_checkpoints", lambda: started.wait() >= 0 and writes())

    def train(estimator):
        with legacy.own_model_dir(estimator):
            inside.wait()

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        tasks = [pool.submit(train, estimator(trained)) for _ in range(3)]
    assert [task.result() for task in tasks] == [None] * 3 and not lock.is_held(str(trained))


@pytest.mark.parametrize("task", ["worker", "ps", "evaluator"])
def test_tasks_that_write_no_checkpoints_do_not_look(trained, monkeypatch, task):
    cluster = {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}
    one = estimator(trained)
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": task, "index": 0}}))
    with legacy.own_model_dir(one):
        assert not lock.is_held(str(trained))
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}}))
    with legacy.own_model_dir(one):
        assert lock.is_held(str(trained))
