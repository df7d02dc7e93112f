"""Scan of a code base: every Estimator construct and its treatment.

The code is neither imported nor executed, and TensorFlow is not needed.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from estimator_pipeline.migrate.code import catalogue, keras
from estimator_pipeline.migrate.code.analysis import notebooks
from estimator_pipeline.migrate.code.analysis.constructs import (
    BY_USE,
    DATASET_ATTRIBUTES,
    DATASET_METHODS,
    RESOLVED,
    Construct,
    find_constructs,
)
from estimator_pipeline.migrate.code.analysis.files import SourceFile
from estimator_pipeline.migrate.code.analysis.functions import find_functions
from estimator_pipeline.migrate.code.analysis.modules import Modules
from estimator_pipeline.migrate.code.analysis.name_resolution import Program
from estimator_pipeline.migrate.code.analysis.notebooks import NotebookProblem
from estimator_pipeline.migrate.code.analysis.syntax import Tree, parse
from estimator_pipeline.migrate.code.failures import Failures
from estimator_pipeline.migrate.code.findings import AUTOMATIC, MANUAL, UNCHANGED, CodeFinding, Scan
from estimator_pipeline.migrate.code.judging import judge, judge_standalone, with_user_positions
from estimator_pipeline.migrate.code.keras import ConversionOutcome
from estimator_pipeline.migrate.code.others import Others
from estimator_pipeline.migrate.code.renames import renamed_text, tensorflow_1, tf1_names
from estimator_pipeline.migrate.code.renames.renamed_text import RenamedText
from estimator_pipeline.migrate.code.repository import Progress, read_code, run
from estimator_pipeline.migrate.code.verdicts import FileVerdict

__all__ = ["Analysis", "analyse", "by_path", "deep", "judged", "scan", "scan_part", "unreadable"]

# For deeply nested expressions in generated code; the default is 1,000.
_RECURSION = 10_000
_RUNS = "runs unchanged under exec and compat.install()"
_Found = TypeVar("_Found")


@dataclass
class Analysis:
    """The analysis of a program: the findings, and the trees and constructs that they come from.

    Attributes:
        constructs: each construct with its finding; an unreadable file has only a finding.
        renamed: path -> the text with TensorFlow 2 names.
        outcomes: path -> the outcome of the conversion to Keras.
    """

    sources: list[SourceFile]
    findings: list[CodeFinding]
    program: Program
    trees: list[Tree]
    constructs: list[tuple[Construct, CodeFinding]]
    renamed: Mapping[str, RenamedText]
    outcomes: Mapping[str, ConversionOutcome]


def scan(
    root: str | os.PathLike[str],
    *,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Scan:
    """Scan a file or a folder.

    Args:
        root: a Python file, a notebook, or a folder of them.
        jobs: the number of processes that read the programs of a folder. With more than one, a script that calls this
            requires `if __name__ == "__main__":`, as for `multiprocessing`.
        progress: called with the number of finished files and the number of all files.

    Returns:
        Every construct with its treatment, sorted by file, line and column, and a verdict on each file. The result is
        deterministic.

    Raises:
        ConfigError: the path does not exist or has no Python file.
    """
    code = read_code(root)
    result = Scan(root=os.fspath(root), skipped=code.skipped, files=len(code.sources), without=len(code.without))
    result.lines = sum(
        source.text.count("\n") + (not source.text.endswith("\n")) for source in code.sources if source.text
    )
    result.lines -= sum(max(len(source.cells) - 1, 0) for source in code.sources)  # the marker lines between cells
    findings = [unreadable(source, problem) for source in code.sources if source.path not in code.without
                for problem in source.problems]  # fmt: skip
    verdicts = judge_standalone(code.sources, code.without)
    for results in run(code, scan_part, jobs=jobs, progress=progress):
        for path, (of_file, verdict) in results.items():
            findings += of_file
            verdicts[path] = verdict
    result.findings, result.verdicts = in_order(findings), verdicts
    _keep_texts(result, code.sources)
    return result


def scan_part(
    sources: list[SourceFile], modules: Modules, others: Others
) -> dict[str, tuple[list[CodeFinding], FileVerdict]]:
    """Return path -> findings and verdict, for the files of one program."""
    done = analyse(sources, modules, others)
    findings = by_path(done.findings)
    return {path: (findings.get(path, []), verdict) for path, verdict in judged(done).items()}


def by_path(findings: Iterable[CodeFinding]) -> dict[str, list[CodeFinding]]:
    """Group findings by file, also by one that a notebook writes."""
    grouped: dict[str, list[CodeFinding]] = {}
    for finding in findings:
        grouped.setdefault(finding.written or finding.path, []).append(finding)
    return grouped


def analyse(
    sources: list[SourceFile],
    modules: Modules,
    others: Others,
    *,
    outcomes: Mapping[str, ConversionOutcome] | None = None,
    to: str = "keras",
    trees: Mapping[str, Tree] | None = None,
) -> Analysis:
    """Scan one program and keep its trees and constructs for the converter; add problems to the sources.

    Args:
        outcomes: path -> the outcome of the conversion to Keras, if known.
        to: the target of the conversion, one of `converter.TARGETS`.
        trees: the trees of an earlier analysis, reused for files with the same text.
    """
    stage = "program" if outcomes is None else "converted"
    with deep():
        read = _read(sources, modules, others, stage, trees or {})
        renamed = _renamed(read, others, stage)
        if outcomes is None:
            outcomes = {} if to == "estimator" else _outcomes(read, sources, renamed, others)
            outcomes = with_user_positions(outcomes, sources, renamed)
        pairs = _decided(read, outcomes)
    findings = [finding for _, finding in pairs]
    findings += [unreadable(source, problem) for source in sources for problem in source.problems]
    return Analysis(sources, in_order(findings), read.program, read.trees, pairs, renamed, outcomes)


def judged(done: Analysis) -> dict[str, FileVerdict]:
    """Return path -> verdict, for each file of an analysis."""
    with deep():
        return judge(done.sources, done.findings, done.renamed, done.outcomes, done.program, done.trees)


@dataclass
class _Read:
    """A program: its trees, the meanings of names, its constructs, and whether it uses TensorFlow 1 (`old`)."""

    trees: list[Tree]
    program: Program
    constructs: list[Construct]
    failures: Failures
    old: bool = False

    def each(self, step: Callable[[Tree], _Found]) -> Iterator[_Found]:
        """Yield the result of a step for each file."""
        return self.failures.each(self.trees, step, lambda tree: tree)


def _read(sources: list[SourceFile], modules: Modules, others: Others, stage: str, known: Mapping[str, Tree]) -> _Read:
    trees = _trees(sources, known)
    program = Program(trees, modules)
    read = _Read(trees, program, [], Failures(then=program.reset))
    for constructs in read.each(lambda tree: list(find_constructs(program, tree))):
        read.constructs += constructs
    read.constructs += find_functions(program, read.constructs, read.failures.each)
    old = any(map(_is_tensorflow_1, read.constructs))
    counts = any(construct.match.ambiguous for construct in read.constructs)
    read.old = others.any(f"{stage}: a name of TensorFlow 1", old, counts=counts)
    # Other ambiguous names mean Keras in a TensorFlow 2 program, such as tf.losses.mean_squared_error.
    read.constructs = [construct for construct in read.constructs if read.old or not construct.match.ambiguous
                       or construct.match.spelled.startswith("tf.summary.")]  # fmt: skip

    def mark(construct: Construct) -> None:
        if _is_tensorflow_1(construct) and not tensorflow_1.is_guarded(construct.tree, construct.node):
            construct.tree.tensorflow_1 = True

    _all(read.failures.each(read.constructs, mark, lambda construct: construct.tree))
    tensorflow_1.spread(program, trees)
    # A TensorFlow 1 program keeps `tf.compat.v1.data` datasets, which have these attributes.
    read.constructs = [construct for construct in read.constructs
                       if not (construct.row.name in DATASET_ATTRIBUTES and construct.tree.tensorflow_1)]  # fmt: skip
    return read


def _renamed(read: _Read, others: Others, stage: str) -> dict[str, RenamedText]:
    """Return path -> the text of a file with TensorFlow 2 names instead of TensorFlow 1 names."""
    _all(read.each(lambda tree: tf1_names.plan(read.program, tree)))
    tf1_names.plan_classes(read.program, read.trees)
    tf1_names.plan_aliases(read.trees, others, stage)
    return dict(read.each(lambda tree: (tree.source.path, renamed_text.of(tree))))


def _outcomes(
    read: _Read, sources: list[SourceFile], renamed: Mapping[str, RenamedText], others: Others
) -> dict[str, ConversionOutcome]:
    """Return path -> the outcome of the conversion to Keras. TensorFlow 1 files are converted from their new names."""
    changed = any(text.changes for text in renamed.values())
    old = {tree.source.path: tree.tensorflow_1 for tree in read.trees}
    before = []
    if others.any("a new name", changed, counts=any(old.values())):
        texts = {path: text.text for path, text in renamed.items()}
        sources = [source.with_text(texts.get(source.path, source.text)) for source in sources]
        before = [(tree, tree.state()) for tree in read.trees]
        read = _read(sources, read.program.modules, others, "renamed", read.program.trees)
        for tree in read.trees:  # the new names exist in TensorFlow 2, but the file is the user's
            tree.tensorflow_1 = tree.tensorflow_1 or old[tree.source.path]
    keras.plan(read.program, read.trees, read.constructs)
    outcomes = {tree.source.path: tree.keras for tree in read.trees if tree.keras is not None}
    for tree, state in before:
        tree.set_state(state)
    return outcomes


def _decided(read: _Read, outcomes: Mapping[str, ConversionOutcome]) -> list[tuple[Construct, CodeFinding]]:
    by_tree = keras.by_tree(read.constructs)
    _all(read.each(lambda tree: keras.adopt(tree, outcomes.get(tree.source.path), by_tree.get(tree, []))))
    pairs = list(
        read.failures.each(
            read.constructs,
            lambda construct: (construct, _finding(construct, read.old)),
            lambda construct: construct.tree,
        )
    )
    return [(construct, finding) for construct, finding in pairs if construct.tree not in read.failures.files]


def _all(steps: Iterator[None]) -> None:
    for _ in steps:
        pass


@contextlib.contextmanager
def deep() -> Iterator[None]:
    """Raise the recursion limit for deeply nested expressions."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _RECURSION))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def in_order(findings: Iterable[CodeFinding]) -> list[CodeFinding]:
    """Return findings sorted by file and place, with one for each name and place.

    A name that both branches of a `try` import is one finding.
    """
    seen: dict[tuple[object, ...], CodeFinding] = {}
    for finding in findings:
        seen.setdefault((finding.path, finding.cell or 0, finding.line, finding.column, finding.name), finding)
    return [seen[place] for place in sorted(seen)]


