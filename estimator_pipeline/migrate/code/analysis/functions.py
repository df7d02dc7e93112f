"""Search for model functions, input functions and serving inputs, by where they are passed or by their signatures.

A function is followed through names, `self.method`, functools.partial, lambdas that call it, and factories that return
it. Functions that are not passed are recognized by their parameters and names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import libcst as cst

from estimator_pipeline.migrate.code.analysis import modes
from estimator_pipeline.migrate.code.analysis.constructs import (
    BY_NAME,
    BY_USE,
    RESOLVED,
    Construct,
    arguments,
    catalogue_match,
)
from estimator_pipeline.migrate.code.analysis.name_resolution import FunctionOf, Program
from estimator_pipeline.migrate.code.analysis.syntax import Scope, Tree
from estimator_pipeline.migrate.code.failures import Each

__all__ = ["find_functions"]

MODEL, INPUT, SERVING = "model_fn", "input_fn", "serving_input_receiver_fn"


class _Use(NamedTuple):
    """One recognition of a function: its role and the certainty."""

    role: str
    certainty: str


# Calls that take a function: canonical name of the callee -> its parameters by position. The last is the function, and
# is named as the role of the function.
_TAKERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("tf.estimator.Estimator", "tf.compat.v1.estimator.tpu.TPUEstimator"), (MODEL,)),
    **{f"tf.estimator.{name}": (INPUT,)
       for name in ("TrainSpec", "EvalSpec", "Estimator.train", "Estimator.evaluate", "Estimator.predict")},
    "tf.estimator.experimental.InMemoryEvaluatorHook": ("estimator", INPUT),
    **{f"tf.estimator.Estimator.{name}": ("export_dir_base", SERVING)
       for name in ("export_saved_model", "export_savedmodel")},
    **{f"tf.estimator.{name}": ("name", SERVING) for name in ("FinalExporter", "LatestExporter", "BestExporter")},
}  # fmt: skip
_SPECS = ("tf.estimator.EstimatorSpec", "tf.compat.v1.estimator.tpu.TPUEstimatorSpec",
          "tf.estimator.Head.create_estimator_spec")  # fmt: skip
_MODEL_NAME = re.compile(r"(^|_)model_?fn$", re.IGNORECASE)
_INPUT_NAME = re.compile(r"(^|_)input_?fn(_|$)", re.IGNORECASE)
_SERVING_NAME = re.compile(r"(^|_)serving_input(_receiver)?(_fn|_receiver)?$", re.IGNORECASE)


def find_functions(program: Program, constructs: list[Construct], each: Each | None = None) -> Iterator[Construct]:
    """Yield every function with a role once."""
    each = each or (lambda things, step, file: map(step, things))
    uses: dict[tuple[Any, str], tuple[FunctionOf, list[_Use]]] = {}
    for passed in each(
        constructs, lambda construct: list(_passed_functions(program, construct)), lambda construct: construct.tree
    ):
        for function, use in passed:
            uses.setdefault((function.node, use.role), (function, []))[1].append(use)
    taken = {node for node, _ in uses}
    specs = [construct for construct in constructs if construct.row.name in _SPECS]
    makers = {above for construct in specs for above in construct.tree.above(construct.node)}

    def in_file(tree: Tree) -> None:
        for node in tree.functions:
            role = None if node in taken else _by_signature(node, node in makers)
            if role is None:
                continue
            # A factory has no role itself: the functions that it returns have it.
            returned = _returned(program, FunctionOf(node, tree))
            functions = [value for value in returned if value.node not in taken]
            for function in functions or ([] if returned else [FunctionOf(node, tree)]):
                uses.setdefault((function.node, role), (function, [_Use(role, BY_NAME)]))

    for _ in each(program.trees.values(), in_file, lambda tree: tree):
        pass
    for (node, role), (function, function_uses) in uses.items():
        certainty = RESOLVED if any(use.certainty == RESOLVED for use in function_uses) else function_uses[0].certainty
        details: dict[str, Any] = {"function": node.name.value if isinstance(node, cst.FunctionDef) else "lambda"}
        if role == MODEL:
            details["modes"] = _modes(function, constructs)
        place = node.name if isinstance(node, cst.FunctionDef) else node
        yield Construct(function.tree, place, catalogue_match(role), certainty, details)


def _passed_functions(program: Program, construct: Construct) -> Iterator[tuple[FunctionOf, _Use]]:
    call = construct.call
    # Fields are separate constructs with the same call.
    if call is None or construct.row.name not in _TAKERS:
        return
    fields, tree = _TAKERS[construct.row.name], construct.tree
    role, arg = fields[-1], arguments(call, construct.row.fields or fields).get(fields[-1])
    certainty = RESOLVED if construct.certainty == RESOLVED else BY_USE
    for value in program.meaning(arg.value, tree, tree.where[call]) if arg is not None else ():
        if isinstance(value, FunctionOf):
            for function in _through(program, value):
                yield function, _Use(role, certainty)


def _through(program: Program, function: FunctionOf) -> list[FunctionOf]:
    """Return the functions that a lambda calls, if it does nothing else; otherwise the lambda."""
    node = function.node
    if not isinstance(node, cst.Lambda) or not isinstance(node.body, cst.Call):
        return [function]
    scope: Scope = function.tree.scopes[node]
    inner = [value for value in program.meaning(node.body.func, function.tree, scope) if isinstance(value, FunctionOf)]
    return inner or [function]


def _returned(program: Program, function: FunctionOf) -> list[FunctionOf]:
    inner = function.tree.scopes[function.node]
    values = [value for node in inner.returns for value in program.meaning(node, function.tree, inner)]
    return [value for value in values if isinstance(value, FunctionOf)]


def _by_signature(node: cst.FunctionDef, makes_spec: bool) -> str | None:
    """Return the role of a function that the code base does not pass anywhere, or None.

    Methods of heads also take features, labels and mode, but with logits. A function that returns no spec is only a
    part of a model_fn.
    """
    name, params = node.name.value, node.params
    parameters = {each.name.value for each in (*params.posonly_params, *params.params, *params.kwonly_params)}
    if makes_spec and {"features", "labels", "mode"} <= parameters and "logits" not in parameters:
        return MODEL
    if _MODEL_NAME.search(name) and "mode" in parameters:
        return MODEL
    if _SERVING_NAME.search(name):
        return SERVING
    return INPUT if _INPUT_NAME.search(name) and not name.startswith("test") else None


def _modes(function: FunctionOf, constructs: list[Construct]) -> list[str]:
    """Return the modes of the specs of a model_fn."""
    tree = function.tree
    handled = {
        mode
        for construct in constructs
        if construct.tree is tree and "modes" in construct.details and function.node in set(tree.above(construct.node))
        for mode in construct.details["modes"]
    }
    return [mode for mode in modes.MODES if mode in handled]
