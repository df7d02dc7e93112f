"""A cluster that goes on with another optimizer."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.launched_jobs import CONFIGS
from tests.support.processes import ROOT, tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]

NEW = "name: adam, api: keras, learning_rate: 0.5, ema_momentum: 0.5, gradient_accumulation_steps: 2"


@pytest.mark.parametrize("engine", ["estimator", "keras"])
def test_two_workers(launch, tmp_path, monkeypatch, engine):
    """Both begin with the weights of the checkpoint, and with the learning rate of the job."""
    monkeypatch.setenv("FIRST_VALUES", str(tmp_path))
    callback = f"keras.callbacks=['{ROOT / 'tests' / 'programs' / 'first_values.py'}:callback']"
    told = [callback] if engine == "keras" else []
    settings = ["model.name=linear", "run.save_checkpoints_steps=100", *told]
    for optimizer, steps, options in (
        ("name: momentum, api: keras, learning_rate: 0.01", 4, []),
        (NEW, 8, ["--accept-changes"]),
    ):
        changes = [*settings, f"model.optimizer={{{optimizer}}}", f"train.max_steps={steps}"]
        job = CONFIGS / "multi_worker_estimator.yaml"
        document = launch(job, "--no-evaluator", "--engine", engine, *options, settings=changes)
        assert {task["state"] for task in document["tasks"]} == {"done"}
    (first,) = [str(path)[: -len(".index")] for path in document["model_dir"].glob("*-4.index")]
    reader = tf.train.load_checkpoint(first)
    if engine == "estimator":  # the chief writes a checkpoint when it begins
        for weight in ("dense/kernel", "dense/bias"):
            value = reader.get_tensor(weight)
            np.testing.assert_array_equal(reader.get_tensor(f"{weight}/ExponentialMovingAverage"), value)
            assert np.any(value) and not np.any(reader.get_tensor(f"Adam/{weight}/m"))
        assert reader.get_tensor("Adam/learning_rate") == 0.5
        return
    one, other = (dict(np.load(tmp_path / f"{task}-1.npz")) for task in (0, 1))
    assert sorted(one) == sorted(other)
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name])
    assert one["learning_rate"] == 0.5
    for part in ("kernel", "bias"):
        value = one[f"dense/{part}"]
        stored = reader.get_tensor(f"model/layer_with_weights-0/{part}/.ATTRIBUTES/VARIABLE_VALUE")
        np.testing.assert_array_equal(value, stored)
        np.testing.assert_array_equal(one[f"dense/{part}/ExponentialMovingAverage"], value)
        assert not np.any(one[f"dense/{part}/m"]) and f"dense/{part}/momentum" not in one
