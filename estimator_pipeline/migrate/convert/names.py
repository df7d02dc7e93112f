"""Meanings of a file's expressions, and the refusal of those that no rule converts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import libcst as cst

from estimator_pipeline.migrate.code import catalogue
from estimator_pipeline.migrate.code.analysis import modes
from estimator_pipeline.migrate.code.analysis.edits import Lines
from estimator_pipeline.migrate.code.analysis.name_resolution import (
    FunctionOf,
    Instance,
    Member,
    Outside,
    Program,
    Value,
)
from estimator_pipeline.migrate.code.analysis.syntax import Binding, Scope, Tree, children, iter_nodes, root_of
from estimator_pipeline.migrate.code.renames import tensorflow_1

__all__ = ["ALL_MODES", "CHANGES", "EVAL", "PREDICT", "TRAIN", "FileNames", "Refused", "calls_in", "changed_by",
           "names_bound", "names_changed", "names_read", "read_names"]  # fmt: skip

TRAIN, EVAL, PREDICT = modes.MODES
CHANGES = frozenset({
    "add", "add_hparam", "append", "clear", "del_hparam", "extend", "insert", "override_from_dict", "parse", "pop",
    "popitem", "remove", "reverse", "set_hparam", "setdefault", "sort", "update",
})  # fmt: skip
"""Methods that change their list, dict or hyperparameters."""
ALL_MODES = frozenset(modes.MODES)


class Refused(Exception):
    """A construct that no rule converts: the file remains an Estimator program.

    Attributes:
        reason: what the construct is, as a phrase.
        node: the construct.
    """

    def __init__(self, reason: str, node: cst.CSTNode) -> None:
        super().__init__(reason)
        self.reason, self.node = reason, node


@dataclass(frozen=True)
class FileNames:
    """Resolution of the expressions of a file.

    Attributes:
        program: the program that the file belongs to.
        tree: the file.
        tf: the name by which the file imports TensorFlow; "" without.
        v1_import: the import of `tensorflow.compat.v1` by that name, which becomes one of `tensorflow`; else None.
        flags: (function, parameter) -> the modes in which its argument is true; None for the mode itself.
        files: the names of each file of the program, which share `flags`.
    """

    program: Program
    tree: Tree
    tf: str
    v1_import: cst.CSTNode | None = None
    flags: dict[tuple[cst.CSTNode, str], frozenset[str] | None] = field(default_factory=dict)
    files: dict[Tree, FileNames] = field(default_factory=dict, repr=False)

    def of(self, tree: Tree) -> FileNames:
        """Return the names of another file of the program."""
        if tree is self.tree:
            return self
        if tree not in self.files:
            tf, v1_import = _tensorflow(self.program, tree)
            self.files[tree] = FileNames(self.program, tree, tf, v1_import, self.flags, self.files)
        return self.files[tree]

    def scope(self, node: cst.CSTNode) -> Scope:
        """Return the scope in which an expression is evaluated."""
        if node in self.tree.where:
            return self.tree.where[node]
        for above in self.tree.above(node):
            if above in self.tree.scopes:
                return self.tree.scopes[above]
        return self.tree.scope

    def meaning(self, node: cst.CSTNode | None) -> tuple[Value, ...]:
        """Return the possible values of an expression; empty if unknown, as for a parameter with a default."""
        if not isinstance(node, cst.BaseExpression) or self._is_parameter(root_of(node)):
            return ()
        return self.program.meaning(node, self.tree, self.scope(node))

    def _is_parameter(self, node: cst.Name) -> bool:
        value = self.value(node) if node in self.tree.where else None
        return isinstance(value, cst.Name) and any(
            binding.kind == "parameter" and binding.node.default is not None
            for binding in self.program.bindings(value.value, self.scope(value))
        )

    def name(self, node: cst.CSTNode | None) -> str:
        """Return the full name of an expression outside of the program, as `tf.nn.relu`; "" if it is not only that."""
        return self._renamed(node) or self._only(
            value.dotted if isinstance(value, Outside) else None for value in self.meaning(node)
        )

    def _renamed(self, node: cst.CSTNode | None) -> str:
        """Return the full name of `tf_slim.x` and `contrib.x`, tf.contrib's before; their imports are added last."""
        root = root_of(node) if isinstance(node, cst.Attribute) else None
        if node is None or root is None or root.value not in ("tf_slim", "contrib"):
            return ""
        if self.program.bindings(root.value, self.scope(node)):
            return ""
        return self.text(node) if root.value == "tf_slim" else f"tf.{self.text(node)}"

    def method(self, node: cst.CSTNode | None) -> str:
        """Return `Class.method` for a method of an object whose class is outside of the program; else ""."""
        return self._only(
            f"{self._full(value.of)}.{value.name}" if isinstance(value, Member) else None
            for value in self.meaning(node)
        )

    def kind(self, node: cst.CSTNode | None) -> str:
        """Return the full name of an object's class outside of the program; "" if it is something else."""
        return self._only(
            value.of.dotted if isinstance(value, Instance) and isinstance(value.of, Outside) else None
            for value in self.meaning(node)
        )

    def _only(self, dotted: Iterable[str | None]) -> str:
        """Return the full name of the only value; "" if there are several."""
        values = {None if value is None else self._full(value) for value in dotted}
        return next(iter(values)) or "" if len(values) == 1 else ""

    def _full(self, dotted: str) -> str:
        full = catalogue.spell(dotted)
        return _SAME_OBJECTS.get(full, full)

    def home(self, node: cst.Name) -> Scope | None:
        """Return the scope that binds a name; None for a builtin."""
        scope: Scope | None = self.scope(node)
        while scope is not None and node.value not in scope.names:
            scope = scope.parent
        return scope

    def is_variable(self, node: cst.CSTNode) -> bool:
        """Return whether a node is a variable or function of the program, and not an imported name."""
        if not isinstance(node, cst.Name):
            return False
        bindings = self.program.bindings(node.value, self.scope(node))
        return any(binding.kind not in ("import", "from") for binding in bindings)

    def function(self, node: cst.CSTNode | None) -> FunctionOf | None:
        """Return the function of the program that an expression is, if it can be only one."""
        values = self.meaning(node)
        return values[0] if len(values) == 1 and isinstance(values[0], FunctionOf) else None

    def value(self, node: cst.BaseExpression) -> cst.BaseExpression:
        """Return the expression that a name is assigned, or the expression itself."""
        for _ in range(8):
            binding = self.binding(node) if isinstance(node, cst.Name) else None
            if binding is None or binding.kind != "value" or binding.node is None:
                break
            node = binding.node
        return node

    def binding(self, node: cst.Name) -> Binding | None:
        """Return the binding that a name has at its place; None if it may be one of several.

        Of several assignments in the same function it is the last one before, if no condition or loop decides.
        """
        bindings = self.program.bindings(node.value, self.scope(node))
        if len(bindings) == 1:
            return bindings[0]
        place, above = self.tree.position(node)[:2], list(self.tree.above(node))
        home = self.scope(node).around()
        if any(each.scope.around() is not home or not isinstance(each.node, cst.CSTNode) for each in bindings):
            return None
        loops = [loop for loop in above if isinstance(loop, (cst.For, cst.While))]
        for each in sorted(bindings, key=lambda each: self.tree.position(each.node), reverse=True):
            around = list(self.tree.above(each.node))
            if any(loop in around for loop in loops):
                return None
            if self.tree.position(each.node)[:2] < place and each.node not in above:
                block = next((block for block in around if isinstance(block, (cst.IndentedBlock, cst.Module))), None)
                return each if block in above else None
        return None

    def modes_of(self, test: cst.BaseExpression) -> frozenset[str] | None:
        """Return the modes in which a condition is true; None if it depends on something else than the mode."""
        flag = self.flag(test)
        if flag is not None and self.flags.get(flag) is not None:
            return self.flags[flag]
        return modes.condition(self.program, self.tree, test, self.scope(test))

    def flag(self, node: cst.BaseExpression) -> tuple[cst.CSTNode, str] | None:
        """Return the function and the parameter that a name is; None if it is something else."""
        if not isinstance(node, cst.Name):
            return None
        bindings = self.program.bindings(node.value, self.scope(node))
        if bindings and (bindings[0].scope.node, node.value) in self.flags:
            return bindings[0].scope.node, node.value
        if len(bindings) != 1 or bindings[0].kind != "parameter":
            return None
        function = self.tree.parents.get(self.tree.parents[bindings[0].node])
        return None if function is None else (function, node.value)

    def places(self, name: str) -> Sequence[cst.Name]:
        """Return the places of a variable's name in the file, in the order of the text."""
        return self._places.get(name, ())

    @cached_property
    def _places(self) -> Mapping[str, list[cst.Name]]:
        places = defaultdict(list)
        for chain in self.tree.chains:
            root = root_of(chain)
            if root in self.tree.where:
                places[root.value].append(root)
        return places

    def span(self, node: cst.CSTNode) -> tuple[int, int]:
        """Return the offsets of a node's start and end in the text of the file."""
        line, column, end_line, end_column = self.tree.position(node)
        return self.lines.offset(line, column), self.lines.offset(end_line, end_column)

    @cached_property
    def lines(self) -> Lines:
        return Lines(self.tree.source.text)

    def whole(self, name: cst.CSTNode) -> cst.CSTNode:
        """Return the dotted name `a.b` that starts with a name."""
        above = self.tree.parents.get(name)
        return self.whole(above) if isinstance(above, cst.Attribute) and above.value is name else name

    def text(self, node: cst.CSTNode) -> str:
        """Return the text of a node."""
        return self.tree.module.code_for_node(node)


