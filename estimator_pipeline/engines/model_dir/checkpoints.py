"""The checkpoints of a model directory, and recovery from damaged ones: which checkpoint a run resumes from.

TensorFlow writes a checkpoint as several files, `PATH.index` and `PATH.data-*`, and then names PATH in the state file
`checkpoint`. The program chooses the name: each engine has a fixed one, a `Saver` or a `CheckpointSaverHook` may have
any. The state file therefore decides which files are checkpoints of the run. Other files with an index may be a model
to warm-start from, or unrelated.

A process killed in between, a full disk or a power loss leaves files that are truncated or missing. Before a run
trains, the task that writes the checkpoints reads the newest one completely (the file has a checksum for every tensor).
A damaged checkpoint is set aside, and the previous one is used. If none can be restored, training never silently starts
at step 0.
"""

from __future__ import annotations

import dataclasses
import glob
import os
import re
import time
from collections.abc import Iterable, Mapping

import numpy as np

from estimator_pipeline import compat
from estimator_pipeline.cluster import TFConfig
from estimator_pipeline.engines.model_dir.disk_errors import is_below, read_whole, write_whole
from estimator_pipeline.engines.model_dir.layout import PREFIXES, checkpoint_step, write_dir
from estimator_pipeline.errors import ConfigError, TaskFailedError
from estimator_pipeline.utils.logger import logger

__all__ = ["KINDS", "damage", "files_of", "latest_checkpoint", "refuse_others", "remove_temporary", "rescue"]

_STATE = "checkpoint"
_NAMES = {"estimator": "Estimator", "keras": "Keras", "keras3": "Keras 3"}
# Names of the engines' checkpoints, without "-STEP".
KINDS = frozenset(PREFIXES.values())
# Folder in the model directory for damaged checkpoints.
_DAMAGED = "damaged"
# A checkpoint of TensorFlow 1's first format is a file without a suffix, or several with only "-00000-of-00001".
_SUFFIX = r"(?:\.index|\.meta|(?:\.data)?-\d{5}-of-\d{5})?"
_INDEX = re.compile(r"^(.+)-(\d+)\.index$")
# Temporary files of an interrupted write of the state file, by disk.write_whole and by TensorFlow.
_STATE_LEFTOVER = re.compile(rf"^{_STATE}\.(?:(?:.+\.)?\d+\.tmp|tmp[0-9a-f]{{32}})$")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _CheckpointState:
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
    def later(self) -> tuple[str, ...]:
        """The checkpoints that are named after the newest one.

        A killed rescue() was about to set them aside, or a user went back to an earlier checkpoint.
        """
        return self.paths[self.paths.index(self.newest) + 1 :] if self.newest is not None else ()


def latest_checkpoint(model_dir: str) -> str | None:
    """Return the path of the latest checkpoint, from which training resumes; None without one.

    A mounted directory is read without TensorFlow, whose import takes seconds.
    """
    if "://" in model_dir:
        return compat.tensorflow().train.latest_checkpoint(model_dir)
    try:
        state = read_whole(os.path.join(model_dir, _STATE)) or ""
    except (OSError, UnicodeDecodeError):
        return None
    match = re.search(r'^model_checkpoint_path: "(.*)"', state, re.MULTILINE)
    # A directory that was moved has the path of its earlier place.
    names = () if match is None else (match[1], os.path.basename(match[1]))
    paths = [os.path.join(model_dir, name) for name in names]
    return next((path for path in paths if glob.glob(f"{glob.escape(path)}.*")), None)


def damage(path: str, *, finite: bool = False) -> str | None:
    """Return the damage of a checkpoint in one line; None if every tensor can be read and matches its checksum.

    Args:
        path: As TensorFlow names it: "model_dir/model.ckpt-200".
        finite: Whether NaN and infinities in a floating-point tensor count as damage.
    """
    try:
        reader = compat.tensorflow().train.load_checkpoint(path)
        for name in sorted(reader.get_variable_to_shape_map()):
            value = reader.get_tensor(name)
            if finite and np.issubdtype(np.asarray(value).dtype, np.floating) and not np.isfinite(value).all():
                return f"{name} holds values that are not finite"
    except Exception as error:
        # OpError, ValueError, IndexError or others, depending on the damage and the TensorFlow version.
        text = str(getattr(error, "message", error)).strip()
        return text.splitlines()[0][:300] if text else type(error).__name__
    return None


