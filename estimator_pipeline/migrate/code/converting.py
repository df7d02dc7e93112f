"""From a program to the converted program: what each rule writes, and a marked note where no rule does.

Everything is worked out, and every file that changes is parsed again, before anything is written. A file is changed at
the places that the rules name and nowhere else: comments, layout, line ends and encoding stay.
"""

from __future__ import annotations

import ast
import dataclasses
import io
import os
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import libcst as cst

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.migrate.code import respelling
from estimator_pipeline.migrate.code.edits import Edit, Lines, apply
from estimator_pipeline.migrate.code.files import Skipped, Source
from estimator_pipeline.migrate.code.keras.rule import KERAS
from estimator_pipeline.migrate.code.notes import MARK, note_lines
from estimator_pipeline.migrate.code.result import BY_HAND, STAYS, Finding
from estimator_pipeline.migrate.code.scanning import Analysis, analyse, analyse_sources, deep
from estimator_pipeline.migrate.code.syntax import Tree

__all__ = ["NOTES", "SCHEMA", "Change", "Converted", "ConvertedFile", "convert"]

SCHEMA = "estimator-pipeline/migrate-convert/1"
"""The form of the JSON document. A new number where a field goes or changes its meaning; new fields are no change."""

NOTES = {"by-hand": (BY_HAND,), "all": (BY_HAND, STAYS), "none": ()}
"""Which constructs that are left get a note in the code."""

TARGETS = ("keras", "estimator")
"""What a program becomes."""


@dataclass(frozen=True)
class Change:
    """A place that was converted; line and column are those of the program as it was, counted from 1."""

    line: int
    column: int
    before: str
    after: str
    rule: str


@dataclass
class ConvertedFile:
    """A file of the converted program.

    Attributes:
        path: relative to the program's root, with slashes.
        before, after: its text.
        left: what no rule converts and what does not run as it stands: a person's work.
        stays: what no rule converts, and what runs under compat as it is.
        kept: why a file is copied as it is, where it might have been converted.
        keras: whether it is a Keras program now.
        kept_as_estimator: why it stays an Estimator program, where it is one.
    """

    path: str
    before: str
    after: str
    encoding: str = "utf-8"
    changes: list[Change] = field(default_factory=list)
    left: list[Finding] = field(default_factory=list)
    stays: list[Finding] = field(default_factory=list)
    kept: str = ""
    keras: bool = False
    kept_as_estimator: str = ""

    @property
    def changed(self) -> bool:
        return self.before != self.after

    def document(self) -> dict[str, Any]:
        def told(finding: Finding) -> dict[str, Any]:
            names = ("cell", "line", "column", "name", "spelled", "reason", "keep", "successor", "write")
            return {name: getattr(finding, name) for name in names}

        return {
            "path": self.path,
            "changed": self.changed,
            "kept": self.kept or None,
            "keras": self.keras,
            "kept_as_estimator": self.kept_as_estimator or None,
            "changes": [vars(change) for change in self.changes],
            "by_hand": [told(finding) for finding in self.left],
            "stays": [told(finding) for finding in self.stays],
        }


@dataclass
class Converted:
    """A whole program.

    Attributes:
        root: what was converted, as it was named.
        base: the folder that paths are relative to.
        files: every file that was read, in the order of their names.
        skipped: what was not read, and is not part of the result.
    """

    root: str
    base: str
    files: list[ConvertedFile]
    skipped: list[Skipped]

    @property
    def changed(self) -> list[ConvertedFile]:
        return [one for one in self.files if one.changed]

    @property
    def share(self) -> tuple[int, int]:
        """How many constructs were converted, and how many there were."""
        done = sum(len(one.changes) for one in self.files)
        return done, done + sum(len(one.left) + len(one.stays) for one in self.files)

    def document(self) -> dict[str, Any]:
        """The document that `--json` prints."""
        return {
            "schema": SCHEMA,
            "root": self.root,
            "files": [one.document() for one in self.files],
            "changes": sum(len(one.changes) for one in self.files),
            "by_hand": sum(len(one.left) for one in self.files),
            "stays": sum(len(one.stays) for one in self.files),
            "keras": [one.path for one in self.files if one.keras],
            "not_read": [{"path": one.path, "why": one.why} for one in self.skipped],
        }


