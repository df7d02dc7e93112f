"""The files of checkpoints, and the state file `checkpoint` that names them.

TensorFlow writes a checkpoint as several files, `PATH.index` and `PATH.data-*`, and then names PATH in the state file.
The program chooses the name: each engine has a fixed one, a `Saver` or a `CheckpointSaverHook` may have any. The state
file therefore decides which files are checkpoints of the run. Other files with an index may be a model to warm-start
from, or unrelated.
"""

from __future__ import annotations

import dataclasses
import os
import re
import time
from collections.abc import Iterable, Mapping

from estimator_pipeline import compat
from estimator_pipeline.cluster import TFConfig
from estimator_pipeline.engines.model_dir.disk_errors import is_below, write_whole
from estimator_pipeline.engines.model_dir.layout import PREFIXES, write_dir
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.utils.logger import logger

__all__ = [
    "KINDS",
    "STATE",
    "CheckpointState",
    "files_of",
    "is_there",
    "kind_of",
    "kinds_on_disk",
    "read_state",
    "refuse_others",
    "remove_leftovers",
    "remove_temporary",
    "set_aside",
    "set_state_aside",
    "write_state",
]

STATE = "checkpoint"
_NAMES = {"estimator": "Estimator", "keras": "Keras", "keras3": "Keras 3"}
_WHOSE = {
    "estimator": "an Estimator's checkpoint",
    "keras": "a checkpoint of the Keras engine",
    "keras3": "a checkpoint of the Keras 3 engine",
}
# Names of the engines' checkpoints, without "-STEP".
KINDS = frozenset(PREFIXES.values())
# Folder in the model directory for damaged checkpoints.
SET_ASIDE = "damaged"
# A checkpoint of TensorFlow 1's first format is a file without a suffix, or several with only "-00000-of-00001".
_SUFFIX = r"(?:\.index|\.meta|(?:\.data)?-\d{5}-of-\d{5})?"
_INDEX = re.compile(r"^(.+)-(\d+)\.index$")
# Temporary files of an interrupted write of the state file, by disk.write_whole and by TensorFlow.
_STATE_LEFTOVER = re.compile(rf"^{STATE}\.(?:(?:.+\.)?\d+\.tmp|tmp[0-9a-f]{{32}})$")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointState:
    """The content of a directory's state file.

    Attributes:
        is_there: Whether the file exists.
        latest: The path of the newest checkpoint, as TensorFlow reads it; None if the file cannot be read.
        newest: The same, with the current directory if the directory was moved.
        paths: All named checkpoints, likewise, oldest first; includes `newest`.
        stamps: Path -> time of writing in seconds since 1970, if known.
        preserved: Time of the last checkpoint kept permanently (`keep_checkpoint_every_n_hours`).
    """

    is_there: bool = False
    latest: str | None = None
    newest: str | None = None
    paths: tuple[str, ...] = ()
    stamps: Mapping[str, float] = dataclasses.field(default_factory=dict)
    preserved: float = 0.0

    @property
    def kinds(self) -> frozenset[str]:
        """The names of its checkpoints, without "-STEP"."""
        return frozenset(kind for path in self.paths if (kind := kind_of(path)) is not None)


def kind_of(path: str) -> str | None:
    """Return "model.ckpt" for "model_dir/model.ckpt-200"; None for a checkpoint without a step in its name."""
    match = re.match(r"(.+)-\d+$", os.path.basename(path))
    return match[1] if match else None


def files_of(path: str) -> list[str]:
    """Return the existing files of a checkpoint, in any format.

    Args:
        path: As TensorFlow names it: "model_dir/model.ckpt-200".
    """
    folder, base = os.path.split(path)
    gfile = compat.tensorflow().io.gfile
    if not base or not gfile.isdir(folder or "."):
        return []
    of_it = re.compile(re.escape(base) + _SUFFIX)
    files = [os.path.join(folder, name) for name in gfile.listdir(folder or ".") if of_it.fullmatch(name)]
    return [file for file in files if file != path or not gfile.isdir(file)]


def is_there(path: str) -> bool:
    """Return whether any file of a checkpoint exists."""
    # A directory may have thousands of files: it is listed only if necessary.
    return compat.tensorflow().io.gfile.exists(path + ".index") or bool(files_of(path))


def kinds_on_disk(model_dir: str) -> dict[str, list[str]]:
    """Return the checkpoints with an index in the directory, by their name without "-STEP"; each oldest first."""
    matches = [match for name in compat.tensorflow().io.gfile.listdir(model_dir) if (match := _INDEX.match(name))]
    kinds: dict[str, list[str]] = {}
    for match in sorted(matches, key=lambda match: int(match[2])):
        kinds.setdefault(match[1], []).append(os.path.join(model_dir, match[0].removesuffix(".index")))
    return kinds


