"""The libcst tree of a file with parents, scopes, bindings, calls, classes and names.

One walk over the tree records all of these. libcst's metadata (scopes, qualified names, positions) is several times
slower, so only its positions are used, and only for files with findings.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import libcst as cst

from estimator_pipeline.migrate.code.analysis.files import SourceFile
from estimator_pipeline.migrate.code.analysis.notebooks import NotebookProblem
from estimator_pipeline.utils.python_2 import why_not_python_3

__all__ = ["Binding", "Scope", "Tree", "dotted_of", "iter_nodes", "parse", "root_of", "why_unreadable"]

# Fields that contain only whitespace, commas and brackets.
_PLAIN = (
    "lpar", "rpar", "comma", "semicolon", "header", "footer", "leading_lines", "lines_after_decorators", "lbracket",
    "rbracket", "lbrace", "rbrace", "indent", "newline", "dot", "equal", "colon", "star", "trailing_whitespace",
    "asynchronous", "from_", "first_colon", "second_colon", "ampersand",
    "annotation_indicator",
    "posonly_ind", "star_arg_indicator", "encoding", "default_indent", "default_newline", "has_trailing_newline",
    "operator_whitespace",
)  # fmt: skip


@functools.cache
def _fields(kind: type) -> tuple[str, ...]:
    names = (field.name for field in dataclasses.fields(kind))
    return tuple(name for name in names if name not in _PLAIN and not name.startswith("whitespace"))


def children(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield the child nodes without whitespace and punctuation, in the order of the text."""
    for name in _fields(type(node)):
        value = getattr(node, name)
        if isinstance(value, cst.CSTNode):
            yield value
        elif isinstance(value, (list, tuple)):
            for element in value:
                if isinstance(element, cst.CSTNode):
                    yield element


