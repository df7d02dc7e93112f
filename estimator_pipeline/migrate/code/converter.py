"""Conversion of a program: the edits of each rule, and a marked comment where no rule applies.

The complete result is computed, and every changed file is parsed again, before anything is written. A file changes only
where a rule applies: comments, layout, line endings and encoding are unchanged.
"""

from __future__ import annotations

import ast
import bisect
import codecs
import contextlib
import functools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import libcst as cst

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.migrate.code.analysis.edits import Edit, Lines, Step, comments_of, damaging_rule
from estimator_pipeline.migrate.code.analysis.files import Skipped, SourceFile
from estimator_pipeline.migrate.code.analysis.modules import Modules
from estimator_pipeline.migrate.code.analysis.notebooks import first_import, restored, split
from estimator_pipeline.migrate.code.analysis.syntax import Tree
from estimator_pipeline.migrate.code.findings import MANUAL, UNCHANGED, CodeFinding
from estimator_pipeline.migrate.code.judging import judge_standalone, switched_behind
from estimator_pipeline.migrate.code.keras import KERAS, ConversionOutcome
from estimator_pipeline.migrate.code.notebook_json import decoded, rewritten
from estimator_pipeline.migrate.code.notes import MARK, note_lines
from estimator_pipeline.migrate.code.others import Others
from estimator_pipeline.migrate.code.renames import tensorflow_1
from estimator_pipeline.migrate.code.renames.renamed_text import Change, RenamedText
from estimator_pipeline.migrate.code.renames.tf1_names import ON_THE_WAY
from estimator_pipeline.migrate.code.repository import CodeBase, Progress, read_code, run
from estimator_pipeline.migrate.code.scanner import Analysis, analyse, by_path, deep, judged, unreadable
from estimator_pipeline.migrate.code.verdicts import COPIED, ESTIMATOR, NO_TENSORFLOW, UNREADABLE, FileVerdict
from estimator_pipeline.migrate.code.verdicts import UNCHANGED as VERDICT_UNCHANGED

__all__ = ["NOTES", "SCHEMA", "Change", "Converted", "ConvertedFile", "convert", "convert_part"]

SCHEMA = "estimator-pipeline/migrate-convert/2"
"""The version of the JSON document. It changes where a field is removed or changes its meaning, not for new fields."""

NOTES = {"manual": (MANUAL,), "all": (MANUAL, UNCHANGED), "none": ()}
"""Option -> the treatments of unconverted constructs that get a note in the code."""

# Names that need Keras 2 or tensorflow-estimator.
_OF_KERAS_2 = re.compile(r"\.estimator\b|\bkeras\b|compat\.v1\.layers\b|rnn_cell|tf_slim|estimator_pipeline\.compat\b")
_SWITCHES = ("compat.install", "TF_USE_LEGACY_KERAS")  # of a notebook that has the setup already

TARGETS = ("keras", "estimator")
"""Targets: Keras, with names that Keras 2 and 3 share and without this package; or Estimators on TensorFlow 2. With
both, a program that no rule converts keeps its Estimator."""


