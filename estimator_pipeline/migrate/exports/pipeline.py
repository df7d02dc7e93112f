"""The steps of an export migration: fit the model to the signatures, write, compare, and move into place."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job.tolerances import NAMED
from estimator_pipeline.migrate.exports import outputs as output_mappings
from estimator_pipeline.migrate.exports import read as reading
from estimator_pipeline.migrate.exports import write as writing
from estimator_pipeline.migrate.exports.keras_model import ExportRequest, Input, KerasSide, keras_side
from estimator_pipeline.migrate.exports.outputs import ExportOverrides, OutputMapping
from estimator_pipeline.migrate.exports.read import EstimatorExport, ExportFeature, Signature, Tensor
from estimator_pipeline.migrate.exports.result import ExportRow, MigratedExport
from estimator_pipeline.migrate.exports.sample_inputs import records_for
from estimator_pipeline.migrate.functions import named_function
from estimator_pipeline.utils.arrays import BIT_EQUAL, Tolerance, compare
from estimator_pipeline.utils.text import few

__all__ = ["check", "migrate"]

_SHOWN = 12
_ERROR = re.compile(r"\b\w+Error\b: ")
_SIDES = ("the old export", "the new export")


def check(request: ExportRequest) -> None:
    """Check the arguments before TensorFlow is imported.

    Raises:
        ConfigError: An argument is not valid.
    """
    if (request.job is None) == (request.model is None):
        raise ConfigError(
            "the Keras side requires a job file (--job) or a model (--model)",
            code="argument/missing",
            found="both are set" if request.job is not None else "neither is set",
        )
    if request.settings and request.job is None:
        raise ConfigError(
            "--set requires a job file",
            code="argument/not-applicable",
            hint="name the job file: --job JOB.yaml",
        )
    if request.engine not in (None, "keras", "keras3"):
        raise ConfigError(
            f"unknown engine {request.engine!r}", code="argument/unknown-name", found="allowed: keras, keras3"
        )
    for option, value, allowed in (
        ("head", request.head, output_mappings.HEADS),
        ("gives", request.gives, output_mappings.GIVES),
        ("tolerance", request.tolerance, tuple(NAMED)),
    ):
        if value is not None and value not in allowed:
            raise ConfigError(
                f"--{option} is {value!r}", code="argument/bad-value", found=f"allowed: {', '.join(allowed)}"
            )
    if request.records < 1:
        raise ConfigError(f"--records is {request.records}", code="argument/bad-value", hint="compare at least one")
    if "://" in request.source or "://" in request.output:
        raise ConfigError(
            f"{request.source} -> {request.output}: exports must be on local disks",
            code="argument/bad-value",
            hint="copy the export to a local disk first",
        )
    old, new = os.path.realpath(request.source), os.path.realpath(request.output)
    if new == old or new.startswith(old + os.sep):
        raise ConfigError(
            f"the output {request.output} is inside the old export",
            code="argument/conflict",
            hint="give a different --output",
        )
    if os.path.lexists(request.output) and not request.overwrite:
        raise ConfigError(
            f"{request.output} already exists",
            code="file/exists",
            hint="give a different --output, or --overwrite to replace it",
        )


def migrate(request: ExportRequest, overrides: ExportOverrides) -> MigratedExport:
    """Create the new export and compare it with the old one.

    Raises:
        ConfigError: The model does not fit the export. The message lists all problems.
    """
    side = keras_side(request)
    export = reading.read_export(request.source)
    records, notes = records_for(
        export, examples=request.examples, inputs=request.inputs, count=request.records, seed=request.seed
    )
    old = reading.answers_of(export.path, export.signatures, records, old=True)
    fit = _Fit(request, export, side, overrides, classes=overrides.classes or output_mappings.classes_in(export, old))
    functions = fit.functions()
    with writing.temporary_folder(request.output) as temporary:
        writing.save(temporary, side, functions, export)
        carried = writing.carry_assets(export.path, temporary)
        written = reading.signatures_of(temporary)
        _verify(export, written)
        new = reading.answers_of(temporary, written, records, old=False)
        rows = _rows(export, fit.mappings, old, new, request.tolerance)
        equal = all(row.equal for row in rows)
        if equal or request.allow_mismatch:
            writing.place(temporary, request.output)
    return MigratedExport(
        source=request.source,
        output=request.output if equal or request.allow_mismatch else "",
        rows=rows,
        methods={key: signature.method for key, signature in export.signatures.items()},
        records=max((len(np.atleast_1d(value)) for each in records.values() for value in each.values()), default=0),
        notes=(*export.notes, *side.notes, *fit.notes, *notes, *writing.renamed_inputs(export), *carried, *_empty(old)),
    )


class _Fit:
    """The mapping of a model's inputs and outputs to the old signatures."""

    def __init__(
        self,
        request: ExportRequest,
        export: EstimatorExport,
        side: KerasSide,
        overrides: ExportOverrides,
        *,
        classes: tuple[str, ...],
    ) -> None:
        self._request, self._export, self._side = request, export, side
        self._overrides, self._classes = overrides, classes
        self._function = None if request.features is None else named_function(request.features, option="--features")
        self._problems: list[str] = []
        self.notes: list[str] = []
        self.mappings: dict[str, dict[str, OutputMapping]] = {}
        self._plans = {key: self._plan(signature) for key, signature in export.signatures.items()}
        known = {name for each in export.signatures.values() for name, *_ in self._features(each)}
        for name in overrides.inputs:
            if name not in known:
                self._problems.append(f"inputs.{name}: the old export has no such input or feature")

    def functions(self) -> dict[str, Any]:
        """Trace the function of each signature.

        Raises:
            ConfigError: There are problems.
        """
        self._raise_problems()
        outputs, single = self._outputs()
        self.mappings = output_mappings.output_mappings_of(
            self._export, self._overrides, model_outputs=outputs, single=single, problems=self._problems
        )
        gives = self._request.gives or "logits"
        head = self._request.head or self._side.head
        used = [mapping for each in self.mappings.values() for mapping in each.values()]
        of_heads = [mapping for mapping in used if mapping.function not in output_mappings.NOT_OF_HEADS]
        needs = bool(of_heads)
        if head is None and needs:
            # The columns of the outputs used as logits; a mapping without a name refers to the only output.
            columns = {(outputs[m.of] if m.of else next(iter(outputs.values())))[-1] for m in of_heads}
            head = output_mappings.head_of(
                self.mappings,
                columns=columns.pop() if len(columns) == 1 else None,
                gives=gives,
                problems=self._problems,
            )
        activation = self._side.last_activation()
        if needs and activation and single and self._request.gives is None:
            self._problems.append(
                f"the model's last layer has the activation {activation}, so it returns probabilities, not logits; "
                "set --gives probabilities"
            )
        self._raise_problems()
        make = output_mappings.function_of(head, gives, self._classes)
        functions = {}
        for key, signature in self._export.signatures.items():
            functions[key] = self._traced(signature, lambda each, inputs: self._answer(each, inputs, make))
        self._raise_problems()
        return functions

    def _raise_problems(self) -> None:
        if not self._problems:
            return
        problems = list(dict.fromkeys(self._problems))
        raise ConfigError(
            f"{self._side.description} cannot replace {self._export.path}: {problems[0]}",
            code="migrate/mismatch",
            found=few(problems[1:], _SHOWN - 1, separator="; ") or None,
            hint="change the model, or describe the signature: --signature FILE.yaml (docs/guides/migrate-exports.md)",
        )

    def _outputs(self) -> tuple[dict[str, Any], bool]:
        """Return the shapes of the model's outputs, and whether it is one unnamed."""
        shapes: dict[str, Any] = {}
        single = []

        def answer(signature: Signature, inputs: Mapping[str, Any]) -> dict[str, Any]:
            outputs, is_single = self._side.outputs(self._model_input(signature, inputs))
            single.append(is_single)
            shapes.update({name: tuple(value.shape.as_list()) or (None,) for name, value in outputs.items()})
            return outputs

        self._traced(next(iter(self._export.signatures.values())), answer)
        return shapes, single[0]

    def _traced(self, signature: Signature, answer: writing.Answer) -> Any:
        try:
            return writing.concrete(signature, answer)
        except (ValueError, TypeError, LookupError, AttributeError, compat.tensorflow().errors.OpError) as error:
            lines = str(error).strip().splitlines()
            # TensorFlow puts a stack trace before the error.
            errors = [line.strip() for line in lines if _ERROR.search(line)] or lines
            raise ConfigError(
                f"{self._side.description} fails with the features of the signature {signature.key}",
                code="migrate/mismatch",
                found=errors[0][:300] if errors else type(error).__name__,
                hint="convert them to its input with a function: --features FILE.py:NAME",
            ) from error

    def _features(self, signature: Signature) -> list[tuple[str, ExportFeature | Tensor]]:
        features: list[tuple[str, ExportFeature | Tensor]] = []
        for name, tensor in signature.inputs.items():
            parsed = self._export.parsed.get(tensor.name)
            features += [(name, tensor)] if parsed is None else [(feature.name, feature) for feature in parsed]
        return features

    def _plan(self, signature: Signature) -> dict[str, str]:
        """Map each feature to an input of the model."""
        inputs, features = self._side.inputs, self._features(signature)
        for name, feature in features:
            if isinstance(feature, ExportFeature) and name in self._side.defaults:
                self._check_default(name, feature)
        if self._function is not None:
            return {}
        if inputs is None:
            self._problems.append(
                f"{self._side.description} has no known inputs: start it with tf.keras.Input, or set "
                "--features FILE.py:NAME"
            )
            return {}
        forwarded = {
            text[len("feature(") : -1] for text in self._overrides.outputs.values() if text.startswith("feature(")
        }
        taken = [name for name, _ in features if self._overrides.inputs.get(name, name) is not None]
        only_pair = len(inputs) == 1 and len(taken) == 1 and self._side.form == "tensor"
        plan: dict[str, str] = {}
        for name, feature in features:
            target = self._overrides.inputs.get(name, name)
            if target is None:
                continue
            if target not in inputs and name not in self._overrides.inputs and only_pair:
                # With one tensor on each side, the mapping is unambiguous.
                target = next(iter(inputs))
                self.notes.append(f"the input {name} is the model's {target}, its only input")
            if target not in inputs:
                if name not in forwarded:
                    self._problems.append(
                        f"the model has no input for {signature.key}/{name}, {feature}; its inputs: "
                        f"{', '.join(inputs)}; map it: inputs: {{{name}: INPUT}}, or null if the model does not use it"
                    )
                continue
            if target in plan.values():
                self._problems.append(f"two inputs of {signature.key} are mapped to the model's input {target}")
            plan[name] = target
            self._check(signature.key, name, feature, inputs[target], target)
        for target, model_input in inputs.items():
            if target not in plan.values():
                self._problems.append(
                    f"the signature {signature.key} has no input for the model's {target}, {model_input}"
                )
        self.notes = list(dict.fromkeys(self.notes))
        return plan

    def _check_default(self, name: str, feature: ExportFeature) -> None:
        default = self._side.defaults[name]
        same = (default is None) == (feature.default is None)
        if same and default is not None:
            value = (
                np.asarray([s.encode() for s in np.ravel(default)]) if feature.dtype == "string" else np.ravel(default)
            )
            old = np.ravel(feature.default)
            same = bool((np.broadcast_to(value.astype(old.dtype), old.shape) == old).all())
        if not same:
            old_text = "none (required)" if feature.default is None else np.ravel(feature.default).tolist()
            self._problems.append(
                f"the default of the feature {name} is {old_text} in the old export, but "
                f"{'none (required)' if default is None else default} in the job"
            )

    def _check(self, key: str, name: str, feature: ExportFeature | Tensor, wanted: Input, target: str) -> None:
        sparse = isinstance(feature, ExportFeature) and feature.kind in ("sparse", "ragged")
        if sparse != wanted.sparse:
            self._problems.append(
                f"the input {key}/{name} is {feature}, but the model's {target} is {wanted}; "
                "convert it with a function: --features FILE.py:NAME"
            )
            return
        if not _same_type(feature, wanted):
            self._problems.append(f"the input {key}/{name} is {feature}, but the model's {target} is {wanted}")
            return
        shape: tuple[int | None, ...] | None
        if isinstance(feature, Tensor):
            shape = feature.shape
        else:
            shape = (None, *((None,) if feature.kind == "sequence" else ()), *feature.shape)
        if sparse or shape is None or wanted.shape is None:
            return
        tf = compat.tensorflow()
        if not tf.TensorShape(shape).is_compatible_with(wanted.shape):
            self._problems.append(f"the input {key}/{name} is {feature}, but the model's {target} is {wanted}")

    def _model_input(self, signature: Signature, inputs: Mapping[str, Any]) -> Any:
        tf = compat.tensorflow()
        features = writing.features_of(self._export, signature, inputs)
        if self._function is not None:
            return self._function(features)
        model_inputs = self._side.inputs or {}
        placed = {}
        for name, target in self._plans[signature.key].items():
            dtype = tf.as_dtype(model_inputs[target].dtype)
            placed[target] = features[name] if features[name].dtype == dtype else tf.cast(features[name], dtype)
        if self._side.form == "tensor":
            return next(iter(placed.values()))
        return [placed[name] for name in model_inputs] if self._side.form == "list" else placed

    def _answer(self, signature: Signature, inputs: Mapping[str, Any], make: Any) -> dict[str, Any]:
        tf = compat.tensorflow()
        outputs, _ = self._side.outputs(self._model_input(signature, inputs))
        features = writing.features_of(self._export, signature, inputs)
        answers = {}
        for name, tensor in signature.outputs.items():
            mapping = self.mappings[signature.key][name]
            if mapping.function == "feature":
                if mapping.of not in features:
                    self._problems.append(f"outputs.{name}: {signature.key} has no input {mapping.of}")
                    continue
                value = features[mapping.of]
            else:
                base = outputs[mapping.of] if mapping.of is not None else next(iter(outputs.values()))
                try:
                    value = base if mapping.function == "identity" else make(mapping.function, base)
                except ConfigError as error:
                    self._problems.append(f"output {signature.key}/{name}: {error.message}")
                    continue
            value = _as_class(value, mapping, tensor)
            actual = Tensor("", value.dtype.name, None if value.shape.rank is None else tuple(value.shape.as_list()))
            if actual.dtype != tensor.dtype or not value.shape.is_compatible_with(tf.TensorShape(tensor.shape)):
                self._problems.append(
                    f"output {signature.key}/{name} is {tensor}, but the model's {mapping} is {actual}"
                )
                continue
            answers[name] = tf.identity(tf.ensure_shape(value, tensor.shape), name=None)
        return answers


