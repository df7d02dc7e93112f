"""The dataset that an input_fn returns, as the expression of its call."""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.analysis.name_resolution import FunctionOf
from estimator_pipeline.migrate.code.analysis.syntax import Tree, iter_nodes
from estimator_pipeline.migrate.convert.iterators import return_dataset
from estimator_pipeline.migrate.convert.model_fn import parameters
from estimator_pipeline.migrate.convert.names import FileNames, Refused
from estimator_pipeline.migrate.convert.rest import Rest

__all__ = ["InputFnCall", "read_input_fn"]

_MODES = {"train": "'train'", "evaluate": "'eval'", "predict": "'infer'", "train_and_evaluate": "'train'"}


class InputFnCall:
    """An input_fn: the text of its call, with or without an InputContext."""

    def __init__(
        self, names: FileNames, rests: Mapping[Tree, Rest], node: cst.BaseExpression, use: str, params: str
    ) -> None:  # fmt: skip
        self.names, self.rest, self.node, self.use, self.params = names, rests[names.tree], node, use, params
        functions = [value for value in names.meaning(node) if isinstance(value, FunctionOf)]
        if len(functions) != 1 or functions[0].tree not in rests:
            raise Refused("an input_fn that is not one function of the program", node)
        home, rest = functions[0].tree, rests[functions[0].tree]
        self.function = functions[0].node
        self.takes = parameters(self.function)
        rest.has_input_fn = True
        return_dataset(names.of(home), rest, self.function)
        for value in home.scopes[self.function].returns if isinstance(self.function, cst.FunctionDef) else ():
            if value not in rest.new and isinstance(names.of(home).value(value), (cst.Tuple, cst.Dict, cst.List)):
                raise Refused("an input_fn that returns tensors, not a dataset", value)

    @property
    def takes_context(self) -> bool:
        return "input_context" in self.takes

    def call(self, context: str = "") -> str:
        """Return the text of the call; `context` is the name of an InputContext, "" to call it without one."""
        node, text = self.node, self.rest.text
        if isinstance(node, cst.Lambda):
            return self._of_lambda(node, context)
        if isinstance(node, cst.Call) and self.names.name(node.func) == "functools.partial":
            passed = [text(arg.with_changes(comma=cst.MaybeSentinel.DEFAULT)) for arg in node.args[1:]]
            bound = {*arguments(node, ("", *self.takes))}
            return f"{text(node.args[0].value)}({', '.join([*passed, *self._more(context, bound)])})"
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
            elif name in required:
                raise Refused(f"an input_fn with the parameter {name}", self.function)
        return written

    def _required(self) -> set[str]:
        params = self.function.params
        return {param.name.value for param in (*params.posonly_params, *params.params, *params.kwonly_params)
                if param.default is None}  # fmt: skip

    def _of_lambda(self, node: cst.Lambda, context: str) -> str:
        passed = {param.name.value for param in node.params.params}
        if passed - {"input_context", "params", "mode"}:
            raise Refused("a lambda with other parameters than input_context as an input_fn", node)
        values = {"input_context": context or "None", "params": self.params or "None", "mode": _MODES[self.use]}
        arguments_of_it: dict[cst.CSTNode, str] = {
            arg.value: values[arg.value.value] for call in calls_in(node.body) for arg in call.args
            if isinstance(arg.value, cst.Name) and arg.value.value in passed
        }  # fmt: skip
        return self.rest.text(node.body, arguments_of_it)


def calls_in(node: cst.CSTNode) -> list[cst.Call]:
    """Return the calls in a node."""
    return [inner for inner in iter_nodes(node) if isinstance(inner, cst.Call)]


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
