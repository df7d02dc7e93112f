"""The dataset that an input_fn returns, as the expression of its call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.analysis.name_resolution import ClassOf, FunctionOf, Instance
from estimator_pipeline.migrate.code.analysis.syntax import Tree, iter_nodes
from estimator_pipeline.migrate.convert.iterators import return_dataset
from estimator_pipeline.migrate.convert.model_fn import parameters
from estimator_pipeline.migrate.convert.names import FileNames, Refused, calls_in, names_changed
from estimator_pipeline.migrate.convert.rest import Rest
from estimator_pipeline.migrate.convert.rules.inputs import ARRAY_INPUTS

__all__ = ["InputFnCall", "read_input_fn"]

_MODES = {"train": "'train'", "evaluate": "'eval'", "predict": "'infer'", "train_and_evaluate": "'train'"}


@dataclass(frozen=True)
class _Target:
    """A function that an expression may be, and the parameters that a caller passes; None for a helper's."""

    function: FunctionOf | None
    takes: tuple[str, ...] = ()


class InputFnCall:
    """An input_fn: the text of its call, with or without an InputContext."""

    def __init__(
        self, names: FileNames, rests: Mapping[Tree, Rest], node: cst.BaseExpression, use: str, params: str
    ) -> None:  # fmt: skip
        self.names, self.rest, self.node, self.use, self.params = names, rests[names.tree], node, use, params or "{}"
        self.refusal = Refused("an input_fn that is not one function of the program", node)
        targets = list(self.targets(names, node))
        if not targets or len({target.takes for target in targets}) > 1:
            raise self.refusal
        first = targets[0].function
        self.function, self.takes = None if first is None else first.node, targets[0].takes
        for function in (target.function for target in targets if target.function is not None):
            rest = rests.get(function.tree)
            if rest is None:
                raise self.refusal
            rest.has_input_fn = True
            self.check_changes(names.of(function.tree), function.node)
            return_dataset(names.of(function.tree), rests, function.node)

    def check_changes(self, names: FileNames, function: cst.FunctionDef | cst.Lambda) -> None:
        """Check that a function changes neither its params nor a global: Estimators copy params, and call it less."""
        for name in names_changed(function.body):
            scope = names.home(name)
            is_params = name.value == "params" and scope is names.tree.scopes[function]
            if scope is names.tree.scope or is_params:
                raise Refused(f"an input_fn that changes {name.value}", name)
        if any(isinstance(node, cst.Global) for node in iter_nodes(function.body)):
            raise Refused("an input_fn that changes a global", function)

    def targets(self, names: FileNames, node: cst.BaseExpression, hops: int = 8) -> Iterator[_Target]:
        """Yield the functions that an expression may be, also what a function of the program returns or is passed."""
        value = names.value(node)
        if isinstance(value, cst.IfExp):
            yield from (target for side in (value.body, value.orelse) for target in self.targets(names, side, hops))
            return
        if isinstance(value, cst.Call) and names.name(value.func).rpartition(".")[2] in ARRAY_INPUTS:
            yield _Target(None)
            return
        maker = names.function(value.func) if isinstance(value, cst.Call) and hops else None
        if maker is not None:
            for returned in maker.tree.scopes[maker.node].returns:
                yield from self.targets(names.of(maker.tree), returned, hops - 1)
            return
        if hops and (flag := names.flag(value)) is not None:
            yield from self.passed(names, *flag, hops - 1)
            return
        for meaning in names.meaning(value):
            yield self.target(names, value, meaning)

    def passed(self, names: FileNames, function: cst.CSTNode, parameter: str, hops: int) -> Iterator[_Target]:
        """Yield the functions that the calls of a function in its own file pass for a parameter."""
        assert isinstance(function, (cst.FunctionDef, cst.Lambda))
        for call in names.tree.calls:
            called = names.function(call.func)
            if called is not None and called.node is function:
                arg = arguments(call, parameters(function)).get(parameter)
                if arg is None:
                    raise self.refusal
                yield from self.targets(names, arg.value, hops)

    def target(self, names: FileNames, node: cst.BaseExpression, value: object) -> _Target:
        """Return a function or the method of an object."""
        if isinstance(value, Instance) and isinstance(value.of, ClassOf):
            for binding in value.of.tree.scopes[value.of.node].names.get("__call__", ()):
                if binding.kind == "def":
                    return _Target(FunctionOf(binding.node, value.of.tree), parameters(binding.node)[1:])
        if not isinstance(value, FunctionOf):
            raise self.refusal
        takes, function = parameters(value.node), value.node
        while isinstance(node, cst.Call) and node.args and names.name(node.func) == "functools.partial":
            node = node.args[0].value
        if value.tree.scopes[function].class_scope() is not None and isinstance(node, cst.Attribute):
            bound = any(isinstance(base, Instance) for base in names.meaning(node.value))
            decorators = {names.text(item.decorator) for item in getattr(function, "decorators", ())}
            if "classmethod" in decorators or (bound and "staticmethod" not in decorators):
                takes = takes[1:]
        return _Target(value, takes)

    @property
    def takes_context(self) -> bool:
        return "input_context" in self.takes

    def call(self, context: str = "") -> str:
        """Return the text of the call; `context` is the name of an InputContext, "" to call it without one."""
        node, text, value = self.node, self.rest.text, self.names.value(self.node)
        if isinstance(node, cst.Lambda):
            return self._of_lambda(node, context)
        if isinstance(value, cst.Call) and self.names.name(value.func) == "functools.partial":
            more = self._more(context, {*arguments(value, ("", *self.takes))})
            if node is not value:
                return f"{text(node)}({', '.join(more)})"
            passed = [text(arg.with_changes(comma=cst.MaybeSentinel.DEFAULT)) for arg in value.args[1:]]
            return f"{text(value.args[0].value)}({', '.join([*passed, *more])})"
        return f"{text(node)}({', '.join(self._more(context, set()))})"

    def _more(self, context: str, bound: set[str]) -> list[str]:
        """Return what an Estimator passes to the function by the names of its parameters."""
        values = {"input_context": context, "mode": _MODES[self.use], "params": self.params}
        required = self._required()
        written = []
        for name in self.takes:
            if name in bound:
                continue
            if values.get(name):
                written.append(f"{name}={values[name]}")
            elif name in required or name == "config":  # which an Estimator passes
                raise Refused(f"an input_fn with the parameter {name}", self.function or self.node)
        return written

    def _required(self) -> set[str]:
        if self.function is None:
            return set()
        params = self.function.params
        return {param.name.value for param in (*params.posonly_params, *params.params, *params.kwonly_params)
                if param.default is None}  # fmt: skip

    def _of_lambda(self, node: cst.Lambda, context: str) -> str:
        passed = {param.name.value for param in node.params.params}
        if passed - {"input_context", "params", "mode"}:
            raise Refused("a lambda with other parameters than input_context as an input_fn", node)
        values = {"input_context": context or "None", "params": self.params, "mode": _MODES[self.use]}
        arguments_of_it: dict[cst.CSTNode, str] = {
            arg.value: values[arg.value.value] for call in calls_in(node.body) for arg in call.args
            if isinstance(arg.value, cst.Name) and arg.value.value in passed
        }  # fmt: skip
        return self.rest.text(node.body, arguments_of_it)


def read_input_fn(
    names: FileNames, rests: Mapping[Tree, Rest], node: cst.BaseExpression, use: str, params: str
) -> InputFnCall:  # fmt: skip
    """Return an input_fn.

    Args:
        rests: file of the program -> its other names.
        use: the method that takes it.
        params: the text of the Estimator's params; "" without.

    Raises:
        Refused: the function cannot be found, or does not return a dataset.
    """
    return InputFnCall(names, rests, node, use, params)
