"""Errors of a failing disk or file server, in one message with the file's name.

They do not depend on the input: the same command may succeed later, or on a different disk.
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
# The messages of the operating system, which TensorFlow's errors contain.
WORDS = tuple(os.strerror(number).lower() for number in _FAILED if number not in (errno.ENOTCONN, errno.ETIMEDOUT))
HINT = "check that disk or file server (see dmesg); when it works again, the same command resumes"


def code_of(error: BaseException) -> str:
    """Return the error code for a file that could not be read."""
    return "file/not-found" if isinstance(error, FileNotFoundError) else "file/unreadable"


def failed(error: BaseException) -> bool:
    """Return whether an error is that of a failing disk or file server."""
    return isinstance(error, OSError) and error.errno in _FAILED


def explained(error: BaseException) -> DiskError | None:
    """Convert the error of a failing disk; None for any other error."""
    text = str(getattr(error, "message", error))
    why = next((message for message in WORDS if message in text.lower()), None)
    if why is None or not (isinstance(error, OSError) or type(error).__module__.startswith("tensorflow.")):
        return None
    place = getattr(error, "filename", None) or place_in(text, why) or "a file"
    return DiskError(f"{place} cannot be read or written: {why}", hint=HINT)


def place_in(text: str, why: str) -> str | None:
    """Return the file that precedes the system's message in a TensorFlow error."""
    match = re.search(rf"(\S+); {re.escape(why)}", text, re.IGNORECASE)
    return match and match[1]


@contextlib.contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Add the file's name to errors of a failing disk in the block.

    Raises:
        DiskError: The file cannot be read. Other errors are unchanged.
    """
    try:
        yield
    except OSError as error:
        if not failed(error):
            raise
        raise DiskError(f"{os.fspath(path)} cannot be read: {error.strerror}", hint=HINT) from error
