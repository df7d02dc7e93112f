"""The rule `keras`: what a file's conversion to Keras does away with is automatic, and of the rest it says why not."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import Construct, find_constructs
from estimator_pipeline.migrate.code.analysis.files import SourceFile
from estimator_pipeline.migrate.code.analysis.functions import find_functions
from estimator_pipeline.migrate.code.analysis.modules import Modules
from estimator_pipeline.migrate.code.analysis.name_resolution import Program
from estimator_pipeline.migrate.code.analysis.syntax import Tree, parse
from estimator_pipeline.migrate.code.failures import Each, plainly
from estimator_pipeline.migrate.code.renames.registry import register_general
from estimator_pipeline.migrate.code.to_keras.convert_file import ConversionOutcome, convert
from estimator_pipeline.migrate.code.to_keras.program import calls
from estimator_pipeline.migrate.code.to_keras.program.call_by_call import convert_call_by_call
from estimator_pipeline.migrate.code.to_keras.program.multi_file import convert_together

__all__ = ["KERAS", "adopt", "by_tree", "plan"]

KERAS = "keras"


def plan(
    program: Program, trees: Sequence[Tree], constructs: Sequence[Construct], each: Each = plainly, *,
    keep_model_fn: bool = True,
) -> None:  # fmt: skip
    """Works out what becomes of each file, and keeps it in `tree.keras`.

    Args:
        keep_model_fn: whether a model_fn that does not become Keras layers may stay a function, which a Keras model
            calls.
    """
    found = by_tree(constructs)

    def alone(tree: Tree) -> None:
        tree.keras = None
        if tree in found and tree.verbatim:
            tree.keras = convert(program, tree, found[tree])
            if tree.keras is not None and tree.keras.text and not tree.source.keeps_cells(tree.keras.text):
                tree.keras = ConversionOutcome(reason="its cells cannot be told in what takes their place", line=1)
            if tree.keras is not None and (line := calls.unread_cell(tree.source)):
                tree.keras = ConversionOutcome(reason="a cell with Estimators that cannot be read", line=line)

    for _ in each(trees, alone, lambda tree: tree):
        pass
    convert_together(program, [tree for tree in trees if tree in found or tree.contrib])
    if keep_model_fn:
        convert_call_by_call(program, [tree for tree in trees if tree in found], found)


def adopt(tree: Tree, outcome: ConversionOutcome | None, constructs: Sequence[Construct]) -> None:
    """Keep what becomes of a file in `tree.keras`, with the constructs that go, of its text or the renamed one."""
    gone = _gone(tree, outcome, constructs) if outcome is not None and outcome.text else set()
    tree.keras = outcome and dataclasses.replace(outcome, gone=gone)


def by_tree(constructs: Sequence[Construct]) -> dict[Tree, list[Construct]]:
    """Return the constructs of each file."""
    found: dict[Tree, list[Construct]] = {}
    for construct in constructs:
        found.setdefault(construct.tree, []).append(construct)
    return found


def _gone(tree: Tree, outcome: ConversionOutcome, constructs: Sequence[Construct]) -> set[cst.CSTNode]:
    """Return the nodes of the constructs that the new text has no more."""
    made = parse(SourceFile(tree.source.path, outcome.text))
    if made is None:
        return set()
    program = Program([made], Modules([made.source.path]))
    left = list(find_constructs(program, made))
    left += find_functions(program, left)
    names = {_name(one) for one in left}
    # Input functions are called now, and their data sets handed over; of serving ones the names alone are left.
    plain = ("input_fn", "serving input")
    return {one.node for one in constructs if _name(one) not in names or one.row.kind in plain}


def _name(construct: Construct) -> str:
    return construct.match.public or construct.row.name


class _ToKeras:
    name = KERAS

    def concerns(self, construct: Any) -> bool:
        """Whether the construct goes with its file, or would have gone."""
        outcome = construct.tree.keras
        return outcome is not None and (not outcome.text or construct.node in outcome.gone)

    def refuses(self, construct: Any) -> str:
        """Why the file stays an Estimator program."""
        outcome = construct.tree.keras
        return "" if outcome.text else outcome.told()

    def writes(self, construct: Any) -> str:
        """Return what takes the construct's place."""
        return f"Keras: {construct.row.successor}" if construct.row.successor else "Keras"


register_general(_ToKeras())
