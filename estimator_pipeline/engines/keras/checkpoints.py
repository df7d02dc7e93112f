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
    gfile = compat.tensorflow().io.gfile
    path = model_dir if apart else write_dir(model_dir, tf_config)
    if not tf_config.is_chief and gfile.exists(path):
        gfile.rmtree(path)


def refuse_others(model_dir: str, *, engine: str) -> None:
    """Raises where the directory holds checkpoints of another engine than `engine`.

    Raises:
        ConfigError: it does.
    """
    tf = compat.tensorflow()
    try:
        latest = tf.train.latest_checkpoint(model_dir)
    except (ValueError, tf.errors.OpError):
        # A torn state file is made anew later, from the checkpoints that lie there.
        latest = _lying_there(model_dir, engine)
    if latest is None:
        return
    for other, prefix in PREFIXES.items():
        if other != engine and os.path.basename(latest).startswith(f"{prefix}-"):
            raise ConfigError(
                f"the {_NAMES[engine]} engine cannot go on from {_WHOSE[other]}: names and optimizer slots differ",
                code="model-dir/other-model",
                found=latest,
                hint=f"estimator-pipeline migrate checkpoint {model_dir} --to {engine} --job JOB.yaml, and this run "
                f"goes on from it; or give the {_NAMES[engine]} run a model_dir of its own: --set run.model_dir=...",
            )


def _lying_there(model_dir: str, engine: str) -> str | None:
    """A checkpoint of any engine, rather one of `engine`; None without one."""
    names = [name for name in compat.tensorflow().io.gfile.listdir(model_dir) if name.endswith(".index")]
    for prefix in (PREFIXES[engine], *PREFIXES.values()):
        for name in names:
            if name.startswith(f"{prefix}-"):
                return os.path.join(model_dir, name.removesuffix(".index"))
    return None


def of(model: Any) -> Any:
    """The `tf.train.Checkpoint` of a compiled model and its optimizer."""
    return compat.tensorflow().train.Checkpoint(model=model, optimizer=model.optimizer)


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
    tf = compat.tensorflow()
    try:
        status = checkpoint.restore(path)
        # Slot variables come with the first step, and are filled then.
        status.assert_existing_objects_matched()
    except (AssertionError, ValueError) as error:
        raise ConfigError(
            f"the checkpoint {path} is not this model's: {str(error).strip().splitlines()[0]}",
            code="model-dir/other-model",
            found=", ".join(f"{name} {shape}" for name, shape in tf.train.list_variables(path)[:12]),
            hint="give the parameters of the model that was trained there, or another model_dir",
        ) from error
    if not whole:
        status.expect_partial()


def restore_changed(model: Any, checkpoint: Any, path: str, *, momentum: bool) -> tuple[set[str], set[str], set[str]]:
    """Restores a checkpoint of Keras 2 that was written with another optimizer, or with the same made otherwise.

    Slots that are in the checkpoint are kept, others begin. What the optimizer was made with, such as its learning
    rate, is a part of the checkpoint, and stays what it is now.

    Args:
        model: compiled, whose optimizer has made no step.
        checkpoint: its `tf.train.Checkpoint`.
        path: of what was saved.
        momentum: whether slots "momentum" are kept.

    Returns:
        The names of the slots there, of those here, and of those that were kept: "dense/kernel/momentum".

    Raises:
        ConfigError: see :func:`restore`.
    """
    tf = compat.tensorflow()
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    made_with = {name: value for name, value in optimizer._hyper.items() if isinstance(value, int | float)}
    twin = type(optimizer).from_config(optimizer.get_config())
    twin._create_all_weights([tf.Variable(0.0)])
    kinds = set(twin.get_slot_names()) - (set() if momentum else {"momentum"})
    theirs = optimizer._create_or_restore_slot_variable

    def of_these(*, slot_name: str, **given: Any) -> Any:
        # Keras makes what the checkpoint has, whatever the optimizer is.
        return theirs(slot_name=slot_name, **given) if slot_name in kinds else None

    optimizer._create_or_restore_slot_variable = of_these
    restore(checkpoint, path, whole=False)
    # They would come with the first step, and be filled then.
    keras_optimizers.create_slots(model)
    del optimizer._create_or_restore_slot_variable
    for name, value in made_with.items():
        setattr(optimizer, name, value)
    saved = object_graph.variables_in(tf.train.load_checkpoint(path).get_tensor(object_graph.KEY))
    owners = {one.key: one.full_name for one in saved}
    there = {f"{owners[one.slot_of]}/{one.slot}" for one in saved if one.slot and one.slot_of in owners}
    variables = [variable.name.partition(":")[0] for variable in model.trainable_variables]
    here = {f"{variable}/{slot}" for variable in variables for slot in optimizer.get_slot_names()}
    return there, here, {name for name in there & here if name.rpartition("/")[2] in kinds}
