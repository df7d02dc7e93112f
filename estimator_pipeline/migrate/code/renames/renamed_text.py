"""The text of a file of TensorFlow 1 with the new names in it, as `tf1_names.plan` has found them."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field

import libcst as cst

from estimator_pipeline.migrate.code.analysis.edits import Edit, Lines, apply
from estimator_pipeline.migrate.code.analysis.syntax import Tree

__all__ = ["Change", "RenamedText", "of"]


NOT_VERBATIM = "it would not be kept byte for byte"


@dataclass(frozen=True)
class Change:
    """A place that was converted; line and column are those of the program as it was, counted from 1.

    In a notebook the line is that within the cell, which is counted from 1 among all cells.
    """

    line: int
    column: int
    before: str
    after: str
    rule: str
    cell: int | None = None

    @property
    def place(self) -> str:
        """`3:7`, or `cell 2:3:7`."""
        cell = "" if self.cell is None else f"cell {self.cell}:"
        return f"{cell}{self.line}:{self.column}"

    @property
    def order(self) -> tuple[int, int, int]:
        return self.cell or 0, self.line, self.column


@dataclass
class RenamedText:
    """The text of a file.

    Attributes:
        text: with the new names.
        changes: what was changed in it.
        kept: why it is as it was, where it might have been changed.
        imports: what the text still needs: `import tf_slim`. It is not in it, for lines stay where they are.
        contrib: (name, line of the new text) of what is no longer TensorFlow's, in the order of lines.
        moved: (first line, last line, new first line, new last line) of what has another number of lines now: a name
            that went over several.
    """

    text: str
    changes: list[Change] = field(default_factory=list)
    kept: str = ""
    imports: list[str] = field(default_factory=list)
    contrib: list[tuple[str, int]] = field(default_factory=list)
    moved: list[tuple[int, int, int, int]] = field(default_factory=list)

    def line(self, old: int) -> int:
        """Return the line of the new text for one of the file as it was; of what became shorter the last one."""
        by = 0
        for first, last, new_first, new_last in self.moved:
            if first < old < last:
                return new_first
            if old >= last:
                by = new_last - last
        return old + by

    def old_line(self, new: int) -> int:
        """Return the line of the file as it was for one of the new text; of what became shorter the first one."""
        by = 0
        for first, last, new_first, new_last in self.moved:
            if new_first <= new <= new_last:
                return first
            if new > new_last:
                by = last - new_last
        return new + by


def of(tree: Tree) -> RenamedText:
    """Return the new text of a file; lines stay where they are."""
    before = tree.source.text
    if not tree.renamed:
        return RenamedText(before)
    if not tree.verbatim:
        return RenamedText(before, kept=NOT_VERBATIM)
    changes: list[Change] = []
    edits = list(_edits(tree, Lines(before), changes))
    after = apply(before, edits)
    why = _does_not_read(before, after)
    if why:  # a defect: the program stays as it was, and says so
        return RenamedText(before, kept=f"what was written cannot be read: {why}")
    if not tree.source.keeps_cells(after):
        return RenamedText(before, kept="its cells cannot be told in what was written")
    imports = sorted({found.needs for found in tree.renamed.values() if found.needs})
    contrib = [(tree.position(found.node)[0], found.before) for found in tree.renamed.values() if found.contrib]
    made = RenamedText(
        after,
        sorted(changes, key=lambda change: (change.line, change.column)),
        imports=imports,
        moved=list(_of_other_length(before, edits)),
    )
    made.contrib = [(name, made.line(line)) for line, name in sorted(contrib)]
    return made


def _of_other_length(before: str, edits: list[Edit]) -> Iterator[tuple[int, int, int, int]]:
    by = 0
    for start, end, new in sorted(edits, key=lambda edit: (edit.start, edit.end)):
        lines, others = len(Lines(before[start:end]).starts), len(Lines(new).starts)
        if lines == others:
            continue
        first = len(Lines(before[:start]).starts)
        yield first, first + lines - 1, first + by, first + by + others - 1
        by += others - lines


def _edits(tree: Tree, lines: Lines, changes: list[Change]) -> Iterator[Edit]:
    done: set[cst.CSTNode] = set()
    for found in tree.renamed.values():
        if found.node in done:
            continue  # an import of several names
        done.add(found.node)
        line, column, end_line, end_column = tree.position(found.node)
        start, end = lines.offset(line, column), lines.offset(end_line, end_column)
        if found.function_of is not None:
            first_line, first, last_line, last = tree.position(found.function_of)
            begin = lines.offset(first_line, first)
            yield Edit(begin, begin, f"{found.after}(")
            dot = lines.text.rindex(".", 0, start)
            yield Edit(len(lines.text[:dot].rstrip(" \t\r\n\\")), lines.offset(last_line, last), ")")
        else:
            yield Edit(start, end, found.after)
        for node, before, behind in found.spans:
            at, column_at, to, column_to = tree.position(node)
            yield Edit(lines.offset(at, column_at), lines.offset(at, column_at), before)
            if behind:
                yield Edit(lines.offset(to, column_to), lines.offset(to, column_to), behind)
        changes.append(Change(line, column, found.before, found.after, "tensorflow-1-name"))


def _does_not_read(before: str, after: str) -> str:
    """Why Python cannot read the converted text; nothing to say where it could not read the one before."""
    if before == after:
        return ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ast.parse(before)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return ""
        try:
            ast.parse(after)
        except (SyntaxError, ValueError) as error:
            return str(error)
    return ""
