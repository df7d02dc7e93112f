"""The scan's rule `keras`: constructs that the conversion removes are automatic; others get a reason."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
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
from estimator_pipeline.migrate.code.to_keras.convert_file import DEFECTS, ConversionOutcome, convert
from estimator_pipeline.migrate.code.to_keras.program.other_files import check_users
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible
from estimator_pipeline.migrate.convert.convert import check_models, convert_file
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

    def convert_file(tree: Tree) -> None:
        tree.keras = None
        if tree in constructs_of and tree.verbatim:
            has_model_fn = any(construct.row.name == "tf.estimator.Estimator" for construct in constructs_of[tree])
            if to == "keras" and has_model_fn and not tree.source.cells:
                tree.keras = _converted(program, tree, constructs_of[tree])
            else:
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


def _converted(program: Program, tree: Tree, constructs: Sequence[Construct]) -> ConversionOutcome | None:
    """Return the outcome of the conversion of a file that makes an Estimator with a model_fn.

    Where the rules know the model_fn, but not the rest of the program, the former conversion is tried: it would drop
    nothing of this model_fn.
    """
    try:
        try:
            step = convert_file(program, tree)
        except Refused:
            check_models(program, tree)
            former = convert(program, tree, constructs)
            if former is None or former.text:
                return former
            raise
        check_users(program, tree, step.after)
        return ConversionOutcome(step.after, [step])
    except (Refused, NotConvertible) as declined:
        node = declined.node
        line = getattr(declined, "line", 0) or (1 if node is tree.module else tree.position(node)[0])
        return ConversionOutcome(reason=declined.reason, line=line)
    except DEFECTS as error:
        return ConversionOutcome(reason=f"the converter failed: {type(error).__name__}: {error}", line=1)


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
