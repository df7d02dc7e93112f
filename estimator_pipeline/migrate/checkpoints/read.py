"""Reading of a training's state from checkpoints of all engines, TensorFlow 1 and Keras, without a model.

==================================== ======================================================================
source                               origin of the names
==================================== ======================================================================
Estimator, TensorFlow 1              the file, which stores variables by name (formats V2 and V1)
`tf.train.Checkpoint` of Keras 2, 3  the object graph in the file
engine keras3                        the file, which stores variables by name, see `models/keras3_variables.py`
`.keras`                             the model in the file, loaded by the Keras that wrote it
`.weights.h5`                        a model that the user names, because the file has no names
==================================== ======================================================================
"""

from __future__ import annotations

import collections
import json
import os
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from estimator_pipeline import compat
from estimator_pipeline.compat.internals.saving import object_graph
from estimator_pipeline.engines.model_dir import lock
from estimator_pipeline.engines.model_dir.layout import DIRECTORY
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.migrate.checkpoints.state import TrainingState, state_of
from estimator_pipeline.utils.variable_names import AVERAGE, GRADIENT_SUM

__all__ = ["MIGRATED", "is_keras_file", "prefix_of", "read_state", "run_directory"]

# The record of a migration, in its output folder.
MIGRATED = "migrated.json"
_FILES = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
# Slots of Keras 3's optimizers; below, their names in Keras 2 where they differ.
_KERAS_3_SLOTS = {
    "momentum", "velocity", "velocity_hat", "average_gradient", "accumulator", "linear", "rms", "mg", GRADIENT_SUM,
    AVERAGE, "accumulated_grad", "accumulated_delta_var",
}  # fmt: skip
_RENAMED = {
    "adam": {"momentum": "m", "velocity": "v", "velocity_hat": "vhat"},
    "rmsprop": {"velocity": "rms", "average_gradient": "mg"},
    "other": {"accumulated_grad": "accum_grad", "accumulated_delta_var": "accum_var"},
}
_SETTING = re.compile(r"(^|/)optimizer/(?!iter/|_iterations/)[^/]+" + re.escape(_VALUE))
_NOT_STATE = re.compile(r"(^|/)(keras_api|_?metrics|_compile_metrics|_loss_tracker|loss_tracker)(/|$)")


def is_keras_file(source: str) -> bool:
    """Return whether a source is a Keras file, not a TensorFlow checkpoint."""
    return source.endswith((".keras", ".h5"))


def prefix_of(source: str) -> str:
    """Resolve a model directory or file name to the prefix of a checkpoint.

    Raises:
        ConfigError: There is no checkpoint, or a training is running in the directory.
    """
    tf = compat.tensorflow()
    gfile = tf.io.gfile
    if gfile.isdir(source):
        owner = lock.holder(source)
        if owner is not None:
            raise ConfigError(
                f"a training is running in {source}, so its latest checkpoint is not its last",
                code="migrate/bad-checkpoint",
                found=owner,
                hint="wait until it ends, stop it, or name one of its checkpoints",
            )
        latest = tf.train.latest_checkpoint(source)
        if latest is None:
            names = sorted({_FILES.sub("", name) for name in gfile.listdir(source) if _FILES.search(name)})
            raise ConfigError(
                f"the file 'checkpoint' in {source} names no existing checkpoint",
                code="migrate/bad-checkpoint",
                found=f"checkpoints: {', '.join(names[:8])}" if names else "no files of a checkpoint",
                hint=f"name one: {os.path.join(source, names[-1])}" if names else "give a model directory",
            )
        return str(latest)
    prefix = _FILES.sub("", source)
    if not (gfile.exists(f"{prefix}.index") or gfile.exists(prefix)):
        raise ConfigError(
            f"there is no checkpoint {source}",
            code="migrate/bad-checkpoint",
            found=f"working directory {os.getcwd()}",
            hint="give a model directory, or the prefix of a checkpoint: model_dir/model.ckpt-200",
        )
    return prefix


