"""Calls of TensorFlow's operations as calls of `keras.ops`."""

from __future__ import annotations

import libcst as cst

from estimator_pipeline.migrate.code.to_keras3.declined import Declined
from estimator_pipeline.migrate.code.to_keras3.operations import Operation

__all__ = ["expression", "operation_call"]


def expression(text: str) -> cst.BaseExpression:
    """Return the tree of an expression."""
    return cst.parse_expression(text)


# V1's parameters that TensorFlow 2 has by another name.
_OF_V1 = {"dimension": "axis", "dim": "axis", "keep_dims": "keepdims", "reduction_indices": "axis"}


def operation_call(name: str, operation: Operation, call: cst.Call, *, v1: bool = False) -> cst.BaseExpression:
    """Return a call of `keras.ops`.

    Args:
        v1: whether it is a call of V1's function of the same name, which has its first two parameters in common.

    Raises:
        Declined: arguments that `keras.ops` does not have.
    """
    if v1:
        if sum(arg.keyword is None for arg in call.args) > (0 if "cross_entropy" in name else 2):
            raise Declined(name, f"{name} of TensorFlow 1 with so many arguments by position")
        call = call.with_changes(args=[
            arg.with_changes(keyword=cst.Name(_OF_V1[arg.keyword.value]))
            if arg.keyword is not None and arg.keyword.value in _OF_V1 else arg for arg in call.args
        ])  # fmt: skip
    order = list(operation.parameters)
    given: list[tuple[str, cst.Arg]] = []
    for place, arg in enumerate(call.args):
        if arg.star:
            raise Declined(name, f"{name} with arguments that cannot be told")
        keyword = arg.keyword.value if arg.keyword is not None else ""
        if keyword == "name":
            continue
        if not keyword and place >= len(order):
            if place == len(order) and isinstance(arg.value, cst.SimpleString):
                continue  # a name
            raise Declined(name, f"{name} with so many arguments, which keras.ops does not have")
        if keyword and keyword not in operation.parameters:
            raise Declined(name, f"{keyword} of {name}, which keras.ops does not have")
        given.append((keyword or order[place], arg))
    told = {one for one, _ in given}
    args, by_position = [], operation.ordered
    for place, (one, arg) in enumerate(given):
        by_position = (by_position or place == 0) and arg.keyword is None and order[place] == one
        new = operation.parameters[one]
        args.append(arg.with_changes(keyword=None if by_position else cst.Name(new), comma=cst.MaybeSentinel.DEFAULT,
                                     equal=cst.MaybeSentinel.DEFAULT if by_position else _EQUAL,
                                     whitespace_after_arg=cst.SimpleWhitespace("")))  # fmt: skip
    for one, text in operation.defaults.items():
        if one not in told:
            args.append(_keyword(operation.parameters.get(one, one), text))
    dtype = None
    if operation.target in ("keras.ops.argmax", "keras.ops.argmin"):
        dtype = next((arg for arg in args if arg.keyword is not None and arg.keyword.value == "dtype"), None)
        args = [arg for arg in args if arg is not dtype]
    if operation.options:
        keyword, _, text = operation.options.partition("=")
        args.append(_keyword(keyword, text))
    commas = [cst.Comma(whitespace_after=_behind(call, place)) for place in range(len(args) - 1)]
    args = [
        arg.with_changes(comma=comma) for arg, comma in zip(args, [*commas, cst.MaybeSentinel.DEFAULT], strict=True)
    ]
    made = call.with_changes(func=expression(operation.target), args=args)
    if dtype is None:
        return made
    return cst.Call(expression("keras.ops.cast"), [cst.Arg(made), cst.Arg(dtype.value)])


_EQUAL = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))


def _behind(call: cst.Call, place: int) -> cst.BaseParenthesizableWhitespace:
    """Return what stands behind a comma of the call, so that lines stay lines."""
    comma = call.args[place].comma if place < len(call.args) else None
    return comma.whitespace_after if isinstance(comma, cst.Comma) else cst.SimpleWhitespace(" ")


def _keyword(name: str, text: str) -> cst.Arg:
    return cst.Arg(expression(text), keyword=cst.Name(name), equal=_EQUAL)
