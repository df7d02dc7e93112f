"""Conversion of serving input functions to functions that write a SavedModel."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter, indented

__all__ = ["build_export_call", "write_exports"]

_RECEIVER = "tf.estimator.export.ServingInputReceiver"
_RAW = "tf.estimator.export.build_raw_serving_input_receiver_fn"
_PARSING = "tf.estimator.export.build_parsing_serving_input_receiver_fn"
_RAW_TEXT = '''def export_model(model, folder, like):
    """Write a SavedModel with inputs like `like` to a new folder, named after the time; return its path."""
    specs = {name: tf.TensorSpec([None, *value.shape[1:]], value.dtype, name=name) for name, value in like.items()}

    @tf.function
    def serve(**features):
        return ANSWER

    server = tf.Module()
    server.model, server.serve = model, serve
    path = os.path.join(folder, str(int(time.time())))
    tf.saved_model.save(server, path, signatures={'serving_default': serve.get_concrete_function(**specs)})
    return os.fsencode(path)'''
# Whether the model is canned -> the expression of its predictions.
_ANSWER = {
    False: "model.predictions(features, model(features, training=False))",
    True: "model.head.predictions(model(features, training=False))",
}
_PLACEHOLDER, _WITH_DEFAULT = "tf.compat.v1.placeholder", "tf.compat.v1.placeholder_with_default"


def build_export_call(reader: Rewriter, node: cst.BaseExpression, job: Any) -> Callable[[str], str]:
    """Return a function that writes the export call from the text of the folder.

    `write_exports` writes the exported function.

    Raises:
        NotConvertible: the serving inputs cannot be determined.
    """
    value = reader.value(node)
    if reader.called(value) == _RAW and isinstance(value, cst.Call):
        return _convert_raw(reader, node, value, job)
    if reader.called(value) == _PARSING and isinstance(value, cst.Call) and job.written is None:
        if len(value.args) != 1 or not job.is_canned:
            raise NotConvertible("an export that parses examples, of a model that is not a canned Estimator", node)
        reader.replaced[value] = lambda: reader.text(value.args[0].value)
        reader.needs.add("keras_canned")
        return lambda folder: f"keras_canned.export({job.model}, {folder}, {reader.text(node)})"
    spec = _find_parsing_call(reader, value) if job.is_canned else None
    if spec is not None:
        reader.replaced[spec] = lambda: reader.text(spec.args[0].value)
        reader.needs.add("keras_canned")
        return lambda folder: f"keras_canned.export({job.model}, {folder}, {reader.text(node)})"
    if job.written is None and not job.is_canned:
        raise NotConvertible("an export whose serving inputs are not from build_raw_serving_input_receiver_fn", node)
    functions = reader.functions(node)
    if len(functions) != 1 or not isinstance(functions[0].node, cst.FunctionDef):
        raise NotConvertible("serving inputs that are not created by a function of this file", node)
    function = functions[0].node
    within = next((parent for parent in reader.tree.above(function) if isinstance(parent, cst.ClassDef)), None)
    if function.params.params or within is not None:
        raise NotConvertible("a serving input function that has parameters or is a method", function.name)
    name = "export_model" if "export_model" not in reader.tree.scope.names else f"export_by_{function.name.value}"
    others = {other_name for other_name, (exported, _) in reader.exports.items() if exported is not function}
    if name in others:
        name = f"export_by_{function.name.value}"
    reader.exports[name] = (function, job)
    reader.needs.update(("os", "time"))
    return lambda folder: f"{name}({job.model}, {folder})"


def _find_parsing_call(reader: Rewriter, value: cst.BaseExpression) -> cst.Call | None:
    """Return the build_parsing_serving_input_receiver_fn that a function returns, or None."""
    functions = reader.functions(value.func) if isinstance(value, cst.Call) else []
    if len(functions) != 1 or functions[0].node not in reader.tree.scopes:
        return None
    returned = reader.tree.scopes[functions[0].node].returns
    if not any(reader.called(node) == _PARSING for node in returned):
        return None
    (last, *others) = returned
    if others or not isinstance(last, cst.Call) or len(last.args) != 1:
        raise NotConvertible(
            "a serving input function that does more than return build_parsing_serving_input_receiver_fn(spec)", value
        )
    return last


def _convert_raw(reader: Rewriter, node: cst.BaseExpression, value: cst.Call, job: Any) -> Callable[[str], str]:
    """Return the export call for serving inputs that are given as a dict of tensors."""
    if len(value.args) != 1:
        raise NotConvertible("serving inputs with a default_batch_size", value)
    if job.written is not None and set(job.written.signatures.values()) != {"predictions"}:
        raise NotConvertible("an export of several outputs with raw tensors as inputs", node)
    answer = "dict(zip(model.output_names, tf.nest.flatten(model(features, training=False))))"
    if job.written is not None:
        answer = "model.predictions(features, model(features, training=False))"
    reader.replaced[value] = lambda: reader.text(value.args[0].value)
    reader.needs.update(("os", "time"))
    name = reader.free_name("export_model")
    reader.helpers[name] = (
        _RAW_TEXT.replace("ANSWER", answer).replace("tf.", f"{reader.tf}.").replace("export_model", name, 1)
    )
    return lambda folder: f"{name}({job.model}, {folder}, {reader.text(node)})"


def write_exports(reader: Rewriter) -> None:
    """Replace serving input functions by functions that write a SavedModel."""
    for name, (function, job) in reader.exports.items():
        if not _signatures_of(job):
            raise NotConvertible("an export of outputs that cannot be determined", function.name)
        reader.replaced[function] = _format_function(reader, name, function, job)


def _signatures_of(job: Any) -> dict[str, str]:
    """Return signature key -> expression of its outputs."""
    return {"predict": "predictions"} if job.is_canned else job.written.signatures  # type: ignore[no-any-return]


def _format_function(reader: Rewriter, name: str, function: cst.FunctionDef, job: Any) -> str:
    # Like the Estimator, drop ClassificationOutput and RegressionOutput unless the only input is one string.
    body = list(function.body.body)
    last = body.pop()
    returned = last.body[0] if isinstance(last, cst.SimpleStatementLine) else None
    call = returned.value if isinstance(returned, cst.Return) else None
    if not isinstance(call, cst.Call) or reader.called(call) != _RECEIVER:
        raise NotConvertible("a serving input function that does not end with a ServingInputReceiver", function.name)
    receiver_args = arguments(call, ("features", "receiver_tensors", "receiver_tensors_alternatives"))
    if len(receiver_args) != 2 or "receiver_tensors" not in receiver_args:
        raise NotConvertible("a ServingInputReceiver with receiver_tensors_alternatives", call)
    receivers = reader.value(receiver_args["receiver_tensors"].value)
    pairs: list[tuple[str, cst.BaseExpression]] = []
    if isinstance(receivers, cst.Dict):
        for element in receivers.elements:
            if not isinstance(element, cst.DictElement) or not isinstance(element.key, cst.SimpleString):
                raise NotConvertible("serving inputs whose names cannot be determined", call)
            pairs.append((str(element.key.evaluated_value), element.value))
    else:
        pairs.append(("input", receiver_args["receiver_tensors"].value))
    unit, tf = reader.tree.module.default_indent, reader.tf
    specs, lines, gone, defaults = [], [], [], []
    for key, node in pairs:
        placeholder = reader.value(node)
        if not isinstance(placeholder, cst.Call) or reader.called(placeholder) not in (_PLACEHOLDER, _WITH_DEFAULT):
            raise NotConvertible("a serving input that is not a placeholder", node)
        if not key.isidentifier():
            raise NotConvertible(f"a serving input with the name {key!r}", node)
        if reader.called(placeholder) == _WITH_DEFAULT:
            args = arguments(placeholder, ("input", "shape", "name"))
            source = reader.source(placeholder).partition("placeholder_with_default")[2]
            defaults.append(
                f"# Was placeholder_with_default{source}: callers of a signature must pass all of its inputs."
            )
            dtype = _format_dtype(reader, args["input"].value)
        else:
            args = arguments(placeholder, ("dtype", "shape", "name"))
            dtype = reader.text(args["dtype"].value)
        shape = reader.text(args["shape"].value) if "shape" in args else "None"
        specs.append(f"{tf}.TensorSpec({shape}, {dtype}, name={key!r})")
        if isinstance(node, cst.Name):
            gone.append(reader.statement_of(placeholder))
            if node.value != key:
                lines.append(f"{node.value} = {key}")
        else:
            reader.replaced[placeholder] = key
    kept = [
        textwrap.dedent(reader.statement(statement))
        for statement in body
        if statement not in gone and not _is_docstring(statement)
    ]
    features = reader.text(receiver_args["features"].value)
    names = [key for key, _ in pairs]
    signature = _format_decorator(specs, reader)
    last_line = [f"features = {features}"] if features != "features" else []
    serve = [
        *defaults,
        signature,
        f"def predict({', '.join(names)}):",
        *(indented(line, unit) for line in (*lines, *kept, *last_line)),
        f"{unit}return {_ANSWER[job.is_canned]}",
        "",
    ]
    signatures: list[str] = []
    asks_by_text = len(specs) == 1 and f"{tf}.string" in specs[0]
    answers = {key: text for key, text in _signatures_of(job).items() if text == "predictions" or asks_by_text}
    if not answers:
        raise NotConvertible(
            "an export of only classification or regression outputs, with inputs that are not strings", call
        )
    for key, text in answers.items():
        if text == "predictions":
            signatures.append(f"{key!r}: predict")
            continue
        spec = [spec if len(names) > 1 else spec.replace(f"name={names[0]!r}", "name='inputs'") for spec in specs]
        serve += (
            [
                _format_decorator(spec, reader),
                f"def {key}({', '.join(names) if len(names) > 1 else 'inputs'}):",
                f"{unit}predictions = predict({', '.join(names) if len(names) > 1 else 'inputs'})",
                f"{unit}return {text}",
                "",
            ]
            if key.isidentifier() and key != "predict"
            else _reject_key(function, key)
        )
        signatures.append(f"{key!r}: {key}")
    lines = [
        '"""Write a SavedModel to a new subfolder of `folder`, named after the time; return its path as bytes."""',
        *serve,
        f"server = {tf}.Module()",
        "server.model, server.functions = model, " + "[" + ", ".join(dict.fromkeys(
            entry.split(": ")[1] for entry in signatures)) + "]",
        "path = os.path.join(folder, str(int(time.time())))",
        *_format_save(signatures, reader),
        "return os.fsencode(path)",
    ]  # fmt: skip
    text = f"def {name}(model, folder):\n" + "\n".join(indented(line, unit) for line in lines)
    return indented(text, reader.indent(function)).lstrip()


def _format_dtype(reader: Rewriter, node: cst.BaseExpression) -> str:
    """Return the dtype of a constant."""
    inner = node.elements[0].value if isinstance(node, cst.List) and len(node.elements) == 1 else node
    for kind, name in ((cst.Integer, "int32"), (cst.Float, "float32"), (cst.SimpleString, "string")):
        if isinstance(inner, kind):
            return f"{reader.tf}.{name}"
    return f"{reader.tf}.constant({reader.text(node)}).dtype"


def _format_decorator(specs: list[str], reader: Rewriter) -> str:
    """Return the `tf.function` decorator of a signature."""
    unit = reader.tree.module.default_indent
    signature = f"@{reader.tf}.function(input_signature=[{', '.join(specs)}])"
    if len(signature) <= 110:
        return signature
    return f"@{reader.tf}.function(input_signature=[\n" + "".join(f"{unit}{spec},\n" for spec in specs) + "])"


def _format_save(signatures: list[str], reader: Rewriter) -> list[str]:
    """Return the lines that save the model."""
    text = f"{reader.tf}.saved_model.save(server, path, signatures={{{', '.join(signatures)}}})"
    if len(text) <= 116:
        return [text]
    unit = reader.tree.module.default_indent
    return [
        f"{reader.tf}.saved_model.save(server, path, signatures={{",
        *(f"{unit}{entry}," for entry in signatures),
        "})",
    ]


def _reject_key(function: cst.FunctionDef, key: str) -> list[str]:
    raise NotConvertible(f"a signature with the name {key!r}", function.name)


def _is_docstring(node: cst.CSTNode) -> bool:
    first = node.body[0] if isinstance(node, cst.SimpleStatementLine) else node
    return isinstance(first, cst.Expr) and isinstance(first.value, cst.SimpleString)
