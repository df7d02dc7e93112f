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
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, out)
    loss = tf.losses.mean_squared_error(labels, out)
    train_op = tf.train.AdagradOptimizer(RATE).minimize(loss, tf.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, out, loss, train_op)

def input_fn():
    x = np.arange(24, dtype=np.float32).reshape(12, 2) / 24
    return tf.data.Dataset.from_tensor_slices(({"x": x}, x[:, :1])).shuffle(12).batch(5)

def main(_):
    estimator = tf.estimator.Estimator(model_fn, sys.argv[1])
    estimator.train(input_fn)
    estimator.evaluate(input_fn, steps=2)
    print(list(estimator.predict(input_fn)))

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
def test_runs_are_compared(tmp_path, monkeypatch, programs, other):
    """Last batches are smaller, records are shuffled, values are drawn; a different learning rate is reported."""
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    stubs = programs.read(programs.LIST)[1]
    program = programs.Program("one", "owner/name", "", ".", "train.py", argv="{work}/model", stub=["no-dropout"])
    if other:
        command = programs.command

        def command_of_another(*args):
            work = args[2]
            text = (work / "train.py").read_text()
            if work.name.endswith("keras"):
                assert "keras.Model" in text
                (work / "train.py").write_text(text.replace("RATE = 0.1", "RATE = 0.2"))
            return command(*args)

        monkeypatch.setattr(programs, "command", command_of_another)
    summary, output = programs.try_parity(program, folder, tmp_path, stubs)
    assert summary.startswith(("equal: 3 steps, loss ", "not equal: 3 steps, loss ")[other]), summary + output
    for what in ("variables", "metrics", "predictions"):
        assert f", {what} " in summary
    sys.modules.pop("public_parity", None)
