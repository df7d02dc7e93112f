"""Which files are one program: those that make its Estimators, those that import them, and all that these import."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence

from estimator_pipeline.migrate.code.analysis.name_resolution import Program
from estimator_pipeline.migrate.code.analysis.syntax import Tree

__all__ = ["ProgramFiles"]


class ProgramFiles:
    """The imports between the files of a folder, from the files that make Estimators.

    Args:
        program: all files.
        mains: the files that make Estimators.
    """

    def __init__(self, program: Program, mains: Iterable[Tree]) -> None:
        self.program = program
        self._importers: dict[Tree, list[Tree]] = defaultdict(list)
        for tree in program.trees.values():
            for other in program.imports(tree):
                self._importers[other].append(tree)
        self._mains_of: dict[Tree, list[Tree]] = defaultdict(list)  # file -> the mains that it imports
        for main in mains:
            for tree in _closure([main], lambda tree: self._importers[tree]):
                self._mains_of[tree].append(main)

    def groups(self) -> list[tuple[Tree, ...]]:
        """Return the mains in groups: those that a file imports are together."""
        groups: list[list[Tree]] = []
        for mains in self._mains_of.values():
            joined = [group for group in groups if not set(group).isdisjoint(mains)]
            groups = [group for group in groups if group not in joined]
            groups.append([*dict.fromkeys([*(tree for group in joined for tree in group), *mains])])
        order = list(self.program.trees.values())
        ordered = [tuple(sorted(group, key=order.index)) for group in groups]
        return sorted(ordered, key=lambda group: order.index(group[0]))

    def of(self, mains: Sequence[Tree]) -> list[Tree]:
        """Return the files of a program: its mains, the files that import no other mains, and what these import."""
        entries = [tree for tree, imported in self._mains_of.items()
                   if not set(imported).isdisjoint(mains) and set(imported) <= set(mains)]  # fmt: skip
        return _closure([*mains, *entries], self.program.imports)

    def is_imported_by(self, tree: Tree, files: Collection[Tree]) -> bool:
        """Return whether only these files import a file."""
        return all(other in files for other in self._importers[tree])


def _closure(start: Sequence[Tree], following: Callable[[Tree], Iterable[Tree]]) -> list[Tree]:
    """Return files and all that follow from them."""
    files, waiting = dict.fromkeys(start), list(start)
    while waiting:
        new = [tree for tree in following(waiting.pop()) if tree not in files]
        files.update(dict.fromkeys(new))
        waiting += new
    return list(files)
