"""What a rule is: a function that writes the Keras replacement of one call, registered by the call's full name.

A rule sees one call and nothing else. It returns the new text, or raises `Refused` with the argument that has no
replacement. A call without a rule is refused, so that nothing is dropped.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.convert.names import FileNames, Refused

__all__ = ["NETWORK", "SETUP", "TENSORS", "Call", "Rule", "operand", "rule", "rule_of"]

NETWORK, TENSORS, SETUP = "network", "tensors", "setup"
"""Where code runs: on the tensors of Keras while the model is built; on the values of a batch; on Python values."""


@dataclass(frozen=True)
class Call:
    """A call that a rule replaces.

    Attributes:
        node: the call in the user's file.
        name: the full name of its function: `tf.compat.v1.layers.dense`.
        place: NETWORK, TENSORS or SETUP.
        names: the meanings of the file's expressions.
        new: argument -> its text after the conversion, by its node.
        needs: the helpers that the new text calls, which a rule adds to.
    """

    node: cst.Call
    name: str
    place: str
    names: FileNames
    new: Mapping[cst.BaseExpression, str]
    needs: set[str] = field(default_factory=set)

    @property
    def tf(self) -> str:
        return self.names.tf

    def args(self, *parameters: str, required: Iterable[str] = ()) -> dict[str, cst.BaseExpression]:
        """Return parameter -> the user's expression.

        Raises:
            Refused: the call has other arguments, or not the required ones.
        """
        passed = arguments(self.node, parameters)
        if any(arg.star for arg in self.node.args) or len(passed) != len(self.node.args):
            raise Refused(f"the arguments of {self.name}", self.node)
        for parameter, arg in passed.items():
            if parameter not in parameters:
                raise Refused(f"{parameter} of {self.name}", arg)
        if not passed.keys() >= {*required}:
            raise Refused(f"the arguments of {self.name}", self.node)
        return {parameter: arg.value for parameter, arg in passed.items()}

    def options(self, args: Mapping[str, cst.BaseExpression]) -> list[str]:
        """Return the texts `parameter=value` of arguments; a layer's name only where no other has it."""
        return [f"{parameter}={self.text(value)}" for parameter, value in args.items()
                if parameter != "name" or self.is_only_layer_named(value)]  # fmt: skip

    def text(self, node: cst.BaseExpression) -> str:
        """Return the text of an argument after the conversion."""
        return self.new[node]

    def users(self) -> list[cst.CSTNode | None]:
        """Return what takes the result by the name that it is assigned to; [None] where it has no such name."""
        names, tree = self.names, self.names.tree
        assign = tree.parents.get(self.node)
        target = assign.targets[0].target if isinstance(assign, cst.Assign) and len(assign.targets) == 1 else None
        if not isinstance(target, cst.Name):
            return [None]
        uses = [use for use in names.places(target.value) if use is not target and any(
            binding.node is self.node for binding in names.program.bindings(use.value, names.scope(use)))]  # fmt: skip
        return [tree.parents.get(use) for use in uses]

    def refuse(self, parameter: str, node: cst.CSTNode) -> Refused:
        return Refused(f"{parameter} of {self.name}", node)

    def is_only_layer_named(self, name: cst.BaseExpression) -> bool:
        """Return whether a layer's name is a new one each time: Keras rejects two layers of one name.

        A name that is not a literal is taken to be made for that. A literal is new where it occurs once, in code that
        runs once: not in a loop, and not in a function that is called at several places.
        """
        if not isinstance(name, cst.SimpleString):
            return True
        text, tree = self.names.text(name), self.names.tree
        names = [arg.value for call in tree.calls for arg in call.args
                 if arg.keyword is not None and arg.keyword.value == "name"]  # fmt: skip
        if "/" in text or sum(self.names.text(other) == text for other in names) != 1:
            return False
        for above in tree.above(self.node):
            if isinstance(above, (cst.For, cst.While, cst.CompFor, cst.ListComp, cst.GeneratorExp)):
                return False
            if isinstance(above, cst.FunctionDef):
                calls = [call for call in tree.calls if (function := self.names.function(call.func)) is not None
                         and function.node is above]  # fmt: skip
                inner = any(isinstance(outer, (cst.For, cst.ListComp)) for call in calls for outer in tree.above(call))
                return len(calls) < 2 and not inner
        return True

    def is_constant(self, node: cst.BaseExpression | None, *values: str) -> bool:
        """Return whether an argument is one of these constants; a missing one is not."""
        return node is not None and self.names.text(node) in values


Rule = Callable[[Call], str]
_RULES: dict[tuple[str, str], Rule] = {}


def rule(*names: str, at: tuple[str, ...] = (NETWORK, TENSORS, SETUP)) -> Callable[[Rule], Rule]:
    """Register a rule for calls of these functions at these places."""

    def register(function: Rule) -> Rule:
        for name in names:
            for place in at:
                if (name, place) in _RULES:
                    raise ValueError(f"{name} has a rule at {place} already")
                _RULES[name, place] = function
        return function

    return register


def rule_of(name: str, place: str) -> Rule | None:
    """Return the rule of a function at a place."""
    return _RULES.get((name, place))


def operand(text: str) -> str:
    """Return the text of an expression for a place beside an operator: in brackets where it has one itself."""
    node = ast.parse(f"({text}\n)", mode="eval").body
    plain = (ast.Name, ast.Constant, ast.Call, ast.Attribute, ast.Subscript, ast.List, ast.Dict)
    return text if isinstance(node, plain) else f"({text})"
