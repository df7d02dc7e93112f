"""Checkpoints of the Keras engines: `tf.train.Checkpoint`, written by every worker, kept by the chief.

A model directory has `ckpt-STEP` (`keras3-STEP` with Keras 3) and the state file `checkpoint`. Under a multi-worker
strategy every worker must save, because replica-local values (BatchNorm's moving statistics) are gathered. The chief's
file is the checkpoint; the other workers write to temporary folders, which are removed at the end.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.compat.internals.saving import object_graph
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.models.optimizers import keras2 as keras_optimizers


def of(model: Any) -> Any:
    """Return the `tf.train.Checkpoint` of a compiled model and its optimizer."""
    return compat.tensorflow().train.Checkpoint(model=model, optimizer=model.optimizer)


def restore(checkpoint: Any, path: str, *, whole: bool) -> None:
    """Restore a `tf.train.Checkpoint` from a path.

    The saved checkpoint must have all of this model's state if `whole`; otherwise the optimizer's may be left out.

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


def weights_in(path: str) -> dict[str, str]:
    """Return the variables of a Keras 2 checkpoint that are no slots: name -> key in the file; empty for another kind.

    A name that several variables have is left out: it is unknown which is which.
    """
    reader = compat.tensorflow().train.load_checkpoint(path)
    if not reader.has_tensor(object_graph.KEY):
        return {}
    saved = [entry for entry in object_graph.variables_in(reader.get_tensor(object_graph.KEY)) if entry.slot is None]
    count = Counter(entry.full_name for entry in saved)
    return {entry.full_name: entry.key for entry in saved if count[entry.full_name] == 1}


def restore_changed(model: Any, checkpoint: Any, path: str, *, momentum: bool) -> tuple[set[str], set[str], set[str]]:
    """Restore a Keras 2 checkpoint that was written with a different optimizer or different optimizer options.

    Slots in the checkpoint are restored (those named "momentum" if `momentum`), others start from their initial values.
    Options such as the learning rate are part of the checkpoint, but keep the current values. The model's optimizer has
    not run a step.

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