def read_names(program: Program, tree: Tree) -> FileNames:
    """Return the names of a file."""
    return FileNames(program, tree, *_tensorflow(program, tree))


def _tensorflow(program: Program, tree: Tree) -> tuple[str, cst.CSTNode | None]:
    root = tensorflow_1.root_of_tensorflow(program, tree)
    if root is not None:
        return root, None
    for alias, binding in tree.imports:
        if binding.scope is tree.scope and isinstance(alias, cst.ImportAlias):
            if binding.kind == "import" and binding.name == "tensorflow.compat.v1" and alias.evaluated_alias:
                return alias.evaluated_alias, alias
            if binding.kind == "from" and (binding.module, binding.name) == ("tensorflow.compat", "v1"):
                return alias.evaluated_alias or "v1", tree.parents[alias]
    return "", None


_V1 = "tf.compat.v1."
_ESTIMATORS = "Estimator EstimatorSpec ModeKeys RunConfig TrainSpec EvalSpec train_and_evaluate"
_EXPORTERS = " LatestExporter FinalExporter"
_SAME_OBJECTS = {f"{_V1}estimator.{name}": f"tf.estimator.{name}" for name in (_ESTIMATORS + _EXPORTERS).split()} | {
    "tf.distribute.experimental.MultiWorkerMirroredStrategy": "tf.distribute.MultiWorkerMirroredStrategy",
    f"{_V1}distribute.experimental.MultiWorkerMirroredStrategy": "tf.distribute.MultiWorkerMirroredStrategy",
    f"{_V1}distribute.MirroredStrategy": "tf.distribute.MirroredStrategy",
    f"{_V1}keras.estimator.model_to_estimator": "tf.keras.estimator.model_to_estimator",
}