@dataclass
class ConvertedFile:
    """A file of the converted program.

    Attributes:
        path: the file, relative to the program's root, with slashes.
        before, after: the text before and after the conversion.
        left: constructs that no rule converts and that do not run unchanged: manual work.
        unchanged: constructs that no rule converts and that run unchanged under compat.
        kept: why a file is copied unchanged; "" for a file that is not.
        keras: whether the file was converted to Keras.
        kept_as_estimator: why it remains an Estimator program; "" where it does not.
        verdict: the verdict of a scan.
        cells: the changed cells of a notebook: (number, counted from 1 among all cells; code).
        steps: the edits from `before` to `after`, in order.
    """

    path: str
    before: str
    after: str
    encoding: str = "utf-8"
    changes: list[Change] = field(default_factory=list)
    left: list[CodeFinding] = field(default_factory=list)
    unchanged: list[CodeFinding] = field(default_factory=list)
    kept: str = ""
    keras: bool = False
    kept_as_estimator: str = ""
    verdict: FileVerdict = field(default_factory=lambda: FileVerdict("", VERDICT_UNCHANGED))
    cells: list[tuple[int, str]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    def edit(self, rule: str, edits: Iterable[Edit]) -> None:
        """Apply the edits of a rule to `after`."""
        self.steps.append(Step.of(rule, self.after, edits))
        self.after = self.steps[-1].after

    def insert(self, written: Iterable[str], changes: Sequence[Change], source: SourceFile, *, below: int) -> None:
        """Write lines below a line of `after`, or at the beginning for line 0, and report the changes."""
        lines = Lines(self.after)
        at, newline = lines.end(below) if below else 0, lines.newline(changes[0].line)
        self.edit(changes[0].rule, [Edit(at, at, "".join(f"{text}{newline}" for text in written))])
        self.changes += [_placed(source, change) for change in changes]
        self.changes.sort(key=lambda change: change.order)

    @property
    def changed(self) -> bool:
        return self.before != self.after

    @property
    def is_notebook(self) -> bool:
        return self.path.endswith(".ipynb")

    @property
    def notebook(self) -> str:
        """The notebook whose cells write the file; "" for an existing file."""
        return self.verdict.notebook

    def document(self) -> dict[str, Any]:
        def document_of(finding: CodeFinding) -> dict[str, Any]:
            names = ("cell", "line", "column", "name", "spelled", "reason", "keep", "successor", "write")
            return {name: getattr(finding, name) for name in names}

        return {
            "path": self.path,
            "changed": self.changed,
            "kept": self.kept or None,
            "keras": self.keras,
            "kept_as_estimator": self.kept_as_estimator or None,
            "verdict": self.verdict.document(),
            "changes": [vars(change) for change in self.changes],
            "manual": [document_of(finding) for finding in self.left],
            "unchanged": [document_of(finding) for finding in self.unchanged],
        }


@dataclass
class Converted:
    """A converted program.

    Attributes:
        root: the converted file or folder, as the user named it.
        base: the folder that paths are relative to.
        files: every file that was read, sorted by name.
        skipped: files that were not read and are not part of the result.
    """

    root: str
    base: str
    files: list[ConvertedFile]
    skipped: list[Skipped]

    @property
    def changed(self) -> list[ConvertedFile]:
        return [file for file in self.files if file.changed]

    @property
    def became(self) -> dict[str, int]:
        """The numbers of files converted to Keras and of files with Estimators."""
        keras = sum(file.keras for file in self.files)
        return {"keras": keras, "of": keras + sum(bool(file.kept_as_estimator) for file in self.files)}

    def document(self) -> dict[str, Any]:
        """Return the JSON document that `--json` prints."""
        return {
            "schema": SCHEMA,
            "root": self.root,
            "files": [file.document() for file in self.files],
            "changes": sum(len(file.changes) for file in self.files),
            "manual": sum(len(file.left) for file in self.files),
            "unchanged": sum(len(file.unchanged) for file in self.files),
            "keras": [file.path for file in self.files if file.keras],
            "became": self.became,
            "not_read": [{"path": skipped.path, "why": skipped.why} for skipped in self.skipped],
        }


def convert(
    root: str | os.PathLike[str],
    *,
    notes: str = "manual",
    to: str = "keras",
    jobs: int = 1,
    progress: Progress | None = None,
) -> Converted:
    """Convert a file or a folder without writing anything.

    Args:
        root: a Python file, a notebook, or a folder of them.
        notes: which unconverted constructs get a marked comment above them; one of `NOTES`.
        to: the target, one of `TARGETS`.
        jobs: see `scan`.
        progress: see `scan`.

    Returns:
        Every file with its text before and after, its changes, and the unconverted constructs.

    Raises:
        ConfigError: the path does not exist or has no Python file, or `notes` or `to` has an unknown value.
    """
    for name, value, values in (("notes", notes, NOTES), ("to", to, TARGETS)):
        if value not in values:
            message, choices = f"{name} {value!r}: unknown value", ", ".join(values)
            raise ConfigError(message, code="argument/unknown-name", found=choices, hint="name one")
    code = read_code(root)
    files, verdicts = {}, judge_standalone(code.sources, code.without)
    for source in code.sources:
        files[source.path] = file = _converted_file(source, verdicts[source.path])
        if source.path not in code.without:
            file.left = [unreadable(source, problem) for problem in source.problems]
    for results in run(code, functools.partial(convert_part, notes=notes, to=to), jobs=jobs, progress=progress):
        files.update(results)
    _rewrite_notebooks(files, code)
    return Converted(os.fspath(root), str(code.base), list(files.values()), code.skipped)


def convert_part(
    sources: list[SourceFile], modules: Modules, others: Others, *, notes: str, to: str
) -> dict[str, ConvertedFile]:
    """Return path -> file, for the files of one program."""
    analysis = analyse(sources, modules, others, to=to)
    by_file = by_path(analysis.findings)
    trees = {tree.source.path: tree for tree in analysis.trees}
    files, verdicts = [], judged(analysis)
    with deep():
        imported = analysis.program.imported(analysis.trees)
        for source in analysis.sources:
            verdict = verdicts[source.path]
            file = _converted_file(source, verdict)
            findings = by_file.get(source.path, [])
            file.left = [finding for finding in findings if finding.treatment == MANUAL]
            file.unchanged = [finding for finding in findings if finding.treatment == UNCHANGED]
            if not file.kept and source.path in analysis.renamed:
                renamed = analysis.renamed[source.path]
                file.after, file.steps = renamed.text, list(renamed.steps)
                file.changes = [_placed(source, change) for change in renamed.changes]
                outcome = analysis.outcomes.get(source.path)
                if outcome is not None and outcome.text:
                    _to_keras(file, outcome, findings)
                else:
                    file.kept_as_estimator = verdict.why
                    _switch(file, trees[source.path], analysis, imported)
                    _import(file, trees[source.path], renamed)
                if source.cells:
                    _install(file, source)
            files.append(file)
        _note(files, _again(files, analysis, others), NOTES[notes])
    for file in files:
        _undo_damage(file)
    for file, source in zip(files, analysis.sources, strict=True):
        if source.cells:
            _keep_cells(file, source)
    return {file.path: file for file in files}


def _converted_file(source: SourceFile, verdict: FileVerdict) -> ConvertedFile:
    file = ConvertedFile(source.path, source.text, source.text, source.encoding, verdict=verdict)
    if verdict.verdict in (COPIED, UNREADABLE, NO_TENSORFLOW):
        file.kept = f"{'it cannot be read: ' if verdict.verdict == UNREADABLE else ''}{verdict.why}"
    return file


def _placed(source: SourceFile, change: Change) -> Change:
    """Return a change with its line within the cell, for a notebook."""
    cell, line = source.place(change.line) if source.cells else (None, change.line)
    return replace(change, cell=cell, line=line)


def _to_keras(file: ConvertedFile, outcome: ConversionOutcome, findings: list[CodeFinding]) -> None:
    text = outcome.text
    gone = [finding for finding in findings if finding.rule == KERAS]
    places = {(finding.cell if file.is_notebook else None, finding.line, finding.column) for finding in gone}
    # Renames of TensorFlow 1 names that the conversion to Keras replaced again are not reported as changes.
    file.changes = [change for change in file.changes if (change.cell, change.line, change.column) not in places
                    and (change.after in text or not ON_THE_WAY.match(change.after))]  # fmt: skip
    file.changes += [Change(finding.line, finding.column, finding.spelled, finding.successor, KERAS,
                            finding.cell if file.is_notebook else None) for finding in gone]  # fmt: skip
    file.changes.sort(key=lambda change: change.order)
    file.keras, file.after, file.steps = True, text, [*file.steps, *outcome.steps]


def _switch(file: ConvertedFile, tree: Tree, analysis: Analysis, imported: set[Tree]) -> None:
    """Add `tf.compat.v1.disable_v2_behavior()` after the imports of a TensorFlow 1 program."""
    last = switched_behind(analysis.program, analysis.trees, tree, imported, analysis.outcomes)
    if last is None:
        return
    line = analysis.renamed[file.path].line(tree.position(last)[2])
    written = tensorflow_1.switch_lines(tree, f"{tensorflow_1.root_of_tensorflow(analysis.program, tree)}.compat.v1")
    change = Change(line, 1, "", written[-1].strip(), "tensorflow-1-behavior")
    file.insert(written, [change], tree.source, below=line)


def _import(file: ConvertedFile, tree: Tree, renamed: RenamedText) -> None:
    """Add the imports that the new names need, after the first imports or before the first statement."""
    imports = renamed.imports
    if not imports:
        return
    last = tensorflow_1.last_import(tree)
    if last is not None:
        line = tree.position(last)[2]
    else:
        line = tree.position(tree.module.body[1 if tree.module.get_docstring() is not None else 0])[0] - 1
    line = renamed.line(line) if line else 0
    changes = [Change(max(line, 1), 1, "", statement, "tensorflow-1-import") for statement in imports]
    file.insert(imports, changes, tree.source, below=line)


def _install(file: ConvertedFile, source: SourceFile) -> None:
    """Add the setup that `estimator-pipeline exec` does for a file, before the first import of a notebook."""
    if file.keras:  # it needs nothing of this package
        return
    needs_setup = file.verdict.verdict == ESTIMATOR or (
        file.changes and any(_OF_KERAS_2.search(name) for name in _names(file.after))
    )
    line = first_import(file.after)
    if not needs_setup or not line or any(name.endswith(_SWITCHES) for name in _names(file.before)):
        return
    written = ["import estimator_pipeline", "", "estimator_pipeline.compat.install()", ""]
    file.insert(written, [Change(line, 1, "", written[2], "keras-2")], source.with_text(file.after), below=line - 1)


def _names(text: str) -> Iterator[str]:
    """Yield the dotted names, imported modules and short strings of a text; nothing if Python cannot read it."""
    with contextlib.suppress(SyntaxError, ValueError):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.Name, ast.Attribute)):
                yield ast.unparse(node)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                module = getattr(node, "module", None)
                yield from (f"{module}.{alias.name}" if module else alias.name for alias in node.names)
            elif isinstance(node, ast.Constant) and node.value == "TF_USE_LEGACY_KERAS":
                yield node.value


