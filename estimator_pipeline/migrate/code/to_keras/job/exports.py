"""From a serving input function to a function that writes a SavedModel with the same signatures."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter, indented

__all__ = ["fill", "helper"]

_RECEIVER = "tf.estimator.export.ServingInputReceiver"
_RAW = "tf.estimator.export.build_raw_serving_input_receiver_fn"
_PARSING = "tf.estimator.export.build_parsing_serving_input_receiver_fn"
_RAW_TEXT = '''def export_model(model, folder, like):
    """Writes a SavedModel that takes what is like `like` into a new folder, named after the time; gives its name."""
    specs = {name: tf.TensorSpec([None, *value.shape[1:]], value.dtype, name=name) for name, value in like.items()}

    @tf.function
    def serve(**features):
        return ANSWER

    server = tf.Module()
    server.model, server.serve = model, serve
    path = os.path.join(folder, str(int(time.time())))
    tf.saved_model.save(server, path, signatures={'serving_default': serve.get_concrete_function(**specs)})
    return os.fsencode(path)'''
# Whether the model is a canned one -> what it answers.
_ANSWER = {
    False: "model.predictions(features, model(features, training=False))",
    True: "model.head.predictions(model(features, training=False))",
}
_PLACEHOLDER, _WITH_DEFAULT = "tf.compat.v1.placeholder", "tf.compat.v1.placeholder_with_default"


def helper(reader: Rewriter, node: cst.BaseExpression, job: Any) -> Callable[[str], str]:
    """Return what writes the call that writes a SavedModel, of the folder's text; the function's text is for `fill`.

    Raises:
        NotConvertible: what the model is asked by cannot be told.
    """
    made = reader.value(node)
    if reader.called(made) == _RAW and isinstance(made, cst.Call):
        return _raw(reader, node, made, job)
    if reader.called(made) == _PARSING and isinstance(made, cst.Call) and job.written is None:
        if len(made.args) != 1 or not job.is_canned:
            raise NotConvertible("an export that parses examples, of a model that is not canned", node)
        reader.replaced[made] = lambda: reader.text(made.args[0].value)
        reader.needs.add("keras_canned")
        return lambda folder: f"keras_canned.export({job.model}, {folder}, {reader.text(node)})"
    spec = _given_spec(reader, made) if job.is_canned else None
    if spec is not None:
        reader.replaced[spec] = lambda: reader.text(spec.args[0].value)
        reader.needs.add("keras_canned")
        return lambda folder: f"keras_canned.export({job.model}, {folder}, {reader.text(node)})"
    if job.written is None and not job.is_canned:
        raise NotConvertible(
            "an export whose serving inputs are not those of build_raw_serving_input_receiver_fn", node
        )
    functions = reader.functions(node)
    if len(functions) != 1 or not isinstance(functions[0].node, cst.FunctionDef):
        raise NotConvertible("serving inputs that are not made by a function of this file", node)
    function = functions[0].node
    within = next((one for one in reader.tree.above(function) if isinstance(one, cst.ClassDef)), None)
    if function.params.params or within is not None:
        raise NotConvertible("a serving input function with parameters, or of a class", function.name)
    name = "export_model" if "export_model" not in reader.tree.scope.names else f"export_by_{function.name.value}"
    others = {one for one, (told, _) in reader.exports.items() if told is not function}
    if name in others:
        name = f"export_by_{function.name.value}"
    reader.exports[name] = (function, job)
    reader.needs.update(("os", "time"))
    return lambda folder: f"{name}({job.model}, {folder})"


def _given_spec(reader: Rewriter, made: cst.BaseExpression) -> cst.Call | None:
    """Return the call that parses examples, of a function that does nothing but give what it makes."""
    functions = reader.functions(made.func) if isinstance(made, cst.Call) else []
    if len(functions) != 1 or functions[0].node not in reader.tree.scopes:
        return None
    returned = reader.tree.scopes[functions[0].node].returns
    if not any(reader.called(one) == _PARSING for one in returned):
        return None
    (last, *others) = returned
    if others or not isinstance(last, cst.Call) or len(last.args) != 1:
        raise NotConvertible("serving inputs that are of one kind or another", made)
    return last


def _raw(reader: Rewriter, node: cst.BaseExpression, made: cst.Call, job: Any) -> Callable[[str], str]:
    """Return serving inputs that are like a dict of tensors."""
    if len(made.args) != 1:
        raise NotConvertible("serving inputs of a batch size of their own", made)
    if job.written is not None and set(job.written.signatures.values()) != {"found"}:
        raise NotConvertible("an export of several outputs by raw tensors", node)
    answer = "dict(zip(model.output_names, tf.nest.flatten(model(features, training=False))))"
    if job.written is not None:
        answer = "model.predictions(features, model(features, training=False))"
    reader.replaced[made] = lambda: reader.text(made.args[0].value)
    reader.needs.update(("os", "time"))
    name = "export_model"
    reader.helpers[name] = _RAW_TEXT.replace("ANSWER", answer).replace("tf.", f"{reader.tf}.")
    return lambda folder: f"{name}({job.model}, {folder}, {reader.text(node)})"


def fill(reader: Rewriter) -> None:
    """Write each function for a SavedModel in place of its serving input function."""
    for name, (function, job) in reader.exports.items():
        if not _signatures(job):
            raise NotConvertible("an export of outputs that cannot be told", function.name)
        reader.replaced[function] = _written(reader, name, function, job)


def _signatures(job: Any) -> dict[str, str]:
    """Key of a signature -> its answer; a canned head has one alone for what is no serialized example."""
    return {"predict": "found"} if job.is_canned else job.written.signatures  # type: ignore[no-any-return]


def _written(reader: Rewriter, name: str, function: cst.FunctionDef, job: Any) -> str:
    # An Estimator leaves ClassificationOutput and RegressionOutput out where they are not asked by one text.
    body = list(function.body.body)
    last = body.pop()
    returned = last.body[0] if isinstance(last, cst.SimpleStatementLine) else None
    call = returned.value if isinstance(returned, cst.Return) else None
    if not isinstance(call, cst.Call) or reader.called(call) != _RECEIVER:
        raise NotConvertible("a serving input function that does not end with its ServingInputReceiver", function.name)
    given = arguments(call, ("features", "receiver_tensors", "receiver_tensors_alternatives"))
    if len(given) != 2 or "receiver_tensors" not in given:
        raise NotConvertible("serving inputs of several kinds", call)
    asked = reader.value(given["receiver_tensors"].value)
    pairs: list[tuple[str, cst.BaseExpression]] = []
    if isinstance(asked, cst.Dict):
        for element in asked.elements:
            if not isinstance(element, cst.DictElement) or not isinstance(element.key, cst.SimpleString):
                raise NotConvertible("serving inputs whose names cannot be told", call)
            pairs.append((str(element.key.evaluated_value), element.value))
    else:
        pairs.append(("input", given["receiver_tensors"].value))
    unit, tf = reader.tree.module.default_indent, reader.tf
    specs, lines, gone, defaults = [], [], [], []
    for key, node in pairs:
        placeholder = reader.value(node)
        if not isinstance(placeholder, cst.Call) or reader.called(placeholder) not in (_PLACEHOLDER, _WITH_DEFAULT):
            raise NotConvertible("a serving input that is no placeholder", node)
        if not key.isidentifier():
            raise NotConvertible(f"a serving input of the name {key!r}", node)
        if reader.called(placeholder) == _WITH_DEFAULT:
            told = arguments(placeholder, ("input", "shape", "name"))
            said = reader.source(placeholder).partition("placeholder_with_default")[2]
            defaults.append(f"# Was placeholder_with_default{said}: who asks a signature gives all of its inputs.")
            dtype = _dtype(reader, told["input"].value)
        else:
            told = arguments(placeholder, ("dtype", "shape", "name"))
            dtype = reader.text(told["dtype"].value)
        shape = reader.text(told["shape"].value) if "shape" in told else "None"
        specs.append(f"{tf}.TensorSpec({shape}, {dtype}, name={key!r})")
        if isinstance(node, cst.Name):
            gone.append(reader.statement_of(placeholder))
            if node.value != key:
                lines.append(f"{node.value} = {key}")
        else:
            reader.replaced[placeholder] = key
    kept = [textwrap.dedent(reader.statement(one)) for one in body if one not in gone and not _is_doc(one)]
    features = reader.text(given["features"].value)
    names = [key for key, _ in pairs]
    signature = _signature(specs, reader)
    last_line = [f"features = {features}"] if features != "features" else []
    serve = [
        *defaults,
        signature,
        f"def predict({', '.join(names)}):",
        *(indented(one, unit) for one in (*lines, *kept, *last_line)),
        f"{unit}return {_ANSWER[job.is_canned]}",
        "",
    ]
    signatures: list[str] = []
    asks_by_text = len(specs) == 1 and f"{tf}.string" in specs[0]
    answers = {key: text for key, text in _signatures(job).items() if text == "found" or asks_by_text}
    if not answers:
        raise NotConvertible("an export of classes or numbers alone, which asks by other things than texts", call)
    for key, text in answers.items():
        if text == "found":
            signatures.append(f"{key!r}: predict")
            continue
        spec = [one if len(names) > 1 else one.replace(f"name={names[0]!r}", "name='inputs'") for one in specs]
        serve += (
            [
                _signature(spec, reader),
                f"def {key}({', '.join(names) if len(names) > 1 else 'inputs'}):",
                f"{unit}found = predict({', '.join(names) if len(names) > 1 else 'inputs'})",
                f"{unit}return {text}",
                "",
            ]
            if key.isidentifier() and key != "predict"
            else _decline(function, key)
        )
        signatures.append(f"{key!r}: {key}")
    lines = [
        '"""Writes a SavedModel into a new folder below `folder`, named after the time; gives its name as bytes."""',
        *serve,
        f"server = {tf}.Module()",
        "server.model, server.functions = model, " + "[" + ", ".join(dict.fromkeys(
            one.split(": ")[1] for one in signatures)) + "]",
        "path = os.path.join(folder, str(int(time.time())))",
        *_save(signatures, reader),
        "return os.fsencode(path)",
    ]  # fmt: skip
    text = f"def {name}(model, folder):\n" + "\n".join(indented(one, unit) for one in lines)
    return indented(text, reader.indent(function)).lstrip()


def _dtype(reader: Rewriter, node: cst.BaseExpression) -> str:
    """Return the type of what is a constant."""
    inner = node.elements[0].value if isinstance(node, cst.List) and len(node.elements) == 1 else node
    for kind, name in ((cst.Integer, "int32"), (cst.Float, "float32"), (cst.SimpleString, "string")):
        if isinstance(inner, kind):
            return f"{reader.tf}.{name}"
    return f"{reader.tf}.constant({reader.text(node)}).dtype"


def _signature(specs: list[str], reader: Rewriter) -> str:
    """Return the decorator of what answers."""
    unit = reader.tree.module.default_indent
    signature = f"@{reader.tf}.function(input_signature=[{', '.join(specs)}])"
    if len(signature) <= 110:
        return signature
    return f"@{reader.tf}.function(input_signature=[\n" + "".join(f"{unit}{one},\n" for one in specs) + "])"


def _save(signatures: list[str], reader: Rewriter) -> list[str]:
    """Return what writes the SavedModel, in lines of their own where there are many signatures."""
    text = f"{reader.tf}.saved_model.save(server, path, signatures={{{', '.join(signatures)}}})"
    if len(text) <= 116:
        return [text]
    unit = reader.tree.module.default_indent
    return [f"{reader.tf}.saved_model.save(server, path, signatures={{", *(f"{unit}{one}," for one in signatures), "})"]


def _decline(function: cst.FunctionDef, key: str) -> list[str]:
    raise NotConvertible(f"a signature of the name {key!r}", function.name)


def _is_doc(node: cst.CSTNode) -> bool:
    first = node.body[0] if isinstance(node, cst.SimpleStatementLine) else node
    return isinstance(first, cst.Expr) and isinstance(first.value, cst.SimpleString)
