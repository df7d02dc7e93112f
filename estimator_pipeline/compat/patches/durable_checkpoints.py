"""A checkpoint is synced to disk before the state file names it.

TensorFlow writes a checkpoint's files, then writes the state file `checkpoint` to a temporary file and renames it,
without any sync. After a power loss or crash of the machine, the state file may be empty or name a checkpoint with
empty files, while older checkpoints have already been removed. Here the checkpoint's files, their folder and this
task's ledger are synced first, and then the state file before its rename.

Other files that TensorFlow writes and renames are synced too: `*.meta`, `graph.pbtxt` and `saved_model.pb`. So are the
files of an Estimator's export before its rename. Object stores are left to TensorFlow.

Private use: `checkpoint_management.update_checkpoint_state_internal`, with which each saver records a checkpoint, and
`file_io.atomic_write_string_to_file`, which writes the state file. The export's builder is public.
"""

from __future__ import annotations

import functools
import glob
import os
import uuid
from typing import Any

from estimator_pipeline.compat.patches import replacing
from estimator_pipeline.utils import durable_files as durable

NAME = "durable-checkpoints"
WHAT = "a checkpoint is synced to disk before the state file names it, and an export before its rename"


def apply() -> None:
    import tensorflow as tf

    of_tensorflow()
    builder = tf.compat.v1.saved_model.Builder
    save = builder.save

    @functools.wraps(save)
    def to_the_disk(self: Any, *args: Any, **kwargs: Any) -> Any:
        path = save(self, *args, **kwargs)
        durable.sync_tree(os.path.dirname(os.fsdecode(path)))
        return path

    builder.save = to_the_disk


def of_tensorflow() -> None:
    """Apply the part without tf.estimator, which processes with Keras 3 use too."""
    from tensorflow.python.checkpoint import checkpoint_management
    from tensorflow.python.lib.io import file_io

    name_it = checkpoint_management.update_checkpoint_state_internal
    write = file_io.atomic_write_string_to_file

    @functools.wraps(name_it)
    def update_checkpoint_state(save_dir: Any, model_checkpoint_path: Any, *args: Any, **kwargs: Any) -> Any:
        _sync_checkpoint(os.fsdecode(save_dir), os.fsdecode(model_checkpoint_path))
        durable.sync_companions()
        return name_it(save_dir, model_checkpoint_path, *args, **kwargs)

    @functools.wraps(write)
    def atomic_write(filename: Any, contents: Any, overwrite: bool = True) -> Any:
        name = os.fsdecode(filename)
        if "://" in name:
            return write(filename, contents, overwrite)
        unfinished = f"{name}.tmp{uuid.uuid4().hex}"
        try:
            file_io.write_string_to_file(unfinished, contents)
            durable.rename(unfinished, name, by=functools.partial(file_io.rename, overwrite=overwrite))
        except BaseException:
            if os.path.exists(unfinished):
                os.unlink(unfinished)
            raise

    replacing.everywhere(name_it, update_checkpoint_state)
    # tf_keras uses this name, for weights in TensorFlow's format.
    replacing.everywhere(name_it, update_checkpoint_state, shown_as="update_checkpoint_state")
    file_io.atomic_write_string_to_file = atomic_write


def _sync_checkpoint(save_dir: str, path: str) -> None:
    """Sync a checkpoint's files and their folder."""
    if "://" in path or "://" in save_dir:
        return
    if not os.path.isabs(path) and not os.path.exists(f"{path}.index"):
        # The state file has names relative to its folder.
        path = os.path.join(save_dir, path)
    prefix = glob.escape(path)
    # Files of format V2, and of TensorFlow 1's format V1.
    files = [*glob.glob(f"{prefix}.*"), *glob.glob(f"{prefix}-?????-of-?????"), path]
    durable.sync([*sorted(files), os.path.dirname(path) or "."])