def _again(files: list[ConvertedFile], analysis: Analysis, others: Others) -> Analysis:
    """Return the analysis of the converted files."""
    counts = any(construct.match.ambiguous for construct, _ in analysis.constructs)
    if not others.any("a converted file", any(file.changed for file in files), counts=counts):
        return analysis
    sources = [source.with_text(file.after) for file, source in zip(files, analysis.sources, strict=True)]
    outcomes = {path: outcome for path, outcome in analysis.outcomes.items() if not outcome.text}
    return analyse(sources, analysis.program.modules, others, outcomes=outcomes, trees=analysis.program.trees)


def _note(files: list[ConvertedFile], done: Analysis, noted: tuple[str, ...]) -> None:
    """Add the notes, from the analysis of the converted program: converted code may still contain such constructs."""
    trees = {tree.source.path: tree for tree in done.trees}
    for file in files:
        if file.path in trees and not file.kept:
            file.edit("notes", _noted(trees[file.path], Lines(file.after), done, noted))


def _undo_damage(file: ConvertedFile) -> None:
    """Leave a file as it is if a rule changed something outside of its edits: a defect of the converter."""
    rule = damaging_rule(file.before, file.after, file.steps)
    if rule:
        file.after, file.changes, file.keras = file.before, [], False
        file.kept = f"the rule {rule} would change code that it does not convert"


