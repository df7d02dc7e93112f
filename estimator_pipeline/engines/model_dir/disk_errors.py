"""Files that are written whole, and the one clear error of a disk that is full, cannot be written or fails.

At every moment of a run some file may be the one that finds no room: a checkpoint, a summary, a task's word to the
others. TensorFlow and Python each have errors of their own for it; a person gets one message.
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

__all__ = ["explained", "explaining", "has_no_room", "is_below", "write_whole"]

# Said by the operating system, in whatever error TensorFlow wraps it.
_NO_ROOM = ("no space left on device", "disk quota exceeded", "file too large")
_READ_ONLY = ("read-only file system",)
# Said of a file that cannot be read as well.
_DENIED = ("permission denied", "operation not permitted")


def has_no_room(text: str) -> bool:
    """Whether an error's text says that a disk is full."""
    return any(words in text.lower() for words in _NO_ROOM)


def explained(error: BaseException, *, model_dir: str) -> DiskError | None:
    """The error of a file that the disk does not write, or does not read, as one message; None for any other.

    A file elsewhere that is denied is another error: it may be one of the data, which are read.

    Args:
        error: what training raised.
        model_dir: where its files go.
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
    stands = f"step {checkpoint_step(latest)} ({latest})" if latest else "the start: there is none yet"
    if why in io_errors.WORDS:
        return DiskError(
            f"{place or f'a file of {model_dir}'} cannot be read or written: {why}",
            found=f"the last checkpoint that is whole stands at {stands}",
            hint=io_errors.HINT,
        )
    return DiskError(
        f"training cannot write to {place if elsewhere else model_dir}: {why}",
        found=f"{f'{place}; ' if place else ''}the last checkpoint that is whole stands at {stands}",
        hint="make room, or let the directory be written; the same command then goes on from that checkpoint",
    )


@contextlib.contextmanager
def explaining(model_dir: str) -> Iterator[None]:
    """In the block, the error of a file that cannot be written is one message.

    Args:
        model_dir: see :func:`explained`.

    Raises:
        DiskError: a file could not be read or written. Any other error stays as it is.
    """
    try:
        yield
    except Exception as error:
        plain = explained(error, model_dir=model_dir)
        if plain is None:
            raise
        raise plain from error


def write_whole(path: str, text: str) -> None:
    """Writes a file so that it holds the old text or the new one, whatever happens: a kill, a full disk, a power loss.

    Args:
        path: local or anything that `tf.io.gfile` can write. Its directory is there.
        text: all of it.

    Raises:
        OSError: it cannot be written; or the error of `tf.io.gfile`, for a path that is no local one. What was there
            is there still, and nothing besides.
    """
    gfile = compat.tensorflow().io.gfile
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        if "://" in path:
            with gfile.GFile(temporary, "w") as file:
                file.write(text)
            gfile.rename(temporary, path, overwrite=True)
        else:
            with open(temporary, "w", encoding="utf-8") as local:
                local.write(text)
            durable.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(Exception):
            gfile.remove(temporary)
        raise


def is_below(path: str, model_dir: str) -> bool:
    """Whether a path is one in a directory."""
    if path.startswith(os.path.join(model_dir, "")):
        return True
    return "://" not in path and os.path.realpath(path).startswith(os.path.join(os.path.realpath(model_dir), ""))


def _place(text: str, why: str) -> str | None:
    """The file that an error of TensorFlow or Python names, if any."""
    if told := io_errors.place_in(text, why):
        return told
    found = re.search(r"(?:^|[\s;:'])(/[^\s']+?|\w+://[^\s']+?)(?:[;']|:?\s|$)", text)
    return found[1] if found else None
