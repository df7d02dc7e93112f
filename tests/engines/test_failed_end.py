"""A session hook whose `end` fails after the last checkpoint: a restart finds nothing to train, and reports it."""

from __future__ import annotations

import json

import pytest

import estimator_pipeline as ep

tf = ep.compat.install()
v1 = tf.compat.v1


def model_fn(features, labels, mode):
    loss = tf.reduce_mean((features * v1.get_variable("weight", []) - labels) ** 2)
    train_op = v1.train.GradientDescentOptimizer(0.01).minimize(loss, v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


class Registers(v1.train.SessionRunHook):
    def __init__(self, error=None):
        self.error = error

    def end(self, session):
        if self.error is not None:
            raise self.error


def train(folder, *, max_steps, hook):
    def input_fn():
        return tf.data.Dataset.from_tensors(([1.0, 2.0], [2.0, 4.0])).repeat()

    estimator = tf.estimator.Estimator(model_fn, config=ep.build_run_config(str(folder / "model"), seed=1))
    train_spec = tf.estimator.TrainSpec(input_fn, max_steps=max_steps, hooks=[hook])
    environ = {"ESTIMATOR_PIPELINE_PROGRESS": str(folder / "worker-0.progress.jsonl")}
    return ep.train_and_evaluate(estimator, train_spec, tf.estimator.EvalSpec(input_fn, steps=1), environ=environ)


def test_a_restart_that_finds_nothing_to_train_reports_the_failed_end(tmp_path, warnings):
    with pytest.raises(OSError, match="no route"):
        train(tmp_path, max_steps=4, hook=Registers(OSError("no route to the registry")))
    assert not warnings
    assert train(tmp_path, max_steps=4, hook=Registers()).global_step == 4
    (warning,) = warnings
    assert "failed on worker:0, after the checkpoint of step 4: OSError: no route to the registry" in warning
    events = [json.loads(line) for line in (tmp_path / "worker-0.progress.jsonl").read_text().splitlines()]
    assert [event["text"] for event in events if event["event"] == "warning"] == [warning]
    warnings.clear()
    assert train(tmp_path, max_steps=6, hook=Registers()).global_step == 6
    assert not warnings, "it was run after step 6"
    train(tmp_path, max_steps=6, hook=Registers())
    assert not warnings
