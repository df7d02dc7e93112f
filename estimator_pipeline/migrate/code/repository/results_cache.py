"""What came of a program, kept by the contents of its files."""

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
from estimator_pipeline.utils.version import __version__

__all__ = ["MOST_BYTES", "ResultsCache", "key"]

MOST_BYTES = 256 * 2**20
"""What all results may take; those that were not used for the longest time go first."""


def key(work: str, options: Mapping[str, str], package: str, modules: Iterable[str], sources: list[SourceFile]) -> str:
    """All that the result depends on: the contents, what their imports lead to, the options and the versions."""
    found = hashlib.sha256()
    head = [__version__, _own_code(), version("libcst"), sys.version, work, dict(options), package, list(modules)]
    for part in (head, *(one.document() for one in sources)):
        found.update(json.dumps(part, sort_keys=True).encode() + b"\n")
    return found.hexdigest()


@functools.cache
def _own_code() -> str:
    """Two versions under work may have one number."""
    folder = Path(__file__).parents[1]
    found = hashlib.sha256(FILE.read_bytes())
    for path in sorted(one for one in folder.rglob("*") if one.suffix in (".py", ".txt")):
        found.update(path.relative_to(folder).as_posix().encode() + b"\n" + path.read_bytes())
    return found.hexdigest()


class ResultsCache:
    """A folder of results. One that cannot be read or written is as good as an empty one."""

    def __init__(self, folder: str | os.PathLike[str], most_bytes: int = MOST_BYTES) -> None:
        self._folder, self._most = Path(folder), most_bytes

    def get(self, name: str) -> dict[str, Any] | None:
        """Return what was kept."""
        path = self._path(name)
        try:
            found = json.loads(zlib.decompress(path.read_bytes()))
            os.utime(path)
        except (OSError, ValueError, zlib.error, RecursionError):
            return None
        whole = isinstance(found, dict) and {"told", "asked"} <= found.keys() and {"findings", "files"} & found.keys()
        return found if whole else None

    def put(self, name: str, result: Mapping[str, Any]) -> None:
        """Keep a result, all of it or nothing."""
        path = self._path(name)
        unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            unfinished.write_bytes(zlib.compress(json.dumps(result).encode(), 1))
            unfinished.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                unfinished.unlink()

    def trim(self) -> None:
        """Keep to the size."""
        with contextlib.suppress(OSError):
            found = sorted((one.stat().st_mtime, one.stat().st_size, one) for one in self._folder.iterdir())
            size = sum(one for _, one, _ in found)
            for _, bytes_, path in found:
                if size <= self._most:
                    break
                path.unlink()
                size -= bytes_

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json.z"
