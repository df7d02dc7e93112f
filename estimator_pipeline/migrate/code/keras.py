"""The scan's rule `keras`: constructs that the conversion to Keras removes are automatic; others get a reason."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import Construct, find_constructs
from estimator_pipeline.migrate.code.analysis.edits import Step
from estimator_pipeline.migrate.code.analysis.files import SourceFile
from estimator_pipeline.migrate.code.analysis.functions import find_functions
from estimator_pipeline.migrate.code.analysis.modules import Modules
from estimator_pipeline.migrate.code.analysis.name_resolution import Program
from estimator_pipeline.migrate.code.analysis.syntax import Tree, parse
from estimator_pipeline.migrate.convert.canned import CANNED
from estimator_pipeline.migrate.convert.convert import convert_programs
from estimator_pipeline.migrate.convert.keras_models import MODEL_TO_ESTIMATOR

__all__ = ["KERAS", "ConversionOutcome", "adopt", "by_tree", "decide", "plan"]

KERAS = "keras"
_MAKERS = ("tf.estimator.Estimator", MODEL_TO_ESTIMATOR, *CANNED)
_KINDS = ("estimator", "canned estimator", "model_fn", "keras estimator", "spec")
# Signs that an unreadable cell uses the Estimators of other cells.
_OF_OTHER_CELLS = re.compile(r"\bestimator\b|\.(?:train|evaluate|predict)\(|train_and_evaluate|model_fn|input_fn")


@dataclass
class ConversionOutcome:
    """What became of a file with Estimators.

    Attributes:
        text: the Keras program; "" if the file remains an Estimator program.
        steps: the edits that it consists of.
        reason: why the file is not convertible.
        line: line of the construct that prevents the conversion.
        gone: nodes of the constructs that the new text no longer contains.
        path: file of that construct, if it is a different file of the same program.
        cell: number of the notebook cell, set when the outcome is reported in the user's numbering.
        source: text of the line, set together with `cell`.
    """

    text: str = ""
    steps: list[Step] = field(default_factory=list)
    reason: str = ""
    line: int = 0
    gone: set[cst.CSTNode] = field(default_factory=set)
    path: str = ""
    cell: int | None = None
    source: str | None = None

    def describe(self) -> str:
        """Return a sentence with the place and the reason."""
        line = f"line {self.line}" if self.cell is None else f"cell {self.cell}, line {self.line}"
        if not self.path:
            return f"{line}: {self.reason}"
        return f"in the same program as {self.path}, {line}: {self.reason}"


def plan(program: Program, trees: Sequence[Tree], constructs: Sequence[Construct]) -> None:
    """Convert the programs to Keras where rules know all of their constructs, and store the outcomes in `tree.keras`.

    Args:
        program: all files.
        trees: the files to convert.
        constructs: the constructs of the files.
    """
    of_estimators = [construct for construct in constructs if construct.row.kind in _KINDS]
    makers = {construct.tree for construct in of_estimators if construct.row.name in _MAKERS}
    for tree in trees:
        tree.keras = None
        if tree in makers and (line := _unread_cell(tree.source)):
            tree.keras = ConversionOutcome(reason="a cell with Estimators that is not valid Python", line=line)
    mains = [tree for tree in trees if tree in makers and tree.keras is None and tree.verbatim]
    for tree, outcome in _outcomes(program, mains):
        tree.keras = outcome
    firsts = {tree: min(those, key=lambda construct: tree.position(construct.node))
              for tree, those in by_tree(of_estimators).items() if tree.keras is None and tree.verbatim}  # fmt: skip
    for tree, first in firsts.items():
        if first.row.kind.endswith("estimator"):
            name = first.match.public or first.row.name
            tree.keras = ConversionOutcome(reason=f"{name}, which no rule converts", line=tree.position(first.node)[0])
    left = {tree: first for tree, first in firsts.items() if tree.keras is None}
    refused = {tree: tree.keras for tree in trees if tree.keras is not None and not tree.keras.text}
    chosen = {*refused, *left}
    below = {tree: set(program.reached(tree, chosen)) for tree in chosen}
    for tree, first in left.items():
        # A refused file with an Estimator that imports this one, or that it imports, is of the same program.
        other = next((main for main in refused if tree in below[main] or main in below[tree]), None)
        if other is not None:
            tree.keras = dataclasses.replace(refused[other], path=refused[other].path or other.source.path)
            continue
        reason = "no Estimator of the program has this model_fn"
        if first.row.kind != "model_fn":
            reason = f"{first.match.public or first.row.name}, in a program that makes no Estimator"
        tree.keras = ConversionOutcome(reason=reason, line=tree.position(first.node)[0])


def _outcomes(program: Program, mains: Sequence[Tree]) -> Iterator[tuple[Tree, ConversionOutcome]]:
    for conversion in convert_programs(program, mains):
        for tree, step in conversion.steps.items():
            yield tree, ConversionOutcome(step.after, [step])
        refused = conversion.refused
        if refused is not None:
            node, trees = refused.node, program.trees.values()
            place = next((tree for tree in trees if node is tree.module or node in tree.parents), conversion.mains[0])
            line = 1 if node is place.module else place.position(node)[0]
            for tree in conversion.files:
                other = place.source.path if place is not tree else ""
                yield tree, ConversionOutcome(reason=refused.reason, line=line, path=other)


def _unread_cell(source: SourceFile) -> int:
    """Return the line of an unreadable notebook cell that uses Estimators, or 0."""
    for problem in source.problems:
        cell = next((candidate for candidate in source.cells if candidate.number == problem.cell), None)
        if cell is not None and _OF_OTHER_CELLS.search(cell.source):
            return cell.first + problem.line - 1
    return 0


def adopt(tree: Tree, outcome: ConversionOutcome | None, constructs: Sequence[Construct]) -> None:
    """Store a file's outcome in `tree.keras`, with the constructs that it removes."""
    gone = _gone(tree, outcome, constructs) if outcome is not None and outcome.text else set()
    tree.keras = outcome and dataclasses.replace(outcome, gone=gone)


def by_tree(constructs: Sequence[Construct]) -> dict[Tree, list[Construct]]:
    """Group constructs by file."""
    grouped: dict[Tree, list[Construct]] = {}
    for construct in constructs:
        grouped.setdefault(construct.tree, []).append(construct)
    return grouped


def _gone(tree: Tree, outcome: ConversionOutcome, constructs: Sequence[Construct]) -> set[cst.CSTNode]:
    """Return the nodes of the constructs that the new text no longer contains."""
    parsed = parse(SourceFile(tree.source.path, outcome.text))
    if parsed is None:
        return set()
    program = Program([parsed], Modules([parsed.source.path]))
    left = list(find_constructs(program, parsed))
    left += find_functions(program, left)
    names = {_name(construct) for construct in left}
    # Converted programs call input functions directly, and keep only the names of serving inputs.
    plain = ("input_fn", "serving input")
    return {construct.node for construct in constructs if _name(construct) not in names or construct.row.kind in plain}


def _name(construct: Construct) -> str:
    return construct.match.public or construct.row.name


def decide(construct: Construct) -> tuple[str, str]:
    """Return (what replaces a construct, why its file remains an Estimator program); both "" for other constructs."""
    outcome: ConversionOutcome | None = construct.tree.keras
    if outcome is None or not outcome.text:
        return "", "" if outcome is None else outcome.describe()
    if construct.node not in outcome.gone:
        return "", ""
    return f"Keras: {construct.row.successor}" if construct.row.successor else "Keras", ""
