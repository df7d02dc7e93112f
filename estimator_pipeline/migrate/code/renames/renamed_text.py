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
    """A place that was converted; line and column are those of the program as it was, counted from 1."""

    line: int
    column: int
    before: str
    after: str
    rule: str


@dataclass
class RenamedText:
    """The text of a file.

    Attributes:
        text: with the new names.
        changes: what was changed in it.
        kept: why it is as it was, where it might have been changed.
        imports: what the text still needs: `import tf_slim`. It is not in it, for lines stay where they are.
        contrib: (name, line) of the first thing that is no longer TensorFlow's.
    """

    text: str
    changes: list[Change] = field(default_factory=list)
    kept: str = ""
    imports: list[str] = field(default_factory=list)
    contrib: tuple[str, int] | None = None


def of(tree: Tree) -> RenamedText:
    """The new text of a file; lines stay where they are."""
    before = tree.source.text
    if tree.source.cells:
        return RenamedText(before)
    if not tree.renamed:
        return RenamedText(before)
    if not tree.verbatim:
        return RenamedText(before, kept=NOT_VERBATIM)
    changes: list[Change] = []
    after = apply(before, _edits(tree, Lines(before), changes))
    why = _does_not_read(before, after)
    if why:  # a defect: the program stays as it was, and says so
        return RenamedText(before, kept=f"what was written cannot be read: {why}")
    imports = sorted({found.needs for found in tree.renamed.values() if found.needs})
    contrib = [(tree.position(found.node)[0], found.before) for found in tree.renamed.values() if found.contrib]
    line, name = min(contrib, default=(0, ""))
    return RenamedText(
        after,
        sorted(changes, key=lambda change: (change.line, change.column)),
        imports=imports,
        contrib=(name, line) if name else None,
    )


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
