"""From a program to the converted program: what each rule writes, and a marked note where no rule does.

Everything is worked out, and every file that changes is parsed again, before anything is written. A file is changed at
the places that the rules name and nowhere else: comments, layout, line ends and encoding stay.
"""

from __future__ import annotations

import codecs
import io
import os
import re
import tokenize
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import libcst as cst

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.migrate.code.analysis.edits import Edit, Lines, apply
from estimator_pipeline.migrate.code.analysis.files import Skipped, SourceFile
from estimator_pipeline.migrate.code.analysis.modules import Modules
from estimator_pipeline.migrate.code.analysis.notebooks import first_import, is_written, restored, split
from estimator_pipeline.migrate.code.analysis.syntax import Tree
from estimator_pipeline.migrate.code.findings import MANUAL, UNCHANGED, CodeFinding
from estimator_pipeline.migrate.code.judging import judge_by_itself, switched_behind
from estimator_pipeline.migrate.code.notebook_json import decoded, rewritten, with_notes_on_packages
from estimator_pipeline.migrate.code.notes import MARK, note_lines
from estimator_pipeline.migrate.code.others import Others
from estimator_pipeline.migrate.code.renames import tensorflow_1
from estimator_pipeline.migrate.code.renames.renamed_text import Change, RenamedText
from estimator_pipeline.migrate.code.renames.tf1_names import ON_THE_WAY
from estimator_pipeline.migrate.code.repository.repository import CodeBase, read_code, run
from estimator_pipeline.migrate.code.scanner import Analysis, analyse, deep, judged, unreadable
from estimator_pipeline.migrate.code.to_keras.convert_file import ConversionOutcome
from estimator_pipeline.migrate.code.to_keras.program.linking import imported_files
from estimator_pipeline.migrate.code.to_keras.program.rule import KERAS
from estimator_pipeline.migrate.code.to_keras3.program import modules_beside
from estimator_pipeline.migrate.code.verdicts import COPIED, ESTIMATOR, NO_TENSORFLOW, UNREADABLE, FileVerdict
from estimator_pipeline.migrate.code.verdicts import UNCHANGED as VERDICT_UNCHANGED

__all__ = ["NOTES", "SCHEMA", "Change", "Converted", "ConvertedFile", "convert", "convert_part"]

SCHEMA = "estimator-pipeline/migrate-convert/1"
"""The form of the JSON document. A new number where a field goes or changes its meaning; new fields are no change."""

NOTES = {"manual": (MANUAL,), "all": (MANUAL, UNCHANGED), "none": ()}
"""Which constructs that are left get a note in the code."""

# What a program has from Keras 2 or from tensorflow-estimator.
_OF_KERAS_2 = re.compile(r"\.estimator\b|\bkeras\b|compat\.v1\.layers\b|rnn_cell|tf_slim|estimator_pipeline\.compat\b")

TARGETS = ("keras", "keras-layers", "keras3", "estimator")
"""What a program becomes: Keras, where need be with a model_fn that stays; Keras as a whole; Keras 3 as a whole, with a
module beside it for what that lacks; Estimators still."""