# Files


def _trees(sources: list[SourceFile], known: Mapping[str, Tree]) -> list[Tree]:
    """Return the trees of files. Trees with the same text are reused because libcst is slow."""
    trees = []
    for source in sources:
        if source.problems and not source.cells:
            continue
        tree = known.get(source.path)
        if tree is not None and tree.source.text == source.text:
            tree.reset(source)
            trees.append(tree)
        else:
            trees += [tree for tree in _parsed(source) if tree is not None]
    return trees


def _parsed(source: SourceFile) -> list[Tree | None]:
    if not source.cells:
        return [parse(source)]
    # An unreadable cell is blanked: the other cells are one program.
    cells = []
    for cell in source.cells:
        alone = SourceFile(source.path, cell.text)
        if notebooks.python_tree(cell.text) is None and parse(alone) is None:
            source.problems.append(alone.problems[0]._replace(cell=cell.number))
            cells.append(cell._replace(text="\n" * cell.text.count("\n")))
        else:
            cells.append(cell)
    source.cells, source.text = tuple(cells), notebooks.joined(cells)
    return [parse(source)]


# Treatments


def _is_tensorflow_1(construct: Construct) -> bool:
    """Return whether a construct shows that `tf` is TensorFlow 1: TensorFlow 2 does not have its name."""
    if construct.row.name in DATASET_METHODS:  # of a dataset that may be one of tf.compat.v1 in a file that names that
        return construct.certainty == BY_USE or not tensorflow_1.names_compat(construct.tree)
    return construct.match.spelled.startswith("tf.") and not construct.match.exists


