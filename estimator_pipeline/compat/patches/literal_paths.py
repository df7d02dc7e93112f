r"""A path with `[`, `*`, `?` or a backslash is the path that it is, not a pattern.

TensorFlow looks for a checkpoint by matching its path as a pattern. A run's folder `lr=0.1,units=[8,4]` matches
nothing: the training writes its checkpoints, "no checkpoint" is found by the evaluation and by the next start, and old
ones are never removed (tensorflow#35489). The Estimator's early stopping finds no evaluation there either.

Python's part can be told apart from the pattern. TensorFlow's C++ cannot: the kernel of `RestoreV2` and the reader of
checkpoints match the path as a pattern first, and then open the same path as it stands. So both are given the folder
by another name, a link in the folder for temporary files. Its name follows from the path alone: all processes of a
user on a machine share it, and at most one is left for each such folder. What is written is written by its own name.

Private use: `checkpoint_management.file_io`, `NewCheckpointReader`, `Saver.restore`, `TrackableSaver.restore` and
`io_ops.restore_v2`, through which every checkpoint is looked for and read; the estimator package's
`early_stopping._summaries`.
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

_PATTERN = re.compile(r"[\[*?\\]")  # what TensorFlow's file systems take for the beginning of a pattern


def apply() -> None:
    of_tensorflow()
    from tensorflow_estimator.python.estimator import early_stopping

    early_stopping._summaries = _by_link(early_stopping._summaries, 0, folder)


def of_tensorflow() -> None:
    """The part that needs no tf.estimator: a process with Keras 3 has it as well."""
    from tensorflow.python.checkpoint import checkpoint, checkpoint_management
    from tensorflow.python.lib.io import file_io
    from tensorflow.python.ops import io_ops
    from tensorflow.python.training import py_checkpoint_reader, saver

    class Files:
        """`file_io`, for the module that looks for checkpoints and removes old ones."""

        get_matching_files = staticmethod(_by_link(file_io.get_matching_files, 0))

        def __getattr__(self, name: str) -> Any:
            return getattr(file_io, name)

    checkpoint_management.file_io = Files()
    reader = py_checkpoint_reader.NewCheckpointReader
    replacing.everywhere(reader, _by_link(reader, 0))
    saver.Saver.restore = _by_link(saver.Saver.restore, 2)
    checkpoint.TrackableSaver.restore = _by_link(checkpoint.TrackableSaver.restore, 1)
    # Of `init_from_checkpoint`, and with it of a warm start: a constant of the graph.
    io_ops.restore_v2 = _by_link(io_ops.restore_v2, 0)


def _by_link(original: Callable[..., Any], position: int, name: Callable[[Any], Any] | None = None) -> Any:
    """`original` with another name for the path, its argument at this position."""
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
    """A name for a file, or the prefix of some, whose folder's path has nothing of a pattern; else `path` as it is."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        return path
    above, name = os.path.split(os.fsdecode(path))
    link = folder(above)
    return path if link == above else os.path.join(link, name)


def folder(path: Any) -> Any:
    """A name for a folder that has nothing of a pattern; `path` as it is where it has none, or is not there."""
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
            logger.info("TensorFlow takes %s for a pattern, and reads it by the name %s", path, link)
        problem = "" if os.readlink(link) == path and os.lstat(links).st_uid == os.getuid() else f"{link} is another's"
    except OSError as error:
        problem = str(error)
    if problem or _PATTERN.search(link):
        raise CompatError(
            f"TensorFlow takes the path {path} for a pattern, and a link to it cannot be made",
            code="file/unwritable",
            found=problem or f"the folder for temporary files is {links}",
            hint="name the folder without [ ] * ? and \\, or set TMPDIR to a folder that can be written",
        )
    return link
