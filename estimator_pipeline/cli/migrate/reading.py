"""What `migrate scan` and `migrate convert` have in common: processes, the cache, and how far they are."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, TextIO

import typer

from estimator_pipeline.utils.cache_folder import cache_dir

__all__ = ["Jobs", "NoCache", "cores", "progress_on", "results_folder"]

Jobs = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Processes that read a folder; by default one for each core.")
]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Read all of it anew, and keep nothing for the next time.")]

_WIDTH = 30
_BAR_SECS, _LINE_SECS = 0.1, 30.0


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def results_folder(no_cache: bool) -> Path | None:
    """Where the results of earlier runs are."""
    return None if no_cache else cache_dir(os.environ) / "migrate"


@contextlib.contextmanager
def progress_on(stream: TextIO | None = None, *, quiet: bool = False) -> Iterator[Callable[[int, int], None] | None]:
    """Tells how many files are done: a bar on a terminal, otherwise a line every half minute.

    Args:
        stream: standard error by default.
        quiet: whether nothing is told.
    """
    if quiet:
        yield None
        return
    out = stream or sys.stderr
    bar = out.isatty()
    last, shown = time.monotonic(), False

    def tell(done: int, files: int) -> None:
        nonlocal last, shown
        if time.monotonic() - last < (_BAR_SECS if bar else _LINE_SECS):
            return
        last = time.monotonic()
        told = f"{done:,} of {files:,} files"
        if bar:
            full = _WIDTH * done // max(files, 1)
            told = f"\r[{'#' * full}{' ' * (_WIDTH - full)}] {told}"
        out.write(told if bar else f"{told}\n")
        out.flush()
        shown = True

    try:
        yield tell
    finally:
        if bar and shown:
            out.write("\r\x1b[K")
            out.flush()
