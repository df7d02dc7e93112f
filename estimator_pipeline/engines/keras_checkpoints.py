"""Checkpoints of the Keras engines: `tf.train.Checkpoint`, written by every worker, kept by the chief.

A model directory holds `ckpt-STEP` (`keras3-STEP` with Keras 3) and the state file `checkpoint`. Under a strategy of
several workers every one must save: values that each replica has of its own (BatchNorm's moving statistics) are
gathered for it. The chief's file is the checkpoint; the others write to a folder of their own, which is removed in the
end.
"""

from __future__ import annotations

import os
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.cluster import TFConfig
from estimator_pipeline.errors import ConfigError

# Engine -> how its checkpoints are called, before a dash and the step.
PREFIXES = {"estimator": "model.ckpt", "keras": "ckpt", "keras3": "keras3"}
_NAMES = {"estimator": "Estimator", "keras": "Keras", "keras3": "Keras 3"}
_WHOSE = {
    "estimator": "an Estimator's checkpoint",
    "keras": "a checkpoint of the Keras engine",
    "keras3": "a checkpoint of the Keras 3 engine",
}


def write_dir(model_dir: str, tf_config: TFConfig) -> str:
    """Where this task writes: the model directory for the chief, a folder of its own in it for any other."""
    if tf_config.is_chief or tf_config.is_single_process:
        return model_dir
    return os.path.join(model_dir, f"tmp_{tf_config.task.type}_{tf_config.task.index}")


def remove_temporary(model_dir: str, tf_config: TFConfig, *, apart: bool) -> None:
    """Removes what a worker had to write beside the chief's checkpoints (saving is a collective operation).

    Args:
        model_dir: where this task trains.
        tf_config: which task this is.
        apart: whether that is a folder for this training alone, as the chief's is another one.
    """
    gfile = compat.install().io.gfile
    path = model_dir if apart else write_dir(model_dir, tf_config)
    if not tf_config.is_chief and gfile.exists(path):
        gfile.rmtree(path)


def refuse_others(model_dir: str, *, engine: str) -> None:
    """Raises where the directory holds checkpoints of another engine than `engine`.

    Raises:
        ConfigError: it does.
    """
    latest = compat.install().train.latest_checkpoint(model_dir)
    if latest is None:
        return
    for other, prefix in PREFIXES.items():
        if other != engine and os.path.basename(latest).startswith(f"{prefix}-"):
            raise ConfigError(
                f"the {_NAMES[engine]} engine cannot go on from {_WHOSE[other]}: names and optimizer slots differ",
                found=latest,
                mend=f"estimator-pipeline migrate checkpoint {model_dir} --to {engine} --job JOB.yaml, and this run "
                f"goes on from it; or give the {_NAMES[engine]} run a model_dir of its own: --set run.model_dir=...",
            )


def of(model: Any) -> Any:
    """The `tf.train.Checkpoint` of a compiled model and its optimizer."""
    return compat.install().train.Checkpoint(model=model, optimizer=model.optimizer)


def restore(checkpoint: Any, path: str, *, whole: bool) -> None:
    """Restores a checkpoint.

    Args:
        checkpoint: a `tf.train.Checkpoint`.
        path: of what was saved.
        whole: whether everything of this model must be found in it; else, for evaluation, the optimizer's part is
            left out.

    Raises:
        ConfigError: it is another model's: a variable is missing, or has another shape.
    """
    tf = compat.install()
    try:
        status = checkpoint.restore(path)
        # Slot variables come with the first step, and are filled then.
        status.assert_existing_objects_matched()
    except (AssertionError, ValueError) as error:
        raise ConfigError(
            f"the checkpoint {path} is not this model's: {str(error).strip().splitlines()[0]}",
            found=", ".join(f"{name} {shape}" for name, shape in tf.train.list_variables(path)[:12]),
            mend="give the parameters of the model that was trained there, or another model_dir",
        ) from error
    if not whole:
        status.expect_partial()
