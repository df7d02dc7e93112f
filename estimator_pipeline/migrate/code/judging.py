"""The verdict on each file, from the findings of a scan; the converter uses the same verdicts."""

from __future__ import annotations

import collections
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import libcst as cst

from estimator_pipeline.migrate.code import verdicts
from estimator_pipeline.migrate.code.analysis.files import SourceFile
from estimator_pipeline.migrate.code.analysis.name_resolution import Program
from estimator_pipeline.migrate.code.analysis.syntax import Tree
from estimator_pipeline.migrate.code.findings import MANUAL, UNCHANGED, CodeFinding
from estimator_pipeline.migrate.code.keras import ConversionOutcome
from estimator_pipeline.migrate.code.renames import tensorflow_1
from estimator_pipeline.migrate.code.renames.renamed_text import NOT_VERBATIM, RenamedText
from estimator_pipeline.migrate.code.verdicts import FileVerdict

__all__ = ["judge", "judge_standalone", "switched_behind", "with_user_positions"]

_OF_ESTIMATORS = ("tf.estimator.", "tf.compat.v1.estimator.", "tf.keras.estimator.")


def with_user_positions(
    outcomes: Mapping[str, ConversionOutcome], sources: Iterable[SourceFile], renamed: Mapping[str, RenamedText]
) -> Mapping[str, ConversionOutcome]:
    """Return the outcomes with the lines and names of the user's files.

    The conversion to Keras works on the renamed text. For a file that a notebook writes, the place is the cell.
    """
    by_path = {source.path: source for source in sources}
    for path, outcome in outcomes.items():
        source = by_path.get(outcome.path or path)
        if source is None or not outcome.reason or outcome.source is not None:
            continue
        text = renamed.get(source.path)
        line = text.old_line(outcome.line) if text is not None else outcome.line
        for change in text.changes if text is not None else ():
            if change.line == line and change.before:
                new = rf"(?<![\w.]){re.escape(change.after)}(?!\w)"
                outcome.reason = re.sub(new, change.before.replace("\\", r"\\"), outcome.reason)
        outcome.source = source.shown_line(line)
        outcome.cell, outcome.line = source.place(line)
        if outcome.path:
            outcome.path = source.shown
    return outcomes


def judge(
    sources: Sequence[SourceFile],
    findings: Iterable[CodeFinding],
    renamed: Mapping[str, RenamedText],
    outcomes: Mapping[str, ConversionOutcome],
    program: Program,
    trees: Sequence[Tree],
) -> dict[str, FileVerdict]:
    """Return path -> verdict, for the files of a program.

    Args:
        outcomes: path -> the outcome of the conversion to Keras, with the user's lines and names.
    """
    manual = collections.Counter(finding.written or finding.path for finding in findings if finding.treatment == MANUAL)
    named = {finding.written or finding.path for finding in findings}
    runs = {finding.path for finding in findings
            if finding.treatment == UNCHANGED and f"{finding.spelled}.".startswith(_OF_ESTIMATORS)}  # fmt: skip
    by_path = {tree.source.path: tree for tree in trees}
    imported = program.imported(trees)
    judged = {}
    for source in sources:
        path, kind, why, outcome = source.path, verdicts.UNCHANGED, "", outcomes.get(source.path)
        text = renamed.get(path)
        if source.problems and (path not in by_path or not by_path[path].module.body):
            kind, why = verdicts.UNREADABLE, _unreadable(source)
        elif text is not None and text.kept:
            kind, why = verdicts.COPIED, text.kept
        elif path in by_path and path in named and not by_path[path].verbatim:
            kind, why = verdicts.COPIED, NOT_VERBATIM
        elif outcome is not None:
            judged[path] = _of_outcome(source, outcome, manual[path])
            continue
        elif text is not None and (text.changes or text.imports):
            kind = verdicts.RENAMED
        elif path in by_path:
            if switched_behind(program, trees, by_path[path], imported, outcomes) is not None:
                verbatim = by_path[path].verbatim
                kind, why = (verdicts.RENAMED, "") if verbatim else (verdicts.COPIED, NOT_VERBATIM)
            elif source.cells and path in runs:  # a notebook cannot be started by `exec`, which provides Estimators
                kind = verdicts.ESTIMATOR
        judged[path] = _of(source, kind, why, manual[path])
    return judged


def judge_standalone(sources: Iterable[SourceFile], without: Collection[str]) -> dict[str, FileVerdict]:
    """Return path -> verdict, for files that belong to no program.

    Args:
        without: the files that do not use TensorFlow.
    """
    judged = {}
    for source in sources:
        problem = _unreadable(source)
        if source.path in without:
            kind, problem = verdicts.NO_TENSORFLOW, f"it cannot be read: {problem}" if problem else ""
        else:
            kind = verdicts.UNREADABLE if problem else verdicts.UNCHANGED
        judged[source.path] = _of(source, kind, problem, len(source.problems) if kind == verdicts.UNREADABLE else 0)
    return judged


def _of(source: SourceFile, kind: str, why: str, manual: int) -> FileVerdict:
    place = _place(source) if why and kind != verdicts.COPIED else {}
    return FileVerdict(source.path, kind, why, reason=why, manual=manual, notebook=source.notebook, **place)


def _of_outcome(source: SourceFile, outcome: ConversionOutcome, manual: int) -> FileVerdict:
    kind = verdicts.KERAS if outcome.text else verdicts.ESTIMATOR
    if not outcome.reason:
        return FileVerdict(source.path, kind, manual=manual, notebook=source.notebook)
    return FileVerdict(
        source.path, kind, outcome.describe(), reason=outcome.reason, at=outcome.path or source.shown,
        cell=outcome.cell, line=outcome.line, source=outcome.source or "", manual=manual, notebook=source.notebook,
    )  # fmt: skip


def _unreadable(source: SourceFile) -> str:
    if not source.problems:
        return ""
    cell, line = source.place(_line_of_problem(source))
    place = f"line {line}" if cell is None else f"cell {cell}, line {line}"
    return f"{place}: {source.problems[0].why}"


def _line_of_problem(source: SourceFile) -> int:
    """Return the line of the first problem, in the text of all cells."""
    problem = source.problems[0]
    return problem.line + next((cell.first - 1 for cell in source.cells if cell.number == problem.cell), 0)


def _place(source: SourceFile) -> dict[str, Any]:
    """Return the fields of a verdict for the place that cannot be read."""
    if not source.problems:
        return {}
    number = _line_of_problem(source)
    cell, line = source.place(number)
    return {"at": source.shown, "cell": cell, "line": line, "source": source.shown_line(number)}


def switched_behind(
    program: Program,
    trees: Iterable[Tree],
    tree: Tree,
    imported: set[Tree],
    outcomes: Mapping[str, ConversionOutcome],
) -> cst.BaseStatement | None:
    """Return the statement after which a file must disable TensorFlow 2 behavior; None where it need not.

    Keras needs that behavior: a file that imports one that becomes Keras does not disable it.
    """
    files = program.reached(tree, set(trees))
    if any((outcome := outcomes.get(file.source.path)) is not None and outcome.text for file in files):
        return None
    switches, of_1 = tensorflow_1.switches_behavior(files), any(file.tensorflow_1 for file in files)
    return tensorflow_1.switch(program, tree, switches, tree in imported, of_1=of_1)
