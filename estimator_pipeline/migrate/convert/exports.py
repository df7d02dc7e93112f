"""Exports: what a serving_input_receiver_fn receives, and the features that it makes of that, for `export`.

A placeholder becomes a `tf.TensorSpec`; what the function computes from its placeholders becomes a function.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.analysis.name_resolution import FunctionOf
from estimator_pipeline.migrate.code.analysis.syntax import Tree
from estimator_pipeline.migrate.convert.names import FileNames, Refused, calls_in, names_bound
from estimator_pipeline.migrate.convert.rest import Rest

__all__ = ["check_outputs", "serving_arguments", "serving_nodes"]

_EXPORT = "tf.estimator.export."
_RAW, _PARSING = f"{_EXPORT}build_raw_serving_input_receiver_fn", f"{_EXPORT}build_parsing_serving_input_receiver_fn"
_RECEIVERS = (f"{_EXPORT}ServingInputReceiver", f"{_EXPORT}TensorServingInputReceiver")
_PLACEHOLDER = "tf.compat.v1.placeholder"


def _name(names: FileNames, call: cst.BaseExpression | None) -> str:
    full = names.name(call.func) if isinstance(call, cst.Call) else ""
    return full.replace("tf.compat.v1.estimator.", "tf.estimator.")


def _calls(names: FileNames, node: cst.CSTNode, name: str) -> list[cst.Call]:
    return [call for call in calls_in(node) if _name(names, call) == name]


def serving_nodes(names: FileNames, node: cst.BaseExpression) -> Iterator[cst.CSTNode]:
    """Yield the nodes that make serving inputs, which `serving_arguments` converts."""
    value = names.value(node)
    yield from (node, value)
    if isinstance(value, cst.Call) and _name(names, value) in (_RAW, _PARSING):
        yield from (names.value(arg.value) for arg in value.args)
        return
    function = names.function(node)
    if function is not None:
        yield function.node


def serving_arguments(names: FileNames, rests: Mapping[Tree, Rest], node: cst.BaseExpression) -> list[str]:
    """Return the last arguments of `export` for a serving_input_receiver_fn, with its edits in `rests`.

    Raises:
        Refused: the function does more than to make placeholders and to compute features from them.
    """
    value, tf, rest = names.value(node), names.tf, rests[names.tree]
    if isinstance(value, cst.Call) and _name(names, value) in (_RAW, _PARSING):
        passed = arguments(value, ("features" if _name(names, value) == _RAW else "feature_spec",))
        if len(passed) != 1:
            raise Refused(f"{names.text(value.func)} with options", value)
        arg = next(iter(passed.values())).value
        if _name(names, value) == _RAW:
            placeholders = names.value(arg)
            if not isinstance(placeholders, cst.Dict) or not _calls(names, placeholders, _PLACEHOLDER):
                raise Refused("serving inputs that are not one dict of placeholders", arg)
            _specs(names, rest, placeholders)
            return [rest.text(arg)]
        rest.read_inside(arg)
        rest.read_inside(names.value(arg))
        parse = f'lambda tensors: {tf}.io.parse_example(tensors["examples"], {rest.text(arg)})'
        return [f'{{"examples": {tf}.TensorSpec([None], {tf}.string)}}', parse]
    function = names.function(node)
    if function is None or function.tree not in rests or not isinstance(function.node, cst.FunctionDef) or (
        function.node.params.params
    ):  # fmt: skip
        raise Refused("a serving_input_receiver_fn that is not a function of the program without parameters", node)
    rests[function.tree].required.append(function.node)
    of_file = names.of(function.tree)
    return [f"{'*' if _function(of_file, rests[function.tree], function.node) else ''}{rest.text(node)}()"]


def _specs(names: FileNames, rest: Rest, node: cst.CSTNode) -> None:
    """Let the placeholders in a node be specifications."""
    rest.read_inside(node, without=_calls(names, node, _PLACEHOLDER))
    for call in _calls(names, node, _PLACEHOLDER):
        passed = arguments(call, ("dtype", "shape", "name"))
        if "dtype" not in passed or "shape" not in passed:
            raise Refused("a placeholder without a shape", call)
        for arg in passed.values():
            rest.read_inside(arg.value)
        shape, dtype = (rest.text(passed[name].value) for name in ("shape", "dtype"))
        rest.new[call] = f"{names.tf}.TensorSpec({shape}, {dtype})"


def _function(names: FileNames, rest: Rest, function: cst.FunctionDef) -> bool:
    """Rewrite a function to return what is received, and the function of the features if they are something else."""
    if function in rest.until:
        return True
    refusal = Refused("a serving_input_receiver_fn of more than placeholders and features of them", function)
    body = list(function.body.body)
    last = body[-1]
    returned = last.body[0] if isinstance(last, cst.SimpleStatementLine) and len(last.body) == 1 else None
    call = returned.value if isinstance(returned, cst.Return) else None
    if not isinstance(call, cst.Call) or _name(names, call) not in _RECEIVERS:
        raise refusal
    passed = {name: arg.value for name, arg in arguments(call, ("features", "receiver_tensors")).items()}
    if passed.keys() != {"features", "receiver_tensors"}:
        raise refusal
    features, received = passed["features"], passed["receiver_tensors"]
    makes = [position for position, node in enumerate(body) if _calls(names, node, _PLACEHOLDER)]
    if not makes or not all(isinstance(node, cst.SimpleStatementLine) for node in body) or makes[-1] == len(body) - 1:
        raise refusal
    tail = body[makes[-1] + 1 : -1]
    lines = list(_received(names, body[: makes[-1] + 1], received, refusal))
    for node in body[: makes[-1] + 1]:
        _specs(names, rest, node)
    for node in (*tail, features):
        rest.read_inside(node)
    if not tail and names.text(features) == names.text(received) and not lines[1:]:
        rest.new[call] = names.text(received)
        return False
    start, more = lines[0], lines[1:]
    first = tail[0] if tail else last  # its comments stay where they are
    texts = [rest.text(node.with_changes(leading_lines=[]) if node is first else node) for node in tail]
    inside = [line for text in texts for line in text.strip("\n").split("\n")]
    parameter, receives = start.split(" = ", 1)
    rest.replaced[first] = [
        "",
        f"def features_of({parameter}):",
        *(f"    {line}" for line in (*more, *inside, f"return {rest.text(features)}")),
        "",
        f"return {receives}, features_of",
    ]
    rest.until[first] = rest.until[function] = [*tail[1:], last] if tail else [last]
    return True


def _received(
    names: FileNames, makes: Sequence[cst.CSTNode], received: cst.BaseExpression, refusal: Refused
) -> Iterator[str]:  # fmt: skip
    """Yield `parameter = what is returned`, and the lines that name single tensors of it: `x = tensors["x"]`."""
    bound = {name for node in makes for name in names_bound(node)}
    if isinstance(received, cst.Name) and bound == {received.value}:
        value = names.value(received)
        if isinstance(value, cst.Call) and _name(names, value) == _PLACEHOLDER:
            yield f'tensors = {{"input": {received.value}}}'
            yield f'{received.value} = tensors["input"]'
        else:
            yield f"{received.value} = {received.value}"
        return
    table = names.value(received)
    elements = table.elements if isinstance(table, cst.Dict) else ()
    pairs = [(names.text(element.key), names.text(element.value)) for element in elements
             if isinstance(element, cst.DictElement) and isinstance(element.value, cst.Name)]  # fmt: skip
    if not pairs or len(pairs) != len(elements) or bound != {name for _, name in pairs}:
        raise refusal
    yield f"tensors = {{{', '.join(f'{key}: {name}' for key, name in pairs)}}}"
    for key, name in pairs:
        yield f"{name} = tensors[{key}]"


def check_outputs(names: FileNames, model_fn: FunctionOf | cst.Call) -> list[str]:
    """Return the names of the signatures that an export has beside the default: all have the predictions.

    Raises:
        Refused: export_outputs has something else than its predictions.
    """
    if isinstance(model_fn, cst.Call):
        return []  # the conversion writes its predictions
    names = names.of(model_fn.tree)
    calls = list(calls_in(model_fn.node))
    specs = [call for call in calls if _name(names, call) == "tf.estimator.EstimatorSpec"]
    predicted = {_flat(names, arg.value) for call in specs for arg in call.args
                 if arg.keyword is not None and arg.keyword.value == "predictions"}  # fmt: skip
    predicted |= {_flat(names, names.value(arg.value)) for call in specs for arg in call.args
                  if arg.keyword is not None and arg.keyword.value == "predictions"}  # fmt: skip
    keys: list[str] = []
    for call in calls:
        full = _name(names, call)
        if full.startswith(_EXPORT) and full.endswith("Output"):
            values = [arg.value for arg in call.args]
            if not full.endswith(".PredictOutput") or len(values) != 1 or _flat(names, values[0]) not in predicted:
                raise Refused("export_outputs that are not the predictions", call)
            entry = names.tree.parents.get(call)
            key = entry.key if isinstance(entry, cst.DictElement) else None
            if isinstance(key, cst.SimpleString):
                keys.append(str(key.evaluated_value))
            elif not names.name(key).endswith(".DEFAULT_SERVING_SIGNATURE_DEF_KEY"):
                raise Refused("export_outputs whose names are not known", call)
    return [key for key in dict.fromkeys(keys) if key != "serving_default"]


def _flat(names: FileNames, node: cst.CSTNode) -> str:
    return ast.dump(ast.parse(f"({names.text(node)})", mode="eval"))