def rescue(model_dir: str, *, finite: bool = False) -> str | None:
    """Make the newest undamaged checkpoint the latest one of the directory; for the task that writes checkpoints.

    The checkpoint that the state file names as the newest has priority, even if a user set it to an older one. If this
    is killed at any point, the next call has the same result.

    Args:
        model_dir: The model directory.
        finite: See `damage`; for a run that resumes after one that diverged.

    Returns:
        The path of the latest checkpoint, verified; None if the directory has none.

    Raises:
        TaskFailedError: No checkpoint can be restored; or it is unknown which ones belong to this run.
        OSError: A file cannot be written or moved; or the error of `tf.io.gfile`.
    """
    if not compat.tensorflow().io.gfile.isdir(model_dir):
        return None
    state = _read_state(model_dir)
    _remove_leftovers(model_dir, KINDS | {kind for path in state.paths if (kind := _kind_of(path)) is not None})
    if not state.is_there:
        _warn_of_unnamed(model_dir)
        return None
    candidates = _candidates(model_dir, state)
    # The checkpoints for the new state file, oldest first. Files deleted by keep_checkpoint_max are not damage.
    pool = [path for path in state.paths if _is_there(path)] if candidates else []
    if not candidates:
        pool = _guessed(model_dir, state)
        candidates = pool[::-1]
    if not candidates:
        _start_from_scratch(model_dir)
        return None
    bad: list[tuple[str, str]] = []
    for good in candidates:
        if (reason := damage(good, finite=finite)) is None:
            break
        bad.append((good, reason))
    else:
        raise TaskFailedError(
            f"no checkpoint in {model_dir} can be restored",
            code="model-dir/damaged",
            found="; ".join(f"{os.path.basename(path)}: {reason}" for path, reason in bad),
            hint="restore a copy of an undamaged one, or use a different model_dir to train from the start",
        )
    later = state.later if good == state.newest else ()
    bad += [(path, why) for path in later if _is_there(path) and (why := damage(path, finite=finite)) is not None]
    damaged = [path for path, _ in bad]
    kept = [path for path in pool if path not in damaged]
    _leave(model_dir, good, kept if good in kept else [*kept, good], bad, state)
    return good


def _candidates(model_dir: str, state: _CheckpointState) -> list[str]:
    """Return the checkpoints that a run may resume from, best first: named ones, then others of the same name.

    Of the named ones, the newest is first, then the previous one. A named checkpoint of a later step exists only if
    a user went back to an earlier one.
    """
    if state.newest is None:
        return []
    there = [path for path in reversed(state.paths) if _is_there(path)]
    step = checkpoint_step(state.newest)
    there.sort(key=lambda path: (path != state.newest, checkpoint_step(path) > step))
    # The state file may name only some of them, if it was restored from a copy.
    kind = _kind_of(state.newest)
    like_it = _kinds_on_disk(model_dir).get(kind, []) if kind else []
    known = {os.path.basename(path) for path in there}
    return [*there, *(path for path in reversed(like_it) if os.path.basename(path) not in known)]


def _guessed(model_dir: str, state: _CheckpointState) -> list[str]:
    """Return the checkpoints of a directory, oldest first, if the state file names no existing one.

    Raises:
        TaskFailedError: It is unknown which checkpoints belong to the run.
    """
    kinds = _kinds_on_disk(model_dir)
    known = [kind for kind in kinds if kind in KINDS]
    if len(known) == 1:
        return kinds[known[0]]
    # If the state file can be read, files of other names do not belong to this run.
    unsure = known if state.newest else list(kinds)
    if not unsure:
        return []
    newest = [os.path.basename(kinds[kind][-1]) for kind in unsure]
    problem = f"names {state.latest}, which does not exist" if state.latest else "cannot be read"
    raise TaskFailedError(
        f"the file {os.path.join(model_dir, _STATE)} {problem}, and it is unknown which checkpoint is this run's",
        code="model-dir/damaged",
        found=", ".join(newest),
        hint=f'name the checkpoint to resume from in that file (model_checkpoint_path: "{newest[-1]}"), or remove it '
        "to train from the start",
    )


