"""Reads a code base and says of every Estimator construct what becomes of it.

Nothing of it is imported or executed, and TensorFlow is not needed.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import NamedTuple, TypeVar

from estimator_pipeline.migrate.code import catalogue
from estimator_pipeline.migrate.code.analysis.constructs import DATASET_ATTRIBUTES, RESOLVED, Construct, find_constructs
from estimator_pipeline.migrate.code.analysis.files import Skipped, SourceFile, read_tree
from estimator_pipeline.migrate.code.analysis.functions import find_functions
from estimator_pipeline.migrate.code.analysis.name_resolution import Program
from estimator_pipeline.migrate.code.analysis.notebooks import NotebookProblem
from estimator_pipeline.migrate.code.analysis.syntax import Tree, parse
from estimator_pipeline.migrate.code.analysis.version_guards import is_guarded
from estimator_pipeline.migrate.code.checkout import commit_of
from estimator_pipeline.migrate.code.failures import Failures
from estimator_pipeline.migrate.code.findings import AUTOMATIC, MANUAL, UNCHANGED, CodeFinding, Scan
from estimator_pipeline.migrate.code.judging import as_the_user_has_it, judge
from estimator_pipeline.migrate.code.renames import renamed_text, tensorflow_1, tf1_names
from estimator_pipeline.migrate.code.renames.registry import decide
from estimator_pipeline.migrate.code.renames.renamed_text import RenamedText
from estimator_pipeline.migrate.code.to_keras.convert_file import ConversionOutcome
from estimator_pipeline.migrate.code.to_keras.program import rule as keras

__all__ = ["Analysis", "analyse", "analyse_sources", "deep", "scan"]

_OF_INTEREST = re.compile(r"tensorflow|TF_CONFIG|\btf\.(estimator|contrib|layers|train|compat)\b")
# Deeply nested expressions of generated code; the default is 1,000.
_RECURSION = 10_000
_RUNS = "runs unchanged under exec and compat.install()"
_Found = TypeVar("_Found")


@dataclass
class Analysis:
    """What is known of a code base: the scan, and the trees and constructs that it was made from.

    Attributes:
        base: the folder that paths are relative to.
        constructs: each with its finding; what cannot be read has a finding of `scan` alone.
        renamed: path -> the text with the names of TensorFlow 2.
        outcomes: path -> what becomes of a file as a Keras program.
        without: the files that have nothing of TensorFlow.
    """

    base: Path
    sources: list[SourceFile]
    scan: Scan
    program: Program
    trees: list[Tree]
    constructs: list[tuple[Construct, CodeFinding]]
    renamed: Mapping[str, RenamedText]
    outcomes: Mapping[str, ConversionOutcome]
    without: set[str] = field(default_factory=set)


def scan(root: str | os.PathLike[str]) -> Scan:
    """Scans a file or a folder.

    Args:
        root: a Python file, a notebook, or a folder of them.

    Returns:
        Every construct with its treatment, in the order of files, lines and columns; the same for the same files.

    Raises:
        ConfigError: there is no such path, or no Python file in it.
    """
    return analyse(root).scan


def analyse(root: str | os.PathLike[str], *, to: str = "keras") -> Analysis:
    """Scans a file or a folder, and keeps what the scan was made from; for the converter. See :func:`scan`.

    Args:
        to: what a program becomes, one of `converter.TARGETS`.
    """
    base, sources, skipped = read_tree(root)
    done = analyse_sources(root, base, sources, skipped, {} if to == "estimator" else None, to=to)
    found = done.scan
    with deep():
        found.verdicts = judge(
            sources, found.findings, done.renamed, done.outcomes, done.without, done.program, done.trees
        )
    found.date = time.strftime("%Y-%m-%d", time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))))
    found.commit = commit_of(base)
    return done


def analyse_sources(
    root: str | os.PathLike[str],
    base: Path,
    sources: list[SourceFile],
    skipped: list[Skipped],
    outcomes: Mapping[str, ConversionOutcome] | None = None,
    *,
    to: str = "keras",
) -> Analysis:
    """The same of texts; their problems are added to them.

    Args:
        outcomes: path -> what becomes of a file as a Keras program, where that is known already.
        to: see :func:`analyse`.
    """
    found = Scan(root=os.fspath(root), skipped=skipped, files=len(sources))
    found.lines = sum(source.text.count("\n") + (not source.text.endswith("\n")) for source in sources if source.text)
    with deep():
        read = _read(sources, base)
        found.without = len(read.without)
        renamed = _renamed(read)
        if outcomes is None:
            outcomes = as_the_user_has_it(_outcomes(read, sources, base, renamed, to), sources, renamed)
        pairs = _decided(read, outcomes)
    findings = [finding for _, finding in pairs]
    findings += [_unreadable(source, problem) for source in sources if source.path not in read.without
                 for problem in source.problems]  # fmt: skip
    found.findings = sorted(_once(findings), key=_order)
    _keep_texts(found, sources)
    return Analysis(base, sources, found, read.program, read.trees, pairs, renamed, outcomes, read.without)


@dataclass
class _Read:
    """A code base: its files, what their names mean, what is found in them, and which have no TensorFlow."""

    trees: list[Tree]
    program: Program
    constructs: list[Construct]
    failures: Failures
    without: set[str]

    def each(self, step: Callable[[Tree], _Found]) -> Iterator[_Found]:
        """What a step gives for each file."""
        return self.failures.each(self.trees, step, lambda tree: tree)


def _read(sources: list[SourceFile], base: Path) -> _Read:
    trees, without = _trees(sources)
    program = Program(trees, [source.path for source in sources], base.resolve().name)
    read = _Read(trees, program, [], Failures(then=program.begin_anew), without)
    for found in read.each(lambda tree: list(find_constructs(program, tree))):
        read.constructs += found
    read.constructs += find_functions(program, read.constructs, read.failures.each)
    read.constructs = _without_tensorflow_2(read.constructs)

    def mark(construct: Construct) -> None:
        if _is_tensorflow_1(construct) and not is_guarded(construct.tree, construct.node):
            construct.tree.tensorflow_1 = True

    _all(read.failures.each(read.constructs, mark, lambda construct: construct.tree))
    tensorflow_1.spread(program, trees)
    # Data sets of a program of TensorFlow 1 stay those of TensorFlow 1, with all that they have.
    read.constructs = [one for one in read.constructs
                       if not (one.row.name in DATASET_ATTRIBUTES and one.tree.tensorflow_1)]  # fmt: skip
    return read


def _renamed(read: _Read) -> dict[str, RenamedText]:
    """Path -> the text of a file with TensorFlow 2's names for those of TensorFlow 1."""
    _all(read.each(lambda tree: tf1_names.plan(read.program, tree)))
    tf1_names.plan_classes(read.program, read.trees)
    tf1_names.plan_aliases(read.trees)
    return dict(read.each(lambda tree: (tree.source.path, renamed_text.of(tree))))


