"""Which function of a Keras model's outputs each output of an old export is.

The heads of tf.estimator give their outputs names, and the names say what they are; where they do not, or where two
readings are left, a person says it in a file. Nothing else is taken.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.migrate.exports.read import CLASSIFY, REGRESS, EstimatorExport, Tensor
from estimator_pipeline.utils.io_errors import code_of

__all__ = ["GIVES", "HEADS", "NOT_OF_HEADS", "ExportOverrides", "OutputMapping", "output_mappings_of", "read_overrides"]

HEADS = ("multi_class", "binary", "multi_label", "regression")
GIVES = ("logits", "probabilities", "predictions")
# What heads call their outputs in a prediction's signature.
_OF_HEADS = (
    "logits", "probabilities", "class_ids", "classes", "all_class_ids", "all_classes", "logistic", "predictions",
)  # fmt: skip
_PLAIN = ("identity", "exp", "sigmoid", "softmax", "argmax")
# What programs call the class with the largest logit; an output of this name that is an integer is taken for it, and
# the comparison shows whether it is.
_CLASS = re.compile(
    r"(.*_)?(class(es)?|class_?ids?|labels?|pred(s|ictions?|icted\w*)?|ids?|argmax|output)", re.IGNORECASE
)
NOT_OF_HEADS = (*_PLAIN, "feature")
_CALL = re.compile(r"(\w+)\((.+)\)")


@dataclasses.dataclass(frozen=True)
class ExportOverrides:
    """What a person has said of an export.

    Attributes:
        outputs: an old output (`probabilities`, or `predict/probabilities`) -> what it is: a function of the heads, an
            output of the model, `FUNCTION(OUTPUT)`, or `feature(INPUT)`.
        inputs: an old input or feature -> the model's input; None where the model does without.
        classes: names of the classes.
    """

    outputs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    inputs: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    classes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class OutputMapping:
    """What one output of a signature is.

    Attributes:
        function: of `_OF_HEADS`, "identity", "exp", "sigmoid", "softmax", "argmax" or "feature".
        of: the model's output (None: its only one), or the input.
    """

    function: str
    of: str | None = None

    def __str__(self) -> str:
        if self.function == "identity":
            return str(self.of)
        return self.function if self.of is None else f"{self.function}({self.of})"


def read_overrides(path: str | Path) -> ExportOverrides:
    """Read a YAML file with `inputs`, `outputs` and `classes`.

    Raises:
        ConfigError: it cannot be read, or holds something else.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        found = YAML(typ="safe").load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, YAMLError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", code=code_of(error)) from error
    return overrides_of(found, source=str(path))


def overrides_of(found: Any, *, source: str) -> ExportOverrides:
    """Return what a mapping says.

    Raises:
        ConfigError: it says something else.
    """
    allowed = {"inputs", "outputs", "classes"}
    if not isinstance(found, Mapping) or not set(found) <= allowed:
        raise ConfigError(
            f"{source} does not say what the signatures are",
            code="file/bad-format",
            found=f"fields: {', '.join(map(str, found))}" if isinstance(found, Mapping) else repr(found)[:200],
            hint="allowed are inputs, outputs and classes, such as outputs: {scores: probabilities}",
        )
    outputs, inputs, classes = found.get("outputs") or {}, found.get("inputs") or {}, found.get("classes") or ()
    wrong = []
    if not _texts(outputs):
        wrong.append("outputs maps names to names")
    if not isinstance(inputs, Mapping) or not all(isinstance(k, str) and _text_or_none(v) for k, v in inputs.items()):
        wrong.append("inputs maps names to names, or to null")
    if isinstance(classes, str) or not isinstance(classes, Sequence):
        wrong.append("classes is a list of names")
    if wrong:
        raise ConfigError(f"{source}: {'; '.join(wrong)}", code="file/bad-format")
    return ExportOverrides(dict(outputs), dict(inputs), tuple(str(name) for name in classes))


def _texts(given: Any) -> bool:
    return isinstance(given, Mapping) and all(isinstance(one, str) for pair in given.items() for one in pair)


def _text_or_none(given: Any) -> bool:
    return given is None or isinstance(given, str)


