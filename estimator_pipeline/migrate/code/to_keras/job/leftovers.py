"""Removal of statements that only prepared a construct that was converted away."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import libcst as cst

from estimator_pipeline.migrate.code.analysis.syntax import children
from estimator_pipeline.migrate.code.to_keras.markers import REMOVED
from estimator_pipeline.migrate.code.to_keras.rewriter import Rewriter

__all__ = ["remove"]


# Calls without side effects.
_PLAIN = re.compile(
    r"tf\.(compat\.v1\.)?(ConfigProto|GPUOptions|GraphOptions|OptimizerOptions|distribute\.experimental\."
    r"ParameterServerStrategy)$"
)
_BUILTINS = ("bool", "dict", "int", "len", "list", "max", "min", "str", "tuple")

_Home = tuple[cst.CSTNode, str]


def remove(reader: Rewriter, nodes: Iterable[cst.BaseExpression], call: cst.CSTNode) -> set[cst.CSTNode]:
    """Remove the statements whose only purpose is to compute arguments of a removed call.

    Args:
        nodes: arguments of the call.
        call: the call that is removed from the program.

    Returns:
        The removed nodes: the call and the statements.
    """
    leftovers = _Leftovers(reader, call)
    first = {home for node in nodes for home in leftovers.read_names(node)}
    waiting = set(first)
    while True:
        dead = next((home for home in sorted(waiting, key=lambda pair: pair[1]) if leftovers.is_unused(home)), None)
        if dead is None:
            return leftovers.removed
        waiting.discard(dead)
        for node in leftovers.remove(dead):
            # A module-level name may also be used by other files.
            waiting |= {
                home for home in leftovers.read_names(node) if isinstance(home[0], cst.FunctionDef)
            } - leftovers.taken


class _Leftovers:
    def __init__(self, reader: Rewriter, call: cst.CSTNode) -> None:
        self.reader = reader
        self.removed: set[cst.CSTNode] = {call}
        self.taken: set[_Home] = set()

    def read_names(self, node: cst.CSTNode) -> Iterator[_Home]:
        """Yield the names of the file that a node reads."""
        for chain in self.reader.tree.chains:
            home = self.reader.home(_root(chain))
            if home is not None and (chain is node or node in set(self.reader.tree.above(chain))):
                yield home

    def is_unused(self, home: _Home) -> bool:
        """Return whether no remaining code reads a name."""
        return all(self._is_removed(node) or self._assignment_of(node) is not None for node in self._find_uses(home))

    def remove(self, home: _Home) -> list[cst.CSTNode]:
        """Remove the statements that only assign or change a name, and emptied branches."""
        self.taken.add(home)
        nodes = []
        for node in self._find_uses(home):
            statement = None if self._is_removed(node) else self._assignment_of(node)
            if statement is not None:
                nodes += self._remove(statement)
        return nodes

    def _find_uses(self, home: _Home) -> list[cst.CSTNode]:
        """Return the reads of a name and the values that are assigned to it."""
        tree = self.reader.tree
        scope = tree.scope if home[0] is tree.module else tree.scopes[home[0]]
        values = [binding.node if binding.kind == "value" else home[0] for binding in scope.names[home[1]]]
        return values + [chain for chain in tree.chains
                        if _root(chain).value == home[1] and self.reader.home(_root(chain)) == home]  # fmt: skip

    def _is_removed(self, node: cst.CSTNode) -> bool:
        return not self.removed.isdisjoint([node, *self.reader.tree.above(node)])

    def _assignment_of(self, node: cst.CSTNode) -> cst.SimpleStatementLine | None:
        """Return the statement if it only assigns a name or changes its value; None otherwise."""
        parent = self.reader.tree.parents.get(node)
        if isinstance(parent, cst.Call) and parent.func is node and isinstance(node, cst.Attribute):
            small = self.reader.tree.parents.get(parent)
            if isinstance(small, cst.Expr) and all(self._is_plain(arg.value) for arg in parent.args):
                return self._statement_line(small)
            return None
        while isinstance(parent, (cst.Attribute, cst.AssignTarget)):
            parent = self.reader.tree.parents.get(parent)
        if not isinstance(parent, cst.Assign) or len(parent.targets) != 1 or not self._is_plain(parent.value):
            return None
        target = parent.targets[0].target
        whole = isinstance(target, cst.Name) and parent.value is node
        changed = isinstance(target, cst.Attribute) and not self._is_within(node, parent.value)
        return self._statement_line(parent) if whole or changed else None

    def _is_within(self, node: cst.CSTNode, value: cst.CSTNode) -> bool:
        return node is value or value in set(self.reader.tree.above(node))

    def _statement_line(self, small: cst.CSTNode) -> cst.SimpleStatementLine | None:
        line = self.reader.tree.parents.get(small)
        return line if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1 else None

    def _is_plain(self, node: cst.CSTNode) -> bool:
        """Return whether an expression has no side effects."""
        if isinstance(node, (cst.Await, cst.Yield, cst.NamedExpr)):
            return False
        if isinstance(node, cst.Call):
            method = node.func.attr.value if isinstance(node.func, cst.Attribute) else ""
            name = node.func.value if isinstance(node.func, cst.Name) else ""
            known = method == "get" or name in _BUILTINS or _PLAIN.match(self.reader.called(node))
            return bool(known) and all(self._is_plain(arg.value) for arg in node.args)
        return all(self._is_plain(child) for child in children(node))

    def _remove(self, statement: cst.CSTNode) -> list[cst.CSTNode]:
        self.removed.add(statement)
        self.reader.replaced[statement] = REMOVED
        block = self.reader.tree.parents.get(statement)
        around = self.reader.tree.parents.get(block) if isinstance(block, cst.IndentedBlock) else None
        if not isinstance(block, cst.IndentedBlock) or not all(line in self.removed for line in block.body):
            return [statement]
        whole = isinstance(around, cst.If) and around.orelse is None and self._is_plain(around.test)
        if whole and not isinstance(self.reader.tree.parents.get(around or block), cst.If):
            assert around is not None
            return [statement, *self._remove(around)]
        self.reader.replaced[statement] = "pass"
        return [statement]


def _root(node: cst.CSTNode) -> cst.Name:
    while isinstance(node, cst.Attribute):
        node = node.value
    return node if isinstance(node, cst.Name) else cst.Name("_")