def _outcomes(
    read: _Read, sources: list[SourceFile], base: Path, renamed: Mapping[str, RenamedText], to: str
) -> dict[str, ConversionOutcome]:
    """Path -> what becomes of a file as a Keras program. Files of TensorFlow 1 get there by their new names."""
    if any(one.changes for one in renamed.values()):
        texts = {path: one.text for path, one in renamed.items()}
        sources = [replace(one, text=texts.get(one.path, one.text), problems=list(one.problems)) for one in sources]
        old = {tree.source.path: tree.tensorflow_1 for tree in read.trees}
        read = _read(sources, base)
        for tree in read.trees:
            one = renamed.get(tree.source.path)
            if one is not None:
                tree.contrib, tree.needs = one.contrib, one.imports
            tree.was_tensorflow_1 = old.get(tree.source.path, False)
    keras.plan(read.program, read.trees, read.constructs, read.failures.each, keep_model_fn=to == "keras")
    return {tree.source.path: tree.keras for tree in read.trees if tree.keras is not None}


def _decided(read: _Read, outcomes: Mapping[str, ConversionOutcome]) -> list[tuple[Construct, CodeFinding]]:
    by_tree = keras.by_tree(read.constructs)
    _all(read.each(lambda tree: keras.adopt(tree, outcomes.get(tree.source.path), by_tree.get(tree, []))))
    old = any(_is_tensorflow_1(construct) for construct in read.constructs)
    pairs = list(read.failures.each(read.constructs, lambda one: (one, _finding(one, old)), lambda one: one.tree))
    return [(construct, finding) for construct, finding in pairs if construct.tree not in read.failures.files]