def _leave(model_dir: str, good: str, kept: list[str], bad: list[tuple[str, str]], state: _CheckpointState) -> None:
    """Name `good` as the latest checkpoint, and set the damaged ones aside.

    The state file is written first: otherwise a kill after a move would leave a state file that names missing files.
    It lists the damaged ones last until they are moved, so that the next rescue() finds them.
    """
    if state.newest is not None and not _is_there(state.newest):
        logger.warning("The checkpoint %s, the newest according to the state file, does not exist", state.latest)
    if bad:
        _write_state(model_dir, newest=good, paths=[*kept, *(path for path, _ in bad)], before=state)
        _set_aside(model_dir, bad)
    moved = state.latest != good
    if bad or moved or any(path not in kept for path in state.later):
        _write_state(model_dir, newest=good, paths=kept, before=state)
    if bad or moved:
        logger.warning("Training resumes from %s", good)


def _set_aside(model_dir: str, bad: Iterable[tuple[str, str]]) -> None:
    """Move the files of damaged checkpoints (path and damage) to a separate folder, for inspection.

    Files in other directories are not moved: they may belong to another run.
    """
    folder = _folder_aside(model_dir)
    for path, reason in bad:
        if not is_below(path, model_dir):
            logger.warning("The checkpoint %s is damaged (%s)", path, reason)
            continue
        for file in files_of(path):
            _move(file, folder)
        logger.warning("The checkpoint %s is damaged (%s); set aside in %s", path, reason, folder)


def _start_from_scratch(model_dir: str) -> None:
    to = _move(os.path.join(model_dir, _STATE), _folder_aside(model_dir))
    logger.warning(
        "The file %r of %s names no existing checkpoint: training starts at step 0. The file was moved to %s",
        *(_STATE, model_dir, to),
    )


def _folder_aside(model_dir: str) -> str:
    folder = os.path.join(model_dir, _DAMAGED, time.strftime("%Y%m%d-%H%M%S"))
    compat.tensorflow().io.gfile.makedirs(folder)
    return folder


def _move(file: str, folder: str) -> str:
    to = os.path.join(folder, os.path.basename(file))
    compat.tensorflow().io.gfile.rename(file, to, overwrite=True)
    return to


def _warn_of_unnamed(model_dir: str) -> None:
    kinds = _kinds_on_disk(model_dir)
    unnamed = sorted((path for kind in KINDS for path in kinds.get(kind, [])), key=checkpoint_step)
    if unnamed:
        logger.warning(
            "%s has checkpoints (the newest is %s) but no file %r that names them: training starts at step 0, as with "
            "TensorFlow",
            *(model_dir, os.path.basename(unnamed[-1]), _STATE),
        )


# -- the state file ---------------------------------------------------------------------------------------------------


