"""What a team's own tests give `train_and_evaluate`: an Estimator's public attributes, and nothing behind them."""

from __future__ import annotations

import json
from unittest import mock

import pytest

from estimator_pipeline import compat
from estimator_pipeline.compat.internals import distribute_coordinator as coordinator

tf = compat.install()
SPECS = (tf.estimator.TrainSpec(lambda: None, max_steps=3), tf.estimator.EvalSpec(lambda: None, steps=1))


def stand_in(config):
    estimator = mock.create_autospec(tf.estimator.Estimator, instance=True)
    estimator.config = config
    return estimator


def test_alone(tmp_path):
    estimator = stand_in(tf.estimator.RunConfig(model_dir=str(tmp_path)))
    estimator.evaluate.return_value = None  # what there is before the first checkpoint
    tf.estimator.train_and_evaluate(estimator, *SPECS)
    assert estimator.train.call_args.kwargs["max_steps"] == 3


@pytest.mark.since_2_16
def test_in_a_cluster(tmp_path, monkeypatch):
    from tensorflow.python.distribute import distribute_coordinator as dc

    document = {"cluster": {"worker": ["localhost:1", "localhost:2"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(document))
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    config = tf.estimator.RunConfig(model_dir=str(tmp_path), train_distribute=strategy)
    config._distribute_coordinator_mode = coordinator.CoordinatorMode.INDEPENDENT_WORKER
    seen = []
    monkeypatch.setattr(dc, "run_distribute_coordinator", lambda *args, **options: seen.append((args, options)))
    estimator = stand_in(config)
    coordinator.train_and_evaluate(estimator, *SPECS, executor_class=None)
    ((_, given, _, evaluation), options) = seen[0]
    assert given is strategy and evaluation is None
    assert options["session_config"] is config.session_config
    local = coordinator.bind_to_task(estimator, train_strategy=strategy)
    assert local._config.train_distribute is strategy and local._config is not config
