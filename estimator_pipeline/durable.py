"""Files that are on the disk before they take their name: what a crash of the machine leaves is whole.

A rename is atomic for whoever looks, and says nothing of the disk: after a power loss the new name may stand there with
nothing in it. So the content goes to the disk first (fsync), then the name, then the folder that holds the name.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["rename", "sync", "sync_tree"]

# What a file system says that has no fsync, that is read-only, or that lets this user only write. None of them says
# that something is lost, as EIO, ENOSPC and EDQUOT do.
_REFUSED = frozenset(
    {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EROFS, errno.EACCES, errno.EPERM, errno.EBADF}
)


def rename(
    unfinished: str | os.PathLike[str], path: str | os.PathLike[str], *, by: Callable[[Any, Any], Any] | None = None
) -> None:
    """Renames what was written aside, once it is on the disk.

    Args:
        unfinished: a file, closed or flushed, or a folder with all that is in it.
        path: its name from now on, on the same file system.
        by: what renames, `os.replace` by default; `tf.io.gfile.rename` where the path may be one of an object store,
            which is left to it.

    Raises:
        OSError: the disk has not taken it, or it cannot be renamed; nothing has been renamed then. Or what `by` raises.
    """
    sync_tree(unfinished)
    (by or os.replace)(unfinished, path)
    sync([os.path.dirname(os.fspath(path)) or "."])


def sync(paths: Iterable[str | os.PathLike[str]]) -> None:
    """Waits until what was written to files, or to the list of names of a folder, is on the disk.

    Paths with a scheme ("gs://"), files that are not there, and file systems that refuse are passed over.

    Raises:
        OSError: the disk has not taken it.
    """
    for path in paths:
        if "://" in os.fspath(path):
            continue
        try:
            # Whoever has written: the kernel keeps a file's pages once.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in _REFUSED or error.errno == errno.ENOENT:
                continue
            raise
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in _REFUSED:
                raise OSError(error.errno, error.strerror, os.fspath(path)) from error
        finally:
            os.close(descriptor)


def sync_tree(path: str | os.PathLike[str]) -> None:
    """:func:`sync` of a file, or of a folder and all that is in it."""
    if not os.path.isdir(path):
        sync([path])
        return
    for folder, _, names in os.walk(path, topdown=False):
        sync([*(os.path.join(folder, name) for name in sorted(names)), folder])
