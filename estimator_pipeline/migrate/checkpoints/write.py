"""Atomic writing of a migrated checkpoint: written to a temporary name, then renamed.

A checkpoint consists of data files, an index, and the file `checkpoint` that names it. They are moved in this order. A
reader requires the index, so an interrupted migration leaves no partial checkpoint.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.engines.model_dir import lock
from estimator_pipeline.engines.model_dir.layout import DIRECTORY
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.migrate.checkpoints.read import MIGRATED
from estimator_pipeline.utils import durable_files as durable

__all__ = ["check_folder", "into_folder", "temporary_folder", "to_file", "write_mapping"]

_LOCK_SECS = 2.0
_IDENTITY = os.path.join(DIRECTORY, "identity.json")


def check_folder(folder: str, *, prefix: str, source: str, overwrite: bool) -> None:
    """Reject a folder with checkpoints other than the source.

    Args:
        folder: The folder for the new checkpoint.
        prefix: The file name of the new checkpoint, without its step.
        source: The checkpoint that is read; it may be in the folder.
        overwrite: Whether to replace existing checkpoints.

    Raises:
        ConfigError: The folder has other checkpoints.
    """
    tf = compat.tensorflow()
    if overwrite or not tf.io.gfile.isdir(folder):
        return
    index = re.compile(rf"{re.escape(prefix)}-\d+\.index")
    existing = sorted(name.removesuffix(".index") for name in tf.io.gfile.listdir(folder) if index.fullmatch(name))
    existing = [os.path.join(folder, name) for name in existing]
    latest = tf.train.latest_checkpoint(folder)
    if latest is not None and latest not in existing:
        existing.append(latest)
    others = [path for path in existing if os.path.abspath(path) != os.path.abspath(source)]
    if others:
        raise ConfigError(
            f"{folder} already has checkpoints, and a training would resume from the migrated one",
            code="file/exists",
            found=", ".join(others[:6]),
            hint="give a separate folder (--output, --set run.model_dir=...), or --overwrite to replace them",
        )


@contextlib.contextmanager
def temporary_folder(folder: str) -> Iterator[str]:
    """Lock `folder` against trainings, and yield a temporary folder in it."""
    gfile = compat.tensorflow().io.gfile
    try:
        gfile.makedirs(folder)
    except compat.tensorflow().errors.OpError as error:
        raise ConfigError(
            f"the folder {folder} cannot be created", code="file/unwritable", found=error.message
        ) from error
    with lock.hold(folder, owner="migrate checkpoint", run_id=uuid.uuid4().hex, wait=_LOCK_SECS):
        temporary = os.path.join(folder, f".migrate-{uuid.uuid4().hex[:8]}")
        gfile.makedirs(temporary)
        try:
            yield temporary
        finally:
            with contextlib.suppress(compat.tensorflow().errors.OpError):
                gfile.rmtree(temporary)


def into_folder(folder: str, written: str, *, run: str, record: Mapping[str, Any]) -> str:
    """Move a complete checkpoint into a folder as its latest one.

    Args:
        folder: The folder, locked by `temporary_folder`.
        written: The prefix of the checkpoint in a temporary folder.
        run: The model directory of the source. Its run identity is copied, so that the resumed run is checked
            against it.
        record: The record of the migration, written beside the checkpoint.

    Returns:
        The prefix of the checkpoint.
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
            # From an earlier run in this folder.
            gfile.remove(os.path.join(folder, _IDENTITY))
    with gfile.GFile(os.path.join(folder, DIRECTORY, MIGRATED), "w") as file:
        file.write(json.dumps(record, indent=1))
    # For a relative folder, TensorFlow requires a relative checkpoint path and writes only its name.
    named = base if os.path.isabs(folder) or "://" in folder else prefix
    tf.compat.v1.train.update_checkpoint_state(folder, named, all_model_checkpoint_paths=[named])
    return prefix


def to_file(path: str, write: Callable[[str], Any], *, overwrite: bool) -> None:
    """Write a file under a temporary name with the same extension, then rename it.

    Raises:
        ConfigError: The file already exists.
    """
    gfile = compat.tensorflow().io.gfile
    if gfile.exists(path) and not overwrite:
        raise ConfigError(
            f"{path} already exists", code="file/exists", hint="give a different --output, or --overwrite to replace it"
        )
    local = tempfile.mkdtemp(prefix="estimator-pipeline-migrate-")
    try:
        local_path = os.path.join(local, os.path.basename(path))
        write(local_path)
        if os.path.dirname(path):
            gfile.makedirs(os.path.dirname(path))
        unfinished = f"{path}.unfinished"
        gfile.copy(local_path, unfinished, overwrite=True)
        durable.rename(unfinished, path, by=functools.partial(gfile.rename, overwrite=True))
    finally:
        shutil.rmtree(local, ignore_errors=True)


def write_mapping(output: str, weights: Mapping[str, str], *, reverse: bool) -> str:
    """Write the mapping of weights beside the output, as YAML in the format of `--mapping`, and return its path.

    `migrate checkpoint` and `parity` read this format.

    Args:
        output: The checkpoint or file that was written.
        weights: Name in the target -> name in the checkpoint.
        reverse: Whether the checkpoint's names come first, because only the checkpoint is from Keras.
    """
    from ruamel.yaml import YAML

    pairs = {ours.partition(":")[0]: theirs.partition(":")[0] for ours, theirs in weights.items()}
    if reverse:
        pairs = {theirs: ours for ours, theirs in pairs.items()}
    content = io.BytesIO()
    YAML(typ="safe", pure=True).dump(pairs, content)
    path = f"{output}.mapping.yaml"
    durable.write(path, content.getvalue(), gfile=compat.tensorflow().io.gfile)
    return path