def calls_in(*nodes: cst.CSTNode) -> Iterator[cst.Call]:
    """Yield the calls in nodes."""
    return (inner for node in nodes for inner in iter_nodes(node) if isinstance(inner, cst.Call))


def names_read(node: cst.CSTNode, without: Collection[cst.CSTNode] = ()) -> frozenset[str]:
    """Return the names that a statement or expression reads, without those that its own lambdas and loops bind.

    Args:
        without: nodes inside of it that do not count.
    """
    return frozenset(_read(node, without))


def _read(node: cst.CSTNode, without: Collection[cst.CSTNode] = ()) -> Iterator[str]:
    if node in without:
        return
    if isinstance(node, cst.Name):
        yield node.value
    elif isinstance(node, (cst.Attribute, cst.Arg)):
        yield from _read(node.value, without)
    elif isinstance(node, cst.AssignTarget):
        if not isinstance(node.target, cst.Name):
            yield from _read_of_target(node.target, without)
    elif isinstance(node, cst.AnnAssign):
        if node.value is not None:
            yield from _read(node.value, without)
    elif isinstance(node, cst.Lambda):
        bound = {param.name.value for param in node.params.params}
        for param in node.params.params:
            if param.default is not None:
                yield from _read(param.default, without)
        yield from (name for name in _read(node.body, without) if name not in bound)
    elif isinstance(node, cst.For):
        bound = {name.value for name, changes in _targets(node.target, False) if not changes}
        yield from _read(node.iter, without)
        rest = [part for part in (node.target, node.body, node.orelse) if part is not None]
        yield from (name for part in rest for name in _read(part, without) if name not in bound)
    elif isinstance(node, (cst.ListComp, cst.SetComp, cst.GeneratorExp, cst.DictComp)):
        bound = set(_comprehension_targets(node.for_in))
        yield from (name for child in children(node) for name in _read(child, without) if name not in bound)
    elif isinstance(node, cst.FunctionDef):
        bound = {param.name.value for param in node.params.params} | set(names_bound(node.body))
        yield from (name for name in _read(node.body, without) if name not in bound)
    else:
        for child in children(node):
            yield from _read(child, without)


