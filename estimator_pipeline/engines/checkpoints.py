"""Checkpoints that can be trusted: which one a run goes on from, when some are damaged or cut off.

TensorFlow writes a checkpoint as a few files and then names it in the state file `checkpoint`. A process that is
killed at any moment of that, a disk that is full or loses power, leave files that are torn or missing. Before a run
trains, the task that writes the checkpoints reads the newest one whole (every tensor has a checksum in the file); one
that is damaged is set aside, and the one before it is taken. What cannot be restored is never silently trained on from
step 0.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.engines.hooks import checkpoint_step
from estimator_pipeline.errors import TaskFailedError
from estimator_pipeline.log import logger

__all__ = ["damage", "explained", "rescue"]

# Where damaged checkpoints are moved to, below the model directory.
SET_ASIDE = "damaged"
_STATE = "checkpoint"
_NAME = re.compile(r"^((?:model\.ckpt|ckpt|keras3)-(\d+))\.(index|meta|data-\d{5}-of-\d{5})$")
# What TensorFlow leaves of a write that was cut off: "model.ckpt-300_temp", "model.ckpt-300.index.tempstate123".
_LEFTOVER = re.compile(r"^(?:model\.ckpt|ckpt|keras3)-\d+(?:_temp.*|.*\.tempstate\d+)$")
# Said by the operating system, in whatever error TensorFlow wraps it.
_NO_ROOM = ("no space left on device", "disk quota exceeded", "file too large")
_NO_WRITING = ("read-only file system", "permission denied", "operation not permitted")


def damage(path: str, *, finite: bool = False) -> str | None:
    """What is wrong with a checkpoint; None where every tensor in it can be read and has its checksum.

    Args:
        path: as TensorFlow names it: "model_dir/model.ckpt-200".
        finite: whether NaN and infinities in a floating-point tensor count as damage.

    Returns:
        One line, or None.
    """
    tf = compat.install()
    import numpy as np

    try:
        reader = tf.train.load_checkpoint(path)
        for name in sorted(reader.get_variable_to_shape_map()):
            value = reader.get_tensor(name)
            if finite and np.issubdtype(np.asarray(value).dtype, np.floating) and not np.isfinite(value).all():
                return f"{name} holds values that are not finite"
    except Exception as error:
        # An OpError, a ValueError, an IndexError and others: it depends on what is torn, and on the version.
        text = str(getattr(error, "message", error)).strip()
        return text.splitlines()[0][:300] if text else type(error).__name__
    return None


def rescue(model_dir: str, *, finite: bool = False) -> str | None:
    """Leaves the newest good checkpoint as the latest one of the directory; for the task that writes them.

    Args:
        model_dir: the model directory.
        finite: see :func:`damage`; for a run that goes on after one that diverged.

    Returns:
        The path of the latest checkpoint, verified; None where the directory has none.

    Raises:
        TaskFailedError: there are checkpoints, and none of them can be restored.
    """
    gfile = compat.install().io.gfile
    if not gfile.isdir(model_dir):
        return None
    _remove_leftovers(model_dir)
    named, torn = _named(model_dir)
    candidates = named or (_on_disk(model_dir) if torn else [])
    if not candidates:
        _tell_of_unnamed(model_dir)
        if torn:
            gfile.remove(os.path.join(model_dir, _STATE))
        return None
    bad: list[tuple[str, str]] = []
    for path in reversed(candidates):
        reason = damage(path, finite=finite)
        if reason is None:
            break
        bad.append((path, reason))
    else:
        if named and not torn:
            # The state file may name less than there is: a state that was put back from a copy.
            others = [path for path in _on_disk(model_dir) if path not in named]
            found = next((path for path in reversed(others) if damage(path, finite=finite) is None), None)
            if found is not None:
                _set_aside(model_dir, bad)
                _write_state(model_dir, [found])
                return found
        raise TaskFailedError(
            f"no checkpoint in {model_dir} can be restored",
            found="; ".join(f"{os.path.basename(path)}: {reason}" for path, reason in bad),
            mend="put a copy of a good one back, or give another model_dir to train from the start",
        )
    good = candidates[: len(candidates) - len(bad)]
    if bad:
        _set_aside(model_dir, bad)
    if bad or torn:
        _write_state(model_dir, good)
    return good[-1]


def explained(error: BaseException, *, model_dir: str) -> TaskFailedError | None:
    """The error of a checkpoint, summary or other file that could not be written, as one message; None for any other.

    Args:
        error: what training raised.
        model_dir: where its files go.
    """
    text = str(getattr(error, "message", error))
    lowered = text.lower()
    why = next((words for words in (*_NO_ROOM, *_NO_WRITING) if words in lowered), None)
    if why is None or not isinstance(error, (OSError, compat.install().errors.OpError)):
        return None
    latest = None
    with contextlib.suppress(Exception):
        latest = compat.install().train.latest_checkpoint(model_dir)
    stands = f"step {checkpoint_step(latest)} ({latest})" if latest else "the start: there is none yet"
    return TaskFailedError(
        f"training cannot write to {model_dir}: {why}",
        found=f"{_place(text)}the last checkpoint that is whole stands at {stands}",
        mend="make room, or let the directory be written; the same command then goes on from that checkpoint",
    )


def _place(text: str) -> str:
    """The file that an error of TensorFlow names first, if any."""
    found = re.search(r"(?:^|[\s;:])(/\S+?|\w+://\S+?)(?:;|:?\s|$)", text)
    return f"{found[1]}; " if found else ""


def _named(model_dir: str) -> tuple[list[str], bool]:
    """The checkpoints that the state file names, oldest first, and whether that file is there and cannot be used."""
    tf = compat.install()
    path = os.path.join(model_dir, _STATE)
    if not tf.io.gfile.exists(path):
        return [], False
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            whole = b"model_checkpoint_path" in file.read()
        state = tf.train.get_checkpoint_state(model_dir) if whole else None
    except (tf.errors.OpError, ValueError):
        state = None
    if state is None or not state.model_checkpoint_path:
        return [], True
    paths = list(dict.fromkeys([*state.all_model_checkpoint_paths, state.model_checkpoint_path]))
    # Files that keep_checkpoint_max has deleted are no damage, as long as there are others.
    there = [one for one in paths if _files(one)]
    return sorted(there, key=checkpoint_step), not there


def _on_disk(model_dir: str) -> list[str]:
    """The checkpoints whose index lies in the directory, oldest first."""
    names = compat.install().io.gfile.listdir(model_dir)
    found = [match for name in names if (match := _NAME.match(name)) and match[3] == "index"]
    return [os.path.join(model_dir, one[1]) for one in sorted(found, key=lambda one: int(one[2]))]


def _files(path: str) -> list[str]:
    folder, base = os.path.split(path)
    gfile = compat.install().io.gfile
    if not gfile.isdir(folder):
        return []
    return [
        os.path.join(folder, name)
        for name in gfile.listdir(folder)
        if (found := _NAME.match(name)) and found[1] == base
    ]


def _set_aside(model_dir: str, bad: list[tuple[str, str]]) -> None:
    """Moves the files of damaged checkpoints out of the way, for somebody who wants to look at them."""
    gfile = compat.install().io.gfile
    folder = os.path.join(model_dir, SET_ASIDE, time.strftime("%Y%m%d-%H%M%S"))
    gfile.makedirs(folder)
    for path, reason in bad:
        for file in _files(path):
            gfile.rename(file, os.path.join(folder, os.path.basename(file)), overwrite=True)
        logger.warning("The checkpoint %s is damaged (%s); set aside in %s", path, reason, folder)


def _write_state(model_dir: str, paths: list[str]) -> None:
    tf = compat.install()
    stamps: dict[str, float] = {}
    with contextlib.suppress(tf.errors.OpError, ValueError):
        state = tf.train.get_checkpoint_state(model_dir)
        if state is not None:
            stamps = dict(zip(state.all_model_checkpoint_paths, state.all_model_checkpoint_timestamps, strict=False))
    known: Any = [stamps.get(path, 0.0) for path in paths]
    tf.compat.v1.train.update_checkpoint_state(
        model_dir,
        paths[-1],
        all_model_checkpoint_paths=paths,
        all_model_checkpoint_timestamps=known if all(known) else None,
    )
    logger.warning("Training goes on from %s", paths[-1])


def _remove_leftovers(model_dir: str) -> None:
    gfile = compat.install().io.gfile
    for name in gfile.listdir(model_dir):
        if _LEFTOVER.match(name.rstrip("/")):
            path = os.path.join(model_dir, name.rstrip("/"))
            (gfile.rmtree if gfile.isdir(path) else gfile.remove)(path)


def _tell_of_unnamed(model_dir: str) -> None:
    found = _on_disk(model_dir)
    if found:
        logger.warning(
            "%s has checkpoints (the newest is %s) and no file named %r that says so: training begins at step 0, as "
            "it does with TensorFlow",
            *(model_dir, os.path.basename(found[-1]), _STATE),
        )
