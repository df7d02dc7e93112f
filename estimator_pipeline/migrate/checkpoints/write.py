"""Puts a migrated checkpoint in its place: written under another name, renamed when it is whole.

A checkpoint is some files and the file `checkpoint` that names it: the data come first, then the index, without which
no reader takes it for one, and the name last. A process that ends in between leaves no half of a checkpoint.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.engines.lifecycle.rendezvous.rendezvous import DIRECTORY
from estimator_pipeline.engines.model_dir import lock
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.migrate.checkpoints.read import MIGRATED
from estimator_pipeline.utils import durable_files as durable

__all__ = ["check_folder", "into_folder", "own_folder", "to_file"]

_LOCK_SECS = 2.0
_IDENTITY = os.path.join(DIRECTORY, "identity.json")


def check_folder(folder: str, *, prefix: str, source: str, overwrite: bool) -> None:
    """Refuses a folder that holds checkpoints already, but for the one that is read.

    Args:
        folder: where a checkpoint is to be written.
        prefix: how it will be called, before its step.
        source: the checkpoint that is read; it may lie there.
        overwrite: whether what is there may be replaced.

    Raises:
        ConfigError: it does.
    """
    tf = compat.tensorflow()
    if overwrite or not tf.io.gfile.isdir(folder):
        return
    own = re.compile(rf"{re.escape(prefix)}-\d+\.index")
    there = sorted(name.removesuffix(".index") for name in tf.io.gfile.listdir(folder) if own.fullmatch(name))
    there = [os.path.join(folder, name) for name in there]
    latest = tf.train.latest_checkpoint(folder)
    if latest is not None and latest not in there:
        there.append(latest)
    others = [path for path in there if os.path.abspath(path) != os.path.abspath(source)]
    if others:
        raise ConfigError(
            f"{folder} holds checkpoints already, and a training would go on from the migrated one",
            code="file/exists",
            found=", ".join(others[:6]),
            hint="give a folder of its own (--output, --set run.model_dir=...), or --overwrite to replace them",
        )


@contextlib.contextmanager
def own_folder(folder: str) -> Iterator[str]:
    """In the block nobody trains in `folder`; gives a new folder inside of it, which is removed at its end."""
    gfile = compat.tensorflow().io.gfile
    try:
        gfile.makedirs(folder)
    except compat.tensorflow().errors.OpError as error:
        raise ConfigError(f"the folder {folder} cannot be made", code="file/unwritable", found=error.message) from error
    with lock.hold(folder, owner="migrate checkpoint", run_id=uuid.uuid4().hex, wait=_LOCK_SECS):
        temporary = os.path.join(folder, f".migrate-{uuid.uuid4().hex[:8]}")
        gfile.makedirs(temporary)
        try:
            yield temporary
        finally:
            with contextlib.suppress(compat.tensorflow().errors.OpError):
                gfile.rmtree(temporary)


def into_folder(folder: str, written: str, *, run: str, told: Mapping[str, Any]) -> str:
    """Move a whole checkpoint into a folder, as its latest one.

    Args:
        folder: the folder, which `own_folder` holds.
        written: the checkpoint's prefix, in a temporary folder.
        run: the model directory that it was migrated from. What that run is made of is written down there, and the
            run that goes on is held against it.
        told: of the migration, to be written down beside it.

    Returns:
        The checkpoint's prefix.
    """
    tf = compat.tensorflow()
    gfile = tf.io.gfile
    base = os.path.basename(written)
    prefix = os.path.join(folder, base)
    for stale in gfile.listdir(folder):
        if stale == f"{base}.index" or stale.startswith(f"{base}.data-"):
            gfile.remove(os.path.join(folder, stale))
    names = [name for name in gfile.listdir(os.path.dirname(written)) if name.startswith(f"{base}.")]
    for name in sorted(names, key=lambda name: name.endswith(".index")):
        gfile.rename(os.path.join(os.path.dirname(written), name), os.path.join(folder, name), overwrite=True)
    identity = os.path.join(run, _IDENTITY)
    if os.path.abspath(run) != os.path.abspath(folder):
        if gfile.exists(identity):
            gfile.copy(identity, os.path.join(folder, _IDENTITY), overwrite=True)
        elif gfile.exists(os.path.join(folder, _IDENTITY)):
            # Of a run that was there before.
            gfile.remove(os.path.join(folder, _IDENTITY))
    with gfile.GFile(os.path.join(folder, DIRECTORY, MIGRATED), "w") as file:
        file.write(json.dumps(told, indent=1))
    # Where the folder is a relative path TensorFlow wants the checkpoint's to be so too, and writes the name alone.
    named = base if os.path.isabs(folder) or "://" in folder else prefix
    tf.compat.v1.train.update_checkpoint_state(folder, named, all_model_checkpoint_paths=[named])
    return prefix


def to_file(path: str, write: Callable[[str], Any], *, overwrite: bool) -> None:
    """Write a file under another name, of the same ending, and renames it.

    Raises:
        ConfigError: it is there already.
    """
    gfile = compat.tensorflow().io.gfile
    if gfile.exists(path) and not overwrite:
        raise ConfigError(
            f"{path} is there already", code="file/exists", hint="give another --output, or --overwrite to replace it"
        )
    local = tempfile.mkdtemp(prefix="estimator-pipeline-migrate-")
    try:
        made = os.path.join(local, os.path.basename(path))
        write(made)
        if os.path.dirname(path):
            gfile.makedirs(os.path.dirname(path))
        unfinished = f"{path}.unfinished"
        gfile.copy(made, unfinished, overwrite=True)
        durable.rename(unfinished, path, by=functools.partial(gfile.rename, overwrite=True))
    finally:
        shutil.rmtree(local, ignore_errors=True)