def _as_class(value: Any, mapping: OutputMapping, tensor: Tensor) -> Any:
    """Convert a class output to the rank and dtype of the old export."""
    tf = compat.tensorflow()
    if mapping.function not in ("argmax", "class_ids", "classes"):
        return value
    if value.shape.rank == 2 and tensor.rank == 1 and value.shape[-1] == 1:
        value = tf.squeeze(value, -1)
    elif value.shape.rank == 1 and tensor.rank == 2:
        value = tf.expand_dims(value, -1)
    number = mapping.function != "classes" and tf.as_dtype(tensor.dtype) not in (tf.string, tf.bool)
    return tf.cast(value, tensor.dtype) if number else value


def _same_type(feature: ExportFeature | Tensor, wanted: Input) -> bool:
    if feature.dtype == wanted.dtype:
        return True
    if isinstance(feature, Tensor):
        return False
    # A tf.Example has only float32, int64 and strings, so a different dtype of the same kind requires a cast.
    dtype = compat.tensorflow().as_dtype(wanted.dtype)
    return (feature.dtype == "float32" and dtype.is_floating) or (
        feature.dtype == "int64" and (dtype.is_integer or dtype.is_bool)
    )


def _verify(export: EstimatorExport, written: Mapping[str, Signature]) -> None:
    """Compare the written signatures with those of the old export.

    Raises:
        ConfigError: Names, methods or dtypes differ.
    """
    wrong = []
    for key, old in export.signatures.items():
        new = written.get(key)
        if new is None or new.method != old.method:
            wrong.append(f"signature {key}")
            continue
        for kind, olds, news in (("input", old.inputs, new.inputs), ("output", old.outputs, new.outputs)):
            wrong += [f"{kind} {key}/{name}" for name in {*olds, *news} if name not in olds or name not in news]
            both = [name for name in olds if name in news]
            wrong += [f"{kind} {key}/{name}: {news[name]}" for name in both if olds[name].dtype != news[name].dtype]
    wrong += [f"signature {key}" for key in written if key not in export.signatures]
    if wrong:
        raise ConfigError(
            "TensorFlow wrote signatures that differ from those of the old export",
            code="migrate/failed",
            found="; ".join(wrong),
        )


