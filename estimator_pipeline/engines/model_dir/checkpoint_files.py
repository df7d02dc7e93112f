"""The files of checkpoints, and the state file `checkpoint` that names them.

TensorFlow writes a checkpoint as a few files, `PATH.index` and `PATH.data-*`, and then names PATH in the state file.
What PATH is called is the program's choice: an engine has a name of its own, a `Saver` or a `CheckpointSaverHook` has
any. So the state file decides what counts. Other files with an index may be a model to warm-start from, or somebody
else's.
"""

from __future__ import annotations

import dataclasses
import os
import re
import time
from collections.abc import Iterable, Mapping

from estimator_pipeline import compat
from estimator_pipeline.engines.model_dir.disk_errors import is_below, write_whole
from estimator_pipeline.engines.model_dir.layout import PREFIXES
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
    "remove_leftovers",
    "set_aside",
    "set_state_aside",
    "write_state",
]

STATE = "checkpoint"
# How the engines' own checkpoints are called before "-STEP".
KINDS = frozenset(PREFIXES.values())
# Where damaged checkpoints are moved to, below the model directory.
SET_ASIDE = "damaged"
# A checkpoint of TensorFlow 1's first format is a file without a suffix, or several with "-00000-of-00001" alone.
_SUFFIX = r"(?:\.index|\.meta|(?:\.data)?-\d{5}-of-\d{5})?"
_INDEX = re.compile(r"^(.+)-(\d+)\.index$")
# What a write of the state file leaves that was cut off: of disk.write_whole, and of TensorFlow's.
_STATE_LEFTOVER = re.compile(rf"^{STATE}\.(?:\d+\.tmp|tmp[0-9a-f]{{32}})$")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointState:
    """What the state file of a directory says.

    Attributes:
        is_there: whether there is such a file.
        latest: the path that it calls the newest, as TensorFlow reads it; None where it cannot be read.
        newest: the same where its files are found: a directory that was moved may name them by its old place.
        paths: all that it names, likewise, oldest first; `newest` is one of them.
        stamps: path -> seconds since 1970 when it was written, of those that have it.
        preserved: likewise, of the last one that is kept for ever (`keep_checkpoint_every_n_hours`).
    """

    is_there: bool = False
    latest: str | None = None
    newest: str | None = None
    paths: tuple[str, ...] = ()
    stamps: Mapping[str, float] = dataclasses.field(default_factory=dict)
    preserved: float = 0.0

    @property
    def kinds(self) -> frozenset[str]:
        """How its checkpoints are called before "-STEP"."""
        return frozenset(kind for path in self.paths if (kind := kind_of(path)) is not None)


def kind_of(path: str) -> str | None:
    """ "model_dir/model.ckpt-200" -> "model.ckpt"; None for a checkpoint without a step in its name."""
    found = re.match(r"(.+)-\d+$", os.path.basename(path))
    return found[1] if found else None


def files_of(path: str) -> list[str]:
    """The files of a checkpoint that are there, of whatever name.

    Args:
        path: as TensorFlow names it: "model_dir/model.ckpt-200".
    """
    folder, base = os.path.split(path)
    gfile = compat.tensorflow().io.gfile
    if not base or not gfile.isdir(folder or "."):
        return []
    of_it = re.compile(re.escape(base) + _SUFFIX)
    found = [os.path.join(folder, name) for name in gfile.listdir(folder or ".") if of_it.fullmatch(name)]
    return [each for each in found if each != path or not gfile.isdir(each)]


def is_there(path: str) -> bool:
    """Whether any file of a checkpoint is there."""
    # A directory may hold thousands: it is listed where it must be.
    return compat.tensorflow().io.gfile.exists(path + ".index") or bool(files_of(path))


