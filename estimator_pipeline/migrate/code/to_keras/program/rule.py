"""The scan's rule `keras`: constructs that the conversion removes are automatic; others get a reason."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import Construct, find_constructs
from estimator_pipeline.migrate.code.analysis.edits import damaging_rule
from estimator_pipeline.migrate.code.analysis.files import SourceFile
from estimator_pipeline.migrate.code.analysis.functions import find_functions
from estimator_pipeline.migrate.code.analysis.modules import Modules
from estimator_pipeline.migrate.code.analysis.name_resolution import Program
from estimator_pipeline.migrate.code.analysis.syntax import Tree, parse
from estimator_pipeline.migrate.code.failures import Each, plainly
from estimator_pipeline.migrate.code.renames.registry import register_general
from estimator_pipeline.migrate.code.to_keras.convert_file import ConversionOutcome, convert
from estimator_pipeline.migrate.convert.convert import check_models, convert_programs
from estimator_pipeline.migrate.convert.names import Refused

__all__ = ["KERAS", "adopt", "by_tree", "plan"]

KERAS = "keras"


# Signs that an unreadable cell uses the Estimators of other cells.
_OF_OTHER_CELLS = re.compile(r"\bestimator\b|\.(?:train|evaluate|predict)\(|train_and_evaluate|model_fn|input_fn")


def plan(
    program: Program,
    trees: Sequence[Tree],
    constructs: Sequence[Construct],
    each: Each = plainly,
    *,
    to: str = "keras-layers",
) -> None:
    """Convert each file to Keras where possible and store the outcome in `tree.keras`.

    Args:
        program: The program.
        trees: The program's files.
        constructs: The constructs of the files.
        each: Runs a step for each file and records failures.
        to: "keras" for Keras without this package; the former conversion otherwise.
    """
    constructs_of = by_tree(constructs)
    by_rules: dict[Tree, ConversionOutcome] = {}
    if to == "keras":
        makers = {construct.tree for construct in constructs if construct.row.name == "tf.estimator.Estimator"}
        mains = [tree for tree in trees if tree in makers]
        by_rules = _by_rules(program, mains, constructs_of)

    def convert_file(tree: Tree) -> None:
        tree.keras = by_rules.get(tree)
        if tree in constructs_of and tree.verbatim:
            if tree.keras is None:
                tree.keras = convert(program, tree, constructs_of[tree])
            if tree.keras is not None and tree.keras.text and not tree.source.keeps_cells(tree.keras.text):
                tree.keras = ConversionOutcome(reason="its cells cannot be identified in the converted text", line=1)
            if tree.keras is not None and (
                rule := damaging_rule(tree.source.text, tree.keras.text or tree.source.text, tree.keras.steps)
            ):
                reason = f"the rule {rule} would change code that it does not convert"
                tree.keras = ConversionOutcome(reason=reason, line=1)
            if tree.keras is not None and (line := _unread_cell(tree.source)):
                tree.keras = ConversionOutcome(reason="a cell with Estimators that is not valid Python", line=line)

    for _ in each(trees, convert_file, lambda tree: tree):
        pass


def _by_rules(
    program: Program, mains: Sequence[Tree], constructs_of: Mapping[Tree, Sequence[Construct]]
) -> dict[Tree, ConversionOutcome]:
    """Return the outcomes of the files that make an Estimator with a model_fn, and of those that they share.

    Where the rules know the model_fn, but not the rest of the program, the former conversion is tried: it would drop
    nothing of this model_fn.
    """
    outcomes: dict[Tree, ConversionOutcome] = {}
    for conversion in convert_programs(program, mains):
        outcomes.update({tree: ConversionOutcome(step.after, [step]) for tree, step in conversion.steps.items()})
        refused = conversion.refused
        if refused is None:
            continue
        place = next((tree for tree in program.trees.values() if _is_in(refused.node, tree)), conversion.mains[0])
        line = 1 if refused.node is place.module else place.position(refused.node)[0]
        for tree in conversion.files:
            former = _by_former(program, tree, constructs_of.get(tree, ())) if conversion.files == (tree,) else None
            other = place.source.path if place is not tree else ""
            outcomes[tree] = former or ConversionOutcome(reason=refused.reason, line=line, path=other)
    return outcomes


def _is_in(node: cst.CSTNode, tree: Tree) -> bool:
    return node is tree.module or node in tree.parents


def _by_former(program: Program, tree: Tree, constructs: Sequence[Construct]) -> ConversionOutcome | None:
    try:
        check_models(program, tree)
        former = convert(program, tree, constructs)
    except Refused:
        return None
    return former if former is not None and former.text else None


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


class _ToKeras:
    name = KERAS

    def concerns(self, construct: Any) -> bool:
        """Whether the file's conversion removes the construct, or would remove it."""
        outcome = construct.tree.keras
        return outcome is not None and (not outcome.text or construct.node in outcome.gone)

    def refuses(self, construct: Any) -> str:
        """Return why the file remains an Estimator program."""
        outcome = construct.tree.keras
        return "" if outcome.text else outcome.describe()

    def writes(self, construct: Any) -> str:
        """Return the construct's replacement."""
        return f"Keras: {construct.row.successor}" if construct.row.successor else "Keras"


register_general(_ToKeras())