def _treatment(construct: Construct, old: bool) -> tuple[str, str, str, str]:
    """Return (treatment, reason, code that runs under compat, rule)."""
    reasons = []
    for rule, decide in ((keras.KERAS, keras.decide), (renamed_text.RULE, tf1_names.decide)):
        writes, refused = decide(construct)
        if writes:
            return AUTOMATIC, f"migrate convert writes {writes}", "", rule
        reasons += [refused] if refused else []
    return *_as_it_is(construct, old, reasons[0] if reasons else ""), ""


def _as_it_is(construct: Construct, old: bool, refused: str) -> tuple[str, str, str]:
    row, match = construct.row, construct.match
    gone = not match.exists or not row.runs or (match.ambiguous and old)
    if gone and tensorflow_1.is_guarded(construct.tree, construct.node):
        return UNCHANGED, f"{match.spelled} is only reached on a TensorFlow version that has it", ""
    if not row.runs:
        return MANUAL, row.because or f"{match.spelled} was removed", row.keep
    if match.spelled.startswith("tf.contrib"):
        return MANUAL, "tf.contrib was removed in TensorFlow 2.0", row.name if row.name.startswith("tf.") else ""
    if not match.exists and row.name == "private import":
        return MANUAL, "a private module of TensorFlow, which any version may move or remove", "the public name"
    if not match.exists:
        name = "tf.compat.v1." + match.spelled.removeprefix("tf.")
        return MANUAL, f"TensorFlow 2 has no {match.spelled}", f"{name}, or: import tensorflow.compat.v1 as tf"
    if match.ambiguous and old:
        name = "tf.compat.v1." + match.spelled.removeprefix("tf.")
        return MANUAL, f"{match.spelled} has a different meaning in TensorFlow 2 than in TensorFlow 1", name
    reason = f"{_RUNS}; {row.because}" if row.because else _RUNS
    return UNCHANGED, f"{reason}; not converted: {refused}" if refused else reason, ""