def kinds_on_disk(model_dir: str) -> dict[str, list[str]]:
    """The checkpoints whose index lies in the directory, by how they are called before "-STEP"; each oldest first."""
    found = [match for name in compat.tensorflow().io.gfile.listdir(model_dir) if (match := _INDEX.match(name))]
    kinds: dict[str, list[str]] = {}
    for one in sorted(found, key=lambda one: int(one[2])):
        kinds.setdefault(one[1], []).append(os.path.join(model_dir, one[0].removesuffix(".index")))
    return kinds


def read_state(model_dir: str) -> CheckpointState:
    """What the directory's state file says; a file that is torn says nothing."""
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
    found = {one: _where(model_dir, one) for one in named}
    stamps = zip(state.all_model_checkpoint_paths, state.all_model_checkpoint_timestamps, strict=False)
    return CheckpointState(
        is_there=True,
        latest=latest,
        newest=found[latest],
        paths=tuple(dict.fromkeys(found.values())),
        stamps={found[one]: stamp for one, stamp in stamps},
        preserved=state.last_preserved_timestamp,
    )


def _where(model_dir: str, path: str) -> str:
    """Where the files of a checkpoint are: at its path, or in a directory that was moved since."""
    here = os.path.join(model_dir, os.path.basename(path))
    return here if here != path and not is_there(path) and is_there(here) else path


def write_state(model_dir: str, *, newest: str, paths: Iterable[str], before: CheckpointState) -> None:
    """Names `newest` as the latest checkpoint of a directory.

    Args:
        model_dir: the model directory.
        newest: the path of that checkpoint.
        paths: of all that are named, oldest first.
        before: what the state file said.
    """
    paths = list(paths)
    # By "/" all names stay as they are given.
    state = compat.tensorflow().compat.v1.train.generate_checkpoint_state_proto(
        "/", _name(model_dir, newest), last_preserved_timestamp=before.preserved or None
    )
    # A name may follow the newest one; see checkpoints.rescue().
    del state.all_model_checkpoint_paths[:]
    state.all_model_checkpoint_paths.extend(_name(model_dir, path) for path in paths)
    stamps = [before.stamps.get(path, 0.0) for path in paths]
    if all(stamps):
        state.all_model_checkpoint_timestamps.extend(stamps)
    write_whole(os.path.join(model_dir, STATE), str(state))


def _name(model_dir: str, path: str) -> str:
    """As the engines' own savers name it: from the directory on, so that it may be moved."""
    start = os.path.join(model_dir, "")
    return path.removeprefix(start)


def set_aside(model_dir: str, bad: Iterable[tuple[str, str]]) -> None:
    """Moves the files of damaged checkpoints out of the way, for somebody who wants to look at them.

    Args:
        model_dir: the model directory. Files that lie in another one stay there: they may be another run's.
        bad: path and what is wrong with it.
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
    """Moves the state file out of the way, and says where to."""
    to = os.path.join(_folder_aside(model_dir), STATE)
    compat.tensorflow().io.gfile.rename(os.path.join(model_dir, STATE), to, overwrite=True)
    return to


def _folder_aside(model_dir: str) -> str:
    folder = os.path.join(model_dir, SET_ASIDE, time.strftime("%Y%m%d-%H%M%S"))
    compat.tensorflow().io.gfile.makedirs(folder)
    return folder


def remove_leftovers(model_dir: str, kinds: Iterable[str]) -> None:
    """Removes what TensorFlow leaves of a write that was cut off.

    Args:
        model_dir: the model directory.
        kinds: how its checkpoints are called before "-STEP"; those of others stay.
    """
    gfile = compat.tensorflow().io.gfile
    # "model.ckpt-300_temp", "model.ckpt-300.index.tempstate123".
    names = "|".join(re.escape(kind) for kind in sorted(kinds))
    leftover = re.compile(rf"^(?:{names})-\d+(?:_temp.*|.*\.tempstate\d+)$")
    for name in (each.rstrip("/") for each in gfile.listdir(model_dir)):
        if leftover.match(name) or _STATE_LEFTOVER.match(name):
            path = os.path.join(model_dir, name)
            (gfile.rmtree if gfile.isdir(path) else gfile.remove)(path)
