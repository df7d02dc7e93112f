"""Reads the state of a training from what any of the engines, TensorFlow 1 or Keras wrote; no model is needed for it.

==================================== ======================================================================
what                                 where the names come from
==================================== ======================================================================
an Estimator's, TensorFlow 1's       the file: it keeps variables by name (formats V2 and V1)
`tf.train.Checkpoint` of Keras 2, 3  the description of the objects in the file
the engine keras3's                  the file: it keeps variables by name, see `models/keras3_variables.py`
`.keras`                             the model in it, which is loaded by the Keras that wrote it
`.weights.h5`                        a model that is named, for the file has no names
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
from estimator_pipeline.engines.lifecycle.rendezvous.rendezvous import DIRECTORY
from estimator_pipeline.engines.model_dir import lock
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.migrate.checkpoints.state import TrainingState, state_of
from estimator_pipeline.utils.variable_names import AVERAGE, GRADIENT_SUM

__all__ = ["MIGRATED", "is_keras_file", "prefix_of", "read_state", "run_directory"]

# What a migration for a job wrote down of it, in the folder that it wrote to.
MIGRATED = "migrated.json"
_FILES = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
# Of Keras 3's optimizers: the slot's name at the end -> what Keras 2 calls it.
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
    """Whether it is a file of Keras's own, and no checkpoint of TensorFlow."""
    return source.endswith((".keras", ".h5"))


def prefix_of(source: str) -> str:
    """Return the checkpoint that is meant: the latest one of a model directory, or the one of this name.

    Raises:
        ConfigError: there is none, or a training writes to that directory now.
    """
    tf = compat.tensorflow()
    gfile = tf.io.gfile
    if gfile.isdir(source):
        owner = lock.holder(source)
        if owner is not None:
            raise ConfigError(
                f"a training runs in {source}, and its latest checkpoint is not its last",
                code="migrate/bad-checkpoint",
                found=owner,
                hint="wait for its end or end it, or name one of its checkpoints",
            )
        latest = tf.train.latest_checkpoint(source)
        if latest is None:
            names = sorted({_FILES.sub("", name) for name in gfile.listdir(source) if _FILES.search(name)})
            raise ConfigError(
                f"{source} has no checkpoint that its file 'checkpoint' names",
                code="migrate/bad-checkpoint",
                found=f"checkpoints: {', '.join(names[:8])}" if names else "no files of a checkpoint",
                hint=f"name one: {os.path.join(source, names[-1])}" if names else "give the folder of a training",
            )
        return str(latest)
    prefix = _FILES.sub("", source)
    if not (gfile.exists(f"{prefix}.index") or gfile.exists(prefix)):
        raise ConfigError(
            f"there is no checkpoint {source}",
            code="migrate/bad-checkpoint",
            found=f"working directory {os.getcwd()}",
            hint="give a model directory, or a checkpoint as TensorFlow names it: model_dir/model.ckpt-200",
        )
    return prefix


def run_directory(prefix: str) -> str:
    """Return the model directory that a checkpoint lies in."""
    return os.path.dirname(prefix) or "."


def read_state(prefix: str) -> TrainingState:
    """Return the state that a checkpoint of TensorFlow holds.

    Args:
        prefix: from `prefix_of`.

    Raises:
        ConfigError: it cannot be read whole, or holds what cannot be told apart.
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
    saved = [one for one in saved if one.key in shapes and not _NOT_STATE.search(one.key)]
    found = _objects(saved, read)
    return state_of(
        found.values,
        source=prefix,
        kind=found.kind,
        style=found.style,
        optimizer=optimizer,
        settings=found.settings,
    )


def _reader(prefix: str, reader: Any, shapes: dict[str, Any]) -> Callable[[str], np.ndarray]:
    tf = compat.tensorflow()

    def read(name: str) -> np.ndarray:
        try:
            try:
                return np.asarray(reader.get_tensor(name))
            except tf.errors.UnimplementedError:
                # Format V1, and a variable in slices: the operation joins them, the reader does not.
                dtype = reader.get_variable_to_dtype_map()[name]
                found = tf.raw_ops.RestoreV2(prefix=prefix, tensor_names=[name], shape_and_slices=[""], dtypes=[dtype])
                return found[0].numpy()
        except (ValueError, IndexError, RuntimeError, tf.errors.OpError) as error:
            raise _damaged(f"{prefix} ({name})", error) from error

    return read


def _damaged(what: str, error: Exception) -> ConfigError:
    text = str(getattr(error, "message", error)).strip().splitlines()
    return ConfigError(
        f"the checkpoint {what} cannot be read",
        code="migrate/bad-checkpoint",
        found=text[0][:300] if text else type(error).__name__,
        hint="it is cut off or damaged: give another checkpoint of the run, or copy its files again",
    )


def _optimizer_of_run(folder: str) -> tuple[str, str] | None:
    """Return what a job's run, or the migration that began it, wrote down of its optimizer: ("momentum", "v1")."""
    tf = compat.tensorflow()
    for name, keys in (("identity.json", ("fixed", "model.optimizer")), (MIGRATED, ("optimizer",))):
        try:
            with tf.io.gfile.GFile(os.path.join(folder, DIRECTORY, name), "r") as file:
                told = json.loads(file.read())
            for key in keys:
                told = told[key]
        except (tf.errors.OpError, ValueError, KeyError, TypeError):
            continue
        if match := re.fullmatch(r"(\w+) \((\w+)\)", str(told)):
            return match[1], match[2]
    return None


