"""Rewriting of a file: rules replace single nodes, and the rest of the text is kept byte for byte."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import libcst as cst

from estimator_pipeline.migrate.code import catalogue
from estimator_pipeline.migrate.code.analysis import modes
from estimator_pipeline.migrate.code.analysis.edits import PLACE, Edit, Lines
from estimator_pipeline.migrate.code.analysis.name_resolution import FunctionOf, Outside, Program
from estimator_pipeline.migrate.code.analysis.syntax import Scope, Tree, children
from estimator_pipeline.migrate.code.renames import tf1_names
from estimator_pipeline.migrate.code.to_keras.keras_of_v1 import of_keras
from estimator_pipeline.migrate.code.to_keras.markers import REMOVED, without_removed

__all__ = ["NotConvertible", "Rewriter", "indented", "names_in"]

_WIDTH = 110


class NotConvertible(Exception):
    """A construct that cannot be converted, so that the file remains an Estimator program.

    Attributes:
        reason: Why, in a sentence.
        node: The construct.
        line: Line of the construct, if the node has no position.
    """

    def __init__(self, reason: str, node: cst.CSTNode, line: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.node = node
        self.line = line


class Rewriter:
    """Resolves the expressions of a file and rewrites its text.

    Attributes:
        tf: Name by which the file imports TensorFlow.
        is_v1: Whether that name was tensorflow.compat.v1 in the original file.
        replaced: Node -> its new text, or a function that returns it.
        calls: Canonical name -> a function that rewrites a call of it.
        names: Canonical name -> its new text.
        flags: (scope node, name) of variables that are true only in TRAIN mode; Keras layers need no such flag.
        prefixes: Names of the enclosing variable scopes.
        needs: Names of the helpers that the new text calls and of the modules that it imports.
        helper_names: Name of a helper of helpers.py that the new text calls -> its name in the program.
        helpers: Name of an additional function -> its text.
        exports: Name of an export function -> the function of its serving inputs and its job.
        resolved: Node -> the expression that it refers to, such as an argument of a spec.
        reuses_variables: Whether variables are reused by name.
        separator: Separator between variable scopes and a layer's name.
        embeddings: Calls that create variables which become layers.
        initializers: Default initializers of the enclosing variable scopes.
        keep_rates: (scope node, name) of rates that are 1 outside of training.
        hook_classes: Name of a hook or listener class -> its analysis.
        fetched_tensors: Names of tensors that hooks fetch -> the node that names them.
        spec_hooks: model_fn -> the hooks in its EstimatorSpec.
        separate_predictions: Predictions of a separate network, whose layers are matched by name.
    """

    def __init__(self, program: Program, tree: Tree, tf: str, *, is_v1: bool = False) -> None:
        self.is_v1 = is_v1
        self.program = program
        self.tree = tree
        self.tf = tf
        self.lines = Lines(tree.source.text)
        self.replaced: dict[cst.CSTNode, str | Callable[[], str]] = {}
        self.calls: dict[str, Callable[[cst.Call], str]] = {}
        self.names: dict[str, str] = {}
        self.flags: set[tuple[cst.CSTNode, str]] = set()
        self.prefixes: list[str] = []
        self.needs: set[str] = set()
        self.helper_names: dict[str, str] = {}
        self.helpers: dict[str, str] = {}
        self.exports: dict[str, tuple[cst.FunctionDef, Any]] = {}
        self.resolved: dict[cst.CSTNode, cst.BaseExpression] = {}
        self.reuses_variables = False
        self.separator = "_"
        self.embeddings: set[cst.Call] = set()
        self.initializers: list[str] = []
        self.keep_rates: set[tuple[cst.CSTNode, str]] = set()
        self.hook_classes: dict[str, Any] = {}
        self.fetched_tensors: dict[str, cst.CSTNode] = {}
        self.spec_hooks: dict[cst.CSTNode, list[cst.BaseExpression]] = {}
        self.separate_predictions: list[cst.BaseExpression] = []

    # Resolution of expressions

    def scope(self, node: cst.CSTNode) -> Scope:
        """Return the scope that an expression is in."""
        if node in self.tree.where:
            return self.tree.where[node]
        for above in self.tree.above(node):
            if above in self.tree.scopes:
                return self.tree.scopes[above]
        return self.tree.scope

    def name(self, node: cst.CSTNode | None) -> str:
        """Return the canonical TensorFlow name of an expression, or "" if it has none."""
        if not isinstance(node, cst.BaseExpression):
            return ""
        for value in self.program.meaning(node, self.tree, self.scope(node)):
            if isinstance(value, Outside):
                full, match = catalogue.spell(value.dotted), catalogue.find(value.dotted)
                if new := of_keras(full):
                    return new
                if match is not None and match.spelled == full and match.row.name.startswith("tf."):
                    return full if match.public or "*" in match.row.name else match.row.name
                return full
        return ""

    def called(self, node: cst.CSTNode | None) -> str:
        """Return the canonical name of a call's function, else ""."""
        return self.name(node.func) if isinstance(node, cst.Call) else ""

    def is_of_v1(self, node: cst.BaseExpression) -> bool:
        """Whether an expression belongs to tensorflow.compat.v1."""
        values = self.program.meaning(node, self.tree, self.scope(node))
        return any(isinstance(value, Outside) and ".compat.v1." in value.dotted for value in values)

    def functions(self, node: cst.BaseExpression) -> list[FunctionOf]:
        """Return the functions of this file that an expression may be."""
        values = self.program.meaning(node, self.tree, self.scope(node))
        return [value for value in values if isinstance(value, FunctionOf) and value.tree is self.tree]

    def value(self, node: cst.BaseExpression) -> cst.BaseExpression:
        """Return the only value assigned to a name, or the expression itself."""
        for _ in range(8):
            if not isinstance(node, cst.Name):
                break
            bindings = self.program.bindings(node.value, self.scope(node))
            if len(bindings) != 1 or bindings[0].kind != "value" or bindings[0].node is None:
                break
            node = bindings[0].node
        return node

    def home(self, node: cst.Name) -> tuple[cst.CSTNode, str] | None:
        """Return the node of the scope that binds a name, and the name."""
        at: Scope | None = self.scope(node)
        while at is not None:
            if node.value in at.names:
                return at.node, node.value
            at = at.parent
        return None

    def is_flag(self, node: cst.BaseExpression) -> bool:
        """Whether an expression is true only in TRAIN mode."""
        if isinstance(node, cst.Name) and self.home(node) in self.flags:
            return True
        return modes.condition(self.program, self.tree, node, self.scope(node)) == {"train"}

    def statement_of(self, value: cst.CSTNode) -> cst.SimpleStatementLine | None:
        """Return the statement that consists of a value or assigns it."""
        small = self.tree.parents.get(value)
        statement = self.tree.parents.get(small) if small is not None else None
        return statement if isinstance(statement, cst.SimpleStatementLine) else None

    # Text

    def span(self, node: cst.CSTNode) -> tuple[int, int]:
        """Return the start and end offsets of a node's text."""
        line, column, end_line, end_column = self.tree.position(node)
        return self.lines.offset(line, column), self.lines.offset(end_line, end_column)

    def source(self, node: cst.CSTNode) -> str:
        """Return a node's original text."""
        start, end = self.span(node)
        return self.lines.text[start:end]

    def line(self, node: cst.CSTNode) -> int:
        return self.tree.position(node)[0]

    def indent(self, node: cst.CSTNode) -> str:
        """Return the white space before a statement."""
        return self.lines.indent(self.line(node))

    def text(self, node: cst.CSTNode) -> str:
        """Return a node's text after all rewrites."""
        rewritten = self._written(node)
        if rewritten is not None:
            return rewritten
        return self.spliced(*self.span(node), children(node))

    def whole(self, node: cst.BaseExpression) -> str:
        """Return a node's text including its parentheses, which a tuple needs."""
        return f"({self.text(node)})" if getattr(node, "lpar", ()) else self.text(node)

    def spliced(self, start: int, end: int, nodes: Iterable[cst.CSTNode]) -> str:
        """Return the text between two offsets, with the given nodes rewritten."""
        parts, at = [], start
        for node in sorted(self._with_position(nodes), key=lambda child: self.span(child)[0]):
            begins, ends = self.span(node)
            if begins < at:
                continue
            parts += [self.lines.text[at:begins], self.text(node)]
            at = ends
        return "".join([*parts, self.lines.text[at:end]])

    def edits(self, nodes: Iterable[cst.CSTNode]) -> list[Edit]:
        """Return the edits of the given nodes: the outermost parts of them that a rule replaces or removes."""
        edits, at = [], 0
        for node in sorted(self._with_position(nodes), key=lambda child: self.span(child)[0]):
            start, end = self.span(node)
            if start < at:
                continue
            rewritten = self._written(node)
            if rewritten is None:
                edits += self.edits(children(node))
            elif rewritten == REMOVED:
                edits.append(self.deletion(node))
            else:
                edits.append(Edit(start, end, without_removed(rewritten)))
            at = end
        return edits

    def deletion(self, statement: cst.CSTNode) -> Edit:
        """Return the edit that deletes a statement's lines, with a comment behind it."""
        first, _, last, _ = self.tree.position(statement)
        return self.lines.deletion(first, last)

    def tree_positions(self) -> Any:
        """Return the positions of all nodes."""
        if self.tree._positions is None:
            self.tree.position(self.tree.module)
        return self.tree._positions

    def _with_position(self, nodes: Iterable[cst.CSTNode]) -> Iterator[cst.CSTNode]:
        for node in nodes:
            if node in self.tree_positions() and not isinstance(node, cst.Param):
                yield node
            else:  # in libcst, a parameter's position ends with its name
                yield from self._with_position(children(node))

    def _written(self, node: cst.CSTNode) -> str | None:
        if node in self.replaced:
            rewritten = self.replaced[node]
            return rewritten if isinstance(rewritten, str) else rewritten()
        if isinstance(node, cst.Call):
            write = self.calls.get(self.called(node))
            return write(node) if write is not None else self._without_flags(node) or self._without_training(node)
        if isinstance(node, (cst.Attribute, cst.Name)):
            if isinstance(node, cst.Name) and self.home(node) in self.flags:
                raise NotConvertible("the network differs in TRAIN; use Keras layers that depend on training", node)
            return self._symbol(node)
        if isinstance(node, cst.With):
            return self._with(node)
        if isinstance(node, cst.Parameters):
            return self._parameters(node)
        return None

    def _symbol(self, node: cst.Attribute | cst.Name) -> str | None:
        name = self.name(node)
        if isinstance(node, cst.Name) and name.startswith("tf.estimator.ModeKeys."):
            return None  # a variable of the program with a mode
        if name in self.names and not self._is_parameter(node):
            return self.names[name]
        if name.startswith("tf.keras.") and self._is_of_old_keras(node):
            return f"{self.tf}.{name.removeprefix('tf.')}"
        if not name.startswith("tf.compat.v1.") or not isinstance(node, cst.Attribute):
            return None
        below = name.removeprefix("tf.compat.v1.")
        now = catalogue.v1_names().get(below)
        if now:
            return f"{self.tf}.{now}"
        # With `import tensorflow.compat.v1 as tf`: a name that differs in TensorFlow 2 keeps the prefix compat.v1.
        if self.is_v1 and (below in catalogue.v1_names() or below in catalogue.shared_names()):
            call = self.tree.parents.get(node)
            if isinstance(call, cst.Call) and call.func is node and tf1_names._is_same(below, call):
                return f"{self.tf}.{below}"
            return f"{self.tf}.{name.removeprefix('tf.')}"
        return None

    def _is_of_old_keras(self, node: cst.BaseExpression) -> bool:
        """Whether an expression refers to Keras by its TensorFlow 1 name."""
        parent = self.tree.parents.get(node)
        if isinstance(node, cst.Name) and not isinstance(parent, (cst.Call, cst.Arg)):
            return False  # the name is bound here
        values = self.program.meaning(node, self.tree, self.scope(node))
        return any(isinstance(value, Outside) and of_keras(catalogue.spell(value.dotted)) for value in values)

    def _is_parameter(self, node: cst.CSTNode) -> bool:
        """Whether a name is a function parameter, whose value may differ from its default."""
        bindings = self.program.bindings(node.value, self.scope(node)) if isinstance(node, cst.Name) else []
        return any(binding.kind == "parameter" for binding in bindings)

    # Flags: functions lose the parameters that only passed the mode

    def _parameters(self, node: cst.Parameters) -> str | None:
        function = self.tree.parents.get(node)
        if not any((function, param.name.value) in self.flags for param in node.params):
            return None
        rest = [*node.params, *node.kwonly_params]
        kept = [param for param in rest if (function, param.name.value) not in self.flags]
        texts = [param.name.value + (f"={self.text(param.default)}" if param.default else "") for param in kept]
        return ", ".join(texts)

    def _without_flags(self, node: cst.Call) -> str | None:
        functions = self.functions(node.func)
        if len(functions) != 1 or not isinstance(functions[0].node, cst.FunctionDef):
            return None
        inner = functions[0].node
        named = [param.name.value for param in inner.params.params]
        if not any((inner, name) in self.flags for name in named):
            return None
        kept = []
        for position, arg in enumerate(node.args):
            name = arg.keyword.value if arg.keyword else named[position] if position < len(named) else ""
            if (inner, name) not in self.flags:
                text = self.text(arg.value)
                behind = any((inner, other) in self.flags for other in named[:position])
                kept.append(f"{name}={text}" if arg.keyword or (behind and not name) else text)
        return self.call(self.text(node.func), kept, node)

    def _without_training(self, node: cst.Call) -> str | None:
        """Return `model(x, training=training)` without the flag, which Keras passes itself."""
        training = [arg for arg in node.args if arg.keyword and arg.keyword.value == "training"]
        if not training or not self.is_flag(training[0].value):
            return None
        kept = [f"{arg.keyword.value}={self.text(arg.value)}" if arg.keyword else arg.star + self.text(arg.value)
                for arg in node.args if arg not in training]  # fmt: skip
        return self.call(self.text(node.func), kept, node)

    def find_flags(self, functions: Iterable[cst.FunctionDef]) -> None:
        """Find the parameters that are a TRAIN-mode flag in every call."""
        functions = list(functions)
        while True:
            flags = set(self.flags)
            for function in functions:
                calls = [
                    call for call in self.tree.calls
                    if any(target.node is function for target in self.functions(call.func))
                ]  # fmt: skip
                for position, param in enumerate(function.params.params):
                    args = [self.argument(call, position, param.name.value) for call in calls]
                    known = [arg for arg in args if arg is not None and self.is_flag(arg)]
                    if known and all(arg in known or (arg is not None and self._is_false(arg)) for arg in args):
                        flags.add((function, param.name.value))
            if flags == self.flags:
                return
            self.flags = flags

    def _is_false(self, node: cst.BaseExpression) -> bool:
        """Whether an expression is False in code that does not run in TRAIN mode."""
        possible = modes.at(self.program, self.tree, node, self.scope(node))
        return self.source(node) == "False" and "train" not in possible

    @staticmethod
    def argument(call: cst.Call, position: int, name: str) -> cst.BaseExpression | None:
        for at, arg in enumerate(call.args):
            if (arg.keyword and arg.keyword.value == name) or (not arg.keyword and not arg.star and at == position):
                return arg.value
        return None

    # Variable scopes of TensorFlow 1: their names become prefixes of the layers' names

    def _with(self, node: cst.With) -> str | None:
        names = [self.called(item.item) for item in node.items]
        if not any(name in ("tf.compat.v1.variable_scope", "tf.compat.v1.name_scope") for name in names):
            return None
        if len(node.items) != 1 or not isinstance(node.items[0].item, cst.Call):
            raise NotConvertible("several variable scopes in one with statement", node)
        (item,) = node.items
        call = item.item
        assert isinstance(call, cst.Call)
        if item.asname is not None:
            raise NotConvertible("a variable scope that is bound to a name", node)
        initializers: list[str] = []
        for arg in call.args[1:]:
            if arg.keyword is not None and arg.keyword.value in ("reuse", "partitioner"):
                continue  # reuse: see layers.py; Keras does not partition a variable
            if arg.keyword is not None and arg.keyword.value == "initializer" and self._is_of_cells(node):
                initializers.append(self.text(arg.value))
            else:
                raise NotConvertible(f"{self.source(arg)}: an argument for all variables of a scope", arg)
        if not isinstance(node.body, cst.IndentedBlock):
            raise NotConvertible("a variable scope in one line", node)
        prefix = names[0] == "tf.compat.v1.variable_scope"
        if prefix:
            self.prefixes.append(self.text(call.args[0].value))
        self.initializers += initializers
        try:
            body = self.block(node.body)
        finally:
            del self.initializers[len(self.initializers) - len(initializers) :]
            if prefix:
                self.prefixes.pop()
        return indented(textwrap.dedent(body), self.indent(node)).strip()

    def _is_of_cells(self, node: cst.CSTNode) -> bool:
        """Whether a scope creates variables only in recurrent cells that it runs."""
        waiting, seen = [node], {node}
        while waiting:
            within = waiting.pop()
            for call in self.tree.calls:
                if within not in self.tree.above(call):
                    continue
                name = self.called(call)
                if name.startswith(("tf.compat.v1.layers.", "tf.keras.layers.", "tf.compat.v1.get_variable")):
                    return False
                if name == "tf.compat.v1.nn.dynamic_rnn" and within is not node:
                    return False
                callees = [function.node for function in self.functions(call.func) if function.node not in seen]
                waiting += callees
                seen.update(callees)
        return True

    def is_once(self, arg: cst.Arg) -> bool:
        """Whether an argument `reuse` never reuses a variable."""
        if self.source(arg.value) in ("None", "False"):
            return True
        if self.name(arg.value) != "tf.compat.v1.AUTO_REUSE":
            return False
        around = next((above for above in self.tree.above(arg) if isinstance(above, cst.FunctionDef)), None)
        calls = [call for call in self.tree.calls if any(target.node is around for target in self.functions(call.func))]
        return len(calls) <= 1

    def block(self, body: cst.BaseSuite) -> str:
        """Return a block's statements and comments, starting with the first line's indentation."""
        if not isinstance(body, cst.IndentedBlock):
            raise NotConvertible("a block on the same line as its header", body)
        return self.statements(body.body)

    def statements(self, nodes: Iterable[cst.CSTNode]) -> str:
        """Join statements, each with its comments."""
        return "\n".join(self.statement(node) for node in nodes)

    def statement(self, node: cst.CSTNode) -> str:
        """Return a statement with the comment behind it, below the place of its other comments."""
        indent, text, (_, end) = self.indent(node), self.text(node), self.span(node)
        behind = self.lines.text[end : self.lines.end(self.tree.position(node)[2])].rstrip()
        place = f"{indent}{self.place(node)}\n" if text != REMOVED else ""
        is_comment = behind.strip().startswith("#") and not text.endswith(behind)  # that of a block's last statement
        return place + indent + text + (behind if is_comment else "")

    def place(self, node: cst.CSTNode) -> str:
        """Return the line that `keep_comments` replaces by the comments of a node's statement."""
        statements = (cst.SimpleStatementLine, cst.BaseCompoundStatement)
        around = (above for above in (node, *self.tree.above(node)) if isinstance(above, statements))
        return PLACE.format(self.span(next(around))[0])

    def has_keyword(self, name: str) -> bool:
        """Whether a call of the file has an argument of this name."""
        return any(
            arg.keyword is not None and arg.keyword.value == name for call in self.tree.calls for arg in call.args
        )

    @functools.cached_property
    def bound_names(self) -> set[str]:
        """All names that the file binds."""
        return {name for scope in (self.tree.scope, *self.tree.scopes.values()) for name in scope.names}

    # New text

    def helper(self, name: str) -> str:
        """Return the name that a helper function or class gets in the program, which then includes it."""
        self.helper_names[name] = self.free_name(name)
        return self.helper_names[name]

    def free_name(self, name: str) -> str:
        """Return the name, with underscores behind it if the file binds it already."""
        while name in self.bound_names:
            name += "_"
        return name

    def call(self, name: str, arguments: list[str], node: cst.CSTNode, behind: str = "") -> str:
        """Return a call's text, with the arguments on separate lines if it is too long."""
        line_text = f"{name}({', '.join(arguments)}){behind}"
        indent = self.indent(node)
        if len(indent) + len(line_text) + 8 <= _WIDTH and "\n" not in line_text:
            return line_text
        lines, joined = [], ""
        for argument in arguments:
            if joined and len(indent) + len(joined) + len(argument) + 8 > _WIDTH:
                lines.append(joined.rstrip())
                joined = ""
            joined += f"{argument}, "
        lines.append(joined.removesuffix(", "))
        inner = f"{indent}    "
        return f"{name}(\n" + "\n".join(f"{inner}{line}" for line in lines) + f"){behind}"


def indented(text: str, indent: str) -> str:
    """Indent each line that is not empty."""
    return "\n".join(indent + line if line.strip() else "" for line in text.split("\n"))


def names_in(node: cst.CSTNode) -> Iterator[str]:
    """Yield the names that a node reads or writes; of an attribute chain only the first part."""
    if isinstance(node, cst.Name):
        yield node.value
    elif isinstance(node, cst.Arg) and node.keyword is not None and node.keyword.value == "partitioner":
        return  # Keras does not partition variables
    elif isinstance(node, (cst.Attribute, cst.Arg)):
        yield from names_in(node.value)
    else:
        for child in children(node):
            yield from names_in(child)
