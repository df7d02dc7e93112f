"""What a program did for a construct that is no more, and for nothing else: it goes with it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import libcst as cst

from estimator_pipeline.migrate.code.analysis.syntax import children
from estimator_pipeline.migrate.code.to_keras.markers import REMOVED
from estimator_pipeline.migrate.code.to_keras.rewriter import Rewriter

__all__ = ["remove"]


# What is called for what it gives alone.
_PLAIN = re.compile(
    r"tf\.(compat\.v1\.)?(ConfigProto|GPUOptions|GraphOptions|OptimizerOptions|distribute\.experimental\."
    r"ParameterServerStrategy)$"
)
_BUILTINS = ("bool", "dict", "int", "len", "list", "max", "min", "str", "tuple")

_Home = tuple[cst.CSTNode, str]


def remove(reader: Rewriter, nodes: Iterable[cst.BaseExpression], call: cst.CSTNode) -> set[cst.CSTNode]:
    """Take away the statements that only give the values of arguments, or change them, and those only for these.

    Args:
        nodes: the arguments of a call.
        call: it, which is written no more.

    Returns:
        What is gone: the call and the statements.
    """
    found = _Leftovers(reader, call)
    first = {home for node in nodes for home in found.homes(node)}
    waiting = set(first)
    while True:
        dead = next((home for home in sorted(waiting, key=lambda one: one[1]) if found.is_dead(home)), None)
        if dead is None:
            return found.gone
        waiting.discard(dead)
        for node in found.take(dead):
            # A name of the module may be another file's too.
            waiting |= {home for home in found.homes(node) if isinstance(home[0], cst.FunctionDef)} - found.taken


class _Leftovers:
    def __init__(self, reader: Rewriter, call: cst.CSTNode) -> None:
        self.reader = reader
        self.gone: set[cst.CSTNode] = {call}
        self.taken: set[_Home] = set()

    def homes(self, node: cst.CSTNode) -> Iterator[_Home]:
        """Yield the names of the file that are read within a node."""
        for chain in self.reader.tree.chains:
            home = self.reader.home(_root(chain))
            if home is not None and (chain is node or node in set(self.reader.tree.above(chain))):
                yield home

    def is_dead(self, home: _Home) -> bool:
        """Whether nothing that is left needs what a name has."""
        return all(self._is_gone(node) or self._own(node) is not None for node in self._uses(home))

    def take(self, home: _Home) -> list[cst.CSTNode]:
        """Remove the statements of a name, and the branches that have no others."""
        self.taken.add(home)
        found = []
        for node in self._uses(home):
            statement = None if self._is_gone(node) else self._own(node)
            if statement is not None:
                found += self._remove(statement)
        return found

    def _uses(self, home: _Home) -> list[cst.CSTNode]:
        """Where a name is read, and the values that it is given."""
        tree = self.reader.tree
        scope = tree.scope if home[0] is tree.module else tree.scopes[home[0]]
        given = [one.node if one.kind == "value" else home[0] for one in scope.names[home[1]]]
        return given + [one for one in tree.chains
                        if _root(one).value == home[1] and self.reader.home(_root(one)) == home]  # fmt: skip

    def _is_gone(self, node: cst.CSTNode) -> bool:
        return not self.gone.isdisjoint([node, *self.reader.tree.above(node)])

    def _own(self, node: cst.CSTNode) -> cst.SimpleStatementLine | None:
        """Return the statement that gives a name a value, or changes what it has, and does nothing else."""
        parent = self.reader.tree.parents.get(node)
        if isinstance(parent, cst.Call) and parent.func is node and isinstance(node, cst.Attribute):
            small = self.reader.tree.parents.get(parent)
            if isinstance(small, cst.Expr) and all(self._is_plain(arg.value) for arg in parent.args):
                return self._line(small)
            return None
        while isinstance(parent, (cst.Attribute, cst.AssignTarget)):
            parent = self.reader.tree.parents.get(parent)
        if not isinstance(parent, cst.Assign) or len(parent.targets) != 1 or not self._is_plain(parent.value):
            return None
        target = parent.targets[0].target
        whole = isinstance(target, cst.Name) and parent.value is node
        changed = isinstance(target, cst.Attribute) and not self._is_within(node, parent.value)
        return self._line(parent) if whole or changed else None

    def _is_within(self, node: cst.CSTNode, value: cst.CSTNode) -> bool:
        return node is value or value in set(self.reader.tree.above(node))

    def _line(self, small: cst.CSTNode) -> cst.SimpleStatementLine | None:
        line = self.reader.tree.parents.get(small)
        return line if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1 else None

    def _is_plain(self, node: cst.CSTNode) -> bool:
        """Whether an expression only works out a value."""
        if isinstance(node, (cst.Await, cst.Yield, cst.NamedExpr)):
            return False
        if isinstance(node, cst.Call):
            method = node.func.attr.value if isinstance(node.func, cst.Attribute) else ""
            name = node.func.value if isinstance(node.func, cst.Name) else ""
            known = method == "get" or name in _BUILTINS or _PLAIN.match(self.reader.called(node))
            return bool(known) and all(self._is_plain(arg.value) for arg in node.args)
        return all(self._is_plain(one) for one in children(node))

    def _remove(self, statement: cst.CSTNode) -> list[cst.CSTNode]:
        self.gone.add(statement)
        self.reader.replaced[statement] = REMOVED
        block = self.reader.tree.parents.get(statement)
        around = self.reader.tree.parents.get(block) if isinstance(block, cst.IndentedBlock) else None
        if not isinstance(block, cst.IndentedBlock) or not all(one in self.gone for one in block.body):
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
