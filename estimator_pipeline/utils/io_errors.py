"""The errors of a disk or a file server that fails: told with the file's name, in one message.

They say nothing of what was given: the same may succeed later, elsewhere, or when the disk is mended.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator

from estimator_pipeline.errors import DiskError

__all__ = ["HINT", "WORDS", "code_of", "explained", "failed", "naming", "place_in"]

_FAILED = (errno.EIO, errno.EBADMSG, errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT, errno.EUCLEAN, errno.EREMOTEIO)
# As the operating system says them, in whatever error TensorFlow wraps them.
WORDS = tuple(os.strerror(number).lower() for number in _FAILED if number not in (errno.ENOTCONN, errno.ETIMEDOUT))
HINT = "look at that disk or file server (dmesg tells more); when it answers again, the same command goes on"


def code_of(error: BaseException) -> str:
    """The code of the error for a file that was named and could not be read."""
    return "file/not-found" if isinstance(error, FileNotFoundError) else "file/unreadable"


def failed(error: BaseException) -> bool:
    """Whether an error says that a disk or a file server fails."""
    return isinstance(error, OSError) and error.errno in _FAILED


def explained(error: BaseException) -> DiskError | None:
    """What the operating system or TensorFlow says of a disk that fails, as one message; None for any other error."""
    text = str(getattr(error, "message", error))
    why = next((words for words in WORDS if words in text.lower()), None)
    if why is None or not (isinstance(error, OSError) or type(error).__module__.startswith("tensorflow.")):
        return None
    place = getattr(error, "filename", None) or place_in(text, why) or "a file"
    return DiskError(f"{place} cannot be read or written: {why}", hint=HINT)


def place_in(text: str, why: str) -> str | None:
    """The file in an error of TensorFlow's, which tells it before what the operating system says."""
    found = re.search(rf"(\S+); {re.escape(why)}", text, re.IGNORECASE)
    return found and found[1]


@contextlib.contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """In the block, which reads one file, the error of a disk that fails names it.

    Raises:
        DiskError: it could not be read. Any other error stays as it is.
    """
    try:
        yield
    except OSError as error:
        if not failed(error):
            raise
        raise DiskError(f"{os.fspath(path)} cannot be read: {error.strerror}", hint=HINT) from error