def _read_state(model_dir: str) -> _CheckpointState:
    """Read the directory's state file; a truncated file names no checkpoint."""
    tf = compat.tensorflow()
    path = os.path.join(model_dir, _STATE)
    if not tf.io.gfile.exists(path):
        return _CheckpointState()
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            whole = b"model_checkpoint_path" in file.read()
        state = tf.train.get_checkpoint_state(model_dir) if whole else None
    except (tf.errors.OpError, ValueError):
        state = None
    if state is None or not state.model_checkpoint_path:
        return _CheckpointState(is_there=True)
    latest = state.model_checkpoint_path
    named = list(dict.fromkeys([*state.all_model_checkpoint_paths, latest]))
    actual = {path: _where(model_dir, path) for path in named}
    stamps = zip(state.all_model_checkpoint_paths, state.all_model_checkpoint_timestamps, strict=False)
    return _CheckpointState(
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
    return here if here != path and not _is_there(path) and _is_there(here) else path


def _write_state(model_dir: str, *, newest: str, paths: list[str], before: _CheckpointState) -> None:
    """Write a state file with `newest` as the latest checkpoint, and all `paths`, oldest first."""
    # Relative to the directory, as the engines' savers write them, so that it can be moved.
    start = os.path.join(model_dir, "")
    # With "/" as the directory, TensorFlow leaves the names unchanged.
    state = compat.tensorflow().compat.v1.train.generate_checkpoint_state_proto(
        "/", newest.removeprefix(start), last_preserved_timestamp=before.preserved or None
    )
    # Other names may follow the newest one; see `_leave`.
    del state.all_model_checkpoint_paths[:]
    state.all_model_checkpoint_paths.extend(path.removeprefix(start) for path in paths)
    stamps = [before.stamps.get(path, 0.0) for path in paths]
    if all(stamps):
        state.all_model_checkpoint_timestamps.extend(stamps)
    write_whole(os.path.join(model_dir, _STATE), str(state))


# -- files ------------------------------------------------------------------------------------------------------------


def files_of(path: str) -> list[str]:
    """Return the existing files of a checkpoint ("model_dir/model.ckpt-200"), in any format."""
    folder, base = os.path.split(path)
    gfile = compat.tensorflow().io.gfile
    if not base or not gfile.isdir(folder or "."):
        return []
    of_it = re.compile(re.escape(base) + _SUFFIX)
    files = [os.path.join(folder, name) for name in gfile.listdir(folder or ".") if of_it.fullmatch(name)]
    return [file for file in files if file != path or not gfile.isdir(file)]


def _is_there(path: str) -> bool:
    """Return whether any file of a checkpoint exists."""
    # A directory may have thousands of files: it is listed only if necessary.
    return compat.tensorflow().io.gfile.exists(path + ".index") or bool(files_of(path))


def _kind_of(path: str) -> str | None:
    """Return "model.ckpt" for "model_dir/model.ckpt-200"; None for a checkpoint without a step in its name."""
    match = re.match(r"(.+)-\d+$", os.path.basename(path))
    return match[1] if match else None


def _kinds_on_disk(model_dir: str) -> dict[str, list[str]]:
    """Return the checkpoints with an index in the directory, by their name without "-STEP"; each oldest first."""
    matches = [match for name in compat.tensorflow().io.gfile.listdir(model_dir) if (match := _INDEX.match(name))]
    kinds: dict[str, list[str]] = {}
    for match in sorted(matches, key=lambda match: int(match[2])):
        kinds.setdefault(match[1], []).append(os.path.join(model_dir, match[0].removesuffix(".index")))
    return kinds


def _remove_leftovers(model_dir: str, kinds: Iterable[str]) -> None:
    """Remove TensorFlow's temporary files of an interrupted write of checkpoints with these names."""
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

    A task that is `apart` has a separate model directory, different from the chief's.
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
        kinds = _kinds_on_disk(model_dir)
        latest = next((kinds[kind][-1] for kind in (PREFIXES[engine], *PREFIXES.values()) if kind in kinds), None)
    if latest is None:
        return
    for other, prefix in PREFIXES.items():
        if other != engine and os.path.basename(latest).startswith(f"{prefix}-"):
            of_other = (
                "an Estimator's checkpoint" if other == "estimator" else f"a checkpoint of the {_NAMES[other]} engine"
            )
            raise ConfigError(
                f"the {_NAMES[engine]} engine cannot resume from {of_other}: names and optimizer slots differ",
                code="model-dir/other-model",
                found=latest,
                hint=f"convert it with estimator-pipeline migrate checkpoint {model_dir} --to {engine} --job JOB.yaml "
                f"to resume from it; or use a separate model_dir for the {_NAMES[engine]} run: --set run.model_dir=...",
            )
