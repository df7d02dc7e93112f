"""BatchNorm in clusters: its moving statistics against their definition, from what each task has read."""

from __future__ import annotations

import json

import numpy as np
import pytest

from estimator_pipeline.inputs.ledger import read
from tests.support.processes import tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()

pytestmark = [pytest.mark.nightly, pytest.mark.cluster]

MOMENTUM, STEPS, WIDTH = 0.9, 40, 3
LAYERS = f"""
import tensorflow as tf

def layers():
    return tf.keras.Sequential([
        tf.keras.layers.InputLayer(input_shape=({WIDTH},)),
        tf.keras.layers.BatchNormalization(momentum={MOMENTUM}, epsilon=1e-3, name="norm"),
        tf.keras.layers.Dense(1, name="dense"),
    ])
"""


@pytest.fixture
def trained(launch, tmp_path):
    """`trained(rows, *options, **run)`: a reader of the final checkpoint, the model directory, the final metrics."""

    def trained(rows, *options, **run):
        np.savez(tmp_path / "data.npz", image=rows, label=rows.sum(axis=1, keepdims=True))
        (tmp_path / "own.py").write_text(LAYERS)
        data = str(tmp_path / "data.npz")
        job = {
            "model": {"function": f"{tmp_path}/own.py:layers", "loss": "mse", "optimizer": {"learning_rate": 0.05}},
            "input": {"source": "arrays", "train": data, "eval": data, "global_batch_size": 16, "seed": 1},
            "train": {"max_steps": STEPS},
            "run": {"model_dir": "m", "seed": 1, "ledger": True, "save_checkpoints_steps": STEPS, **run},
            "cluster": {"evaluator": False},
        }  # fmt: skip
        (tmp_path / "job.json").write_text(json.dumps(job))
        document = launch(tmp_path / "job.json", *options, settings=[])
        folder = document["model_dir"]
        reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(folder)))
        return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}, folder, document

    return trained


def test_workers_in_step(trained):
    """Each worker's statistics are those of its own batches; the checkpoint, and with it the evaluation, has their
    mean."""
    rows = np.random.default_rng(7).normal(2.0, 3.0, size=(160, WIDTH)).astype(np.float32)
    found, folder, document = trained(rows, "--workers", "2", train_distribute="multi_worker_mirrored")
    ledger = read(folder / "ledger")
    moving = {}
    for step in range(1, STEPS + 1):
        for task, ids in ledger.ids(step).items():
            mean, variance = moving.get(task, (np.zeros(WIDTH), np.ones(WIDTH)))
            batch = rows[np.asarray(ids, np.int64)].astype(np.float64)
            assert len(batch) == 8
            moving[task] = (
                mean * MOMENTUM + batch.mean(axis=0) * (1 - MOMENTUM),
                variance * MOMENTUM + batch.var(axis=0) * (1 - MOMENTUM),
            )
    assert len(moving) == 2
    mean, variance = (np.mean([one[i] for one in moving.values()], axis=0) for i in range(2))
    np.testing.assert_allclose(found["norm/moving_mean"], mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["norm/moving_variance"], variance, rtol=1e-4, atol=1e-5)
    (one, _), (other, _) = moving.values()
    assert np.abs(one - other).max() > 0.1, "one worker's are not the other's"
    evaluated(found, rows, document)


def test_workers_with_parameter_servers(trained):
    """Every task moves the statistics with each of its steps, while others do: all batches have the same here."""
    rows = np.broadcast_to(np.float32([4.0, -2.0, 0.5]), (160, WIDTH)).copy()
    found, _, document = trained(rows, "--chief", "--workers", "1", "--ps", "1", train_distribute="parameter_server")
    steps = int(found["global_step"])
    assert steps >= STEPS
    left = MOMENTUM**STEPS
    # Tasks that read before another has written come a little nearer, or less near.
    np.testing.assert_allclose(found["norm/moving_mean"], rows[0] * (1 - left), rtol=2 * left)
    np.testing.assert_allclose(found["norm/moving_variance"], np.zeros(WIDTH), atol=3 * left)
    assert sum(task["steps"] for task in document["result"]["tasks"].values()) >= STEPS
    evaluated(found, rows, document)


def evaluated(found, rows, document):
    """The evaluation has normalized by the moving statistics."""
    scale = found["norm/gamma"] / np.sqrt(found["norm/moving_variance"] + 1e-3)
    normal = (rows - found["norm/moving_mean"]) * scale + found["norm/beta"]
    answers = normal @ found["dense/kernel"] + found["dense/bias"]
    wanted = np.mean((answers - rows.sum(axis=1, keepdims=True)) ** 2)
    assert document["result"]["metrics"]["average_loss"] == pytest.approx(wanted, rel=1e-3, abs=1e-6)