def output_mappings_of(
    export: EstimatorExport,
    overrides: ExportOverrides,
    *,
    model_outputs: Mapping[str, Any],
    single: bool,
    problems: list[str],
) -> dict[str, dict[str, OutputMapping]]:
    """Return what each output of each signature is.

    Args:
        export: the old one.
        overrides: by a person.
        model_outputs: the model's outputs by name.
        single: whether the model gives one tensor, and no names that a program has given.
        problems: what has no counterpart or more than one is added here.

    Returns:
        Signature key -> output -> what it is.
    """
    found: dict[str, dict[str, OutputMapping]] = {}
    used = set()
    for key, signature in export.signatures.items():
        found[key] = {}
        for name, tensor in signature.outputs.items():
            spoken = next((one for one in (f"{key}/{name}", name) if one in overrides.outputs), None)
            if spoken is not None:
                used.add(spoken)
                mapping = _spoken(overrides.outputs[spoken], model_outputs, signature.inputs, problems, spoken)
            elif not single and name in model_outputs:
                mapping = OutputMapping("identity", name)
            else:
                mapping = _inferred(signature.method, key, name, tensor, model_outputs, problems)
            if mapping is not None:
                found[key][name] = mapping
    # What is said twice over, for one signature and for all, is said.
    known = {one for key, each in export.signatures.items() for name in each.outputs for one in (name, f"{key}/{name}")}
    for name in overrides.outputs:
        if name not in used and name not in known:
            problems.append(f"outputs.{name}: the old export has no such output")
    return found


def _spoken(
    text: str, model_outputs: Mapping[str, Any], inputs: Mapping[str, Any], problems: list[str], where: str
) -> OutputMapping | None:
    call = _CALL.fullmatch(text)
    if call is None:
        if text in model_outputs:
            return OutputMapping("identity", text)
        if text in (*_OF_HEADS, "argmax"):
            return _of_logits(text, model_outputs, where, problems)
    elif call[1] == "feature":
        return OutputMapping("feature", call[2])
    elif call[1] in (*_OF_HEADS, *_PLAIN) and call[2] in model_outputs:
        return OutputMapping(call[1], call[2])
    problems.append(
        f"outputs.{where}: {text} is neither an output of the model ({', '.join(model_outputs)}) nor one of "
        f"{', '.join(_OF_HEADS)}, nor a function of an output such as exp({next(iter(model_outputs))})"
    )
    return None


def _of_logits(
    function: str, model_outputs: Mapping[str, Any], where: str, problems: list[str]
) -> OutputMapping | None:
    if len(model_outputs) == 1:
        return OutputMapping(function)
    if "logits" in model_outputs:
        return OutputMapping(function, "logits")
    problems.append(
        f"{where}: of which of the model's outputs it is made is not said ({', '.join(model_outputs)}); "
        f"outputs: {{{where}: {function}({next(iter(model_outputs))})}}"
    )
    return None


def _inferred(
    method: str, key: str, name: str, tensor: Tensor, model_outputs: Mapping[str, Any], problems: list[str]
) -> OutputMapping | None:
    where = f"{key}/{name}"
    integer = tensor.dtype.startswith(("int", "uint"))
    # The heads of tf.estimator give class_ids of [B, 1]; a model_fn's own tf.argmax has one dimension.
    if integer and _CLASS.fullmatch(name) and not (name in _OF_HEADS and tensor.rank != 1 and "id" in name):
        return _of_logits("argmax", model_outputs, where, problems)
    if method == CLASSIFY and name in ("scores", "classes"):
        return _of_logits("probabilities" if name == "scores" else "all_classes", model_outputs, where, problems)
    if method == REGRESS and name == "outputs":
        return _of_logits("outputs", model_outputs, where, problems)
    if name in _OF_HEADS:
        return _of_logits(name, model_outputs, where, problems)
    why = "may be probabilities or logits" if name == "scores" else "has no counterpart in the model"
    such = f"argmax({next(iter(model_outputs))})" if integer else "probabilities"
    problems.append(f"output {where} {why}; say it: outputs: {{{name}: {such}}}, or an output of the model")
    return None


def head_of(
    mappings: Mapping[str, Mapping[str, OutputMapping]], *, columns: int | None, gives: str, problems: list[str]
) -> str | None:
    """Return the head that the names of all outputs speak of; None where none is needed.

    Args:
        mappings: from `output_mappings_of`.
        columns: of the model's logits.
        gives: what the model's outputs are.
        problems: two readings that are left are added here.
    """
    functions = {mapping.function for each in mappings.values() for mapping in each.values()}
    needed = functions & {*_OF_HEADS, "outputs"} - {"logits"}
    if not needed:
        return None
    if columns == 1:
        regression = "predictions" in needed
        binary = bool(needed - {"predictions", "outputs"}) or ("argmax" in functions and not regression)
        if regression and not binary:
            if "logits" in functions:
                problems.append(
                    "predictions beside logits: the head has a function between the two; "
                    "say it, such as outputs: {predictions: exp(OUTPUT)}"
                )
            return "regression"
        if binary and not regression:
            return "binary"
        problems.append(f"{', '.join(sorted(needed))} of one logit: say --head binary or --head regression")
        return None
    if needed <= {"predictions", "outputs"}:
        return "regression"
    if "class_ids" in needed or "argmax" in functions:
        return "multi_class"
    if gives == "probabilities":
        return "multi_class"
    problems.append(
        f"{', '.join(sorted(needed))} of {columns or 'several'} logits: classes of which one holds (multi_class), or "
        "each for itself (multi_label); say --head multi_class or --head multi_label"
    )
    return None