def iter_nodes(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield a node and the nodes below it, without whitespace and punctuation."""
    yield node
    for child in children(node):
        yield from iter_nodes(child)


@dataclasses.dataclass
class Binding:
    """A binding of a name to a value.

    Attributes:
        kind: import, from, value, with, unpacked, def, class, parameter or other.
        node: the expression, the definition or the parameter.
        scope: the scope in which the expression is evaluated.
        module, name, level: the parts of an import; for an unpacked value, `level` is its position.
    """

    kind: str
    node: Any
    scope: Scope
    module: str = ""
    name: str = ""
    level: int = 0


class Scope:
    """The names of a module, class, function, lambda or comprehension."""

    def __init__(self, kind: str, node: cst.CSTNode, parent: Scope | None, tree: Tree) -> None:
        self.kind = kind
        self.node = node
        self.parent = parent
        self.tree = tree
        self.names: dict[str, list[Binding]] = {}
        self.stars: list[Binding] = []
        self.elsewhere: set[str] = set()
        self.returns: list[cst.BaseExpression] = []
        self.attributes: dict[str, list[Binding]] = {}  # of `self`, for a class

    def bind(self, name: str, binding: Binding) -> None:
        target = self.tree.scope if name in self.elsewhere else self
        target.names.setdefault(name, []).append(binding)

    def around(self) -> Scope:
        """Return the nearest function, class or module, because a comprehension only binds its loop variables."""
        scope = self
        while scope.kind == "comprehension" and scope.parent is not None:
            scope = scope.parent
        return scope

    def class_scope(self) -> Scope | None:
        """Return the class of which this function is a method, or None."""
        return self.parent if self.kind == "function" and self.parent and self.parent.kind == "class" else None


class Tree:
    """A parsed file.

    Attributes:
        parents: node -> its parent node.
        scopes: definition -> its scope.
        where: expression that may be a construct -> the scope in which it is evaluated.
        tensorflow_1: whether the file was written for TensorFlow 1, with `import tensorflow as tf`.
        keras: the outcome of the conversion to Keras.
        renamed: node -> its new spelling; renamed_parts: other nodes that a rename affects;
            new_name: function from a name below tf to its new spelling in the whole code base.
    """

    def __init__(self, source: SourceFile, module: cst.Module) -> None:
        self.source = source
        self.module = module
        self.parents: dict[cst.CSTNode, cst.CSTNode] = {}
        self.scopes: dict[cst.CSTNode, Scope] = {}
        self.where: dict[cst.CSTNode, Scope] = {}
        self.calls: list[cst.Call] = []
        self.chains: list[cst.Attribute | cst.Name] = []
        self.classes: list[cst.ClassDef] = []
        self.functions: list[cst.FunctionDef] = []
        self.strings: list[cst.SimpleString] = []
        self.imports: list[tuple[cst.CSTNode, Binding]] = []
        self.scope = Scope("module", module, None, self)
        self._clear_plan()
        self._positions: Any = None
        walk = _Walk(self)
        for statement in module.body:
            walk.visit(statement, self.scope, module)

    def reset(self, source: SourceFile) -> None:
        """Clear the plans for the file and replace its source, which has the same text."""
        self._clear_plan()
        self.source = source

    def _clear_plan(self) -> None:
        self.tensorflow_1 = False
        self.renamed: dict[cst.CSTNode, Any] = {}
        self.renamed_parts: dict[cst.CSTNode, Any] = {}
        self.new_name: Any = lambda below: None
        self.keras: Any = None

    def state(self) -> dict[str, Any]:
        """Return the plans for the file, for `set_state`."""
        names = ("source", "tensorflow_1", "renamed", "renamed_parts", "new_name", "keras")
        return {name: getattr(self, name) for name in names}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore plans that `state` returned."""
        vars(self).update(state)

    @functools.cached_property
    def verbatim(self) -> bool:
        """Whether the tree reproduces the text of the file byte for byte."""
        return self.module.code == self.source.text

    def position(self, node: cst.CSTNode) -> tuple[int, int, int, int]:
        """Return (first line, first column, last line, last column), counted from 1; the end is exclusive."""
        if self._positions is None:
            from libcst.metadata import MetadataWrapper, PositionProvider

            # Without the wrapper's `resolve`, which would walk over the whole tree again for other metadata.
            self._positions = PositionProvider()._gen(MetadataWrapper(self.module, unsafe_skip_copy=True))
        span = self._positions[node]
        return span.start.line, span.start.column + 1, span.end.line, span.end.column + 1

    def above(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yield the ancestors of a node, the nearest first."""
        while node in self.parents:
            node = self.parents[node]
            yield node


def dotted_of(node: cst.CSTNode | None) -> str | None:
    """Return `a.b.c` for names and attributes; None for any other expression."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        base = dotted_of(node.value)
        return base and f"{base}.{node.attr.value}"
    return None


def root_of(node: cst.CSTNode) -> cst.Name:
    """Return the first name of an attribute chain such as `a.b.c`; the name `_` for any other expression."""
    while isinstance(node, cst.Attribute):
        node = node.value
    return node if isinstance(node, cst.Name) else cst.Name("_")


class _Walk:
    """The walk that records parents, scopes and bindings."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree

    def visit(self, node: cst.CSTNode, scope: Scope, parent: cst.CSTNode) -> None:
        self.tree.parents[node] = parent
        method = _METHODS.get(type(node))
        if method is None:
            self.inside(node, scope)
        else:
            method(self, node, scope)

    def inside(self, node: cst.CSTNode, scope: Scope) -> None:
        for child in children(node):
            self.visit(child, scope, node)

    # Definitions

    def function(self, node: cst.FunctionDef, scope: Scope) -> None:
        scope.bind(node.name.value, Binding("def", node, scope))
        self.tree.functions.append(node)
        self.tree.where[node] = scope
        for decorator in node.decorators:
            self.visit(decorator, scope, node)
        if node.returns:
            self.visit(node.returns, scope, node)
        inner = Scope("function", node, scope, self.tree)
        self.tree.scopes[node] = inner
        self.parameters(node.params, inner, scope, node)
        self.visit(node.body, inner, node)

    def lambda_(self, node: cst.Lambda, scope: Scope) -> None:
        inner = Scope("function", node, scope, self.tree)
        self.tree.scopes[node] = inner
        self.tree.where[node] = scope
        self.parameters(node.params, inner, scope, node)
        inner.returns.append(node.body)
        self.visit(node.body, inner, node)

    def parameters(self, params: cst.Parameters, inner: Scope, outer: Scope, parent: cst.CSTNode) -> None:
        self.tree.parents[params] = parent
        every = [*params.posonly_params, *params.params, *params.kwonly_params]
        every += [parameter for parameter in (params.star_arg, params.star_kwarg) if isinstance(parameter, cst.Param)]
        for parameter in every:
            inner.names[parameter.name.value] = [Binding("parameter", parameter, outer)]
            self.tree.parents[parameter] = params
            for part in (parameter.annotation, parameter.default):
                if part is not None:
                    self.visit(part, outer, parameter)

    def class_(self, node: cst.ClassDef, scope: Scope) -> None:
        scope.bind(node.name.value, Binding("class", node, scope))
        self.tree.classes.append(node)
        self.tree.where[node] = scope
        for part in (*node.decorators, *node.bases, *node.keywords):
            self.visit(part, scope, node)
        inner = Scope("class", node, scope, self.tree)
        self.tree.scopes[node] = inner
        self.visit(node.body, inner, node)

    def comprehension(self, node: Any, scope: Scope) -> None:
        inner = Scope("comprehension", node, scope, self.tree)
        self.tree.scopes[node] = inner
        # `for` first: the expression to its left uses the names that it binds.
        self.visit(node.for_in, inner, node)
        for name in ("elt", "key", "value"):
            if hasattr(node, name):
                self.visit(getattr(node, name), inner, node)

    # Bindings

    def import_(self, node: cst.Import, scope: Scope) -> None:
        for alias in node.names:
            self.tree.parents[alias] = node
            name = dotted_of(alias.name) or ""
            bound = alias.evaluated_alias
            binding = Binding("import", alias, scope, module=name if bound else name.split(".")[0], name=name)
            scope.around().bind(bound or name.split(".")[0], binding)
            self.tree.imports.append((alias, binding))

    def from_(self, node: cst.ImportFrom, scope: Scope) -> None:
        module, level = dotted_of(node.module) or "", len(node.relative)
        if isinstance(node.names, cst.ImportStar):
            binding = Binding("from", node, scope, module, "*", level)
            scope.stars.append(binding)
            self.tree.imports.append((node, binding))
            return
        for alias in node.names:
            self.tree.parents[alias] = node
            binding = Binding("from", alias, scope, module, alias.evaluated_name, level)
            scope.around().bind(alias.evaluated_alias or alias.evaluated_name, binding)
            self.tree.imports.append((alias, binding))

    def assign(self, node: cst.Assign, scope: Scope) -> None:
        for target in node.targets:
            self.tree.parents[target] = node
            self.target(target.target, node.value, scope, target)
        self.visit(node.value, scope, node)

    def ann_assign(self, node: cst.AnnAssign, scope: Scope) -> None:
        self.target(node.target, node.value, scope, node)
        self.visit(node.annotation, scope, node)
        if node.value is not None:
            self.visit(node.value, scope, node)

    def walrus(self, node: cst.NamedExpr, scope: Scope) -> None:
        self.target(node.target, node.value, scope.around(), node)
        self.visit(node.value, scope, node)

    def unknown(self, node: Any, scope: Scope) -> None:
        """Bind the targets of a loop, or of `+=`, to unknown values."""
        self.target(node.target, None, scope, node)
        for part in children(node):
            if part is not node.target:
                self.visit(part, scope, node)

    def with_item(self, node: cst.WithItem, scope: Scope) -> None:
        self.visit(node.item, scope, node)
        if node.asname is not None:
            self.tree.parents[node.asname] = node
            self.target(node.asname.name, node.item, scope, node.asname, kind="with")

    def handler(self, node: cst.ExceptHandler, scope: Scope) -> None:
        if node.type is not None:
            self.visit(node.type, scope, node)
        if node.name is not None:
            self.target(node.name.name, None, scope, node)
        self.visit(node.body, scope, node)

    def elsewhere(self, node: Any, scope: Scope) -> None:
        scope.elsewhere |= {item.name.value for item in node.names}

    def target(
        self,
        target: cst.CSTNode,
        value: cst.BaseExpression | None,
        scope: Scope,
        parent: cst.CSTNode,
        *,
        kind: str = "",
    ) -> None:
        """Bind the names of an assignment's left side."""
        self.tree.parents[target] = parent
        binding = Binding(kind or ("value" if value is not None else "other"), value, scope)
        if isinstance(target, cst.Name):
            scope.bind(target.value, binding)
        elif isinstance(target, (cst.Tuple, cst.List)):
            values: list[cst.BaseExpression | None] = [None] * len(target.elements)
            if isinstance(value, (cst.Tuple, cst.List)) and len(value.elements) == len(target.elements):
                values = [element.value for element in value.elements]
            for index, (element, element_value) in enumerate(zip(target.elements, values, strict=True)):
                self.target(element.value, element_value, scope, target)
                if element_value is None and isinstance(value, cst.Call) and isinstance(element.value, cst.Name):
                    # The unpacked result of a call: `train_fn, eval_fn = make_input_fns()`.
                    scope.bind(element.value.value, Binding("unpacked", value, scope, level=index))
        elif isinstance(target, cst.StarredElement):
            self.target(target.value, None, scope, target)
        else:
            if isinstance(target, cst.Attribute):
                owner = self.owner(target, scope)
                if owner is not None:
                    owner.attributes.setdefault(target.attr.value, []).append(binding)
            self.inside(target, scope)

    def owner(self, target: cst.Attribute, scope: Scope) -> Scope | None:
        """Return the scope of the class that has the attribute `self.x`."""
        function: Scope | None = scope
        while function is not None and function.class_scope() is None:
            function = function.parent
        if function is None or not isinstance(function.node, cst.FunctionDef) or not isinstance(target.value, cst.Name):
            return None
        params = (*function.node.params.posonly_params, *function.node.params.params)
        return function.class_scope() if params and params[0].name.value == target.value.value else None

    # What may be a construct

    def call(self, node: cst.Call, scope: Scope) -> None:
        self.tree.calls.append(node)
        self.tree.where[node] = scope
        self.visit(node.func, scope, node)
        for arg in node.args:
            self.tree.parents[arg] = node
            self.visit(arg.value, scope, arg)

    def attribute(self, node: cst.Attribute, scope: Scope) -> None:
        self.tree.chains.append(node)
        self.tree.where[node] = scope
        # `a.b.c` is one name; for `f().b` the call is visited.
        inner: cst.CSTNode = node
        while isinstance(inner, cst.Attribute):
            self.tree.where[inner] = scope
            self.tree.parents[inner.attr] = inner
            if isinstance(inner.value, (cst.Attribute, cst.Name)):
                self.tree.parents[inner.value] = inner
            inner = inner.value
        if not isinstance(inner, cst.Name):
            self.visit(inner, scope, node)
        else:
            self.tree.where[inner] = scope

    def name(self, node: cst.Name, scope: Scope) -> None:
        self.tree.chains.append(node)
        self.tree.where[node] = scope

    def returned(self, node: cst.Return, scope: Scope) -> None:
        if node.value is not None:
            scope.around().returns.append(node.value)
            self.visit(node.value, scope, node)

    def string(self, node: cst.SimpleString, scope: Scope) -> None:
        self.tree.strings.append(node)
        self.tree.where[node] = scope


_METHODS: dict[type, Any] = {
    cst.FunctionDef: _Walk.function,
    cst.Lambda: _Walk.lambda_,
    cst.ClassDef: _Walk.class_,
    cst.ListComp: _Walk.comprehension,
    cst.SetComp: _Walk.comprehension,
    cst.GeneratorExp: _Walk.comprehension,
    cst.DictComp: _Walk.comprehension,
    cst.Import: _Walk.import_,
    cst.ImportFrom: _Walk.from_,
    cst.Assign: _Walk.assign,
    cst.AnnAssign: _Walk.ann_assign,
    cst.AugAssign: _Walk.unknown,
    cst.NamedExpr: _Walk.walrus,
    cst.For: _Walk.unknown,
    cst.CompFor: _Walk.unknown,
    cst.WithItem: _Walk.with_item,
    cst.ExceptHandler: _Walk.handler,
    cst.Global: _Walk.elsewhere,
    cst.Nonlocal: lambda *_: None,  # its assignments count as local; lookups find the outer ones too
    cst.Call: _Walk.call,
    cst.Attribute: _Walk.attribute,
    cst.Name: _Walk.name,
    cst.Return: _Walk.returned,
    cst.SimpleString: _Walk.string,
}


def parse(source: SourceFile) -> Tree | None:
    """Return the tree of a source; None if it is not valid Python 3, with a problem added to the source."""
    # Python 3.14 accepts `except A, b:` with a new meaning, two classes. In older code it is Python 2 syntax.
    clause = re.search(r"^[ \t]*except\s+(?:[\w.]+|\([^()]*\))\s*,\s*\w+\s*:", source.text, re.MULTILINE)
    if clause is not None and sys.version_info < (3, 14):
        line = source.text.count("\n", 0, clause.start()) + 1
        source.problems.append(NotebookProblem(line, 1, "an except clause of Python 2"))
        return None
    try:
        return Tree(source, cst.parse_module(source.text))
    except cst.ParserSyntaxError as error:
        source.problems.append(_problem(source.text, error))
    except Exception as error:  # a defect of libcst or of this package only affects this file
        source.problems.append(NotebookProblem(1, 1, why_unreadable(error)))
    return None


def why_unreadable(error: Exception) -> str:
    """Return why a file cannot be read, from the exception."""
    if isinstance(error, RecursionError):
        return "its expressions are nested too deeply"
    return f"the scan fails at it: {type(error).__name__}: {error}"


def _problem(text: str, error: cst.ParserSyntaxError) -> NotebookProblem:
    """Return the problem at the position of Python's own parser: libcst counts lines from the logical line."""
    match = re.search(r"error at (\d+):(\d+)", error.message or "")
    line, column = (int(match[1]), int(match[2])) if match else (error.raw_line, error.raw_column + 1)
    message = ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except SyntaxError as syntax_error:
        line, column, message = syntax_error.lineno or line, syntax_error.offset or column, syntax_error.msg or ""
    except (ValueError, RecursionError, MemoryError):
        pass
    lines = text.splitlines()
    here = lines[line - 1] if 0 < line <= len(lines) else ""
    return NotebookProblem(line, max(column, 1), why_not_python_3(here, message))