def convert(root: str | os.PathLike[str], *, notes: str = "by-hand", to: str = "keras") -> Converted:
    """Converts a file or a folder; nothing is written.

    Args:
        root: a Python file, a notebook, or a folder of them.
        notes: which constructs that are left get a marked comment above them; one of :data:`NOTES`.
        to: "keras", where a whole file can become Keras; "estimator", where it keeps its Estimators.

    Returns:
        Every file with its text before and after, what was changed and what is left.

    Raises:
        ConfigError: there is no such path, no Python file in it, or no such kind of notes.
    """
    if notes not in NOTES:
        raise ConfigError(f"notes {notes!r}: there are none of that kind", found=", ".join(NOTES), mend="name one")
    if to not in TARGETS:
        raise ConfigError(f"to {to!r}: nothing of that kind is written", found=", ".join(TARGETS), mend="name one")
    analysis = analyse(root)
    by_path: dict[str, list[Finding]] = analysis.scan.by_file()
    trees = {tree.source.path: tree for tree in analysis.trees}
    switches = respelling.switches_behavior(analysis.trees)
    files = []
    with deep():
        for source in analysis.sources:
            made = ConvertedFile(source.path, source.text, source.text, source.encoding)
            findings = by_path.get(source.path, [])
            made.left = [one for one in findings if one.treatment == BY_HAND]
            made.stays = [one for one in findings if one.treatment == STAYS]
            if source.cells:
                made.kept = "notebooks are not converted" if findings else ""
            elif source.problems:
                made.kept = "it cannot be read"
            elif source.path in trees:
                _convert(made, trees[source.path], analysis, switches)
            files.append(made)
        written = _again(files, analysis)
        if to == "keras" and _to_keras(files, written):
            written = _again(files, analysis)
        _note(files, written, NOTES[notes])
    return Converted(os.fspath(root), str(analysis.base), files, analysis.scan.skipped)


def _convert(made: ConvertedFile, tree: Tree, analysis: Analysis, switches: bool) -> None:
    if tree.module.code != tree.source.text:
        made.kept = "it would not be kept byte for byte"
        return
    lines = Lines(tree.source.text)
    edits = [*_respelled(made, tree, lines), *_switched(made, tree, lines, analysis, switches)]
    after = apply(tree.source.text, edits)
    why = _does_not_read(tree.source.text, after)
    if why:  # a defect: the program stays as it was, and says so
        made.changes, made.kept = [], f"what was written cannot be read: {why}"
        return
    made.changes.sort(key=lambda change: (change.line, change.column))
    made.after = after


def _to_keras(files: list[ConvertedFile], done: Analysis) -> bool:
    """Files that can become Keras as a whole, of the program as it is after the names of TensorFlow 1; if any has."""
    outcomes = {tree.source.path: tree.keras for tree in done.trees}
    for made in files:
        outcome = outcomes.get(made.path)
        if outcome is None or made.kept:
            continue
        if not outcome.text:
            made.kept_as_estimator = f"line {outcome.line}: {outcome.reason}"
            continue
        made.keras, inserted = True, made.after.count("\n") - made.before.count("\n")
        made.after = outcome.text
        findings = [_as_it_was(one, made, inserted) for one in done.scan.by_file().get(made.path, [])]
        # Of the names of TensorFlow 1 those that were on the way to Keras are no change of their own.
        between = ("tf.compat.v1.", "tf.estimator.")
        made.changes = [one for one in made.changes if not one.after.startswith(between) and one.before]
        made.changes += [Change(one.line, one.column, one.spelled, one.successor, KERAS) for one in findings
                         if one.rule == KERAS and not one.name.endswith("disable_v2_behavior")]  # fmt: skip
        made.changes.sort(key=lambda change: (change.line, change.column))
        made.left = [one for one in findings if one.treatment == BY_HAND]
        made.stays = [one for one in findings if one.treatment == STAYS]
    return any(made.keras for made in files)


def _as_it_was(finding: Finding, made: ConvertedFile, inserted: int) -> Finding:
    """A finding by its line before a switch of behaviour was put behind the imports."""
    switch = next((one.line for one in made.changes if not one.before), 0)
    if not inserted or finding.line <= switch:
        return finding
    return dataclasses.replace(finding, line=finding.line - inserted, end_line=finding.end_line - inserted)