def _all(steps: Iterator[None]) -> None:
    for _ in steps:
        pass


@contextlib.contextmanager
def deep() -> Iterator[None]:
    """Room for deeply nested expressions."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _RECURSION))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def _order(finding: CodeFinding) -> tuple[object, ...]:
    return (finding.path, finding.cell or 0, finding.line, finding.column, finding.name)


def _once(findings: Iterable[CodeFinding]) -> list[CodeFinding]:
    """One finding for a name at a place: a name that is imported by both branches of a `try` is one."""
    seen: dict[tuple[object, ...], CodeFinding] = {}
    for finding in findings:
        seen.setdefault(_order(finding), finding)
    return list(seen.values())


# Files


def _trees(sources: list[SourceFile]) -> tuple[list[Tree], set[str]]:
    """The trees of what has to do with TensorFlow, and the paths of what has not: libcst is slow."""
    imports = {source.path: _imported(source) for source in sources}
    chosen = {source.path for source in sources if _OF_INTEREST.search(source.text)}
    while True:
        # A module may get `tf`, or a class of it, from another module of the program.
        names = {_module_name(path) for path in chosen}
        more = {path for path, imported in imports.items() if path not in chosen and names & imported.names}
        if not more:
            break
        chosen |= more
    # What a program of TensorFlow imports and Python 3 cannot read keeps the program from running.
    needed = {name for path in chosen for name in imports[path].names}
    unread = {source.path for source in sources if source.problems or not imports[source.path].readable}
    chosen |= {path for path in unread if _module_name(path) in needed}
    trees = []
    for source in sources:
        if source.path in chosen and not source.problems:
            trees += [tree for tree in _parsed(source) if tree is not None]
        elif source.path in unread and not source.problems and not source.cells:
            parse(source)  # for its problem
    return trees, {source.path for source in sources} - chosen


def _parsed(source: SourceFile) -> list[Tree | None]:
    if not source.cells:
        return [parse(source)]
    # A cell that cannot be read is left out: the others are one program.
    texts = []
    for cell in source.cells:
        alone = SourceFile(source.path, cell.text)
        if _syntax(cell.text) is None and parse(alone) is None:
            source.problems.append(alone.problems[0]._replace(cell=cell.number))
            texts.append("\n" * cell.text.count("\n"))
        else:
            texts.append(cell.text)
    source.text = "".join(texts)
    return [parse(source)]


def _syntax(text: str) -> ast.Module | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


class _Imported(NamedTuple):
    """The last parts of the names of modules that a file imports, and whether Python's own parser can read it."""

    names: set[str]
    readable: bool


_IMPORT = re.compile(r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+)?import[ \t]+([\w., \t]+)", re.MULTILINE)


