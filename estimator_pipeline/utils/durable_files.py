"""Files that are on the disk before they take their name: what a crash of the machine leaves is whole.

A rename is atomic for whoever looks, and says nothing of the disk: after a power loss the new name may stand there with
nothing in it. So the content goes to the disk first (fsync), then the name, then the folder that holds the name.
"""

from __future__ import annotations

import contextlib
import errno
import os
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

__all__ = ["rename", "sync", "sync_companions", "sync_tree", "with_checkpoints", "write"]

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


def write(path: str | os.PathLike[str], content: bytes, *, to_disk: bool = True) -> None:
    """Writes a small local file, whole or not at all: what is read there is the old content or the new one.

    Args:
        path: of the file; its folder is there.
        content: what it holds then.
        to_disk: whether it is on the disk before it has its name. Not needed where nobody reads it after a crash.

    Raises:
        OSError: it could not be written; nothing of it is left.
    """
    half = Path(path).with_name(f".{os.path.basename(path)}.{os.getpid()}")
    try:
        half.write_bytes(content)
        rename(half, path) if to_disk else os.replace(half, path)
    finally:
        with contextlib.suppress(OSError):
            half.unlink()


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


_companions: weakref.WeakSet[Any] = weakref.WeakSet()


def with_checkpoints(companion: Any) -> None:
    """Has `companion.sync()` be called before each checkpoint that this process names: what tells of its steps."""
    _companions.add(companion)


def sync_companions() -> None:
    """For whoever names a checkpoint."""
    for companion in list(_companions):
        companion.sync()


def sync_tree(path: str | os.PathLike[str]) -> None:
    """:func:`sync` of a file, or of a folder and all that is in it."""
    if not os.path.isdir(path):
        sync([path])
        return
    for folder, _, names in os.walk(path, topdown=False):
        sync([*(os.path.join(folder, name) for name in sorted(names)), folder])
