"""Sessions with parameter servers wait for these and their own task alone, whatever session_config a program has."""

from __future__ import annotations

import json

import pytest

from estimator_pipeline import compat
from tests.support import one_weight
from tests.support.tasks_by_hand import EXEC, Tasks

tf = compat.install()
CLUSTER = {"chief": ["localhost:1"], "ps": ["localhost:2"], "worker": ["localhost:3", "localhost:4"]}


@pytest.mark.parametrize(
    ("task", "place", "filters"),
    [
        ("chief", "", ["/job:ps", "/job:chief"]),
        ("worker", "/job:ps/task:0", ["/job:ps", "/job:worker/task:1"]),
        ("worker", "/job:worker/task:1/device:CPU:0", ["/job:ps", "/job:worker/task:1"]),
        ("worker", "/job:worker/task:0", []),
        ("chief", "/job:worker", []),
        ("evaluator", "", []),
    ],
)
def test_what_a_session_waits_for(tmp_path, monkeypatch, task, place, filters):
    index = 1 if task == "worker" else 0
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": CLUSTER, "task": {"type": task, "index": index}}))
    before = tf.compat.v1.ConfigProto(allow_soft_placement=True)
    config = tf.estimator.RunConfig(str(tmp_path), session_config=before)
    found = []

    def train(self, *arguments):
        # What tf.estimator does here: the graph, the hooks, and a session with this configuration.
        with tf.Graph().as_default(), tf.device(place):
            tf.constant(1)
            with tf.device(""):
                for hook in arguments[-1]:
                    hook.begin()
        found.append((list(self._session_config.device_filters), self._session_config.allow_soft_placement))

    from estimator_pipeline.compat.patches import device_filters

    estimator = tf.estimator.Estimator(one_weight.model_fn(tf), config=config)
    hooks = []
    with device_filters._filtered(estimator, hooks):
        train(estimator, hooks)
    assert found == [(filters, True)]
    assert estimator._session_config == before


def test_what_a_program_says_is_kept(tmp_path, monkeypatch):
    from estimator_pipeline.compat.patches import device_filters

    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": CLUSTER, "task": {"type": "chief", "index": 0}}))
    own = tf.compat.v1.ConfigProto(device_filters=["/job:chief", "/job:ps/task:1"])
    for config in (None, own):
        estimator = tf.estimator.Estimator(
            one_weight.model_fn(tf), config=tf.estimator.RunConfig(str(tmp_path), session_config=config)
        )
        hooks, before = [], estimator._session_config
        with device_filters._filtered(estimator, hooks):
            assert estimator._session_config == before and not hooks


_PROGRAM = """
import json, os, sys, time
import tensorflow as tf

task = json.loads(os.environ["TF_CONFIG"])["task"]["type"]
model_dir = sys.argv[1]


def model_fn(features, labels, mode):
    weight = tf.compat.v1.get_variable("weight", [])
    loss = tf.square(weight - tf.reduce_mean(features))
    step = tf.compat.v1.train.get_global_step()
    train = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
    deadline = time.time() + 90
    while task == "worker" and not os.path.exists(model_dir + "/over") and time.time() < deadline:
        time.sleep(0.1)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)


def input_fn():
    return tf.data.Dataset.from_tensors(([1.0], [1.0])).repeat()


config = tf.estimator.RunConfig(
    model_dir, session_config=tf.compat.v1.ConfigProto(allow_soft_placement=True), experimental_max_worker_delay_secs=0
)
spec = tf.estimator.TrainSpec(input_fn, max_steps=20)
tf.estimator.train_and_evaluate(
    tf.estimator.Estimator(model_fn, config=config), spec, tf.estimator.EvalSpec(input_fn, steps=1)
)
"""


@pytest.mark.nightly
@pytest.mark.cluster
@pytest.mark.parametrize("patches", ["device-filters", "none"])
def test_a_worker_that_comes_when_the_chief_has_ended(tmp_path, patches):
    """Without the patch it waits in TensorFlow's C++. With no other patch: by `train-and-evaluate` a chief stays until
    its workers are done."""
    (tmp_path / "program.py").write_text(_PROGRAM)
    (tmp_path / "model").mkdir()
    command = [*EXEC, f"--patches={patches}", tmp_path / "program.py", tmp_path / "model"]
    env = {"TF_CPP_MIN_LOG_LEVEL": "0"}
    with Tasks({"chief": 1, "worker": 1, "ps": 1}, command, tmp_path, env=env) as running:
        assert running.wait(names=["chief0"], timeout=90)["chief0"] == 0, running.tails()
        (tmp_path / "model" / "over").touch()
        if patches == "none":
            waits = "CreateSession still waiting for response from worker: /job:chief"
            running.wait_for(lambda: waits in running.log("worker0"), "the worker to wait for the chief")
            assert running.processes["worker0"].poll() is None
        else:
            assert running.wait(names=["worker0"], timeout=60)["worker0"] == 0, running.tails()
