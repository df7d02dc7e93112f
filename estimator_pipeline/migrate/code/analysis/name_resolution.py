"""Resolution of expressions to a name of TensorFlow, or to a function, class or object of the program.

Resolution works on the syntax trees only. It follows imports into the modules of the code base, names through
assignments, `self.x` through the class, and calls through the return values of their functions. If a name has several
meanings (`try: import a as x` … `except ImportError: import b as x`), all are returned in the order of the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any

import libcst as cst

from estimator_pipeline.migrate.code import catalogue
from estimator_pipeline.migrate.code.analysis.modules import Modules, within
from estimator_pipeline.migrate.code.analysis.syntax import Binding, Scope, Tree

__all__ = ["ClassOf", "FunctionOf", "Instance", "Member", "ModuleOf", "Outside", "Program", "Value"]

# The steps of one query. Cyclic names (`x = f(x)` in many branches) would be followed along every path.
_STEPS = 2_000
# The depth of nested queries. Each takes about eight frames of Python's stack.
_DEPTH = 300


@dataclass(frozen=True)
class Outside:
    """A full name outside of the code base."""

    dotted: str


@dataclass(frozen=True)
class ModuleOf:
    """A module of the code base; a folder has no `tree`."""

    path: str
    tree: Tree | None


@dataclass(frozen=True)
class FunctionOf:
    """A function, method or lambda of the code base."""

    node: cst.FunctionDef | cst.Lambda
    tree: Tree


@dataclass(frozen=True)
class ClassOf:
    """A class of the code base."""

    node: cst.ClassDef
    tree: Tree


@dataclass(frozen=True)
class Instance:
    """An object of a class."""

    of: Outside | ClassOf


@dataclass(frozen=True)
class Member:
    """A method or attribute of an object whose class is outside of the code base: `estimator.train`."""

    of: str
    name: str


Value = Outside | ModuleOf | FunctionOf | ClassOf | Instance | Member


class Program:
    """The trees of a code base, with name resolution across files."""

    def __init__(self, trees: Sequence[Tree], modules: Modules) -> None:
        self.trees = {tree.source.path: tree for tree in trees}
        self.modules = modules
        self._known: dict[cst.CSTNode, tuple[Value, ...]] = {}
        self._imports: dict[Tree, tuple[Tree, ...]] = {}
        self._asked: set[Any] = set()
        self._steps = self._cuts = 0

    # Expressions

    def meaning(self, node: cst.BaseExpression | None, tree: Tree, scope: Scope) -> tuple[Value, ...]:
        """Return the possible values of an expression; empty if unknown."""
        if node is None:
            return ()
        if node in self._known:
            return self._known[node]
        before = self._cuts
        if not self._asks(node):
            return ()
        try:
            values = tuple(dict.fromkeys(self._expression(node, tree, scope)))
        finally:
            self._asked.discard(node)
        # Within a cycle the result may be partial, and would differ for a query that starts elsewhere.
        if not self._asked or self._cuts == before:
            self._known[node] = values
        return values

    def _asks(self, question: Any) -> bool:
        """Open a query and return True, unless it is already open (a cycle of names) or a limit is reached.

        The caller closes the query by removing it from `_asked`.
        """
        self._steps = self._steps + 1 if self._asked else 1
        if question in self._asked or self._steps > _STEPS or len(self._asked) >= _DEPTH:
            self._cuts += 1
            return False
        self._asked.add(question)
        return True

    def reset(self) -> None:
        """Close all queries after an exception."""
        self._asked.clear()

    def _expression(self, node: cst.CSTNode, tree: Tree, scope: Scope) -> Iterator[Value]:
        if isinstance(node, cst.Name):
            yield from self.look_up(node.value, scope)
        elif isinstance(node, cst.Attribute):
            for base in self.meaning(node.value, tree, scope):
                yield from self.attribute(base, node.attr.value)
        elif isinstance(node, cst.Call):
            yield from self._call(node, tree, scope)
        elif isinstance(node, cst.Lambda):
            yield FunctionOf(node, tree)
        elif isinstance(node, cst.IfExp):
            yield from self.meaning(node.body, tree, scope)
            yield from self.meaning(node.orelse, tree, scope)
        elif isinstance(node, cst.BooleanOperation):
            yield from self.meaning(node.left, tree, scope)
            yield from self.meaning(node.right, tree, scope)
        elif isinstance(node, (cst.NamedExpr, cst.Await)):
            inner = node.value if isinstance(node, cst.NamedExpr) else node.expression
            yield from self.meaning(inner, tree, scope)
        elif isinstance(node, cst.Subscript):
            yield from self._item(node, tree, scope)

    def _item(self, node: cst.Subscript, tree: Tree, scope: Scope) -> Iterator[Value]:
        """Yield all values of the dict in `{"adam": tf.train.AdamOptimizer}[name]`."""
        literals = [node.value] if isinstance(node.value, cst.Dict) else []
        if isinstance(node.value, cst.Name):
            literals = [b.node for b in self.bindings(node.value.value, scope) if isinstance(b.node, cst.Dict)]
        for literal in literals:
            for element in literal.elements:
                if isinstance(element, cst.DictElement):
                    yield from self.meaning(element.value, tree, scope)

    def _call(self, node: cst.Call, tree: Tree, scope: Scope) -> Iterator[Value]:
        if isinstance(node.func, cst.Name) and node.func.value == "getattr" and len(node.args) >= 2:
            name = node.args[1].value
            if isinstance(name, cst.SimpleString) and isinstance(name.evaluated_value, str):
                for base in self.meaning(node.args[0].value, tree, scope):
                    yield from self.attribute(base, name.evaluated_value)
            return
        if isinstance(node.func, cst.Name) and node.func.value == "super":
            enclosing = scope.class_scope()
            if enclosing is not None and isinstance(enclosing.node, cst.ClassDef):
                for base in self.bases(ClassOf(enclosing.node, tree)):
                    yield Instance(base)
            return
        for function in self.meaning(node.func, tree, scope):
            yield from self.result(function, node, tree, scope)

    def result(self, function: Value, node: cst.Call, tree: Tree, scope: Scope) -> Iterator[Value]:
        """Yield the possible return values of a call."""
        if isinstance(function, ClassOf):
            yield Instance(function)
        elif isinstance(function, FunctionOf):
            inner = function.tree.scopes[function.node]
            for value in inner.returns:
                yield from self.meaning(value, function.tree, inner)
        elif isinstance(function, Outside):
            if function.dotted in ("functools.partial", "functools.update_wrapper", "functools.wraps"):
                if node.args:
                    yield from self.meaning(node.args[0].value, tree, scope)
                return
            match = catalogue.find(function.dotted)
            if match is not None and match.row.gives:
                yield Instance(Outside(match.row.gives.replace("tf.", "tensorflow.", 1)))
            elif function.dotted.rsplit(".", 1)[-1][:1].isupper():
                yield Instance(function)
        elif isinstance(function, Member) and function.name in ("replace", "__enter__"):
            yield Instance(Outside(function.of))

    # Names

    def bindings(self, name: str, scope: Scope) -> list[Binding]:
        """Return the bindings of a name in the nearest scope that binds it."""
        at: Scope | None = scope
        while at is not None:
            if name in at.names and (at.kind != "class" or at is scope):
                return at.names[name]
            at = at.parent
        return []

    def chain(
        self, node: cst.CSTNode, scope: Scope, seen: set[cst.CSTNode] | None = None
    ) -> Iterator[tuple[cst.BaseExpression, Scope]]:
        """Yield the calls and attributes of `data.map(f).batch(2)` from the end, and those of the variable `data`."""
        seen = set() if seen is None else seen
        while isinstance(node, (cst.Call, cst.Attribute)):
            yield node, scope
            node = node.func if isinstance(node, cst.Call) else node.value
        for binding in self.bindings(node.value, scope) if isinstance(node, cst.Name) else ():
            # Repeated `x = x.f()` leads from each assignment to all others: visit each once.
            if binding.kind == "value" and isinstance(binding.node, cst.Call) and binding.node not in seen:
                seen.add(binding.node)
                yield from self.chain(binding.node, binding.scope, seen)

    def look_up(self, name: str, scope: Scope) -> Iterator[Value]:
        """Yield the possible values of a name in a scope."""
        bindings = self.bindings(name, scope)
        for binding in bindings:
            yield from self.bound(binding, name)
        if not bindings:
            yield from self._from_stars(name, scope.tree)

    def _from_stars(self, name: str, tree: Tree) -> Iterator[Value]:
        question = (tree.source.path, name)
        if not self._asks(question):
            return
        try:
            for star in tree.scope.stars:
                for value in self.module(star.module, star.level, tree):
                    if isinstance(value, ModuleOf) and value.tree is not None:
                        yield from self._public(value, name)
                    elif isinstance(value, Outside) and self._is_outside_name(f"{value.dotted}.{name}"):
                        yield Outside(f"{value.dotted}.{name}")
        finally:
            self._asked.discard(question)

    @staticmethod
    def _is_outside_name(dotted: str) -> bool:
        """Return whether a star import of a TensorFlow package is known to provide a name, or a prefix of names."""
        if dotted.split(".")[0] not in ("tensorflow", "tensorflow_estimator"):
            return False
        if catalogue.find(dotted) is not None:
            return True
        prefix = catalogue.spell(dotted) + "."
        return any(name.startswith(prefix) for row in catalogue.ROWS for name in row.spellings)

    def bound(self, binding: Binding, name: str) -> Iterator[Value]:
        """Yield the possible values of a binding."""
        tree = binding.scope.tree
        if binding.kind == "import":
            yield from self.module(binding.module, 0, tree)
        elif binding.kind == "from":
            for base in self.module(binding.module, binding.level, tree):
                if isinstance(base, ModuleOf) and base.tree is tree and binding.name == name:
                    # `from . import nets` in a package's __init__ imports the submodule.
                    yield from self._at(within(base.path, name))
                else:
                    yield from self.attribute(base, binding.name)
        elif binding.kind == "def":
            yield FunctionOf(binding.node, tree)
        elif binding.kind == "class":
            yield ClassOf(binding.node, tree)
        elif binding.kind in ("value", "with"):
            yield from self.meaning(binding.node, tree, binding.scope)
        elif binding.kind == "unpacked":
            yield from self._unpacked(binding, tree)
        elif binding.kind == "parameter":
            yield from self._parameter(binding, name)

    def _unpacked(self, binding: Binding, tree: Tree) -> Iterator[Value]:
        for function in self.meaning(binding.node.func, tree, binding.scope):
            if isinstance(function, FunctionOf):
                inner = function.tree.scopes[function.node]
                for value in inner.returns:
                    if isinstance(value, cst.Tuple) and binding.level < len(value.elements):
                        yield from self.meaning(value.elements[binding.level].value, function.tree, inner)

    def _parameter(self, binding: Binding, name: str) -> Iterator[Value]:
        tree, param = binding.scope.tree, binding.node
        if param.annotation is not None:
            for value in self.meaning(param.annotation.annotation, tree, binding.scope):
                if isinstance(value, (Outside, ClassOf)):
                    yield Instance(value)
        if param.default is not None:
            yield from self.meaning(param.default, tree, binding.scope)
        function = tree.parents.get(tree.parents[param])
        if binding.scope.kind == "class" and isinstance(function, cst.FunctionDef):
            params = (*function.params.posonly_params, *function.params.params)
            if params and params[0] is param and isinstance(binding.scope.node, cst.ClassDef):
                class_value = ClassOf(binding.scope.node, tree)
                decorators = [d.decorator.value for d in function.decorators if isinstance(d.decorator, cst.Name)]
                if "classmethod" in decorators:
                    yield class_value
                elif "staticmethod" not in decorators:
                    yield Instance(class_value)

    # Attributes

    def attribute(self, base: Value, name: str) -> Iterator[Value]:
        """Yield the possible values of `base.name`."""
        if isinstance(base, Outside):
            yield Outside(f"{base.dotted}.{name}")
        elif isinstance(base, ModuleOf):
            yield from self._public(base, name)
        elif isinstance(base, ClassOf):
            yield from self._of_class(base, name)
        elif isinstance(base, Instance):
            if isinstance(base.of, ClassOf):
                yield from self._of_class(base.of, name)
            else:
                yield Member(base.of.dotted, name)

    def _public(self, module: ModuleOf, name: str) -> Iterator[Value]:
        if module.tree is not None:
            question = (module.path, name, "public")
            values, new = [], self._asks(question)
            if new:
                try:
                    values = list(self.look_up(name, module.tree.scope))
                finally:
                    self._asked.discard(question)
            if values or (new and name in module.tree.scope.names):
                yield from values
                return
        yield from self._at(within(module.path, name))

    def _of_class(self, class_value: ClassOf, name: str) -> Iterator[Value]:
        question = (class_value.node, name)
        if not self._asks(question):
            return
        try:
            scope = class_value.tree.scopes[class_value.node]
            bindings = [*scope.names.get(name, ()), *scope.attributes.get(name, ())]
            for binding in bindings:
                if binding.kind == "def" and any(
                    isinstance(d.decorator, cst.Name) and d.decorator.value in ("property", "cached_property")
                    for d in binding.node.decorators
                ):
                    inner = class_value.tree.scopes[binding.node]
                    for value in inner.returns:
                        yield from self.meaning(value, class_value.tree, inner)
                else:
                    yield from self.bound(binding, name)
            if not bindings:
                for base in self.bases(class_value):
                    if isinstance(base, ClassOf):
                        yield from self._of_class(base, name)
                    else:
                        yield Member(base.dotted, name)
        finally:
            self._asked.discard(question)

    def bases(self, class_value: ClassOf) -> Iterator[Outside | ClassOf]:
        """Yield the base classes of a class in the order of its definition."""
        scope = class_value.tree.where[class_value.node]
        for arg in class_value.node.bases:
            for value in self.meaning(arg.value, class_value.tree, scope):
                if isinstance(value, (Outside, ClassOf)):
                    yield value

    def ancestors(self, class_value: ClassOf) -> Iterator[Outside]:
        """Yield all base classes outside of the code base, direct and indirect."""
        seen, waiting = {class_value}, [class_value]
        while waiting:
            for base in self.bases(waiting.pop()):
                if isinstance(base, Outside):
                    yield base
                elif base not in seen:
                    seen.add(base)
                    waiting.append(base)

    # Modules

    def module(self, dotted: str, level: int, tree: Tree) -> Iterator[Value]:
        """Yield the module that a file imports: one of the code base, or a name outside of it."""
        name = self.modules.named(dotted, level, tree.source.path)
        if name is None:
            yield Outside(dotted)
        elif name:
            yield self._module_of(name)

    def files_of_import(self, tree: Tree, binding: Binding) -> Iterator[Tree]:
        """Yield the files that an import reads: the module, and a submodule that it imports by name."""
        dotted = binding.name if binding.kind == "import" else binding.module
        for value in self.module(dotted, binding.level, tree):
            if isinstance(value, ModuleOf):
                inner = self._at(within(value.path, binding.name)) if binding.kind == "from" else ()
                yield from (module.tree for module in (value, *inner) if module.tree is not None)

    def imports(self, tree: Tree) -> tuple[Tree, ...]:
        """Return the files that a file imports, in the order of the text."""
        if tree not in self._imports:
            named = (other for _, binding in tree.imports for other in self.files_of_import(tree, binding))
            self._imports[tree] = tuple(dict.fromkeys(named))
        return self._imports[tree]

    def reached(self, tree: Tree, chosen: Set[Tree]) -> list[Tree]:
        """Return the chosen files that a file imports, directly or indirectly, and the file itself last."""
        files: dict[Tree, None] = {}
        waiting: set[Tree] = set()

        def visit(file: Tree) -> None:
            if file in files or file in waiting:
                return
            waiting.add(file)
            for other in self.imports(file):
                if other is not tree:
                    visit(other)
            if file in chosen or any(other in files for other in self.imports(file)):
                files[file] = None

        visit(tree)
        return list(files)

    def imported(self, trees: Iterable[Tree]) -> set[Tree]:
        """Return the files that other files import."""
        return {other for tree in trees for other in self.imports(tree) if other is not tree}

    def _at(self, path: str) -> Iterator[ModuleOf]:
        name = self.modules.at(path)
        if name is not None:
            yield self._module_of(name)

    def _module_of(self, name: str) -> ModuleOf:
        return ModuleOf(name, self.trees.get(self.modules.files.get(name, "")))
