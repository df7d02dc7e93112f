"""Cache of results, keyed by the contents of a program's files."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import sys
import zlib
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from estimator_pipeline.compat.moved_names.table import FILE
from estimator_pipeline.migrate.code.analysis.files import SourceFile
from estimator_pipeline.utils import durable_files as durable
from estimator_pipeline.utils.version import __version__

__all__ = ["MOST_BYTES", "ResultsCache", "key"]

MOST_BYTES = 256 * 2**20
"""The maximum size of all results in bytes; the least recently used are removed first."""


def key(work: str, options: Mapping[str, str], package: str, modules: Iterable[str], sources: list[SourceFile]) -> str:
    """Return the cache key: a digest of file contents, imported modules, options and versions."""
    digest = hashlib.sha256()
    head = [__version__, _digest_of_code(), version("libcst"), sys.version, work, dict(options), package, list(modules)]
    for part in (head, *(source.document() for source in sources)):
        digest.update(json.dumps(part, sort_keys=True).encode() + b"\n")
    return digest.hexdigest()


@functools.cache
def _digest_of_code() -> str:
    """Return a digest of this package's code: development versions may share a version number."""
    folder = Path(__file__).parents[1]
    digest = hashlib.sha256(FILE.read_bytes())
    for path in sorted(candidate for candidate in folder.rglob("*") if candidate.suffix in (".py", ".txt")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\n" + path.read_bytes())
    return digest.hexdigest()


class ResultsCache:
    """A folder of results. A folder that cannot be read or written acts as an empty one."""

    def __init__(self, folder: str | os.PathLike[str], most_bytes: int = MOST_BYTES) -> None:
        self._folder, self._most = Path(folder), most_bytes

    def get(self, name: str) -> dict[str, Any] | None:
        """Return a stored result, or None."""
        path = self._path(name)
        try:
            result = json.loads(zlib.decompress(path.read_bytes()))
            os.utime(path)
        except (OSError, ValueError, zlib.error, RecursionError):
            return None
        is_complete = (
            isinstance(result, dict) and {"told", "asked"} <= result.keys() and {"findings", "files"} & result.keys()
        )
        return result if is_complete else None

    def put(self, name: str, result: Mapping[str, Any]) -> None:
        """Store a result atomically."""
        content = zlib.compress(json.dumps(result).encode(), 1)
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            durable.write(self._path(name), content, to_disk=False)

    def trim(self) -> None:
        """Remove the least recently used results until the rest fits the maximum size."""
        with contextlib.suppress(OSError):
            entries = sorted((path.stat().st_mtime, path.stat().st_size, path) for path in self._folder.iterdir())
            size = sum(bytes_ for _, bytes_, _ in entries)
            for _, bytes_, path in entries:
                if size <= self._most:
                    break
                path.unlink()
                size -= bytes_

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json.z"