def _keep_cells(file: ConvertedFile, source: SourceFile) -> None:
    """Replace the code of a whole notebook by its changed cells."""
    cells = split(source.cells, file.after)
    if cells is None:  # a defect of the converter: the notebook is unchanged, and the reason is reported
        file.changes, file.keras, file.kept = [], False, "the converted code cannot be split into its cells"
    for old, new in zip(source.cells, cells or (), strict=False):
        text = restored(old, new.text)
        if text is not None and text != old.source:
            file.cells.append((new.number, text))
    file.after = file.before


def _rewrite_notebooks(files: Mapping[str, ConvertedFile], code: CodeBase) -> None:
    """Rewrite the JSON of notebooks whose code, or a file that they write, is converted."""
    sources = {source.path: source for source in code.sources}
    written: dict[str, list[ConvertedFile]] = {}
    for file in files.values():
        if file.notebook and file.changed:
            written.setdefault(file.notebook, []).append(file)
    for file in files.values():
        source, cells = sources[file.path], dict(file.cells)
        for other in written.get(file.path, ()):
            cells |= _written_cell(source, sources[other.path], other.after)
        if not cells:
            continue
        content = (code.base / file.path).read_bytes()
        file.encoding = "utf-8-sig" if content.startswith(codecs.BOM_UTF8) else file.encoding
        file.before = decoded(content)
        file.after = rewritten(
            file.before, {cell.number: cells[cell.number] for cell in source.cells
                          if cells.get(cell.number, cell.source) != cell.source}
        )  # fmt: skip


