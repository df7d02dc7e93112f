"""A small job with BatchNorm for the tests of migrations, its optimizers, and what a checkpoint holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

# name of a case -> name, api, options
OPTIMIZERS: dict[str, tuple[str, str, str]] = {
    "sgd-v1": ("sgd", "v1", ""),
    "momentum-v1": ("momentum", "v1", ""),
    "nesterov-v1": ("nesterov", "v1", ""),
    "adagrad-v1": ("adagrad", "v1", ""),
    "adam-v1": ("adam", "v1", ""),
    "rmsprop-v1": ("rmsprop", "v1", "momentum: 0.9"),
    "rmsprop-centered-v1": ("rmsprop", "v1", "centered: true"),
    "ftrl-v1": ("ftrl", "v1", "l1_regularization_strength: 0.001"),
    "sgd-keras": ("sgd", "keras", ""),
    "momentum-keras": ("momentum", "keras", ""),
    "nesterov-keras": ("nesterov", "keras", ""),
    "adagrad-keras": ("adagrad", "keras", ""),
    "adam-keras": ("adam", "keras", ""),
    "rmsprop-keras": ("rmsprop", "keras", ""),
    "rmsprop-centered-keras": ("rmsprop", "keras", "centered: true, momentum: 0.9"),
    "ftrl-keras": ("ftrl", "keras", ""),
    "momentum-added-up-v1": ("momentum", "v1", ""),
    "adam-added-up-keras": ("adam", "keras", ""),
    "momentum-averaged-v1": ("momentum", "v1", ""),
    "rmsprop-averaged-keras": ("rmsprop", "keras", ""),
}

LAYERS = """
from estimator_pipeline import compat


def layers(params):
    keras = compat.install().keras
    names = [{"name": one} if params.get("names") else {} for one in ("hidden", "norm", "out")]
    stack = [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(6, use_bias=False, **names[0])]
    stack += [keras.layers.BatchNormalization(**names[1]), keras.layers.ReLU(), keras.layers.Dense(10, **names[2])]
    return keras.Sequential(stack)
"""


def write_job(folder: Path, data_dir: Path) -> Path:
    """The job file, in a folder of its own."""
    (folder / "small_layers.py").write_text(LAYERS)
    job = folder / "job.yaml"
    job.write_text(
        f"""
model: {{function: "{folder}/small_layers.py:layers", loss: sparse_categorical_crossentropy}}
input: {{source: tfds, name: digits, data_dir: "{data_dir}", global_batch_size: 64, seed: 1, scale: 1/16}}
train: {{max_steps: 4}}
run: {{model_dir: unused, seed: 1, save_checkpoints_steps: 4}}
"""
    )
    return job


def optimizer(case: str) -> str:
    """The setting of a job file."""
    name, api, options = OPTIMIZERS[case]
    # Three batches make a change, and tests stop at step 4.
    more = ", gradient_accumulation_steps: 3" if "added-up" in case else ""
    more += ", ema_momentum: 0.9" if "averaged" in case else ""
    return f"model.optimizer={{name: {name}, api: {api}, learning_rate: 0.05, options: {{{options}}}{more}}}"


def values(tf: Any, prefix: Any) -> dict[str, Any]:
    """Name -> value of all that a checkpoint has."""
    reader = tf.train.load_checkpoint(str(prefix))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def assert_same_bits(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Both have the same names, types and bits."""
    assert sorted(one) == sorted(other)
    for name, value in one.items():
        assert value.dtype == other[name].dtype and value.tobytes() == other[name].tobytes(), name
