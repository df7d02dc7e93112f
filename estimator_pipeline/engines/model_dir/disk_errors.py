"""Atomic file writes, and the error of a disk that is full, read-only or failing.

Any file of a run may hit a full disk: a checkpoint, a summary, a task's status file. TensorFlow and Python raise
different errors for it, which are converted to one message here.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator

from estimator_pipeline import compat
from estimator_pipeline.engines.model_dir.layout import checkpoint_step
from estimator_pipeline.errors import DiskError
from estimator_pipeline.utils import durable_files as durable
from estimator_pipeline.utils import io_errors

__all__ = ["explained", "explaining", "has_no_room", "is_below", "read_whole", "write_whole"]

# Messages of the operating system, in whatever error TensorFlow wraps them.
_NO_ROOM = ("no space left on device", "disk quota exceeded", "file too large")
_READ_ONLY = ("read-only file system",)
# These also occur for a file that cannot be read.
_DENIED = ("permission denied", "operation not permitted")


def has_no_room(text: str) -> bool:
    """Return whether an error's text reports a full disk."""
    return any(words in text.lower() for words in _NO_ROOM)


def explained(error: BaseException, *, model_dir: str) -> DiskError | None:
    """Return a DiskError for a file that could not be written or read because of the disk; None for other errors.

    "Permission denied" outside the model directory is not converted: it may concern a data file.

    Args:
        error: The error that training raised.
        model_dir: The model directory.
    """
    text = str(getattr(error, "message", error))
    lowered = text.lower()
    why = next((words for words in (*_NO_ROOM, *_READ_ONLY, *_DENIED, *io_errors.WORDS) if words in lowered), None)
    if why is None or not isinstance(error, (OSError, compat.tensorflow().errors.OpError)):
        return None
    place = getattr(error, "filename", None) or _place(text, why)
    elsewhere = place is not None and not is_below(place, model_dir)
    if elsewhere and why in _DENIED:
        return None
    latest = None
    with contextlib.suppress(Exception):
        latest = compat.tensorflow().train.latest_checkpoint(model_dir)
    saved = f"is at step {checkpoint_step(latest)} ({latest})" if latest else "does not exist yet"
    if why in io_errors.WORDS:
        return DiskError(
            f"{place or f'a file of {model_dir}'} cannot be read or written: {why}",
            found=f"the last complete checkpoint {saved}",
            hint=io_errors.HINT,
        )
    return DiskError(
        f"training cannot write to {place if elsewhere else model_dir}: {why}",
        found=f"{f'{place}; ' if place else ''}the last complete checkpoint {saved}",
        hint="free space, or make the directory writable; the same command then resumes from that checkpoint",
    )


@contextlib.contextmanager
def explaining(model_dir: str) -> Iterator[None]:
    """Raise the errors of `explained` within the block; other errors are unchanged."""
    try:
        yield
    except Exception as error:
        plain = explained(error, model_dir=model_dir)
        if plain is None:
            raise
        raise plain from error


def write_whole(path: str, text: str) -> None:
    """Write a file atomically: after a kill, a full disk or a power loss it has the old or the new text.

    The path is any that `tf.io.gfile` can write. Its directory must exist. Errors are those of `durable_files.write`.
    """
    durable.write(path, text.encode(), gfile=compat.tensorflow().io.gfile if "://" in path else None)


def read_whole(path: str) -> str | None:
    """Return the text of a file; None if it does not exist.

    The path is any that `tf.io.gfile` can read. A mounted file is read without TensorFlow, whose import takes seconds.
    """
    if "://" not in path:
        with contextlib.suppress(FileNotFoundError), open(path, encoding="utf-8") as file:
            return file.read()
        return None
    gfile = compat.tensorflow().io.gfile
    if not gfile.exists(path):
        return None
    with gfile.GFile(path) as file:
        return file.read()


def is_below(path: str, model_dir: str) -> bool:
    """Return whether a path is in a directory."""
    if path.startswith(os.path.join(model_dir, "")):
        return True
    return "://" not in path and os.path.realpath(path).startswith(os.path.join(os.path.realpath(model_dir), ""))


def _place(text: str, why: str) -> str | None:
    """Return the file that an error of TensorFlow or Python names, if any."""
    if place := io_errors.place_in(text, why):
        return place
    match = re.search(r"(?:^|[\s;:'])(/[^\s']+?|\w+://[^\s']+?)(?:[;']|:?\s|$)", text)
    return match[1] if match else None