@dataclass
class ConvertedFile:
    """A file of the converted program.

    Attributes:
        path: relative to the program's root, with slashes.
        before, after: its text.
        left: what no rule converts and what does not run as it stands: a person's work.
        unchanged: what no rule converts, and what runs under compat as it is.
        kept: why a file is copied as it is, where it might have been converted.
        keras: whether it is a Keras program now.
        keeps_model_fn: why its model_fn stays a function, which a Keras model calls; "" where none does.
        kept_as_estimator: why it stays an Estimator program, where it is one.
        verdict: what a scan says of it.
        cells: of a notebook the cells with other code: their numbers, among all and counted from 1, and the code.
        parts: what it takes from the module that is written beside it, as a program of Keras 3.
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
    keeps_model_fn: str = ""
    kept_as_estimator: str = ""
    verdict: FileVerdict = field(default_factory=lambda: FileVerdict("", VERDICT_UNCHANGED))
    cells: list[tuple[int, str]] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        return self.before != self.after

    @property
    def is_notebook(self) -> bool:
        return self.path.endswith(".ipynb")

    @property
    def notebook(self) -> str:
        """The notebook whose cells write the file; "" where it is a file already."""
        return self.verdict.notebook

    def document(self) -> dict[str, Any]:
        def told(finding: CodeFinding) -> dict[str, Any]:
            names = ("cell", "line", "column", "name", "spelled", "reason", "keep", "successor", "write")
            return {name: getattr(finding, name) for name in names}

        return {
            "path": self.path,
            "changed": self.changed,
            "kept": self.kept or None,
            "keras": self.keras,
            "keeps_model_fn": self.keeps_model_fn or None,
            "kept_as_estimator": self.kept_as_estimator or None,
            "verdict": self.verdict.document(),
            "changes": [vars(change) for change in self.changes],
            "manual": [told(finding) for finding in self.left],
            "unchanged": [told(finding) for finding in self.unchanged],
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
        return done, done + sum(len(one.left) + len(one.unchanged) for one in self.files)

    @property
    def beside(self) -> dict[str, str]:
        """Path -> text of the modules that programs of Keras 3 get beside them.

        Raises:
            ConfigError: the program has a file of that name.
        """
        made = modules_beside({one.path: one.parts for one in self.files if one.parts})
        for one in self.files:
            if one.path in made:
                raise ConfigError(
                    f"{one.path} is a file of the program's own, and of a module that would be written",
                    code="file/exists",
                    hint="give the file another name",
                )
        return made

    @property
    def became(self) -> dict[str, int]:
        """How many files are Keras now, by a model_fn that stays, and how many there are with Estimators."""
        keras = [one for one in self.files if one.keras]
        stay = sum(bool(one.kept_as_estimator) for one in self.files)
        return {
            "keras": len(keras),
            "keeps_model_fn": sum(bool(one.keeps_model_fn) for one in keras),
            "of": len(keras) + stay,
        }

    def document(self) -> dict[str, Any]:
        """Return the document that `--json` prints."""
        return {
            "schema": SCHEMA,
            "root": self.root,
            "files": [one.document() for one in self.files],
            "changes": sum(len(one.changes) for one in self.files),
            "manual": sum(len(one.left) for one in self.files),
            "unchanged": sum(len(one.unchanged) for one in self.files),
            "keras": [one.path for one in self.files if one.keras],
            "became": self.became,
            "beside": self.beside,
            "not_read": [{"path": one.path, "why": one.why} for one in self.skipped],
        }


def convert(
    root: str | os.PathLike[str],
    *,
    notes: str = "manual",
    to: str = "keras",
    jobs: int = 1,
    cache: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Converted:
    """Convert a file or a folder; nothing is written.

    Args:
        root: a Python file, a notebook, or a folder of them.
        notes: which constructs that are left get a marked comment above them; one of `NOTES`.
        to: "keras"; "keras-layers", where a model_fn either becomes Keras layers or keeps its Estimator; "estimator",
            where all stay Estimators; "keras3", as "keras-layers" in the words of Keras 3.
        jobs: see `scan`, as for `cache` and `progress`.
        cache: see `scan`.
        progress: see `scan`.

    Returns:
        Every file with its text before and after, what was changed and what is left.

    Raises:
        ConfigError: there is no such path, no Python file in it, or no such kind of notes.
    """
    if notes not in NOTES:
        raise ConfigError(
            f"notes {notes!r}: there are none of that kind",
            code="argument/unknown-name",
            found=", ".join(NOTES),
            hint="name one",
        )
    if to not in TARGETS:
        raise ConfigError(
            f"to {to!r}: nothing of that kind is written",
            code="argument/unknown-name",
            found=", ".join(TARGETS),
            hint="name one",
        )
    code = read_code(root)
    files, verdicts = {}, judge_by_itself(code.sources, code.without)
    for source in code.sources:
        files[source.path] = made = _made(source, verdicts[source.path])
        if source.path not in code.without:
            made.left = [unreadable(source, problem) for problem in source.problems]
    for answer in run(
        code, "convert", convert_part, {"notes": notes, "to": to}, jobs=jobs, cache=cache, progress=progress
    ):
        for one in answer["files"]:
            made = files[one["path"]]
            for name, value in one.items():
                setattr(made, name, _OF_PLAIN[name](value) if name in _OF_PLAIN else value)
    _rewrite_notebooks(files, code, noted=bool(NOTES[notes]))
    return Converted(os.fspath(root), str(code.base), list(files.values()), code.skipped)


def convert_part(
    sources: list[SourceFile], modules: Modules, others: Others, options: Mapping[str, str], tick: Callable[[], None]
) -> dict[str, Any]:
    """Return the files of one program, as plain values: what of them is not as it was."""
    analysis = analyse(sources, modules, others, to=options["to"], tick=tick)
    by_path: dict[str, list[CodeFinding]] = {}
    for finding in analysis.findings:
        by_path.setdefault(finding.written or finding.path, []).append(finding)
    trees = {tree.source.path: tree for tree in analysis.trees}
    files, verdicts = [], judged(analysis)
    with deep():
        imported = imported_files(analysis.program, analysis.trees)
        for source in analysis.sources:
            verdict = verdicts[source.path]
            made = _made(source, verdict)
            findings = by_path.get(source.path, [])
            made.left = [one for one in findings if one.treatment == MANUAL]
            made.unchanged = [one for one in findings if one.treatment == UNCHANGED]
            if not made.kept and source.path in analysis.renamed:
                renamed = analysis.renamed[source.path]
                made.after, made.changes = renamed.text, [_placed(source, one) for one in renamed.changes]
                outcome = analysis.outcomes.get(source.path)
                if outcome is not None and outcome.text:
                    _to_keras(made, outcome, findings)
                else:
                    made.kept_as_estimator = verdict.why
                    _switch(made, trees[source.path], analysis, imported)
                    _import(made, trees[source.path], renamed)
                if source.cells:
                    _install(made, source, keras_3=options["to"] == "keras3")
            files.append(made)
        _note(files, _again(files, analysis, others), NOTES[options["notes"]])
    for made, source in zip(files, analysis.sources, strict=True):
        if source.cells:
            _keep_cells(made, source)
    return {"files": [_plain(made) for made in files]}


def _made(source: SourceFile, verdict: FileVerdict) -> ConvertedFile:
    made = ConvertedFile(source.path, source.text, source.text, source.encoding, verdict=verdict)
    if verdict.verdict in (COPIED, UNREADABLE, NO_TENSORFLOW):
        made.kept = f"{'it cannot be read: ' if verdict.verdict == UNREADABLE else ''}{verdict.why}"
    return made


_OF_PLAIN: Mapping[str, Callable[[Any], Any]] = {
    "changes": lambda values: [Change(**one) for one in values],
    "left": lambda values: [CodeFinding(**one) for one in values],
    "unchanged": lambda values: [CodeFinding(**one) for one in values],
    "verdict": lambda value: FileVerdict(**value),
}


def _plain(made: ConvertedFile) -> dict[str, Any]:
    plain = {
        name: value for name, value in vars(made).items() if name != "before" and (name != "after" or made.changed)
    }
    for name in ("changes", "left", "unchanged"):
        plain[name] = [vars(one) for one in plain[name]]
    plain["verdict"] = vars(made.verdict)
    return plain


def _placed(source: SourceFile, change: Change) -> Change:
    """Return a change by its line within the cell, where the file is a notebook."""
    cell, line = source.place(change.line) if source.cells else (None, change.line)
    return replace(change, cell=cell, line=line)


def _to_keras(made: ConvertedFile, outcome: ConversionOutcome, findings: list[CodeFinding]) -> None:
    text = outcome.text
    gone = [one for one in findings if one.rule == KERAS]
    places = {(one.cell if made.is_notebook else None, one.line, one.column) for one in gone}
    # Of the names of TensorFlow 1 those that were on the way to Keras are no change of their own.
    made.changes = [one for one in made.changes if (one.cell, one.line, one.column) not in places
                    and (one.after in text or not ON_THE_WAY.match(one.after))]  # fmt: skip
    made.changes += [Change(one.line, one.column, one.spelled, one.successor, KERAS,
                            one.cell if made.is_notebook else None) for one in gone]  # fmt: skip
    made.changes.sort(key=lambda change: change.order)
    made.keras, made.after = True, text
    made.parts = list(outcome.parts)
    if outcome.keeps_model_fn:
        made.keeps_model_fn = outcome.told() if outcome.reason else "as its program"


def _switch(made: ConvertedFile, tree: Tree, analysis: Analysis, imported: set[Tree]) -> None:
    """`tf.compat.v1.disable_v2_behavior()` behind the imports of a program of TensorFlow 1."""
    last = switched_behind(analysis.program, analysis.trees, tree, imported)
    if last is None:
        return
    line, lines = analysis.renamed[made.path].line(tree.position(last)[2]), Lines(made.after)
    newline = lines.newline(line)
    root = tensorflow_1.root_of_tensorflow(analysis.program, tree)
    written = tensorflow_1.switch_lines(tree, f"{root}.compat.v1")
    at = lines.starts[line] if line < len(lines.starts) else len(lines.text)
    made.after = apply(made.after, [Edit(at, at, "".join(f"{one}{newline}" for one in written))])
    made.changes.append(_placed(tree.source, Change(line, 1, "", written[-1].strip(), "tensorflow-1-behavior")))
    made.changes.sort(key=lambda change: change.order)


def _import(made: ConvertedFile, tree: Tree, renamed: RenamedText) -> None:
    """What the new names need, behind the imports with which a file begins, or before its first statement."""
    imports = renamed.imports
    if not imports:
        return
    lines, last = Lines(made.after), tensorflow_1.last_import(tree)
    if last is not None:
        line = tree.position(last)[2]
    else:
        line = tree.position(tree.module.body[1 if tree.module.get_docstring() is not None else 0])[0] - 1
    line = renamed.line(line) if line else 0
    newline = lines.newline(max(line, 1))
    at = lines.starts[line] if line < len(lines.starts) else len(lines.text)
    made.after = apply(made.after, [Edit(at, at, "".join(f"{one}{newline}" for one in imports))])
    made.changes += [_placed(tree.source, Change(max(line, 1), 1, "", one, "tensorflow-1-import")) for one in imports]
    made.changes.sort(key=lambda change: change.order)


def _install(made: ConvertedFile, source: SourceFile, *, keras_3: bool) -> None:
    """What `estimator-pipeline exec` does for a file, in a notebook that asks for it: before its first import."""
    if made.keeps_model_fn or (made.keras and keras_3):  # what it imports does that, or it has nothing of Keras 2
        return
    asks = made.keras or made.verdict.verdict == ESTIMATOR or (made.changes and _OF_KERAS_2.search(made.after))
    line = first_import(made.after)
    if not asks or not line or any(one in made.before for one in ("compat.install(", "TF_USE_LEGACY_KERAS")):
        return
    keras_2 = ["import os", "", 'os.environ["TF_USE_LEGACY_KERAS"] = "1"', ""]
    written = keras_2 if made.keras else ["import estimator_pipeline", "", "estimator_pipeline.compat.install()", ""]
    made.changes.append(_placed(source.with_text(made.after), Change(line, 1, "", written[2], "keras-2")))
    made.changes.sort(key=lambda change: change.order)
    lines = Lines(made.after)
    at = lines.starts[line - 1]
    if made.keras and made.after.startswith(f"import os{lines.newline(line)}", at):  # one import of it is enough
        at, written = lines.starts[line], written[1:]
    made.after = apply(made.after, [Edit(at, at, "".join(f"{one}{lines.newline(line)}" for one in written))])


def _again(files: list[ConvertedFile], analysis: Analysis, others: Others) -> Analysis:
    """Return the analysis of what is written."""
    counts = any(construct.match.ambiguous for construct, _ in analysis.constructs)
    if not others.any("a converted file", any(made.changed for made in files), counts=counts):
        return analysis
    sources = [one.with_text(made.after) for made, one in zip(files, analysis.sources, strict=True)]
    outcomes = {path: outcome for path, outcome in analysis.outcomes.items() if not outcome.text}
    return analyse(sources, analysis.program.modules, others, outcomes=outcomes, trees=analysis.program.trees)


def _note(files: list[ConvertedFile], done: Analysis, noted: tuple[str, ...]) -> None:
    """Note, of the program as it is after the conversion: what was converted may be something that stays."""
    trees = {tree.source.path: tree for tree in done.trees}
    for made in files:
        if made.path in trees and not made.kept:
            text = made.after
            made.after = apply(text, _noted(trees[made.path], Lines(text), done, noted))


def _keep_cells(made: ConvertedFile, source: SourceFile) -> None:
    """Put the cells that change in place of the code of a whole notebook."""
    cells = split(source.cells, made.after)
    if cells is None:  # a defect: the notebook stays as it was, and says so
        made.changes, made.keras, made.kept = [], False, "its cells cannot be told in what was written"
    for old, new in zip(source.cells, cells or (), strict=False):
        text = restored(old, new.text)
        if text is not None and text != old.source:
            made.cells.append((new.number, text))
    made.after = made.before


def _rewrite_notebooks(files: Mapping[str, ConvertedFile], code: CodeBase, *, noted: bool) -> None:
    """Give notebooks their JSON, where their code or a file that they write is converted."""
    sources = {source.path: source for source in code.sources}
    written: dict[str, list[ConvertedFile]] = {}
    for made in files.values():
        if made.notebook and made.changed:
            written.setdefault(made.notebook, []).append(made)
    for made in files.values():
        source, cells = sources[made.path], dict(made.cells)
        for other in written.get(made.path, ()):
            cells |= _written_cell(source, sources[other.path], other.after)
        if not cells:
            continue
        for cell in source.cells if noted else ():
            text = cells.get(cell.number, cell.source)
            cells[cell.number] = text if is_written(cell.source) else with_notes_on_packages(text)
        content = (code.base / made.path).read_bytes()
        made.encoding = "utf-8-sig" if content.startswith(codecs.BOM_UTF8) else made.encoding
        made.before = decoded(content)
        made.after = rewritten(
            made.before, {cell.number: cells[cell.number] for cell in source.cells
                          if cells.get(cell.number, cell.source) != cell.source}
        )  # fmt: skip


def _written_cell(notebook: SourceFile, file: SourceFile, text: str) -> dict[int, str]:
    """The cell that writes a file by `%%writefile`, with what the file is converted to; none where several write it."""
    if len(file.origin) != 1:
        return {}
    (origin,) = file.origin
    source = next(cell.source for cell in notebook.cells if cell.number == origin.number)
    above = "".join(source.splitlines(keepends=True)[: origin.above])
    return {origin.number: above + (text if source.endswith("\n") else text.removesuffix("\n"))}


def _noted(tree: Tree, lines: Lines, analysis: Analysis, noted: tuple[str, ...]) -> Iterator[Edit]:
    """Yield a comment above each statement with something that is left; those of an earlier conversion go."""
    yield from _old_notes(tree.source.text, lines)
    by_line: dict[int, list[CodeFinding]] = {}
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
    """Return the first line of the statement around a node."""
    line = tree.position(node)[0]
    for above in tree.above(node):
        if isinstance(above, (cst.SimpleStatementLine, cst.BaseCompoundStatement)):
            return tree.position(above)[0]
    return line


def _old_notes(text: str, lines: Lines) -> Iterator[Edit]:
    """Yield the lines of marked comments: they are written anew."""
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