def run_directory(prefix: str) -> str:
    """Return the model directory of a checkpoint."""
    return os.path.dirname(prefix) or "."


def read_state(prefix: str) -> TrainingState:
    """Read the state from a TensorFlow checkpoint.

    Args:
        prefix: The prefix from `prefix_of`.

    Raises:
        ConfigError: The checkpoint is damaged, or has variables that cannot be distinguished.
    """
    tf = compat.tensorflow()
    try:
        reader = tf.train.load_checkpoint(prefix)
        shapes = dict(reader.get_variable_to_shape_map())
    except (ValueError, IndexError, tf.errors.OpError) as error:
        raise _damaged(prefix, error) from error
    read = _reader(prefix, reader, shapes)
    optimizer = _optimizer_of_run(run_directory(prefix))
    if object_graph.KEY not in shapes:
        values = {name: read(name) for name in sorted(shapes)}
        return state_of(values, source=prefix, kind="name-based", optimizer=optimizer)
    saved = object_graph.variables_in(bytes(read(object_graph.KEY).item()))
    saved = [variable for variable in saved if variable.key in shapes and not _NOT_STATE.search(variable.key)]
    objects = _objects(saved, read)
    return state_of(
        objects.values,
        source=prefix,
        kind=objects.kind,
        style=objects.style,
        optimizer=optimizer,
        settings=objects.settings,
    )


def _reader(prefix: str, reader: Any, shapes: dict[str, Any]) -> Callable[[str], np.ndarray]:
    tf = compat.tensorflow()

    def read(name: str) -> np.ndarray:
        try:
            try:
                return np.asarray(reader.get_tensor(name))
            except tf.errors.UnimplementedError:
                # A variable in slices in format V1: the operation joins the slices, the reader does not.
                dtype = reader.get_variable_to_dtype_map()[name]
                value = tf.raw_ops.RestoreV2(prefix=prefix, tensor_names=[name], shape_and_slices=[""], dtypes=[dtype])
                return value[0].numpy()
        except (ValueError, IndexError, RuntimeError, tf.errors.OpError) as error:
            raise _damaged(f"{prefix} ({name})", error) from error

    return read


def _damaged(checkpoint: str, error: Exception) -> ConfigError:
    text = str(getattr(error, "message", error)).strip().splitlines()
    return ConfigError(
        f"the checkpoint {checkpoint} cannot be read",
        code="migrate/bad-checkpoint",
        found=text[0][:300] if text else type(error).__name__,
        hint="it is truncated or damaged: give a different checkpoint of the run, or copy its files again",
    )


def _optimizer_of_run(folder: str) -> tuple[str, str] | None:
    """Return the optimizer recorded in the run: ("momentum", "v1")."""
    tf = compat.tensorflow()
    for name, keys in (("identity.json", ("fixed", "model.optimizer")), (MIGRATED, ("optimizer",))):
        try:
            with tf.io.gfile.GFile(os.path.join(folder, DIRECTORY, name), "r") as file:
                recorded = json.loads(file.read())
            for key in keys:
                recorded = recorded[key]
        except (tf.errors.OpError, ValueError, KeyError, TypeError):
            continue
        if match := re.fullmatch(r"(\w+) \((\w+)\)", str(recorded)):
            return match[1], match[2]
    return None


class _Objects(NamedTuple):
    """The content of an object-based checkpoint: see `TrainingState`."""

    values: dict[str, np.ndarray]
    kind: str
    settings: frozenset[str] = frozenset()
    style: str | None = None