def _written_cell(notebook: SourceFile, file: SourceFile, text: str) -> dict[int, str]:
    """Return {cell number: code} of the cell that writes a converted file; empty if several cells write it."""
    if len(file.origin) != 1:
        return {}
    (origin,) = file.origin
    source = next(cell.source for cell in notebook.cells if cell.number == origin.number)
    above = "".join(source.splitlines(keepends=True)[: origin.above])
    return {origin.number: above + (text if source.endswith("\n") else text.removesuffix("\n"))}


def _noted(tree: Tree, lines: Lines, analysis: Analysis, noted: tuple[str, ...]) -> Iterator[Edit]:
    """Yield a comment above each statement with an unconverted construct; remove those of an earlier conversion."""
    yield from _old_notes(tree.source.text, lines)
    by_line: dict[int, list[CodeFinding]] = {}
    for construct, finding in analysis.constructs:
        if construct.tree is tree and finding.treatment in noted:
            line = _line_of_statement(tree, construct.node)
            findings = by_line.setdefault(line, [])
            if all((other.name, other.reason) != (finding.name, finding.reason) for other in findings):
                findings.append(finding)
    for line, findings in sorted(by_line.items()):
        indent, newline, at = lines.indent(line), lines.newline(line), lines.starts[line - 1]
        text = [f"{indent}{note}{newline}" for finding in findings for note in note_lines(finding, len(indent))]
        yield Edit(at, at, "".join(text))


def _line_of_statement(tree: Tree, node: cst.CSTNode) -> int:
    """Return the first line of the statement around a node."""
    line = tree.position(node)[0]
    for above in tree.above(node):
        if isinstance(above, (cst.SimpleStatementLine, cst.BaseCompoundStatement)):
            return tree.position(above)[0]
    return line


def _old_notes(text: str, lines: Lines) -> Iterator[Edit]:
    """Yield the deletion of each marked comment, which the conversion writes again."""
    for at, comment in comments_of(text):
        line = bisect.bisect(lines.starts, at)
        if comment.startswith(MARK) and not text[lines.starts[line - 1] : at].strip():
            yield Edit(lines.starts[line - 1], lines.end(line), "")