def function_of(head: str | None, gives: str, classes: tuple[str, ...]) -> Callable[[str, Any], Any]:
    """Return a function (name, model's output [B, K]) -> the tensor that a head gives under that name.

    Args:
        head: of `HEADS`.
        gives: what the model's output is, of `GIVES`.
        classes: names of the classes; empty: "0", "1", …

    Raises (when it is called):
        ConfigError: the head has no such output, or it cannot be made of what the model gives.
    """
    tf = compat.tensorflow()

    def refuse(name: str) -> ConfigError:
        return ConfigError(f"{name} is not what the head {head or '(none)'} makes of {gives}", code="migrate/mismatch")

    def probabilities(values: Any) -> Any:
        if gives == "probabilities":
            return tf.concat([1.0 - values, values], axis=-1) if head == "binary" else values
        if head == "binary":
            # As the canned heads: of two classes, the first of which has the logit 0.
            return tf.nn.softmax(tf.concat([tf.zeros_like(values), values], axis=-1))
        return tf.nn.sigmoid(values) if head == "multi_label" else tf.nn.softmax(values)

    def class_ids(values: Any) -> Any:
        if head == "multi_label":
            raise refuse("class_ids")
        if head == "binary":
            return tf.cast(values > (0.5 if gives == "probabilities" else 0.0), tf.int64)
        return tf.expand_dims(tf.argmax(values, axis=-1, output_type=tf.int64), axis=-1)

    def all_ids(values: Any) -> Any:
        count = 2 if head == "binary" else tf.shape(values)[-1]
        return tf.tile(tf.expand_dims(tf.range(count), 0), [tf.shape(values)[0], 1])

    def named(ids: Any, values: Any) -> Any:
        count = 2 if head == "binary" else values.shape[-1]
        if classes and count not in (None, len(classes)):
            raise ConfigError(
                f"{len(classes)} names of classes ({', '.join(classes[:4])}, …) for {count} classes",
                code="migrate/mismatch",
            )
        return tf.gather(tf.constant(classes), ids) if classes else tf.strings.as_string(ids)

    def make(name: str, values: Any) -> Any:
        if name == "argmax":
            if values.shape.rank == 2 and values.shape[-1] == 1:
                return tf.cast(values[:, 0] > (0.5 if gives == "probabilities" else 0.0), tf.int64)
            return tf.argmax(values, axis=-1)
        if name in ("exp", "sigmoid", "softmax"):
            return {"exp": tf.exp, "sigmoid": tf.nn.sigmoid, "softmax": tf.nn.softmax}[name](values)
        values = tf.cast(values, tf.float32)
        if name == "logits":
            if gives != "logits":
                raise refuse(name)
            return values
        if head == "regression":
            if name not in ("predictions", "outputs") or gives == "probabilities":
                raise refuse(name)
            return values
        if head is None or name == "predictions" or (name in ("logistic", "outputs") and head != "binary"):
            raise refuse(name)
        if name in ("logistic", "outputs"):
            return values if gives == "probabilities" else tf.nn.sigmoid(values)
        if name == "probabilities":
            return probabilities(values)
        # Of labels that hold each for itself, the classes are all classes.
        if name == "class_ids" or (name == "classes" and head != "multi_label"):
            ids = class_ids(values)
            return ids if name == "class_ids" else named(ids, values)
        ids = all_ids(values)
        return ids if name == "all_class_ids" else named(ids, values)

    return make


def classes_in(export: EstimatorExport, answers: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the classes, where the old export tells all of them beside each answer; else empty."""
    for key, signature in export.signatures.items():
        name = "classes" if signature.method == CLASSIFY else "all_classes"
        if name in signature.outputs:
            rows = answers[f"{key}/{name}"]
            if rows.ndim == 2 and len(rows) and (rows == rows[:1]).all():
                return tuple(bytes(one).decode() for one in rows[0])
    return ()