def _imported(source: SourceFile) -> _Imported:
    tree = None if source.cells else _syntax(source.text)
    found: set[str] = set()
    if tree is None:
        for module, names in _IMPORT.findall(source.text):
            found.update(re.findall(r"\w+", f"{module} {names}"))
        return _Imported(found - {"as", ""}, bool(source.cells))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(part for alias in node.names for part in alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            found.update((node.module or "").split("."))
            found.update(alias.name for alias in node.names)
            if node.level and not node.module:
                found.add(PurePosixPath(source.path).parent.name)
    return _Imported(found, True)


def _module_name(path: str) -> str:
    pure = PurePosixPath(path)
    return pure.parent.name if pure.stem == "__init__" else pure.stem


# Treatments


def _is_tensorflow_1(construct: Construct) -> bool:
    """Whether a construct tells that `tf` is TensorFlow 1: by a name that TensorFlow 2 does not have."""
    spelled = construct.match.spelled
    return spelled.startswith("tf.") and not construct.match.exists


def _without_tensorflow_2(constructs: list[Construct]) -> list[Construct]:
    """Leaves out what is TensorFlow 2's own thing: tf.losses.mean_squared_error is Keras's in a program of today."""
    old = any(_is_tensorflow_1(construct) for construct in constructs)
    return [
        one
        for one in constructs
        if old or not one.match.ambiguous or one.match.spelled.startswith("tf.summary.")
    ]  # fmt: skip


def _treatment(construct: Construct, old: bool) -> tuple[str, str, str, str]:
    """(treatment, reason, what to write so that it runs, rule)."""
    rule, writes, refused = decide(construct)
    if rule:
        what = f"migrate convert writes {writes}" if writes else f"the converter's rule {rule} converts it"
        return AUTOMATIC, what, "", rule
    return *_as_it_is(construct, old, refused), ""


def _as_it_is(construct: Construct, old: bool, refused: str) -> tuple[str, str, str]:
    row, match = construct.row, construct.match
    gone = not match.exists or not row.runs or (match.ambiguous and old)
    if gone and is_guarded(construct.tree, construct.node):
        return UNCHANGED, f"{match.spelled} is reached on a TensorFlow that has it alone", ""
    if not row.runs:
        return MANUAL, row.because or f"{match.spelled} is gone", row.keep
    if match.spelled.startswith("tf.contrib"):
        return MANUAL, "tf.contrib is gone since TensorFlow 2.0", row.name if row.name.startswith("tf.") else ""
    if not match.exists and row.name == "private import":
        return MANUAL, "a private module of TensorFlow, which may move or go with any version", "the public name"
    if not match.exists:
        name = "tf.compat.v1." + match.spelled.removeprefix("tf.")
        return MANUAL, f"TensorFlow 2 has no {match.spelled}", f"{name}, or: import tensorflow.compat.v1 as tf"
    if match.ambiguous and old:
        name = "tf.compat.v1." + match.spelled.removeprefix("tf.")
        return MANUAL, f"{match.spelled} of TensorFlow 2 is another thing than that of TensorFlow 1", name
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


def _unreadable(source: SourceFile, problem: NotebookProblem) -> CodeFinding:
    row = catalogue.row("unreadable file")
    keep = row.keep if "Python 2" in problem.why else ""
    cell, line = (problem.cell, problem.line) if problem.cell else source.place(problem.line)
    return CodeFinding(
        path=source.shown, line=line, column=problem.column, end_line=line, end_column=problem.column + 1, cell=cell,
        kind=row.kind, name=row.name, spelled=row.name, treatment=MANUAL,
        reason=f"it cannot be read: {problem.why}", keep=keep, successor=row.successor, write=row.write,
        certainty=RESOLVED, details={}, docs=row.anchor, written=source.path if source.notebook else "",
    )  # fmt: skip


def _keep_texts(found: Scan, sources: list[SourceFile]) -> None:
    with_findings = {finding.path for finding in found.findings}
    for source in sources:
        if source.shown not in with_findings:
            continue
        for cell in source.cells:
            found.texts.setdefault(f"{source.path}#{cell.number}", cell.text)
        if source.origin:
            found.texts |= {f"{source.notebook}#{one.number}": "\n" * one.above + one.text for one in source.origin}
        elif not source.cells:
            found.texts[source.path] = source.text
