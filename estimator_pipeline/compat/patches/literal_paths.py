r"""Paths with `[`, `*`, `?` or a backslash are paths, not glob patterns.

TensorFlow finds a checkpoint by matching its path as a pattern. A run's folder `lr=0.1,units=[8,4]` matches nothing:
the training writes checkpoints, the evaluation and the next start find none, and old ones are never removed
(tensorflow#35489). The Estimator's early stopping finds no evaluation there either.

The Python code could escape the pattern, but TensorFlow's C++ code could not: the kernel of `RestoreV2` and the
checkpoint reader match the path as a pattern first, and then open the same path literally. So both get a symbolic link
to the folder, in the folder for temporary files. Its name depends only on the path: all processes of a user on a
machine share it, and at most one link per folder remains. Files are written by their original path.

Private use: `checkpoint_management.file_io`, `NewCheckpointReader`, `Saver.restore`, `TrackableSaver.restore` and
`io_ops.restore_v2`, which find and read every checkpoint; the estimator package's `early_stopping._summaries`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import tempfile
from collections.abc import Callable
from typing import Any

from estimator_pipeline.compat.patches import replacing
from estimator_pipeline.errors import CompatError
from estimator_pipeline.utils.logger import logger

NAME = "literal-paths"
WHAT = "checkpoints and evaluations are found in a folder whose path has [, *, ? or a backslash"

_PATTERN = re.compile(r"[\[*?\\]")  # characters that TensorFlow's file systems treat as the start of a pattern


def apply() -> None:
    of_tensorflow()
    from tensorflow_estimator.python.estimator import early_stopping

    early_stopping._summaries = _by_link(early_stopping._summaries, 0, folder)


def of_tensorflow() -> None:
    """Apply the part without tf.estimator, which processes with Keras 3 use too."""
    from tensorflow.python.checkpoint import checkpoint, checkpoint_management
    from tensorflow.python.lib.io import file_io
    from tensorflow.python.ops import io_ops
    from tensorflow.python.training import py_checkpoint_reader, saver

    class Files:
        """`file_io` for the module that finds checkpoints and removes old ones."""

        get_matching_files = staticmethod(_by_link(file_io.get_matching_files, 0))

        def __getattr__(self, name: str) -> Any:
            return getattr(file_io, name)

    checkpoint_management.file_io = Files()
    reader = py_checkpoint_reader.NewCheckpointReader
    replacing.everywhere(reader, _by_link(reader, 0))
    saver.Saver.restore = _by_link(saver.Saver.restore, 2)
    checkpoint.TrackableSaver.restore = _by_link(checkpoint.TrackableSaver.restore, 1)
    # For `init_from_checkpoint` and warm starts, where the path is a constant of the graph.
    io_ops.restore_v2 = _by_link(io_ops.restore_v2, 0)


def _by_link(original: Callable[..., Any], position: int, name: Callable[[Any], Any] | None = None) -> Any:
    """Wrap `original` so that the path, its argument at `position`, is replaced by a link."""
    name = name or file
    parameters = list(_parameters(original))

    @functools.wraps(original)
    def called(*args: Any, **kwargs: Any) -> Any:
        if len(args) > position:
            args = (*args[:position], name(args[position]), *args[position + 1 :])
        elif parameters[position] in kwargs:
            kwargs[parameters[position]] = name(kwargs[parameters[position]])
        return original(*args, **kwargs)

    return called


def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    import inspect

    return tuple(inspect.signature(function).parameters)


def file(path: Any) -> Any:
    """Return a path of a file or file prefix through a link, if its folder looks like a pattern."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        return path
    above, name = os.path.split(os.fsdecode(path))
    link = folder(above)
    return path if link == above else os.path.join(link, name)


def folder(path: Any) -> Any:
    """Return a link to a folder whose path looks like a pattern; other or missing folders are returned as they are."""
    text = os.fsdecode(path)
    if _PATTERN.search(text) is None or "://" in text or not os.path.isdir(text):
        return path
    return _link(os.path.abspath(text))


def _link(path: str) -> str:
    try:
        links = os.path.join(tempfile.gettempdir(), f"estimator-pipeline-{os.getuid()}")
        with contextlib.suppress(FileExistsError):
            os.mkdir(links, 0o700)
        link = os.path.join(links, hashlib.sha256(os.fsencode(path)).hexdigest()[:16])
        with contextlib.suppress(FileExistsError):
            os.symlink(path, link)
            logger.info("TensorFlow treats %s as a pattern; it is read by the link %s", path, link)
        valid = os.readlink(link) == path and os.lstat(links).st_uid == os.getuid()
        problem = "" if valid else f"{link} belongs to a different user or path"
    except OSError as error:
        problem = str(error)
    if problem or _PATTERN.search(link):
        raise CompatError(
            f"TensorFlow treats the path {path} as a pattern, and a link to it cannot be created",
            code="file/unwritable",
            found=problem or f"the folder for temporary files is {links}",
            hint="use a folder without [ ] * ? and \\ in its path, or set TMPDIR to a writable folder",
        )
    return link
