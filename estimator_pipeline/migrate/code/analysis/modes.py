"""The modes in which a part of a model_fn runs, from the conditions on `mode` around and before it."""

from __future__ import annotations

import libcst as cst

from estimator_pipeline.migrate.code import catalogue
from estimator_pipeline.migrate.code.analysis.name_resolution import Outside, Program
from estimator_pipeline.migrate.code.analysis.syntax import Scope, Tree

__all__ = ["MODES", "at", "condition", "of_spec"]

MODES = ("train", "eval", "predict")
_ALL = frozenset(MODES)
_BY_KEY = {"TRAIN": "train", "EVAL": "eval", "PREDICT": "predict", "INFER": "predict"}
_BY_TEXT = {"train": "train", "eval": "eval", "infer": "predict"}


def of_spec(program: Program, tree: Tree, call: cst.Call, scope: Scope) -> list[str]:
    """Return the modes of an EstimatorSpec, from its argument `mode` or from the conditions that lead to it."""
    for position, arg in enumerate(call.args):
        if (arg.keyword is None and position == 0 and not arg.star) or (arg.keyword and arg.keyword.value == "mode"):
            named = _mode(program, tree, arg.value, scope)
            if named:
                return [named]
    return at(program, tree, call, scope)


def at(program: Program, tree: Tree, node: cst.CSTNode, scope: Scope) -> list[str]:
    """Return the modes in which a node of a model_fn runs."""
    possible = _ALL
    below = node
    for above in tree.above(node):
        if isinstance(above, cst.If):
            allowed = condition(program, tree, above.test, scope)
            if allowed is not None:
                if below is above.body:
                    possible &= allowed
                elif below is above.orelse:
                    possible &= _ALL - allowed
        elif isinstance(above, cst.IfExp):
            allowed = condition(program, tree, above.test, scope)
            if allowed is not None and below is not above.test:
                possible &= allowed if below is above.body else _ALL - allowed
        elif isinstance(above, cst.IndentedBlock):
            for before in above.body:
                if before is below:
                    break
                possible -= _ended_modes(program, tree, before, scope)
        elif isinstance(above, (cst.FunctionDef, cst.Lambda)):
            break
        below = above
    return [mode for mode in MODES if mode in possible]


def _ended_modes(program: Program, tree: Tree, statement: cst.CSTNode, scope: Scope) -> frozenset[str]:
    """Return the modes that end in a statement: those of an `if` whose body ends in return or raise."""
    gone: frozenset[str] = frozenset()
    rest = _ALL
    while isinstance(statement, cst.If):
        allowed = condition(program, tree, statement.test, scope)
        if allowed is None:
            break
        if _ends(statement.body):
            gone |= rest & allowed
        rest -= allowed
        if isinstance(statement.orelse, cst.Else) and _ends(statement.orelse.body):
            gone |= rest
        if not isinstance(statement.orelse, cst.If):
            break
        statement = statement.orelse
    return gone


def _ends(body: cst.BaseSuite) -> bool:
    last = body.body[-1] if body.body else None
    if isinstance(last, cst.SimpleStatementLine):
        last = last.body[-1]
    return isinstance(last, (cst.Return, cst.Raise))


def _mode(program: Program, tree: Tree, node: cst.BaseExpression, scope: Scope) -> str | None:
    """Return the mode that an expression names."""
    if isinstance(node, cst.SimpleString):
        return _BY_TEXT.get(str(node.evaluated_value))
    for value in program.meaning(node, tree, scope):
        if isinstance(value, Outside):
            match = catalogue.find(value.dotted)
            if match is not None and match.row.name == "tf.estimator.ModeKeys":
                return _BY_KEY.get(value.dotted.rsplit(".", 1)[-1])
    return None


def condition(
    program: Program, tree: Tree, test: cst.BaseExpression, scope: Scope, hops: int = 8
) -> frozenset[str] | None:
    """Return the modes in which a condition holds; None if it also depends on something else."""
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        inner = condition(program, tree, test.expression, scope, hops)
        return None if inner is None else _ALL - inner
    if isinstance(test, cst.BooleanOperation):
        left = condition(program, tree, test.left, scope, hops)
        right = condition(program, tree, test.right, scope, hops)
        if left is None or right is None:
            return None
        return left | right if isinstance(test.operator, cst.Or) else left & right
    if isinstance(test, cst.Name):
        # is_training = mode == ModeKeys.TRAIN
        values = [b.node for b in program.bindings(test.value, scope) if b.kind == "value"]
        conditions = (cst.Comparison, cst.BooleanOperation, cst.UnaryOperation)
        # `training = not training` refers to itself: `hops` limits the number of names that are followed.
        if hops and len(values) == 1 and isinstance(values[0], conditions):
            return condition(program, tree, values[0], scope, hops - 1)
        return None
    if not isinstance(test, cst.Comparison) or len(test.comparisons) != 1:
        return None
    (target,) = test.comparisons
    operator, right_side = target.operator, target.comparator
    if isinstance(operator, (cst.In, cst.NotIn)) and isinstance(right_side, (cst.Tuple, cst.List, cst.Set)):
        named = {_mode(program, tree, element.value, scope) for element in right_side.elements}
        if None in named:
            return None
        modes_named = frozenset(mode for mode in named if mode)
        return modes_named if isinstance(operator, cst.In) else _ALL - modes_named
    mode = _mode(program, tree, right_side, scope) or _mode(program, tree, test.left, scope)
    if mode is None:
        return None
    if isinstance(operator, (cst.Equal, cst.Is)):
        return frozenset({mode})
    return _ALL - {mode} if isinstance(operator, (cst.NotEqual, cst.IsNot)) else None
