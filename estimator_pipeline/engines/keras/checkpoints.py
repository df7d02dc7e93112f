"""Checkpoints of the Keras engines: `tf.train.Checkpoint`, written by every worker, kept by the chief.

A model directory has `ckpt-STEP` (`keras3-STEP` with Keras 3) and the state file `checkpoint`. Under a multi-worker
strategy every worker must save, because replica-local values (BatchNorm's moving statistics) are gathered. The chief's
file is the checkpoint; the other workers write to temporary folders, which are removed at the end.
"""

from __future__ import annotations

import os
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.cluster import TFConfig
from estimator_pipeline.compat.internals.saving import object_graph
from estimator_pipeline.engines.model_dir.layout import PREFIXES
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.models.optimizers import keras2 as keras_optimizers

_NAMES = {"estimator": "Estimator", "keras": "Keras", "keras3": "Keras 3"}
_WHOSE = {
    "estimator": "an Estimator's checkpoint",
    "keras": "a checkpoint of the Keras engine",
    "keras3": "a checkpoint of the Keras 3 engine",
}


def write_dir(model_dir: str, tf_config: TFConfig) -> str:
    """Return the folder that this task writes to: the model directory for the chief, else a folder in it."""
    if tf_config.is_chief or tf_config.is_single_process:
        return model_dir
    return os.path.join(model_dir, f"tmp_{tf_config.task.type}_{tf_config.task.index}")


def remove_temporary(model_dir: str, tf_config: TFConfig, *, apart: bool) -> None:
    """Remove the checkpoint files of a worker other than the chief (saving is a collective operation).

    Args:
        model_dir: Model directory of this task.
        tf_config: Cluster and task of this process.
        apart: Whether this task has a separate model directory, different from the chief's.
    """
    gfile = compat.tensorflow().io.gfile
    path = model_dir if apart else write_dir(model_dir, tf_config)
    if not tf_config.is_chief and gfile.exists(path):
        gfile.rmtree(path)


def refuse_others(model_dir: str, *, engine: str) -> None:
    """Reject a directory with checkpoints of a different engine than `engine`.

    Raises:
        ConfigError: The directory has such checkpoints.
    """
    tf = compat.tensorflow()
    try:
        latest = tf.train.latest_checkpoint(model_dir)
    except (ValueError, tf.errors.OpError):
        # A truncated state file is written again later, from the existing checkpoints.
        latest = _any_checkpoint(model_dir, engine)
    if latest is None:
        return
    for other, prefix in PREFIXES.items():
        if other != engine and os.path.basename(latest).startswith(f"{prefix}-"):
            raise ConfigError(
                f"the {_NAMES[engine]} engine cannot resume from {_WHOSE[other]}: names and optimizer slots differ",
                code="model-dir/other-model",
                found=latest,
                hint=f"convert it with estimator-pipeline migrate checkpoint {model_dir} --to {engine} --job JOB.yaml "
                f"to resume from it; or use a separate model_dir for the {_NAMES[engine]} run: --set run.model_dir=...",
            )


def _any_checkpoint(model_dir: str, engine: str) -> str | None:
    """Return a checkpoint of any engine, preferably of `engine`; None without one."""
    names = [name for name in compat.tensorflow().io.gfile.listdir(model_dir) if name.endswith(".index")]
    for prefix in (PREFIXES[engine], *PREFIXES.values()):
        for name in names:
            if name.startswith(f"{prefix}-"):
                return os.path.join(model_dir, name.removesuffix(".index"))
    return None


def of(model: Any) -> Any:
    """Return the `tf.train.Checkpoint` of a compiled model and its optimizer."""
    return compat.tensorflow().train.Checkpoint(model=model, optimizer=model.optimizer)


def restore(checkpoint: Any, path: str, *, whole: bool) -> None:
    """Restore a checkpoint.

    Args:
        checkpoint: A `tf.train.Checkpoint`.
        path: Path of the saved checkpoint.
        whole: Whether the checkpoint must have all of this model's state; if not, for evaluation, the optimizer's state
            may be left out.

    Raises:
        ConfigError: It belongs to a different model: a variable is missing, or has a different shape.
    """
    tf = compat.tensorflow()
    try:
        status = checkpoint.restore(path)
        # Slot variables are created and restored at the first step.
        status.assert_existing_objects_matched()
    except (AssertionError, ValueError) as error:
        raise ConfigError(
            f"the checkpoint {path} is not this model's: {str(error).strip().splitlines()[0]}",
            code="model-dir/other-model",
            found=", ".join(f"{name} {shape}" for name, shape in tf.train.list_variables(path)[:12]),
            hint="use the parameters of the model that was trained there, or a different model_dir",
        ) from error
    if not whole:
        status.expect_partial()


def restore_changed(model: Any, checkpoint: Any, path: str, *, momentum: bool) -> tuple[set[str], set[str], set[str]]:
    """Restore a Keras 2 checkpoint that was written with a different optimizer or different optimizer options.

    Slots in the checkpoint are restored, others start from their initial values. Options such as the learning rate are
    part of the checkpoint, but keep the current values.

    Args:
        model: A compiled model whose optimizer has not run a step.
        checkpoint: Its `tf.train.Checkpoint`.
        path: Path of the saved checkpoint.
        momentum: Whether slots "momentum" are restored.

    Returns:
        The names of the slots in the checkpoint, of the model's slots, and of the restored ones, such as
        "dense/kernel/momentum".

    Raises:
        ConfigError: See `restore`.
    """
    tf = compat.tensorflow()
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    options = {name: value for name, value in optimizer._hyper.items() if isinstance(value, int | float)}
    twin = type(optimizer).from_config(optimizer.get_config())
    twin._create_all_weights([tf.Variable(0.0)])
    kinds = set(twin.get_slot_names()) - (set() if momentum else {"momentum"})
    create = optimizer._create_or_restore_slot_variable

    def create_known(*, slot_name: str, **arguments: Any) -> Any:
        # Keras creates every slot of the checkpoint, whatever the optimizer is.
        return create(slot_name=slot_name, **arguments) if slot_name in kinds else None

    optimizer._create_or_restore_slot_variable = create_known
    restore(checkpoint, path, whole=False)
    # Otherwise they would be created and restored at the first step.
    keras_optimizers.create_slots(model)
    del optimizer._create_or_restore_slot_variable
    for name, value in options.items():
        setattr(optimizer, name, value)
    saved = object_graph.variables_in(tf.train.load_checkpoint(path).get_tensor(object_graph.KEY))
    owners = {entry.key: entry.full_name for entry in saved}
    there = {f"{owners[entry.slot_of]}/{entry.slot}" for entry in saved if entry.slot and entry.slot_of in owners}
    variables = [variable.name.partition(":")[0] for variable in model.trainable_variables]
    here = {f"{variable}/{slot}" for variable in variables for slot in optimizer.get_slot_names()}
    return there, here, {name for name in there & here if name.rpartition("/")[2] in kinds}
