"""A file, and its text with parts of it written anew: whatever no rule names is kept as it stands, to the byte."""

from __future__ import annotations

import io
import textwrap
import tokenize
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import libcst as cst

from estimator_pipeline.migrate.code import catalogue
from estimator_pipeline.migrate.code.analysis import modes
from estimator_pipeline.migrate.code.analysis.edits import Lines
from estimator_pipeline.migrate.code.analysis.name_resolution import FunctionOf, Outside, Program
from estimator_pipeline.migrate.code.analysis.syntax import Scope, Tree, children
from estimator_pipeline.migrate.code.renames import tf1_names
from estimator_pipeline.migrate.code.to_keras.keras_of_v1 import of_keras

__all__ = ["NotConvertible", "Rewriter", "indented", "names_in"]

_WIDTH = 110


class NotConvertible(Exception):
    """A file stays an Estimator program, because of one construct of it.

    Attributes:
        reason: why, in a sentence.
        node: the construct.
        line: where it is, if it is no node with a place.
    """

    def __init__(self, reason: str, node: cst.CSTNode, line: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.node = node
        self.line = line


class Rewriter:
    """What the expressions of a file mean, and its text.

    Attributes:
        tf: by which name the file has TensorFlow.
        is_v1: whether that name was tensorflow.compat.v1 there.
        replaced: node -> its new text, or a function that writes it.
        calls: canonical name -> a function that writes a call of it.
        flags: (scope's node, name) of what says only whether the model trains; layers of Keras know it by themselves.
        needs: names of helpers that the new text calls, and modules that it imports.
        helpers: name of a further function -> its text.
        meant: node -> the expression that it stands for: an argument of a specification.
        again: whether variables are used again by their names.
        joint: what stands between the scopes' names and a layer's.
        embeddings: calls that make variables, which become layers.
        initializers: what the scopes of variables around give to those that have none.
        shares: (scope's node, name) of what is 1 outside of training.
        hook_classes: name of a class of hooks or listeners -> what is known of it.
        watched: names of tensors that hooks ask for -> where.
        spec_hooks: model_fn -> the hooks that it hands to its spec.
        apart: predictions that are another network's, whose layers are known by their names.
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
        self.helpers: dict[str, str] = {}
        self.exports: dict[str, tuple[cst.FunctionDef, Any]] = {}
        self.meant: dict[cst.CSTNode, cst.BaseExpression] = {}
        self.again = False
        self.joint = "_"
        self.embeddings: set[cst.Call] = set()
        self.initializers: list[str] = []
        self.shares: set[tuple[cst.CSTNode, str]] = set()
        self.hook_classes: dict[str, Any] = {}
        self.watched: dict[str, cst.CSTNode] = {}
        self.spec_hooks: dict[cst.CSTNode, list[cst.BaseExpression]] = {}
        self.apart: list[cst.BaseExpression] = []
        self._found_comments: list[tuple[int, str]] | None = None

    # Meanings

    def scope(self, node: cst.CSTNode) -> Scope:
        """Return the scope that an expression is in."""
        if node in self.tree.where:
            return self.tree.where[node]
        for above in self.tree.above(node):
            if above in self.tree.scopes:
                return self.tree.scopes[above]
        return self.tree.scope

    def name(self, node: cst.CSTNode | None) -> str:
        """The canonical name of what an expression means; "" where it is nothing of TensorFlow, or not known."""
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
        """Return the canonical name of what a call calls."""
        return self.name(node.func) if isinstance(node, cst.Call) else ""

    def is_of_v1(self, node: cst.BaseExpression) -> bool:
        """Whether an expression is something of tensorflow.compat.v1."""
        found = self.program.meaning(node, self.tree, self.scope(node))
        return any(isinstance(one, Outside) and ".compat.v1." in one.dotted for one in found)

    def functions(self, node: cst.BaseExpression) -> list[FunctionOf]:
        """Return the functions of this file that an expression may be."""
        found = self.program.meaning(node, self.tree, self.scope(node))
        return [one for one in found if isinstance(one, FunctionOf) and one.tree is self.tree]

    def value(self, node: cst.BaseExpression) -> cst.BaseExpression:
        """Return what a name was given, where it was given one thing; the expression itself otherwise."""
        for _ in range(8):
            if not isinstance(node, cst.Name):
                break
            bindings = self.program.bindings(node.value, self.scope(node))
            if len(bindings) != 1 or bindings[0].kind != "value" or bindings[0].node is None:
                break
            node = bindings[0].node
        return node

    def home(self, node: cst.Name) -> tuple[cst.CSTNode, str] | None:
        """Return the scope that binds a name, by its node, and the name."""
        at: Scope | None = self.scope(node)
        while at is not None:
            if node.value in at.names:
                return at.node, node.value
            at = at.parent
        return None

    def is_flag(self, node: cst.BaseExpression) -> bool:
        """Whether an expression is true where the model trains, and false elsewhere."""
        if isinstance(node, cst.Name) and self.home(node) in self.flags:
            return True
        return modes._condition(self.program, self.tree, node, self.scope(node)) == {"train"}

    def statement_of(self, value: cst.CSTNode) -> cst.SimpleStatementLine | None:
        """Return the statement that a value is the whole right side of, or the whole of."""
        small = self.tree.parents.get(value)
        found = self.tree.parents.get(small) if small is not None else None
        return found if isinstance(found, cst.SimpleStatementLine) else None

    # Text

    def span(self, node: cst.CSTNode) -> tuple[int, int]:
        """Where a node's text begins and ends."""
        line, column, end_line, end_column = self.tree.position(node)
        return self.lines.offset(line, column), self.lines.offset(end_line, end_column)

    def source(self, node: cst.CSTNode) -> str:
        """Return a node's text as it stands."""
        start, end = self.span(node)
        return self.lines.text[start:end]

    def line(self, node: cst.CSTNode) -> int:
        return self.tree.position(node)[0]

    def indent(self, node: cst.CSTNode) -> str:
        """Return the white space before a statement."""
        return self.lines.indent(self.line(node))

    def text(self, node: cst.CSTNode) -> str:
        """Return a node's text, its parts written anew where a rule does."""
        made = self._written(node)
        if made is not None:
            return made
        return self.spliced(*self.span(node), children(node))

    def whole(self, node: cst.BaseExpression) -> str:
        """Return the same with the brackets around it, which are no part of its place: those of a tuple are needed."""
        return f"({self.text(node)})" if getattr(node, "lpar", ()) else self.text(node)

    def spliced(self, start: int, end: int, nodes: Iterable[cst.CSTNode]) -> str:
        """Return the text between two places, the nodes within it written anew."""
        parts, at = [], start
        for node in sorted(self._placed(nodes), key=lambda one: self.span(one)[0]):
            begins, ends = self.span(node)
            if begins < at:
                continue
            parts += [self.lines.text[at:begins], self.text(node)]
            at = ends
        return "".join([*parts, self.lines.text[at:end]])

    def tree_positions(self) -> Any:
        """Return the nodes that have a place."""
        if self.tree._positions is None:
            self.tree.position(self.tree.module)
        return self.tree._positions

    def _placed(self, nodes: Iterable[cst.CSTNode]) -> Iterator[cst.CSTNode]:
        for node in nodes:
            if node in self.tree_positions() and not isinstance(node, cst.Param):
                yield node
            else:  # libcst's place of a parameter ends with its name
                yield from self._placed(children(node))

    def _written(self, node: cst.CSTNode) -> str | None:
        if node in self.replaced:
            made = self.replaced[node]
            return made if isinstance(made, str) else made()
        if isinstance(node, cst.Call):
            write = self.calls.get(self.called(node))
            return write(node) if write is not None else self._own_call(node) or self._trained(node)
        if isinstance(node, (cst.Attribute, cst.Name)):
            if isinstance(node, cst.Name) and self.home(node) in self.flags:
                raise NotConvertible("the network is another one where it trains; Keras has layers for that", node)
            return self._symbol(node)
        if isinstance(node, cst.With):
            return self._with(node)
        if isinstance(node, cst.Parameters):
            return self._parameters(node)
        return None

    def _symbol(self, node: cst.Attribute | cst.Name) -> str | None:
        name = self.name(node)
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
        # By `import tensorflow.compat.v1 as tf`: what TensorFlow 2 has for another thing is spelled out.
        if self.is_v1 and (below in catalogue.v1_names() or below in catalogue.shared_names()):
            call = self.tree.parents.get(node)
            if isinstance(call, cst.Call) and call.func is node and tf1_names._is_same(below, call):
                return f"{self.tf}.{below}"
            return f"{self.tf}.{name.removeprefix('tf.')}"
        return None

    def _is_of_old_keras(self, node: cst.BaseExpression) -> bool:
        """Whether an expression has something of Keras by a name that it had in TensorFlow 1."""
        parent = self.tree.parents.get(node)
        if isinstance(node, cst.Name) and not isinstance(parent, (cst.Call, cst.Arg)):
            return False  # it is bound there
        found = self.program.meaning(node, self.tree, self.scope(node))
        return any(isinstance(one, Outside) and of_keras(catalogue.spell(one.dotted)) for one in found)

    def _is_parameter(self, node: cst.CSTNode) -> bool:
        """Whether a name is what a function is handed, which is no more than by default what the default is."""
        bindings = self.program.bindings(node.value, self.scope(node)) if isinstance(node, cst.Name) else []
        return any(one.kind == "parameter" for one in bindings)

    # Flags: what a function was told of the mode, it is told no more

    def _parameters(self, node: cst.Parameters) -> str | None:
        function = self.tree.parents.get(node)
        if not any((function, param.name.value) in self.flags for param in node.params):
            return None
        rest = [*node.params, *node.kwonly_params]
        kept = [param for param in rest if (function, param.name.value) not in self.flags]
        told = [one.name.value + (f"={self.text(one.default)}" if one.default else "") for one in kept]
        return ", ".join(told)

    def _own_call(self, node: cst.Call) -> str | None:
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
                behind = any((inner, one) in self.flags for one in named[:position])
                kept.append(f"{name}={text}" if arg.keyword or (behind and not name) else text)
        return self.call(self.text(node.func), kept, node)

    def _trained(self, node: cst.Call) -> str | None:
        """`model(x, training=training)`: Keras says it by itself."""
        said = [arg for arg in node.args if arg.keyword and arg.keyword.value == "training"]
        if not said or not self.is_flag(said[0].value):
            return None
        kept = [f"{arg.keyword.value}={self.text(arg.value)}" if arg.keyword else arg.star + self.text(arg.value)
                for arg in node.args if arg not in said]  # fmt: skip
        return self.call(self.text(node.func), kept, node)

    def find_flags(self, functions: Iterable[cst.FunctionDef]) -> None:
        """Parameters to which every call hands what says whether the model trains."""
        functions = list(functions)
        while True:
            found = set(self.flags)
            for function in functions:
                calls = [
                    call for call in self.tree.calls
                    if any(one.node is function for one in self.functions(call.func))
                ]  # fmt: skip
                for position, param in enumerate(function.params.params):
                    given = [self.given(call, position, param.name.value) for call in calls]
                    known = [one for one in given if one is not None and self.is_flag(one)]
                    if known and all(one in known or (one is not None and self._is_false(one)) for one in given):
                        found.add((function, param.name.value))
            if found == self.flags:
                return
            self.flags = found

    def _is_false(self, node: cst.BaseExpression) -> bool:
        """Whether an expression is False, where nothing is trained."""
        found = modes.at(self.program, self.tree, node, self.scope(node))
        return self.source(node) == "False" and "train" not in found

    @staticmethod
    def given(call: cst.Call, position: int, name: str) -> cst.BaseExpression | None:
        for at, arg in enumerate(call.args):
            if (arg.keyword and arg.keyword.value == name) or (not arg.keyword and not arg.star and at == position):
                return arg.value
        return None

    # Scopes of V1's variables: their names go before those of the layers

    def _with(self, node: cst.With) -> str | None:
        names = [self.called(item.item) for item in node.items]
        if not any(name in ("tf.compat.v1.variable_scope", "tf.compat.v1.name_scope") for name in names):
            return None
        if len(node.items) != 1 or not isinstance(node.items[0].item, cst.Call):
            raise NotConvertible("several scopes in one statement", node)
        (item,) = node.items
        call = item.item
        assert isinstance(call, cst.Call)
        if item.asname is not None:
            raise NotConvertible("the scope of V1's variables has a name of its own", node)
        initializers: list[str] = []
        for arg in call.args[1:]:
            if arg.keyword is not None and arg.keyword.value in ("reuse", "partitioner"):
                continue  # by their names, see layers.py; one variable in Keras
            if arg.keyword is not None and arg.keyword.value == "initializer" and self._is_of_cells(node):
                initializers.append(self.text(arg.value))
            else:
                raise NotConvertible(f"{self.source(arg)}: what a scope gives to all of its variables", arg)
        if not isinstance(node.body, cst.IndentedBlock) or '"""' in self.source(node) or "'''" in self.source(node):
            raise NotConvertible("a scope around a text of several lines", node)
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
        """Whether all that makes variables within a scope are recurrent cells, run by it."""
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
                found = [one.node for one in self.functions(call.func) if one.node not in seen]
                waiting += found
                seen.update(found)
        return True

    def is_once(self, arg: cst.Arg) -> bool:
        """Whether an argument `reuse` lets no variable be used again."""
        if self.source(arg.value) in ("None", "False"):
            return True
        if self.name(arg.value) != "tf.compat.v1.AUTO_REUSE":
            return False
        around = next((one for one in self.tree.above(arg) if isinstance(one, cst.FunctionDef)), None)
        calls = [call for call in self.tree.calls if any(one.node is around for one in self.functions(call.func))]
        return len(calls) <= 1

    def block(self, body: cst.BaseSuite) -> str:
        """Return the statements of a block, with the comments before them, from the first line's indent on."""
        if not isinstance(body, cst.IndentedBlock):
            raise NotConvertible("a block in one line", body)
        return self.statements(body.body)

    def statements(self, nodes: Iterable[cst.CSTNode]) -> str:
        """Statements one below the other, each with the comments and empty lines before it."""
        return "\n".join(self.statement(node) for node in nodes)

    def statement(self, node: cst.CSTNode) -> str:
        """Return a statement with the comments before and behind it."""
        first, last = self.line(node), self.tree.position(node)[2]
        while first > 1 and self._line(first - 1).strip().startswith("#"):
            first -= 1
        end = self.span(node)[1]
        stop = self.lines.starts[last] if last < len(self.lines.starts) else len(self.lines.text)
        behind = self.lines.text[end:stop].rstrip()
        head = self.lines.text[self.lines.starts[first - 1] : self.span(node)[0]]
        return head + self.text(node) + (behind if behind.strip().startswith("#") else "")

    def _line(self, number: int) -> str:
        return self.lines.text[self.lines.starts[number - 1] :].split("\n", 1)[0]

    def comments(self, node: cst.CSTNode, without: Iterable[cst.CSTNode] = ()) -> list[str]:
        """Return the comments within a node's text, in order, but those within others."""
        (start, end), others = self.span(node), [self.span(one) for one in without]
        return [comment for place, comment in self._comments() if start <= place < end
                and not any(first <= place < last for first, last in others)]  # fmt: skip

    def _comments(self) -> list[tuple[int, str]]:
        """(place, text) of each comment of the file."""
        if self._found_comments is None:
            text = io.StringIO(self.lines.text)
            self._found_comments = [
                (self.lines.offset(token.start[0], token.start[1] + 1), token.string)
                for token in tokenize.generate_tokens(text.readline)
                if token.type == tokenize.COMMENT
            ]
        return self._found_comments

    def lost_comment(self, text: str) -> int:
        """The line of the first comment within brackets that a new text has no more; 0 where it has them all."""
        kept = Counter(_tokens(text, tokenize.COMMENT))
        depth = 0
        for token in tokenize.generate_tokens(io.StringIO(self.lines.text).readline):
            if token.type == tokenize.OP:
                depth += (token.string in "([{") - (token.string in ")]}")
            if token.type != tokenize.COMMENT:
                continue
            if kept[token.string]:
                kept[token.string] -= 1
            elif depth:
                return token.start[0]
        return 0

    # New text

    def call(self, name: str, arguments: list[str], node: cst.CSTNode, behind: str = "") -> str:
        """Return a call in one line, or with its arguments in lines of their own where that would be too long."""
        one = f"{name}({', '.join(arguments)}){behind}"
        indent = self.indent(node)
        lines = [comment for comment in self.comments(node) if comment not in one]
        if len(indent) + len(one) + 8 <= _WIDTH and "\n" not in one and not lines:
            return one
        joined = ""
        for argument in arguments:
            if joined and len(indent) + len(joined) + len(argument) + 8 > _WIDTH:
                lines.append(joined.rstrip())
                joined = ""
            joined += f"{argument}, "
        lines.append(joined.removesuffix(", "))
        inner = f"{indent}    "
        return f"{name}(\n" + "\n".join(f"{inner}{line}" for line in lines) + f"){behind}"


def _tokens(text: str, kind: int) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == kind:
            yield token.string


def indented(text: str, indent: str) -> str:
    """Each line that is not empty moved to the right."""
    return "\n".join(indent + line if line.strip() else "" for line in text.split("\n"))


def names_in(node: cst.CSTNode) -> Iterator[str]:
    """Yield the names that an expression or a statement reads or writes; of attributes the first part alone."""
    if isinstance(node, cst.Name):
        yield node.value
    elif isinstance(node, cst.Arg) and node.keyword is not None and node.keyword.value == "partitioner":
        return  # in Keras a variable has no parts
    elif isinstance(node, (cst.Attribute, cst.Arg)):
        yield from names_in(node.value)
    else:
        for child in children(node):
            yield from names_in(child)
