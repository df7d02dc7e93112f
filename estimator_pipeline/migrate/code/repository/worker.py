"""The scan or conversion of one program after another."""

from __future__ import annotations

import contextlib
import gc
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from estimator_pipeline.migrate.code.analysis.files import SourceFile
from estimator_pipeline.migrate.code.analysis.modules import Modules
from estimator_pipeline.migrate.code.others import Others

__all__ = ["PartFunction", "Worker", "quiet_collector"]

# Trees contain reference cycles. They are collected after this many files, because a collection visits all objects.
_FILES_AT_A_TIME = 100

PartFunction = Callable[
    [list[SourceFile], Modules, Others, Mapping[str, str], Callable[[], None]], dict[str, Any]
]  # fmt: skip


class Worker:
    """Reads the programs of one code base.

    Args:
        part: the function for one program, such as `scanner.scan_part`.
        options: the options of that function.
    """

    def __init__(self, part: PartFunction, options: Mapping[str, str], modules: Modules) -> None:
        self._part, self._options, self._modules = part, options, modules
        self._files = 0

    def answer(
        self, sources: list[SourceFile], known: Mapping[str, Any], tick: Callable[[], None]
    ) -> dict[str, Any]:  # fmt: skip
        """Return the result of a program, the facts that it reports and those that it used, as JSON values."""
        others = Others(known)
        copies = [replace(source, problems=[]) for source in sources]
        result = self._part(copies, self._modules, others, self._options, tick)
        self._files += len(sources)
        if self._files >= _FILES_AT_A_TIME:
            self._files = 0
            gc.collect()
        answer: dict[str, Any] = json.loads(json.dumps({**result, "told": others.reported, "asked": others.asked}))
        return answer


@contextlib.contextmanager
def quiet_collector() -> Iterator[None]:
    """Disable garbage collection, which would scan millions of live nodes repeatedly."""
    was = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        if was:
            gc.enable()
