"""The work on programs, one after another."""

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

# Trees refer to themselves. So many files are let go at a time: a collection looks at all that there is.
_FILES_AT_A_TIME = 100

PartFunction = Callable[
    [list[SourceFile], Modules, Others, Mapping[str, str], Callable[[], None]], dict[str, Any]
]  # fmt: skip


class Worker:
    """Reads programs of one code base.

    Args:
        part: what is done with one, such as `scanner.scan_part`.
        options: of that.
    """

    def __init__(self, part: PartFunction, options: Mapping[str, str], modules: Modules) -> None:
        self._part, self._options, self._modules = part, options, modules
        self._files = 0

    def answer(
        self, sources: list[SourceFile], known: Mapping[str, Any], tick: Callable[[], None]
    ) -> dict[str, Any]:  # fmt: skip
        """What comes of a program, what it tells of itself, and what it asked for; plain values, as JSON has them."""
        others = Others(known)
        copies = [replace(one, problems=[]) for one in sources]
        found = self._part(copies, self._modules, others, self._options, tick)
        self._files += len(sources)
        if self._files >= _FILES_AT_A_TIME:
            self._files = 0
            gc.collect()
        answer: dict[str, Any] = json.loads(json.dumps({**found, "told": others.told, "asked": others.asked}))
        return answer


@contextlib.contextmanager
def quiet_collector() -> Iterator[None]:
    """Without garbage collection, which would look at millions of nodes that are all in use, again and again."""
    was = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        if was:
            gc.enable()
