"""Mapping of each output of an old export to a function of a Keras model's outputs.

The heads of tf.estimator use fixed names for their outputs, which determine the mapping. If a name is unknown or
ambiguous, the user defines the mapping in a file. There is no other inference.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.migrate.exports.read import CLASSIFY, REGRESS, EstimatorExport, Tensor
from estimator_pipeline.utils.io_errors import code_of

__all__ = ["GIVES", "HEADS", "NOT_OF_HEADS", "ExportOverrides", "OutputMapping", "output_mappings_of", "read_overrides"]

HEADS = ("multi_class", "binary", "multi_label", "regression")
GIVES = ("logits", "probabilities", "predictions")
# Names of the heads' outputs in a signature for predictions.
_OF_HEADS = (
    "logits", "probabilities", "class_ids", "classes", "all_class_ids", "all_classes", "logistic", "predictions",
)  # fmt: skip
_PLAIN = ("identity", "exp", "sigmoid", "softmax", "argmax")
# Common names for the class with the largest logit. An integer output with such a name is mapped to it, and the
# comparison of the outputs verifies that.
_CLASS = re.compile(
    r"(.*_)?(class(es)?|class_?ids?|labels?|pred(s|ictions?|icted\w*)?|ids?|argmax|output)", re.IGNORECASE
)
NOT_OF_HEADS = (*_PLAIN, "feature")
_CALL = re.compile(r"(\w+)\((.+)\)")


class ExportOverrides(BaseModel, frozen=True, extra="forbid"):
    """The user's explicit mapping of an export.

    Attributes:
        outputs: Output of the old export (`probabilities`, or `predict/probabilities`) -> a function of the heads, an
            output of the model, `FUNCTION(OUTPUT)`, or `feature(INPUT)`.
        inputs: Input or feature of the old export -> input of the model; None if the model does not use it.
        classes: Names of the classes.
    """

    outputs: dict[str, str] = {}
    inputs: dict[str, str | None] = {}
    classes: tuple[Annotated[str, Field(coerce_numbers_to_str=True)], ...] = ()


@dataclasses.dataclass(frozen=True)
class OutputMapping:
    """The meaning of one output of a signature.

    Attributes:
        function: A name of `_OF_HEADS`, "identity", "exp", "sigmoid", "softmax", "argmax" or "feature".
        of: The output of the model (None: its only output), or the input.
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
        ConfigError: The file cannot be read, or has other content.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        content = YAML(typ="safe").load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, YAMLError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", code=code_of(error)) from error
    return overrides_of(content, source=str(path))


def overrides_of(content: Any, *, source: str) -> ExportOverrides:
    """Convert a mapping with `inputs`, `outputs` and `classes`.

    Raises:
        ConfigError: The mapping has other content.
    """
    if isinstance(content, Mapping):
        content = {name: value for name, value in content.items() if value is not None}
    try:
        return ExportOverrides.model_validate(content)
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, each['loc'])) or 'file'}: {each['msg']}" for each in error.errors()]
        raise ConfigError(
            f"{source} does not describe signatures",
            code="file/bad-format",
            found="; ".join(wrong),
            hint="use only inputs, outputs and classes, such as outputs: {scores: probabilities}",
        ) from error


def output_mappings_of(
    export: EstimatorExport,
    overrides: ExportOverrides,
    *,
    model_outputs: Mapping[str, Any],
    single: bool,
    problems: list[str],
) -> dict[str, dict[str, OutputMapping]]:
    """Map each output of each signature.

    Args:
        export: The old export.
        overrides: The user's explicit mapping.
        model_outputs: The model's outputs by name.
        single: Whether the model has a single output without an explicit name.
        problems: The list to which outputs without a counterpart, and ambiguous ones, are added.

    Returns:
        Signature key -> output -> its mapping.
    """
    mappings: dict[str, dict[str, OutputMapping]] = {}
    used = set()
    for key, signature in export.signatures.items():
        mappings[key] = {}
        for name, tensor in signature.outputs.items():
            explicit = next((field for field in (f"{key}/{name}", name) if field in overrides.outputs), None)
            if explicit is not None:
                used.add(explicit)
                mapping = _explicit(overrides.outputs[explicit], model_outputs, signature.inputs, problems, explicit)
            elif not single and name in model_outputs:
                mapping = OutputMapping("identity", name)
            else:
                mapping = _inferred(signature.method, key, name, tensor, model_outputs, problems)
            if mapping is not None:
                mappings[key][name] = mapping
    # A field for one signature hides the field for all signatures, which is not an error.
    known = {field for key, each in export.signatures.items() for name in each.outputs
             for field in (name, f"{key}/{name}")}  # fmt: skip
    for name in overrides.outputs:
        if name not in used and name not in known:
            problems.append(f"outputs.{name}: the old export has no such output")
    return mappings


