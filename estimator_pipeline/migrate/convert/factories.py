"""Functions that make an Estimator and return it: `def build(folder, units): ...; return Estimator(...)`.

Such a function stays, and makes the model instead: it takes the inputs of the model as its first argument, where the
user's code does not make the model. What only the Estimator took, as its folder, is what the callers pass for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.analysis.syntax import Tree, iter_nodes
from estimator_pipeline.migrate.convert.allowed import is_message
from estimator_pipeline.migrate.convert.model_fn import parameters
from estimator_pipeline.migrate.convert.names import FileNames, Refused, names_bound, names_read

__all__ = ["Factory", "factory_of"]


@dataclass(frozen=True)
class Factory:
    """A function that makes an Estimator and returns it.

    Attributes:
        names: the names of its file.
        node: the function.
        call: the call that makes the Estimator.
        args: parameter of the Estimator -> expression in the function.
        gone: the parameters of the function that only the Estimator and its RunConfig took.
        statements: the statements that only make the RunConfig.
    """

    names: FileNames
    node: cst.FunctionDef
    call: cst.Call
    args: Mapping[str, cst.BaseExpression]
    gone: frozenset[str] = frozenset()
    statements: tuple[cst.CSTNode, ...] = ()

    @property
    def inputs(self) -> str:
        """Return the name of the new parameter."""
        return "inputs" if "inputs" not in self.names.tree.scopes[self.node].names else "keras_inputs"

    def edits(self, call: str, text: Callable[[cst.CSTNode], str], *, inputs: bool) -> dict[cst.CSTNode, str]:
        """Return its new parameters, and `call`, which makes the model; `inputs`: whether it takes them."""
        params = self.node.params
        kept = [param for param in params.params if param.name.value not in self.gone]
        first = [cst.Param(cst.Name(self.inputs))] if inputs else []
        if kept:
            comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
            first = [param.with_changes(comma=comma) for param in first]
            kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        return {params: text(params.with_changes(params=[*first, *kept])), self.call: call}

    def passed(self, caller: cst.Call) -> tuple[cst.Arg, ...]:
        """Return the arguments of a caller that remain."""
        gone = [arg for name, arg in arguments(caller, parameters(self.node)).items() if name in self.gone]
        bare = {"comma": cst.MaybeSentinel.DEFAULT, "whitespace_after_arg": cst.SimpleWhitespace("")}
        return tuple(arg.with_changes(**bare) for arg in caller.args if arg not in gone)

    def callers(self) -> Iterator[tuple[FileNames, cst.Call]]:
        """Yield the calls of the function.

        Raises:
            Refused: there are none, or their arguments cannot be followed.
        """
        called = False
        for tree in self.names.program.trees.values():
            if tree is self.names.tree or self.names.tree in self.names.program.imports(tree):
                for call in self._calls_in(tree):
                    called = True
                    if any(arg.star for arg in call.args):
                        raise Refused("a call with * or ** of a function that makes an Estimator", call)
                    yield self.names.of(tree), call
        if not called or self.node not in self.names.tree.module.body:
            raise Refused("an Estimator that is passed on where it is made", self.call)

    def _calls_in(self, tree: Tree) -> Iterator[cst.Call]:
        for call in tree.calls:
            function = self.names.of(tree).function(call.func)
            if function is not None and function.node is self.node:
                yield call

    def of_caller(self, names: FileNames, call: cst.Call, node: cst.BaseExpression) -> cst.BaseExpression:
        """Return an expression of the function as its caller has it: the argument for a parameter."""
        takes = parameters(self.node)
        passed = arguments(call, takes)
        if isinstance(node, cst.Name) and node.value in takes and node.value not in names_bound(self.node.body):
            default = next((param.default for param in self.node.params.params if param.name.value == node.value), None)
            if node.value not in passed and default is not None and names_read(default) - {"None", "True", "False"}:
                raise Refused(f"a default of {self.node.name.value} that reads names", default)
            value = passed[node.value].value if node.value in passed else default
            if value is None:
                raise Refused(f"{node.value} of {self.node.name.value}, which is not passed by its name or place", call)
            return value
        local = {*takes, *names_bound(self.node.body)}
        if names_read(node) & local or (names.tree is not self.names.tree and names_read(node)):
            raise Refused(f"an argument that {self.node.name.value} computes", node)
        return node

    def only_taken_by(self, nodes: Collection[cst.CSTNode]) -> frozenset[str]:
        """Return the parameters that are used in these nodes, and nowhere else."""
        inside = {inner for node in nodes for inner in iter_nodes(node)}
        used: dict[str, set[bool]] = {}
        for node in iter_nodes(self.node.body):
            if isinstance(node, cst.Name) and node in self.names.tree.where and node.value in parameters(self.node):
                used.setdefault(node.value, set()).add(node in inside)
        return frozenset(name for name, places in used.items() if places == {True})


def factory_of(names: FileNames, call: cst.Call, args: Mapping[str, cst.BaseExpression]) -> Factory | None:
    """Return the function that makes an Estimator and returns it; None if it does not return it.

    Raises:
        Refused: it does something else with the Estimator, or returns others, too.
    """
    node = next((above for above in names.tree.above(call) if isinstance(above, cst.FunctionDef)), None)
    if node is None:
        return None
    assign = names.tree.parents.get(call)
    target = assign.targets[0].target if isinstance(assign, cst.Assign) else None
    returns = names.tree.scopes[node].returns
    name = target.value if isinstance(target, cst.Name) else ""
    is_it = [value is call or (isinstance(value, cst.Name) and value.value == name and names.value(value) is call)
             for value in returns]  # fmt: skip
    if not any(is_it):
        return None
    if not all(is_it):
        raise Refused("a function that returns an Estimator or something else", call)
    for place in names.places(name):
        if place in (target, *returns) or names.scope(place).around().node is not node:
            continue
        around = [above for above in names.tree.above(place) if isinstance(above, cst.Call)]
        if names.whole(place) is not place or not any(is_message(names, above) for above in around):
            raise Refused("a function that makes an Estimator and uses it, too", place)
    if node.params.star_kwarg is not None or isinstance(node.params.star_arg, cst.Param) or node.decorators:
        raise Refused("a function with * or decorators that makes an Estimator", node)
    return Factory(names, node, call, args)