def _objects(saved: list[object_graph.SavedVariable], read: Callable[[str], np.ndarray]) -> _Objects:
    if any(variable.key.startswith(("model/", "optimizer/")) and ".S" in variable.key for variable in saved):
        # The engine keras3 writes two dictionaries with the names as keys.
        named = {_unescaped(variable.key.removesuffix(_VALUE).partition("/")[2]): variable.key for variable in saved}
        return _Objects({name: read(key) for name, key in named.items() if name}, "keras3")
    names = {variable.key: variable.full_name or variable.key.removesuffix(_VALUE) for variable in saved}
    weights = {variable.key: names[variable.key] for variable in saved if variable.slot is None}
    twice = {name for name, count in collections.Counter(weights.values()).items() if count > 1}
    for variable in saved:
        if names[variable.key] in twice:
            # Layers with equal names are distinguished by their paths in the object graph.
            names[variable.key] = variable.key.removesuffix(_VALUE)
    for variable in saved:
        if variable.slot is not None and variable.slot_of is not None:
            head = variable.full_name.partition(weights.get(variable.slot_of, "\0"))[0]
            names[variable.key] = f"{head}{names[variable.slot_of]}/{variable.slot}"
    settings = [names[each.key] for each in saved if _SETTING.search(each.key) and each.slot is None]
    values = {names[each.key]: read(each.key) for each in saved if names[each.key] != "save_counter"}
    if any("/_operations/" in each.key or "/_trainable_variables/" in each.key for each in saved):
        return _Objects(_of_keras_3(values), "keras3", frozenset(settings))
    style = None
    if any(variable.slot is not None for variable in saved):
        # tf.keras.optimizers.legacy stores the learning-rate decay as a variable; this package's optimizers do not.
        decay = any(name.rpartition("/")[2] == "decay" for name in settings)
        style = "keras" if decay else "v1"
    elif settings:
        style = "keras"
    return _Objects(values, "keras", frozenset(settings), style)


def _unescaped(key: str) -> str:
    """Unescape a key of the object graph, where "/" is ".S" and "." is ".."."""
    return re.sub(r"\.(S|\.)", lambda match: "/" if match[1] == "S" else ".", key)


def _of_keras_3(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Rename the variables of Keras 3 as in Keras 2 and in the engine keras3."""
    slots = [name for name in values if name.count("/") == 1 and _slot_in(name.partition("/")[2], values)]
    weights = [name for name in values if name not in slots and name.count("/") >= 1]
    weights = [name for name in weights if name.rpartition("/")[2] not in ("iteration", "learning_rate")]
    model = _common_scope(weights)
    kind = _keras_3_optimizer(slots)
    renamed_values = {}
    for name, value in values.items():
        if name in slots:
            weight, slot = _slot_in(name.partition("/")[2], values) or ("", "")
            renamed = _RENAMED.get(kind, {}).get(slot, slot)
            renamed_values[f"{name.partition('/')[0]}/{weight.removeprefix(model)}/{renamed}"] = value
        else:
            renamed_values[name.removeprefix(model) if name in weights else name] = value
    return renamed_values


def _slot_in(name: str, values: Iterable[str]) -> tuple[str, str] | None:
    """Split a slot's name: `dense_kernel_rms` -> (`dense/kernel`, `rms`)."""
    owners = [weight for weight in values if name.startswith(f"{weight.replace('/', '_')}_")]
    for owner in sorted(owners, key=len, reverse=True):
        slot = name[len(owner) + 1 :]
        if slot in _KERAS_3_SLOTS:
            return owner, slot
    return None


def _keras_3_optimizer(slots: list[str]) -> str:
    """Return "adam", "rmsprop" or "other", from the names of the slots."""
    name = slots[0].partition("/")[0] if slots else ""
    if re.match(r"rm_?s_?prop", name) or (slots and slots[0].endswith("_velocity")):
        return "rmsprop"
    return "adam" if any(slot.endswith("_velocity") for slot in slots) else "other"


def _common_scope(names: list[str]) -> str:
    """Return the model's name if all of its variables start with it: "sequential/"."""
    first = {name.partition("/")[0] for name in names}
    return f"{first.pop()}/" if len(first) == 1 and all(name.count("/") > 1 for name in names) else ""