def _explicit(
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
        f"{where}: the model has several outputs ({', '.join(model_outputs)}); name one: "
        f"outputs: {{{where}: {function}({next(iter(model_outputs))})}}"
    )
    return None


def _inferred(
    method: str, key: str, name: str, tensor: Tensor, model_outputs: Mapping[str, Any], problems: list[str]
) -> OutputMapping | None:
    where = f"{key}/{name}"
    integer = tensor.dtype.startswith(("int", "uint"))
    # The heads of tf.estimator return class_ids of shape [B, 1]; tf.argmax in a model_fn has one dimension.
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
    problems.append(f"output {where} {why}; define it: outputs: {{{name}: {such}}}, or an output of the model")
    return None


def head_of(
    mappings: Mapping[str, Mapping[str, OutputMapping]], *, columns: int | None, gives: str, problems: list[str]
) -> str | None:
    """Return the head implied by the names of the outputs; None: no head needed.

    Args:
        mappings: The result of `output_mappings_of`.
        columns: The number of columns of the model's logits.
        gives: The kind of the model's outputs, of `GIVES`.
        problems: The list to which ambiguities are added.
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
                    "predictions and logits: the head applies a function to the logits; "
                    "define it, such as outputs: {predictions: exp(OUTPUT)}"
                )
            return "regression"
        if binary and not regression:
            return "binary"
        problems.append(f"{', '.join(sorted(needed))} of one logit: set --head binary or --head regression")
        return None
    if needed <= {"predictions", "outputs"}:
        return "regression"
    if "class_ids" in needed or "argmax" in functions:
        return "multi_class"
    if gives == "probabilities":
        return "multi_class"
    problems.append(
        f"{', '.join(sorted(needed))} of {columns or 'several'} logits: exclusive classes (multi_class) or independent "
        "ones (multi_label); set --head multi_class or --head multi_label"
    )
    return None


def function_of(head: str | None, gives: str, classes: tuple[str, ...]) -> Callable[[str, Any], Any]:
    """Return a function from the model's output to the head's outputs.

    Args:
        head: A name of `HEADS`.
        gives: The kind of the model's output, of `GIVES`.
        classes: Names of the classes; empty: "0", "1", …

    Raises (when the function is called):
        ConfigError: The head has no such output, or it cannot be computed from the model's output.
    """
    tf = compat.tensorflow()

    def unsupported(name: str) -> ConfigError:
        return ConfigError(f"the head {head or '(none)'} cannot compute {name} from {gives}", code="migrate/mismatch")

    def probabilities(values: Any) -> Any:
        if gives == "probabilities":
            return tf.concat([1.0 - values, values], axis=-1) if head == "binary" else values
        if head == "binary":
            # As in the canned heads: two classes, and the first has the logit 0.
            return tf.nn.softmax(tf.concat([tf.zeros_like(values), values], axis=-1))
        return tf.nn.sigmoid(values) if head == "multi_label" else tf.nn.softmax(values)

    def class_ids(values: Any) -> Any:
        if head == "multi_label":
            raise unsupported("class_ids")
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
                f"{len(classes)} class names ({', '.join(classes[:4])}, …) for {count} classes",
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
                raise unsupported(name)
            return values
        if head == "regression":
            if name not in ("predictions", "outputs") or gives == "probabilities":
                raise unsupported(name)
            return values
        if head is None or name == "predictions" or (name in ("logistic", "outputs") and head != "binary"):
            raise unsupported(name)
        if name in ("logistic", "outputs"):
            return values if gives == "probabilities" else tf.nn.sigmoid(values)
        if name == "probabilities":
            return probabilities(values)
        # With independent labels, `classes` are all classes.
        if name == "class_ids" or (name == "classes" and head != "multi_label"):
            ids = class_ids(values)
            return ids if name == "class_ids" else named(ids, values)
        ids = all_ids(values)
        return ids if name == "all_class_ids" else named(ids, values)

    return make


def classes_in(export: EstimatorExport, answers: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the class names if the old export outputs all of them."""
    for key, signature in export.signatures.items():
        name = "classes" if signature.method == CLASSIFY else "all_classes"
        if name in signature.outputs:
            rows = answers[f"{key}/{name}"]
            if rows.ndim == 2 and len(rows) and (rows == rows[:1]).all():
                return tuple(bytes(name).decode() for name in rows[0])
    return ()