def _again(files: list[ConvertedFile], analysis: Analysis) -> Analysis:
    """The analysis of what has been written so far."""
    if not any(made.changed for made in files):
        return analysis
    sources = [Source(made.path, made.after, one.cells, list(one.problems), one.encoding)
               for made, one in zip(files, analysis.sources, strict=True)]  # fmt: skip
    return analyse_sources(analysis.scan.root, analysis.base, sources, analysis.scan.skipped)


def _note(files: list[ConvertedFile], done: Analysis, noted: tuple[str, ...]) -> None:
    """Notes, of the program as it is after the conversion: what was converted may be something that stays."""
    trees = {tree.source.path: tree for tree in done.trees}
    for made in files:
        if made.path in trees and not made.kept:
            text = made.after
            made.after = apply(text, _noted(trees[made.path], Lines(text), done, noted))


def _does_not_read(before: str, after: str) -> str:
    """Why Python cannot read the converted text; nothing to say where it could not read the one before."""
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


def _respelled(made: ConvertedFile, tree: Tree, lines: Lines) -> Iterator[Edit]:
    done: set[cst.CSTNode] = set()
    for found in tree.respelled.values():
        if found.node in done:
            continue  # an import of several names
        done.add(found.node)
        line, column, end_line, end_column = tree.position(found.node)
        start, end = lines.offset(line, column), lines.offset(end_line, end_column)
        yield Edit(start, end, found.after)
        for node, before, behind in found.spans:
            at, column_at, to, column_to = tree.position(node)
            yield Edit(lines.offset(at, column_at), lines.offset(at, column_at), before)
            if behind:
                yield Edit(lines.offset(to, column_to), lines.offset(to, column_to), behind)
        made.changes.append(Change(line, column, found.before, found.after, "tensorflow-1-name"))


def _switched(
    made: ConvertedFile, tree: Tree, lines: Lines, analysis: Analysis, switches: bool
) -> Iterator[Edit]:  # fmt: skip
    """`tf.compat.v1.disable_v2_behavior()` behind the imports of a program of TensorFlow 1."""
    last = respelling.switch(analysis.program, tree, switches)
    if last is None:
        return
    line = tree.position(last)[2]
    newline = lines.newline(line)
    root = respelling.root_of_tensorflow(analysis.program, tree)
    text = f"{root}.compat.v1.disable_v2_behavior()"
    at = lines.starts[line] if line < len(lines.starts) else len(lines.text)
    yield Edit(at, at, f"{newline}{text}{newline}")
    made.changes.append(Change(line, 1, "", text, "tensorflow-1-behavior"))


def _noted(tree: Tree, lines: Lines, analysis: Analysis, noted: tuple[str, ...]) -> Iterator[Edit]:
    """A comment above each statement with something that is left; those of an earlier conversion go."""
    yield from _old_notes(tree.source.text, lines)
    by_line: dict[int, list[Finding]] = {}
    for construct, finding in analysis.constructs:
        if construct.tree is tree and finding.treatment in noted:
            line = _line_of_statement(tree, construct.node)
            findings = by_line.setdefault(line, [])
            if all((one.name, one.reason) != (finding.name, finding.reason) for one in findings):
                findings.append(finding)
    for line, findings in sorted(by_line.items()):
        indent, newline, at = lines.indent(line), lines.newline(line), lines.starts[line - 1]
        text = [f"{indent}{told}{newline}" for finding in findings for told in note_lines(finding, len(indent))]
        yield Edit(at, at, "".join(text))


def _line_of_statement(tree: Tree, node: cst.CSTNode) -> int:
    """The first line of the statement around a node."""
    line = tree.position(node)[0]
    for above in tree.above(node):
        if isinstance(above, (cst.SimpleStatementLine, cst.BaseCompoundStatement)):
            return tree.position(above)[0]
    return line


def _old_notes(text: str, lines: Lines) -> Iterator[Edit]:
    """The lines of marked comments: they are written anew."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text, newline="").readline))
    except (tokenize.TokenError, SyntaxError):
        return
    for token in tokens:
        if (
            token.type == tokenize.COMMENT
            and token.string.startswith(MARK)
            and not token.line[: token.start[1]].strip()
        ):
            line = token.start[0]
            end = lines.starts[line] if line < len(lines.starts) else len(text)
            yield Edit(lines.starts[line - 1], end, "")