def _finding(construct: Construct, old: bool) -> CodeFinding:
    row, match, source = construct.row, construct.match, construct.tree.source
    line, column, end_line, end_column = construct.tree.position(construct.node)
    cell, in_cell = source.place(line)
    treatment, reason, keep, rule = _treatment(construct, old)
    successor, write, kind = row.successor, row.write, row.kind
    if match.public:
        now = catalogue.v1_names()[match.public]
        successor = f"tf.{now}" if now else "tf.compat.v1 has it; see TensorFlow's own guide"
        write = f"tf.{now}(...)" if now else f"tf.compat.v1.{match.public}(...)"
    name = f"tf.compat.v1.{match.public}" if match.public else row.name
    if row.name in ("tf.contrib", "private import"):
        name = match.spelled
    return CodeFinding(
        path=source.shown, line=in_cell, column=column, end_line=end_line - line + in_cell, end_column=end_column,
        cell=cell, kind=kind, name=name, spelled=match.spelled, treatment=treatment, reason=reason, keep=keep,
        successor=successor, write=write, certainty=construct.certainty,
        details=construct.details, docs=row.anchor, rule=rule or None, written=source.path if source.notebook else "",
    )  # fmt: skip


def unreadable(source: SourceFile, problem: NotebookProblem) -> CodeFinding:
    """Return the finding for a file that cannot be read."""
    row = catalogue.row("unreadable file")
    keep = row.keep if "Python 2" in problem.why else ""
    keep = keep.partition(" (")[0] if source.cells else keep  # 2to3 reads no notebooks
    cell, line = (problem.cell, problem.line) if problem.cell else source.place(problem.line)
    return CodeFinding(
        path=source.shown, line=line, column=problem.column, end_line=line, end_column=problem.column + 1, cell=cell,
        kind=row.kind, name=row.name, spelled=row.name, treatment=MANUAL,
        reason=f"it cannot be read: {problem.why}", keep=keep, successor=row.successor, write=row.write,
        certainty=RESOLVED, details={}, docs=row.anchor, written=source.path if source.notebook else "",
    )  # fmt: skip


def _keep_texts(result: Scan, sources: list[SourceFile]) -> None:
    with_findings = {finding.path for finding in result.findings}
    for source in sources:
        if source.shown not in with_findings:
            continue
        for cell in source.cells:
            result.texts.setdefault(f"{source.path}#{cell.number}", cell.source)
        if source.origin:
            result.texts |= {
                f"{source.notebook}#{cell.number}": "\n" * cell.above + cell.text for cell in source.origin
            }
        elif not source.cells:
            result.texts[source.path] = source.text
