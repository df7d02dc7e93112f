"""Files that the scan itself fails at: each is a finding, and the others are scanned."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from estimator_pipeline.migrate.code.analysis.notebooks import NotebookProblem
from estimator_pipeline.migrate.code.analysis.syntax import Tree

__all__ = ["Each", "Failures", "plainly", "why"]

_Thing = TypeVar("_Thing")
_Found = TypeVar("_Found")


class Each(Protocol):
    """What a step gives for each thing, where `file` tells the file that a thing belongs to."""

    def __call__(
        self, things: Iterable[_Thing], step: Callable[[_Thing], _Found], file: Callable[[_Thing], Tree]
    ) -> Iterator[_Found]: ...


class Failures:
    """The files that failed; `then` is called after each failure."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.files: set[Tree] = set()
        self._then = then

    def each(
        self, things: Iterable[_Thing], step: Callable[[_Thing], _Found], file: Callable[[_Thing], Tree]
    ) -> Iterator[_Found]:
        """Yield an `Each`; a file that the step fails at gets a problem, and is left out from then on."""
        for thing in things:
            tree = file(thing)
            if tree in self.files:
                continue
            try:
                found = step(thing)
            except Exception as error:
                self.files.add(tree)
                tree.source.problems.append(NotebookProblem(1, 1, why(error)))
                self._then()
            else:
                yield found


def plainly(
    things: Iterable[_Thing], step: Callable[[_Thing], _Found], file: Callable[[_Thing], Tree]
) -> Iterator[_Found]:
    """Return an `Each` that lets exceptions through."""
    return map(step, things)


def why(error: Exception) -> str:
    """Why a file cannot be read, of what was raised at it."""
    if isinstance(error, RecursionError):
        return "its expressions are nested too deeply"
    return f"the scan fails at it: {type(error).__name__}: {error}"
