"""A job of a model with two outputs, for the tests: data, layers and file."""

from __future__ import annotations

import json

import numpy as np

WIDTH = 6
LAYERS = f"""
import tensorflow as tf

def layers():
    given = tf.keras.Input([{WIDTH}])
    start = tf.keras.initializers.GlorotUniform(seed=1)
    hidden = tf.keras.layers.Dense(8, "tanh", kernel_initializer=start, kernel_regularizer="l2")(given)
    ends = {{}}
    for name, units in (("kind", 3), ("sign", 1)):
        zeros = tf.keras.layers.Dense(units, kernel_initializer="zeros")
        ends[name] = zeros(hidden)
    return tf.keras.Model(given, ends)
"""
KEYS = {"loss", "average_loss", "kind_average_loss", "kind_accuracy", "sign_average_loss", "sign_accuracy", "sign_auc",
        "global_step"}  # fmt: skip


def several_outputs(tmp_path):
    """Writes them to a folder, and gives the file's path."""
    random = np.random.default_rng(5)
    rows = random.normal(size=(96, WIDTH)).astype(np.float32)
    kind, sign = np.abs(rows[:, 0]).astype(np.int64).clip(0, 2), (rows.sum(axis=1) > 0).astype(np.int64)
    np.savez(tmp_path / "data.npz", rows=rows, kind=kind, sign=sign, weight=random.random(96))
    (tmp_path / "own.py").write_text(LAYERS)
    data = str(tmp_path / "data.npz")
    document = {
        "model": {
            "function": f"{tmp_path}/own.py:layers",
            "optimizer": {"name": "adam", "learning_rate": 0.05},
            "outputs": {
                "kind": {"loss": "sparse_categorical_crossentropy", "class_weights": {"2": 3.0},
                         "label_vocabulary": ["small", "middle", "big"]},
                "sign": {"loss": "binary_crossentropy", "metrics": ["accuracy", "auc"], "loss_weight": 0.5},
            },
        },
        "input": {"source": "arrays", "train": data, "eval": data, "label_key": ["kind", "sign"],
                  "weight_key": "weight", "global_batch_size": 32, "eval_batch_size": 20, "seed": 1},
        "train": {"max_steps": 10},
        "eval": {"exporters": [{"kind": "final"}, {"kind": "best", "metric": "kind_accuracy", "mode": "max"}]},
        "run": {"model_dir": str(tmp_path / "m"), "seed": 1, "save_checkpoints_steps": 5},
    }  # fmt: skip
    path = tmp_path / "several.json"
    path.write_text(json.dumps(document))
    return path
