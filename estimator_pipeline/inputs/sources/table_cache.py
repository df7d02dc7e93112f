"""Arrow files in the cache folder of the user: one copy for all processes of a machine.

A file is written by one process, while others wait for it. It can be lost at any moment, and is then written again;
a process that has mapped it keeps its content. If the folder is read-only or full, each process has its own temporary
file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from estimator_pipeline.errors import DiskError
from estimator_pipeline.inputs.sources.index_cache import write_aside
from estimator_pipeline.utils.cache_folder import cache_dir
from estimator_pipeline.utils.deadline import Deadline
from estimator_pipeline.utils.logger import logger

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

__all__ = ["LIMIT_VARIABLE", "cached", "cached_text", "tables_folder", "unused_tables"]

LIMIT_VARIABLE = "ESTIMATOR_PIPELINE_TABLE_CACHE_GIB"
"""The size of the folder in GiB; the files that were not used for longest are removed."""
_LIMIT_GIB = 50.0
_WAIT_SECS = 600.0  # For a different process that writes the file; extended while the file grows.
_ABANDONED_SECS = 24 * 3600.0
_SUFFIX, _TEXT_SUFFIX = ".arrow", ".json"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_NOT_WRITABLE = (*_NO_ROOM, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST)


def tables_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of the Arrow files."""
    return cache_dir(environ) / "tables"


def cached(
    key: Mapping[str, Any], write: Callable[[Any], None], *, environ: Mapping[str, str], description: str
) -> pa.MemoryMappedFile:
    """Return the Arrow file of a key, mapped; written first if it is not in the cache.

    Args:
        key: Plain values that determine the content.
        write: Writes the content to an open file.
        environ: For the folder, and `LIMIT_VARIABLE`.
        description: Name of the data, for messages.

    Raises:
        DiskError: There is no room for the file, neither in the cache nor in the folder of temporary files.
    """
    path = tables_folder(environ) / f"{_digest(key)}{_SUFFIX}"
    mapped = _stored(path, _mapped, write, environ, description, otherwise="is kept in a temporary file")
    return _temporary(write, description) if mapped is None else mapped


def unused_tables(environ: Mapping[str, str], *, older_than: float) -> list[tuple[Path, int, float]]:
    """Return the files that were not opened for so many seconds: path, bytes and time of the last use."""
    oldest = time.time() - older_than
    return [(path, size, used) for used, size, path in _files(tables_folder(environ)) if used < oldest]


def _files(folder: Path) -> list[tuple[float, int, Path]]:
    """Return (time of the last use, bytes, path) of the files, the oldest first."""
    files = []
    for path in [*folder.glob(f"*{_SUFFIX}"), *folder.glob(f"*{_TEXT_SUFFIX}")]:
        with contextlib.suppress(OSError):
            stat = path.stat()
            files.append((stat.st_mtime, stat.st_size, path))
    return sorted(files)


def cached_text(
    key: Mapping[str, Any], make: Callable[[], str], *, environ: Mapping[str, str], description: str
) -> str:
    """Return the text of a key; made first if it is not in the cache.

    Args:
        key: Plain values that determine the text.
        make: Returns the text.
        environ: For the folder.
        description: Name of what it describes, a plural, for messages.
    """
    path = tables_folder(environ) / f"{_digest(key)}{_TEXT_SUFFIX}"
    otherwise = "are computed by each process"
    text = _stored(path, _text, lambda file: file.write(make().encode()), environ, description, otherwise=otherwise)
    return make() if text is None else text


def _stored(
    path: Path, load: Callable[[Path], T | None], write: Callable[[Any], Any],
    environ: Mapping[str, str], description: str, *, otherwise: str,
) -> T | None:  # fmt: skip
    """Return the content of a file, written first if `load` returns None; None with a warning if that fails."""
    loaded = load(path)
    if loaded is not None:
        return loaded
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone(path, description):
            loaded = load(path)
            if loaded is None:
                write_aside(path, write, to_disk=False)
                loaded = load(path)
    except OSError as error:
        if error.errno not in _NOT_WRITABLE:
            raise
        logger.warning("%s %s: the cache %s is not writable (%s)", description, otherwise, path, error)
        return None
    _remove_oldest(path.parent, environ, keep=path)
    return loaded


def _digest(key: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(key, sort_keys=True, default=repr).encode()).hexdigest()[:24]


def _mapped(path: Path) -> pa.MemoryMappedFile | None:
    """Map a file of the cache; None if it is missing or damaged. Its time of use is now."""
    import pyarrow as pa

    try:
        os.utime(path)
    except FileNotFoundError:
        return None
    except OSError:
        pass  # Read-only.
    try:
        file = pa.memory_map(str(path))
        pa.ipc.open_file(file)
    except (OSError, pa.ArrowInvalid):
        return None
    return file


def _text(path: Path) -> str | None:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return None
    with contextlib.suppress(OSError):  # Read-only.
        os.utime(path)
    return text


def _temporary(write: Callable[[Any], None], description: str) -> pa.MemoryMappedFile:
    import pyarrow as pa

    with tempfile.NamedTemporaryFile(prefix="estimator-pipeline-", suffix=_SUFFIX) as file:
        try:
            write(file)
            file.flush()
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            raise DiskError(
                f"there is no room for the records of {description}: {error.strerror}",
                found=f"the folder of temporary files, {tempfile.gettempdir()}",
                hint="free some space, or set XDG_CACHE_HOME or TMPDIR to a folder on a larger disk",
            ) from None
        return pa.memory_map(file.name)  # The mapping stays when the file is removed.


@contextlib.contextmanager
def _alone(path: Path, description: str) -> Iterator[None]:
    """Wait until no other process writes a file; without locks in its file system there is no wait."""
    lock = path.with_suffix(".lock")
    with open(lock, "ab") as file:
        deadline, size, is_reported = Deadline(_WAIT_SECS), -1, False
        for _ in deadline.polls(0.02, longest=0.5):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                pass
            except OSError:
                break
            if not is_reported:
                logger.info("Waiting for a different process that reads %s", description)
                is_reported = True
            if (now := _written(path.parent)) != size:
                size = now
                deadline.extend(_WAIT_SECS)
        yield


def _written(folder: Path) -> int:
    total = 0
    for temporary in folder.glob(".*.tmp"):
        with contextlib.suppress(OSError):
            total += temporary.stat().st_size
    return total


def _remove_oldest(folder: Path, environ: Mapping[str, str], *, keep: Path) -> None:
    for unfinished in folder.glob(".*.tmp"):  # of killed processes
        with contextlib.suppress(OSError):
            if unfinished.stat().st_mtime < time.time() - _ABANDONED_SECS:
                unfinished.unlink()
    limit = float(environ.get(LIMIT_VARIABLE) or _LIMIT_GIB) * 2**30
    files = _files(folder)
    total = sum(size for _, size, _ in files)
    for _, size, path in files:
        if total <= limit:
            return
        if path != keep:
            with contextlib.suppress(OSError):
                path.unlink()
                path.with_suffix(".lock").unlink()
            total -= size
