"""Conversion of calls of TensorFlow operations to calls of `keras.ops`."""

from __future__ import annotations

import libcst as cst

from estimator_pipeline.migrate.code.to_keras3.not_convertible import NotInKeras3
from estimator_pipeline.migrate.code.to_keras3.operations import Operation

__all__ = ["expression", "operation_call"]


def expression(text: str) -> cst.BaseExpression:
    """Return the parsed expression."""
    return cst.parse_expression(text)


# V1 parameter -> its name in TensorFlow 2.
_V1_PARAMETERS = {"dimension": "axis", "dim": "axis", "keep_dims": "keepdims", "reduction_indices": "axis"}


def operation_call(name: str, operation: Operation, call: cst.Call, *, v1: bool = False) -> cst.BaseExpression:
    """Return the call of `keras.ops` for a call of TensorFlow.

    Args:
        v1: Whether it calls the V1 function of the same name, which shares the first two parameters.

    Raises:
        NotInKeras3: `keras.ops` does not have an argument.
    """
    if v1:
        if sum(arg.keyword is None for arg in call.args) > (0 if "cross_entropy" in name else 2):
            raise NotInKeras3(name, f"{name} of TensorFlow 1 with too many positional arguments")
        call = call.with_changes(args=[
            arg.with_changes(keyword=cst.Name(_V1_PARAMETERS[arg.keyword.value]))
            if arg.keyword is not None and arg.keyword.value in _V1_PARAMETERS else arg for arg in call.args
        ])  # fmt: skip
    order = list(operation.parameters)
    pairs: list[tuple[str, cst.Arg]] = []
    for place, arg in enumerate(call.args):
        if arg.star:
            raise NotInKeras3(name, f"{name} with arguments that cannot be determined")
        keyword = arg.keyword.value if arg.keyword is not None else ""
        if keyword == "name":
            continue
        if not keyword and place >= len(order):
            if place == len(order) and isinstance(arg.value, cst.SimpleString):
                continue  # `name`
            raise NotInKeras3(name, f"{name} with too many arguments for keras.ops")
        if keyword and keyword not in operation.parameters:
            raise NotInKeras3(name, f"{keyword} of {name}, which keras.ops does not have")
        pairs.append((keyword or order[place], arg))
    explicit = {parameter for parameter, _ in pairs}
    args, by_position = [], operation.ordered
    for place, (parameter, arg) in enumerate(pairs):
        by_position = (by_position or place == 0) and arg.keyword is None and order[place] == parameter
        new_name = operation.parameters[parameter]
        args.append(
            arg.with_changes(
                keyword=None if by_position else cst.Name(new_name),
                comma=cst.MaybeSentinel.DEFAULT,
                equal=cst.MaybeSentinel.DEFAULT if by_position else _EQUAL,
                whitespace_after_arg=cst.SimpleWhitespace(""),
            )
        )
    for parameter, text in operation.defaults.items():
        if parameter not in explicit:
            args.append(_keyword(operation.parameters.get(parameter, parameter), text))
    dtype = None
    if operation.target in ("keras.ops.argmax", "keras.ops.argmin"):
        dtype = next((arg for arg in args if arg.keyword is not None and arg.keyword.value == "dtype"), None)
        args = [arg for arg in args if arg is not dtype]
    if operation.options:
        keyword, _, text = operation.options.partition("=")
        args.append(_keyword(keyword, text))
    commas = [cst.Comma(whitespace_after=_whitespace_after(call, place)) for place in range(len(args) - 1)]
    args = [
        arg.with_changes(comma=comma) for arg, comma in zip(args, [*commas, cst.MaybeSentinel.DEFAULT], strict=True)
    ]
    new_call = call.with_changes(func=expression(operation.target), args=args)
    if dtype is None:
        return new_call
    return cst.Call(expression("keras.ops.cast"), [cst.Arg(new_call), cst.Arg(dtype.value)])


_EQUAL = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))


def _whitespace_after(call: cst.Call, place: int) -> cst.BaseParenthesizableWhitespace:
    """Return the whitespace after a comma of the call, which keeps its line breaks."""
    comma = call.args[place].comma if place < len(call.args) else None
    return comma.whitespace_after if isinstance(comma, cst.Comma) else cst.SimpleWhitespace(" ")


def _keyword(name: str, text: str) -> cst.Arg:
    return cst.Arg(expression(text), keyword=cst.Name(name), equal=_EQUAL)
