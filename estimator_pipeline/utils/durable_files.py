"""Atomic writes that survive a crash of the machine.

A rename is atomic for other processes, but not on the disk: after a power loss the new name may exist with an empty
file. So the content is synced first (fsync), then the file is renamed, then its folder is synced.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import os
import socket
from collections.abc import Callable, Iterable
from typing import Any

from estimator_pipeline.utils.process_state import STATE

__all__ = ["UNFINISHED", "rename", "sync", "sync_companions", "sync_tree", "with_checkpoints", "write"]

UNFINISHED = ".tmp"
"""The end of the names of temporary files. A process that is killed while writing leaves one."""
_numbers = itertools.count()

# Errors of file systems that have no fsync, are read-only, or are only writable for this user. Unlike EIO, ENOSPC and
# EDQUOT, they do not mean lost data.
_REFUSED = frozenset(
    {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EROFS, errno.EACCES, errno.EPERM, errno.EBADF}
)


def rename(
    unfinished: str | os.PathLike[str], path: str | os.PathLike[str], *, by: Callable[[Any, Any], Any] | None = None
) -> None:
    """Sync a temporary file or folder to disk, and rename it.

    Args:
        unfinished: A file, closed or flushed, or a folder with its content.
        path: The new name, on the same file system.
        by: The function that renames, by default `os.replace`; `tf.io.gfile.rename` if the path may be in an object
            store, whose durability is up to the store.

    Raises:
        OSError: The content cannot be synced or renamed; then nothing is renamed. Or an error of `by`.
    """
    sync_tree(unfinished)
    (by or os.replace)(unfinished, path)
    sync([os.path.dirname(os.fspath(path)) or "."])


def write(path: str | os.PathLike[str], content: bytes, *, to_disk: bool = True, gfile: Any = None) -> None:
    """Write a small file atomically: readers see the old or the new content.

    Args:
        path: The file, in an existing folder.
        content: The new content.
        to_disk: Whether to sync the content before the rename. Not needed for files that no process reads after a
            crash.
        gfile: `tf.io.gfile` if the path may be in an object store; None: it is on a mounted file system.

    Raises:
        OSError: The file cannot be written; or the error of `gfile`. It is unchanged then, and no other file is left.
    """
    # Tasks on several hosts, and threads, may write the same file.
    unfinished = f"{os.fspath(path)}.{socket.gethostname()}.{os.getpid()}.{next(_numbers)}{UNFINISHED}"
    replace = os.replace if gfile is None else functools.partial(gfile.rename, overwrite=True)
    try:
        with open(unfinished, "wb") if gfile is None else gfile.GFile(unfinished, "wb") as file:
            file.write(content)
        rename(unfinished, path, by=replace) if to_disk else replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(Exception):
            (os if gfile is None else gfile).remove(unfinished)
        raise


def sync(paths: Iterable[str | os.PathLike[str]]) -> None:
    """Sync files, or the names in folders, to disk.

    Paths with a scheme ("gs://"), files that do not exist, and file systems without fsync are skipped.

    Raises:
        OSError: The data could not be written to the disk.
    """
    for path in paths:
        if "://" in os.fspath(path):
            continue
        try:
            # fsync of any descriptor syncs all of the file's pages, whichever process wrote them.
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


def with_checkpoints(companion: Any) -> None:
    """Register an object whose `sync()` is called before each checkpoint."""
    STATE.synced_files.add(companion)


def sync_companions() -> None:
    """Sync the registered objects; called before a checkpoint gets its name."""
    for companion in list(STATE.synced_files):
        companion.sync()


def sync_tree(path: str | os.PathLike[str]) -> None:
    """Apply `sync` to a file, or to a folder and its content."""
    if not os.path.isdir(path):
        sync([path])
        return
    for folder, _, names in os.walk(path, topdown=False):
        sync([*(os.path.join(folder, name) for name in sorted(names)), folder])