def read_state(model_dir: str) -> CheckpointState:
    """Read the directory's state file; a truncated file names no checkpoint."""
    tf = compat.tensorflow()
    path = os.path.join(model_dir, STATE)
    if not tf.io.gfile.exists(path):
        return CheckpointState()
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            whole = b"model_checkpoint_path" in file.read()
        state = tf.train.get_checkpoint_state(model_dir) if whole else None
    except (tf.errors.OpError, ValueError):
        state = None
    if state is None or not state.model_checkpoint_path:
        return CheckpointState(is_there=True)
    latest = state.model_checkpoint_path
    named = list(dict.fromkeys([*state.all_model_checkpoint_paths, latest]))
    actual = {path: _where(model_dir, path) for path in named}
    stamps = zip(state.all_model_checkpoint_paths, state.all_model_checkpoint_timestamps, strict=False)
    return CheckpointState(
        is_there=True,
        latest=latest,
        newest=actual[latest],
        paths=tuple(dict.fromkeys(actual.values())),
        stamps={actual[path]: stamp for path, stamp in stamps},
        preserved=state.last_preserved_timestamp,
    )


def _where(model_dir: str, path: str) -> str:
    """Return the path of a checkpoint's files, which differs from `path` if the directory was moved."""
    here = os.path.join(model_dir, os.path.basename(path))
    return here if here != path and not is_there(path) and is_there(here) else path


def write_state(model_dir: str, *, newest: str, paths: Iterable[str], before: CheckpointState) -> None:
    """Write a state file with `newest` as the latest checkpoint.

    Args:
        model_dir: The model directory.
        newest: Path of the latest checkpoint.
        paths: Paths of all checkpoints, oldest first.
        before: The previous state.
    """
    paths = list(paths)
    # With "/" as the directory, TensorFlow leaves the names unchanged.
    state = compat.tensorflow().compat.v1.train.generate_checkpoint_state_proto(
        "/", _name(model_dir, newest), last_preserved_timestamp=before.preserved or None
    )
    # Other names may follow the newest one; see checkpoint_recovery.rescue().
    del state.all_model_checkpoint_paths[:]
    state.all_model_checkpoint_paths.extend(_name(model_dir, path) for path in paths)
    stamps = [before.stamps.get(path, 0.0) for path in paths]
    if all(stamps):
        state.all_model_checkpoint_timestamps.extend(stamps)
    write_whole(os.path.join(model_dir, STATE), str(state))


def _name(model_dir: str, path: str) -> str:
    """Return the path relative to the directory, as the engines' savers write it, so that it can be moved."""
    start = os.path.join(model_dir, "")
    return path.removeprefix(start)


def set_aside(model_dir: str, bad: Iterable[tuple[str, str]]) -> None:
    """Move the files of damaged checkpoints to a separate folder, for inspection.

    Args:
        model_dir: The model directory. Files in other directories are not moved: they may belong to another run.
        bad: Path and damage of each checkpoint.
    """
    gfile = compat.tensorflow().io.gfile
    folder = _folder_aside(model_dir)
    for path, reason in bad:
        if not is_below(path, model_dir):
            logger.warning("The checkpoint %s is damaged (%s)", path, reason)
            continue
        for file in files_of(path):
            gfile.rename(file, os.path.join(folder, os.path.basename(file)), overwrite=True)
        logger.warning("The checkpoint %s is damaged (%s); set aside in %s", path, reason, folder)


def set_state_aside(model_dir: str) -> str:
    """Move the state file to a separate folder, and return its new path."""
    to = os.path.join(_folder_aside(model_dir), STATE)
    compat.tensorflow().io.gfile.rename(os.path.join(model_dir, STATE), to, overwrite=True)
    return to


def _folder_aside(model_dir: str) -> str:
    folder = os.path.join(model_dir, SET_ASIDE, time.strftime("%Y%m%d-%H%M%S"))
    compat.tensorflow().io.gfile.makedirs(folder)
    return folder


def remove_leftovers(model_dir: str, kinds: Iterable[str]) -> None:
    """Remove TensorFlow's temporary files of an interrupted write.

    Args:
        model_dir: The model directory.
        kinds: Names of its checkpoints, without "-STEP"; files of other names are not removed.
    """
    gfile = compat.tensorflow().io.gfile
    # "model.ckpt-300_temp", "model.ckpt-300.index.tempstate123".
    names = "|".join(re.escape(kind) for kind in sorted(kinds))
    leftover = re.compile(rf"^(?:{names})-\d+(?:_temp.*|.*\.tempstate\d+)$")
    for name in (entry.rstrip("/") for entry in gfile.listdir(model_dir)):
        if leftover.match(name) or _STATE_LEFTOVER.match(name):
            path = os.path.join(model_dir, name)
            (gfile.rmtree if gfile.isdir(path) else gfile.remove)(path)


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
