"""Options and progress of `migrate scan` and `migrate convert`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Annotated

from estimator_pipeline.cli.options import option

__all__ = ["Jobs", "progress_on"]

Jobs = Annotated[int | None, option("Read a folder with this many processes; default: one per core.", "N", min=1)]


@contextlib.contextmanager
def progress_on(*, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Show how many files are done, as a bar on a terminal that disappears at the end.

    Args:
        quiet: Whether to show nothing.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress

    columns = BarColumn(), MofNCompleteColumn(), "files"
    disable = quiet or not sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=disable) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, files: bar.update(task, completed=done, total=files)
