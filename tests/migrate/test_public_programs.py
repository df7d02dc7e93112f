"""The tool that measures public programs compares what they train."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"
PROGRAM = """import sys
import numpy as np
import tensorflow as tf

def model_fn(features, labels, mode):
    net = tf.layers.dropout(tf.layers.dense(features["x"], 3, activation=tf.nn.relu), training=mode == "train")
    out = tf.layers.dense(net, 1)
    loss = tf.losses.mean_squared_error(labels, out)
    train_op = tf.train.AdagradOptimizer(RATE).minimize(loss, tf.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, out, loss, train_op)

def input_fn():
    x = np.arange(24, dtype=np.float32).reshape(12, 2) / 24
    return tf.data.Dataset.from_tensor_slices(({"x": x}, x[:, :1])).shuffle(12).batch(5)

def main(_):
    estimator = tf.estimator.Estimator(model_fn, sys.argv[1])
    estimator.train(input_fn)

if __name__ == "__main__":
    RATE = 0.1
    tf.app.run(main)
"""


@pytest.fixture
def programs(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    return importlib.import_module("public_programs")


@pytest.mark.nightly  # each runs the program in two processes
@pytest.mark.parametrize("other", [False, True])
def test_trainings_are_compared(tmp_path, monkeypatch, programs, other):
    """Last batches are smaller, batches are fewer than steps, dropout draws nothing; another rate is told."""
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    program = programs.Program("one", "owner/name", "", ".", "train.py", argv="{work}/model")
    if other:
        command = programs.command

        def told(*given):
            work = given[2]
            text = (work / "train.py").read_text()
            if work.name.endswith("keras"):
                assert "keras.Model" in text
                (work / "train.py").write_text(text.replace("RATE = 0.1", "RATE = 0.2"))
            return command(*given)

        monkeypatch.setattr(programs, "command", told)
    equal, output = programs.try_parity(program, folder, "train.py", tmp_path, {}, "keras")
    if other:
        assert equal.startswith("not equal: "), output
    else:
        assert equal == "ok", output
    sys.modules.pop("public_parity", None)