def _rows(
    export: EstimatorExport,
    mappings: Mapping[str, Mapping[str, OutputMapping]],
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    tolerance: str,
) -> tuple[ExportRow, ...]:
    def allowed(name: str) -> Tolerance:
        return NAMED[tolerance] if old[name].dtype.kind == "f" else BIT_EQUAL

    differences = {each.name: each for each in compare(old, new, tolerance=allowed, sides=_SIDES).differences}
    rows = []
    for key, signature in export.signatures.items():
        for name in signature.outputs:
            difference = differences.get(f"{key}/{name}")
            rows.append(
                ExportRow(
                    signature=key,
                    output=name,
                    meaning=str(mappings[key][name]),
                    absolute=difference.largest_absolute if difference else 0.0,
                    relative=difference.largest_relative if difference else 0.0,
                    tolerance=tolerance if old[f"{key}/{name}"].dtype.kind == "f" else "bit_equal",
                    equal=difference is None or difference.within,
                    message=difference.message if difference else "",
                )
            )
    return tuple(rows)


def _empty(old: Mapping[str, Any]) -> list[str]:
    """Report outputs without finite numbers, which the comparison cannot check."""
    return [
        f"{name} of the old export has no finite number, so its comparison proves nothing"
        for name, value in old.items()
        if value.size == 0 or (value.dtype.kind == "f" and not np.isfinite(value).any())
    ]
