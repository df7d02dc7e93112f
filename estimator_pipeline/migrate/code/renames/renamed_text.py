"""The text of a TensorFlow 1 file with its new names, as planned by `tf1_names.plan`."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field

import libcst as cst

from estimator_pipeline.migrate.code.analysis.edits import Edit, Lines, Step, comments_of
from estimator_pipeline.migrate.code.analysis.notebooks import python_tree
from estimator_pipeline.migrate.code.analysis.syntax import Tree

__all__ = ["NOT_VERBATIM", "RULE", "Change", "RenamedText", "of"]

RULE = "tensorflow-1-name"
NOT_VERBATIM = "libcst does not reproduce it byte for byte"


@dataclass(frozen=True)
class Change:
    """A converted place; line and column refer to the original program, counted from 1.

    In a notebook the line is within the cell; cells are counted from 1 among all cells.
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
        text: the text with the new names.
        changes: the changes in the text.
        kept: why the text is unchanged; "" where it is not.
        imports: the imports that the text needs, such as `import tf_slim`. They are added later, so that line numbers
            are unchanged.
        moved: (first line, last line, new first line, new last line) of names that spanned several lines and now have
            a different number of lines.
        steps: the edits that the text consists of.
    """

    text: str
    changes: list[Change] = field(default_factory=list)
    kept: str = ""
    imports: list[str] = field(default_factory=list)
    moved: list[tuple[int, int, int, int]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    def line(self, old: int) -> int:
        """Return the line of the new text for a line of the original file; the last one where lines were joined."""
        by = 0
        for first, last, new_first, new_last in self.moved:
            if first < old < last:
                return new_first
            if old >= last:
                by = new_last - last
        return old + by

    def old_line(self, new: int) -> int:
        """Return the line of the original file for a line of the new text; the first one where lines were joined."""
        by = 0
        for first, last, new_first, new_last in self.moved:
            if new_first <= new <= new_last:
                return first
            if new > new_last:
                by = last - new_last
        return new + by


def of(tree: Tree) -> RenamedText:
    """Return the new text of a file, without the imports that it needs."""
    before = tree.source.text
    if not tree.renamed:
        return RenamedText(before)
    if not tree.verbatim:
        return RenamedText(before, kept=NOT_VERBATIM)
    changes: list[Change] = []
    edits = list(_edits(tree, Lines(before), changes))
    step = Step.of(RULE, before, edits)
    after = step.after
    why = _does_not_read(before, after)
    if why:  # a defect of a rule: the program is unchanged, and the reason is reported
        return RenamedText(before, kept=f"the converted code cannot be parsed: {why}")
    if not tree.source.keeps_cells(after):
        return RenamedText(before, kept="the converted code cannot be split into its cells")
    imports = sorted({renamed.needs for renamed in tree.renamed.values() if renamed.needs})
    return RenamedText(
        after,
        sorted(changes, key=lambda change: (change.line, change.column)),
        imports=imports,
        moved=list(_of_other_length(before, edits)),
        steps=[step],
    )


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
    comments = comments_of(lines.text)

    def span(node: cst.CSTNode) -> tuple[int, int]:
        line, column, end_line, end_column = tree.position(node)
        return lines.offset(line, column), lines.offset(end_line, end_column)

    def has_comment(start: int, end: int) -> bool:
        return any(start <= place < end for place, _ in comments)

    for renamed in tree.renamed.values():
        if renamed.node in done:
            continue  # an import of several names
        done.add(renamed.node)
        line, column, *_ = tree.position(renamed.node)
        start, end = span(renamed.node)
        if has_comment(start, end):  # between the lines of a name
            module, _, name = renamed.after.rpartition(".")
            node = renamed.node
            if not isinstance(node, cst.Attribute) or node.attr.value != name or renamed.function_of or renamed.spans:
                continue
            if has_comment(*span(node.value)):
                continue
            yield Edit(*span(node.value), module)
            changes.append(Change(line, column, renamed.before, renamed.after, RULE))
            continue
        if renamed.function_of is not None:
            begin, last = span(renamed.function_of)
            yield Edit(begin, begin, f"{renamed.after}(")
            dot = lines.text.rindex(".", 0, start)
            yield Edit(len(lines.text[:dot].rstrip(" \t\r\n\\")), last, ")")
        else:
            yield Edit(start, end, renamed.after)
        for node, before, behind in renamed.spans:
            begin, last = span(node)
            yield Edit(begin, begin, before)
            if behind:
                yield Edit(last, last, behind)
        changes.append(Change(line, column, renamed.before, renamed.after, RULE))


def _does_not_read(before: str, after: str) -> str:
    """Return why Python cannot parse the converted text; "" if it can, or could not parse the original."""
    if before == after or python_tree(before) is None:
        return ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ast.parse(after)
        except (SyntaxError, ValueError) as error:
            return str(error)
    return ""
