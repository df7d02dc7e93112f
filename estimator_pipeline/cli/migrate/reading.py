"""Options and helpers of `migrate scan` and `migrate convert`: processes, cache, progress."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, TextIO

from estimator_pipeline.cli.options import flag, option
from estimator_pipeline.utils.cache_folder import cache_dir

__all__ = ["Jobs", "NoCache", "progress_on", "results_folder"]

Jobs = Annotated[int | None, option("Read a folder with this many processes; default: one per core.", "N", min=1)]
NoCache = Annotated[bool, flag("--no-cache", "Ignore cached results, and cache nothing.")]

_WIDTH = 30
_BAR_SECS, _LINE_SECS = 0.1, 30.0


def results_folder(no_cache: bool) -> Path | None:
    """Return the folder of cached results."""
    return None if no_cache else cache_dir(os.environ) / "migrate"


@contextlib.contextmanager
def progress_on(stream: TextIO | None = None, *, quiet: bool = False) -> Iterator[Callable[[int, int], None] | None]:
    """Show how many files are done: a bar on a terminal, otherwise a line every half minute.

    Args:
        stream: Standard error by default.
        quiet: Whether to show nothing.
    """
    if quiet:
        yield None
        return
    out = stream or sys.stderr
    bar = out.isatty()
    last, shown = time.monotonic(), False

    def show(done: int, files: int) -> None:
        nonlocal last, shown
        if time.monotonic() - last < (_BAR_SECS if bar else _LINE_SECS):
            return
        last = time.monotonic()
        line = f"{done:,} of {files:,} files"
        if bar:
            full = _WIDTH * done // max(files, 1)
            line = f"\r[{'#' * full}{' ' * (_WIDTH - full)}] {line}"
        out.write(line if bar else f"{line}\n")
        out.flush()
        shown = True

    try:
        yield show
    finally:
        if bar and shown:
            out.write("\r\x1b[K")
            out.flush()
