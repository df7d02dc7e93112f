"""Hooks of the user in job files (`train.hooks`), on each engine."""

from __future__ import annotations

import json

import numpy as np
import pytest

from estimator_pipeline.engines.jobs.run import run_job
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job import load_job
from tests.support.processes import KERAS3_PROCESS, ROOT, tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()

HOOKS = """
import tensorflow as tf

def write(line):
    with open({seen!r}, "a") as file:
        file.write(line + "\\n")

class Steps(tf.estimator.SessionRunHook):
    def begin(self):
        self.step = tf.compat.v1.train.get_global_step()

    def after_run(self, run_context, run_values):
        write(f"{{run_context.session.run(self.step)}}")

    def end(self, session):
        write(f"end {{session.run(self.step)}}")

def single():
    return Steps()

def several():
    return [Steps(), Steps()]

def text():
    return ["a hook"]

def the_class():
    return Steps

def raises():
    return {{}}["gone"]
"""
CALLBACKS = """
import tensorflow as tf

def write(line):
    with open({seen!r}, "a") as file:
        file.write(line + "\\n")

class Steps(tf.keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        write(f"epoch {{epoch}} of {{self.params['steps']}}")

    def on_train_batch_end(self, batch, logs=None):
        write(f"{{int(tf.convert_to_tensor(self.model.optimizer.iterations))}} {{logs['loss']:.3f}}")

    def on_epoch_end(self, epoch, logs=None):
        write(f"end {{epoch}} {{logs['loss']:.3f}}")

    def on_train_end(self, logs=None):
        write("end")

class StopsEarly(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = epoch == 0

def single():
    return Steps()

def early():
    return [StopsEarly()]

def text():
    return ["a callback"]
"""


@pytest.fixture
def job(tmp_path):
    random = np.random.default_rng(5)
    features = random.normal(size=(24, 3)).astype(np.float32)
    np.savez(tmp_path / "data.npz", rows=features, label=features.sum(axis=1, keepdims=True))
    seen = str(tmp_path / "seen")
    (tmp_path / "own.py").write_text(
        "import tensorflow as tf\n\ndef layers():\n"
        "    return tf.keras.Sequential([tf.keras.Input([3]), tf.keras.layers.Dense(1, kernel_initializer='zeros')])\n"
    )
    (tmp_path / "hooks.py").write_text(HOOKS.format(seen=seen))
    (tmp_path / "callbacks.py").write_text(CALLBACKS.format(seen=seen))
    data = str(tmp_path / "data.npz")
    document = {
        "model": {"function": f"{tmp_path}/own.py:layers", "loss": "mse"},
        "input": {"source": "arrays", "train": data, "eval": data, "global_batch_size": 8},
        "train": {"max_steps": 4},
        "run": {"model_dir": str(tmp_path / "m"), "save_checkpoints_steps": 2, "log_step_count_steps": 100},
    }
    path = tmp_path / "job.json"
    path.write_text(json.dumps(document))
    return path


def loaded(job, engine, *hooks, more=()):
    references = [f"{job.parent}/{hook}" for hook in hooks]
    return load_job(job, overrides=[f"run.engine={engine}", f"train.hooks={references}", *more])


def test_session_hooks_of_an_estimator(job, tmp_path):
    """Each sees every step, also where several could run together."""
    run_job(loaded(job, "estimator", "hooks.py:single"), environ={})
    assert (tmp_path / "seen").read_text().split("\n") == ["1", "2", "3", "4", "end 4", ""]
    (tmp_path / "seen").unlink()
    more = ["train.max_steps=8", "train.steps_per_execution=4"]
    run_job(loaded(job, "estimator", "hooks.py:several", more=more), environ={})
    assert (tmp_path / "seen").read_text().split("\n") == [*(s for s in "5678" for _ in range(2)), "end 8", "end 8", ""]


def seen_by_callbacks(tmp_path):
    lines = (tmp_path / "seen").read_text().splitlines()
    losses = [float(line.split()[-1]) for line in lines if line[0].isdigit()]
    assert losses[-1] < losses[0]
    return [line.rpartition(" ")[0] or line if line[0].isdigit() or line[:4] == "end " else line for line in lines]


STEPS = ["epoch 0 of 2", "1", "2", "end 0", "epoch 1 of 2", "3", "4", "end 1", "end"]


def test_callbacks_of_keras(job, tmp_path):
    run_job(loaded(job, "keras", "callbacks.py:single"), environ={})
    assert seen_by_callbacks(tmp_path) == STEPS


@pytest.mark.keras_3
def test_callbacks_of_keras_3(job, tmp_path, run_python):
    """As Keras 2 calls them, with numbers as logs; also with two replicas, and they can stop training."""
    hooks = [f"train.hooks=['{tmp_path}/callbacks.py:{name}']" for name in ("single", "early", "text")]
    mirrored = ["run.train_distribute=mirrored", "run.num_devices=2"]
    asked = [[f"run.model_dir={tmp_path}/{number}", "run.engine=keras3", *settings]
             for number, settings in enumerate([[hooks[0], *mirrored], [hooks[1]], [hooks[2]]])]  # fmt: skip
    text = json.dumps([[str(job), settings] for settings in asked])
    done = run_python([KERAS3_PROCESS, "jobs"], stdin=text, timeout=200, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    _, early, refused = json.loads(done.stdout.splitlines()[-1])
    assert seen_by_callbacks(tmp_path) == STEPS
    assert early["global_step"] == 2
    assert "train.hooks: " in refused["error"] and "did not return hooks" in refused["error"]


@pytest.mark.parametrize(
    ("engine", "name", "code", "place"),
    [
        ("estimator", "hooks.py:text", "model/bad-function", "builtins.str"),
        ("estimator", "hooks.py:the_class", "model/bad-function", "the class Steps, and not an object of it"),
        ("estimator", "hooks.py:raises", "job/bad-function", 'return {}["gone"]'),
        ("estimator", "hooks.py:gone", "job/bad-function", "functions: write, single, several, text"),
        ("keras", "hooks.py:single", "model/bad-function", ".Steps"),
        ("estimator", "callbacks.py:single", "model/bad-function", ".Steps"),
    ],
)
def test_hooks_that_are_none(job, tmp_path, engine, name, code, place):
    """Before the first step: nothing is written."""
    with pytest.raises(ConfigError) as error:
        run_job(loaded(job, engine, name), environ={})
    assert error.value.code == code and place in error.value.found
    assert error.value.what.startswith(f"train.hooks: {tmp_path}/{name.partition(':')[0]}")
    assert not list((tmp_path / "m").glob("*ckpt*")) and not (tmp_path / "seen").exists()
