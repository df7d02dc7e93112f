"""TrainSpec(saving_listeners=) under MultiWorkerMirroredStrategy; tests/compat/test_legacy_programs.py has workers."""

from __future__ import annotations

import json

import pytest

from tests.support.processes import free_ports

PROGRAM = """
import json, os, sys
import estimator_pipeline as ep
from estimator_pipeline.compat.internals import distribute_coordinator as coordinator
from estimator_pipeline.compat.internals.saving import saving_listeners
tf = ep.compat.install()
folder, stop_at, saves = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
log = []

class Listener(tf.estimator.CheckpointSaverListener):
    def begin(self):
        self.step = tf.compat.v1.train.get_global_step()
        log.append("begin")

    def before_save(self, session, step):
        log.append(f"before {step}")

    def after_save(self, session, step):
        assert session.run(self.step) == step and os.path.exists(f"{folder}/model.ckpt-{step}.index")
        log.append(f"after {step}")
        return step >= stop_at

    def end(self, session, step):
        log.append(f"end {step}")

def model_fn(features, labels, mode):
    weight = tf.compat.v1.get_variable("weight", [1, 1])
    loss = tf.reduce_mean(tf.square(features @ weight - labels))
    step = tf.compat.v1.train.get_or_create_global_step()
    train_op = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss, step) if mode == "train" else None
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

def input_fn():
    return tf.data.Dataset.from_tensor_slices(([[1.0], [2.0]], [[1.0], [3.0]])).repeat().batch(2)

strategy = tf.distribute.MultiWorkerMirroredStrategy()
assert saving_listeners.are_rejected(strategy) and not saving_listeners.are_rejected(None)
config = tf.estimator.RunConfig(
    folder, save_checkpoints_steps=saves or None, save_checkpoints_secs=None, train_distribute=strategy)
estimator = tf.estimator.Estimator(model_fn, config=config)

def train(local):
    hook = saving_listeners.listeners_hook([Listener()], is_chief=True)
    local.train(input_fn, max_steps=6, hooks=[hook])
    log.append(f"trained {local.get_variable_value('global_step')}")

try:
    jobs = json.loads(os.environ["TF_CONFIG"])["cluster"]
    coordinator.run_training_task(estimator, strategy, train, jobs=jobs, task_type="worker", task_id=0)
except ep.errors.ConfigError as error:
    log.append(str(error))
print(json.dumps(log))
"""


@pytest.fixture
def trained(run_warm, tmp_path):
    def train(*arguments):
        task = {"cluster": {"worker": [f"localhost:{port}" for port in free_ports(1)]}}
        task["task"] = {"type": "worker", "index": 0}
        done = run_warm(["-c", PROGRAM, tmp_path / "model", *arguments], env={"TF_CONFIG": json.dumps(task)})
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    return train


def saved(*steps):
    return [f"{when} {step}" for step in steps for when in ("before", "after")]


def test_they_are_called_and_can_stop_the_training(trained):
    """TensorFlow: "Saving listenor is not supported by the current Distribution Strategies"."""
    assert trained(4, 2) == ["begin", *saved(0, 2, 4), "end 4", "trained 4"]


@pytest.mark.nightly
def test_to_the_end(trained):
    assert trained(100, 4) == ["begin", *saved(0, 4, 6), "end 6", "trained 6"]


@pytest.mark.nightly
def test_without_checkpoints_they_are_rejected(trained):
    (text,) = trained(100, 0)
    assert "no checkpoints are saved" in text and "save_checkpoints_steps" in text