def _read_of_target(target: cst.CSTNode, without: Collection[cst.CSTNode]) -> Iterator[str]:
    if isinstance(target, (cst.Tuple, cst.List)):
        for element in target.elements:
            if not isinstance(element.value, cst.Name):
                yield from _read_of_target(element.value, without)
    else:
        yield from _read(target, without)


def _comprehension_targets(node: cst.CompFor | None) -> Iterator[str]:
    while node is not None:
        yield from _read(node.target)
        node = node.inner_for_in


def names_bound(node: cst.CSTNode) -> frozenset[str]:
    """Return the names that a statement assigns or changes: `x` of `x = 1`, `x["a"] = 1` and `x.append(1)`."""
    return frozenset(name.value for inner in _run_with(node) for name, _ in _written(inner))


def names_changed(node: cst.CSTNode) -> Iterator[cst.Name]:
    """Yield the names whose objects a node changes: `x` of `x["a"] = 1`, `del x.a`, `x += y` and `x.pop()`."""
    return (name for inner in iter_nodes(node) for name, changes in _written(inner) if changes)


def changed_by(call: cst.Call) -> str:
    """Return the variable whose list or dict a call changes: `x` of `x.append(...)`; "" without."""
    return next((name.value for name, _ in _written(call)), "")


def _run_with(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield a node and those in it that run with it: not the bodies of its functions."""
    yield node
    if not isinstance(node, (cst.Lambda, cst.FunctionDef, cst.ClassDef)):
        for child in children(node):
            yield from _run_with(child)


def _written(node: cst.CSTNode) -> Iterator[tuple[cst.Name, bool]]:
    """Yield the names that a node itself assigns or changes, and whether that changes the object of the name."""
    if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
        yield node.name, False
    elif isinstance(node, (cst.AssignTarget, cst.AnnAssign, cst.AugAssign, cst.NamedExpr, cst.For, cst.Del)):
        yield from _targets(node.target, isinstance(node, cst.AugAssign))
    elif isinstance(node, cst.AsName):
        yield from _targets(node.name, False)
    elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value in CHANGES:
        yield from _targets(node.func.value, True)


def _targets(target: cst.CSTNode, changes: bool) -> Iterator[tuple[cst.Name, bool]]:
    if isinstance(target, cst.Name):
        yield target, changes
    elif isinstance(target, (cst.Tuple, cst.List)):
        for element in target.elements:
            yield from _targets(element.value, changes)
    elif isinstance(target, (cst.Subscript, cst.Attribute, cst.Call, cst.StarredElement)):
        changes = changes or not isinstance(target, cst.StarredElement)
        yield from _targets(target.func if isinstance(target, cst.Call) else target.value, changes)