class _Objects(NamedTuple):
    """Name -> value of a checkpoint of objects, what wrote it, its settings, and what its momentum means."""

    values: dict[str, np.ndarray]
    kind: str
    settings: frozenset[str] = frozenset()
    style: str | None = None


def _objects(saved: list[object_graph.SavedVariable], read: Callable[[str], np.ndarray]) -> _Objects:
    if any(one.key.startswith(("model/", "optimizer/")) and ".S" in one.key for one in saved):
        # The engine keras3: two dictionaries, whose keys are the names.
        named = {_unescaped(one.key.removesuffix(_VALUE).partition("/")[2]): one.key for one in saved}
        return _Objects({name: read(key) for name, key in named.items() if name}, "keras3")
    names = {one.key: one.full_name or one.key.removesuffix(_VALUE) for one in saved}
    weights = {one.key: names[one.key] for one in saved if one.slot is None}
    twice = {name for name, count in collections.Counter(weights.values()).items() if count > 1}
    for one in saved:
        if names[one.key] in twice:
            # Layers that are named alike: their places in the program tell them apart.
            names[one.key] = one.key.removesuffix(_VALUE)
    for one in saved:
        if one.slot is not None and one.slot_of is not None:
            head = one.full_name.partition(weights.get(one.slot_of, "\0"))[0]
            names[one.key] = f"{head}{names[one.slot_of]}/{one.slot}"
    settings = [names[one.key] for one in saved if _SETTING.search(one.key) and one.slot is None]
    values = {names[one.key]: read(one.key) for one in saved if names[one.key] != "save_counter"}
    if any("/_operations/" in one.key or "/_trainable_variables/" in one.key for one in saved):
        return _Objects(_of_keras_3(values), "keras3", frozenset(settings))
    style = None
    if any(one.slot is not None for one in saved):
        # tf.keras.optimizers.legacy keeps the decay of its rate as a variable; those of this package have none.
        decay = any(name.rpartition("/")[2] == "decay" for name in settings)
        style = "keras" if decay else "v1"
    elif settings:
        style = "keras"
    return _Objects(values, "keras", frozenset(settings), style)


def _unescaped(key: str) -> str:
    """Return a name as TensorFlow writes it in keys of objects: "/" is ".S", "." is ".."."""
    return re.sub(r"\.(S|\.)", lambda match: "/" if match[1] == "S" else ".", key)


def _of_keras_3(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the names of Keras 3's objects as Keras 2 and the engine keras3 have them."""
    slots = [name for name in values if name.count("/") == 1 and _slot_in(name.partition("/")[2], values)]
    weights = [name for name in values if name not in slots and name.count("/") >= 1]
    weights = [name for name in weights if name.rpartition("/")[2] not in ("iteration", "learning_rate")]
    model = _common_scope(weights)
    kind = _keras_3_optimizer(slots)
    found = {}
    for name, value in values.items():
        if name in slots:
            weight, slot = _slot_in(name.partition("/")[2], values) or ("", "")
            renamed = _RENAMED.get(kind, {}).get(slot, slot)
            found[f"{name.partition('/')[0]}/{weight.removeprefix(model)}/{renamed}"] = value
        else:
            found[name.removeprefix(model) if name in weights else name] = value
    return found


def _slot_in(name: str, values: Iterable[str]) -> tuple[str, str] | None:
    """`sequential_dense_kernel_momentum` -> (`sequential/dense/kernel`, `momentum`)."""
    owners = [one for one in values if name.startswith(f"{one.replace('/', '_')}_")]
    for owner in sorted(owners, key=len, reverse=True):
        slot = name[len(owner) + 1 :]
        if slot in _KERAS_3_SLOTS:
            return owner, slot
    return None


def _keras_3_optimizer(slots: list[str]) -> str:
    """Adam's first slot is its momentum, RMSprop's the velocity: they bear the same names."""
    name = slots[0].partition("/")[0] if slots else ""
    if re.match(r"rm_?s_?prop", name) or (slots and slots[0].endswith("_velocity")):
        return "rmsprop"
    return "adam" if any(one.endswith("_velocity") for one in slots) else "other"


def _common_scope(names: list[str]) -> str:
    """Return the model's name, where all of its variables begin with it: "sequential/"."""
    first = {name.partition("/")[0] for name in names}
    return f"{first.pop()}/" if len(first) == 1 and all(name.count("/") > 1 for name in names) else ""
