"""The rule `keras`: what a file's conversion to Keras does away with is automatic, and of the rest it says why not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import libcst as cst

from estimator_pipeline.migrate.code.constructs import Construct, find_constructs
from estimator_pipeline.migrate.code.files import Source
from estimator_pipeline.migrate.code.functions import find_functions
from estimator_pipeline.migrate.code.keras.conversion import Outcome, convert
from estimator_pipeline.migrate.code.keras.programs import convert_together
from estimator_pipeline.migrate.code.names import Program
from estimator_pipeline.migrate.code.rules import register_general
from estimator_pipeline.migrate.code.syntax import Tree, parse

__all__ = ["KERAS", "plan"]

KERAS = "keras"


def plan(program: Program, trees: Sequence[Tree], constructs: Sequence[Construct]) -> None:
    """Works out what becomes of each file, and keeps it in `tree.keras`."""
    by_tree: dict[Tree, list[Construct]] = {}
    for construct in constructs:
        by_tree.setdefault(construct.tree, []).append(construct)
    for tree in trees:
        found = by_tree.get(tree, [])
        tree.keras = None
        if found and not tree.source.cells and tree.module.code == tree.source.text:
            tree.keras = convert(program, tree, found)
    convert_together(program, [tree for tree in trees if tree in by_tree])
    for tree in trees:
        if tree.keras is not None and tree.keras.text:
            tree.keras.gone = _gone(tree, tree.keras, by_tree.get(tree, []))


def _gone(tree: Tree, outcome: Outcome, constructs: list[Construct]) -> set[cst.CSTNode]:
    """The nodes of the constructs that the new text has no more."""
    made = parse(Source(tree.source.path, outcome.text))
    if made is None:
        return set()
    program = Program([made], [made.source.path])
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
        return "" if outcome.text else f"line {outcome.line}: {outcome.reason}"

    def writes(self, construct: Any) -> str:
        """What takes the construct's place."""
        return f"Keras: {construct.row.successor}" if construct.row.successor else "Keras"


register_general(_ToKeras())
