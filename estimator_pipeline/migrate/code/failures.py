"""Handling of files on which the scan itself fails: each becomes a finding, and the other files are scanned."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from estimator_pipeline.migrate.code.analysis.notebooks import NotebookProblem
from estimator_pipeline.migrate.code.analysis.syntax import Tree, why_unreadable

__all__ = ["Each", "Failures"]

_Thing = TypeVar("_Thing")
_Found = TypeVar("_Found")
Each = Callable[[Iterable[Any], Callable[[Any], Any], Callable[[Any], Tree]], Iterator[Any]]
"""Runs a step for each item, and yields the results; the last function returns the file that an item belongs to."""


class Failures:
    """The files on which a step failed; `then` is called after each failure."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.files: set[Tree] = set()
        self._then = then

    def each(
        self, things: Iterable[_Thing], step: Callable[[_Thing], _Found], file: Callable[[_Thing], Tree]
    ) -> Iterator[_Found]:
        """Yield the result of a step for each item, as `Each`; skip files after their first failure.

        The file that a step fails on gets a problem.
        """
        for thing in things:
            tree = file(thing)
            if tree in self.files:
                continue
            try:
                result = step(thing)
            except Exception as error:
                self.files.add(tree)
                tree.source.problems.append(NotebookProblem(1, 1, why_unreadable(error)))
                self._then()
            else:
                yield result
