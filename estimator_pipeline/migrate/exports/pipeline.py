"""From an old export and a Keras model to the new export: fitted, written, compared, put in its place."""

from __future__ import annotations

import dataclasses
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
from estimator_pipeline.migrate.exports.keras_model import Input, KerasSide, ModelRequest, keras_side
from estimator_pipeline.migrate.exports.outputs import ExportOverrides, OutputMapping
from estimator_pipeline.migrate.exports.read import EstimatorExport, ExportFeature, Signature, Tensor
from estimator_pipeline.migrate.exports.result import ExportRow, MigratedExport
from estimator_pipeline.migrate.exports.sample_inputs import records_for
from estimator_pipeline.migrate.functions import named_function
from estimator_pipeline.utils.arrays import BIT_EQUAL, Tolerance, compare

__all__ = ["ExportRequest", "check", "migrate"]

_SHOWN = 12
_ERROR = re.compile(r"\b\w+Error\b: ")
_SIDES = ("the old export", "the new one")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportRequest:
    """What is to be done; see `estimator_pipeline.migrate.migrate_export`."""

    source: str
    output: str
    head: str | None
    gives: str | None
    features: Any
    examples: str | None
    inputs: str | None
    records: int
    seed: int
    tolerance: str
    overwrite: bool
    allow_mismatch: bool


def check(asked: ExportRequest) -> None:
    """Refuses what cannot work, before TensorFlow is imported.

    Raises:
        ConfigError: it cannot.
    """
    for what, value, allowed in (
        ("head", asked.head, output_mappings.HEADS),
        ("gives", asked.gives, output_mappings.GIVES),
        ("tolerance", asked.tolerance, tuple(NAMED)),
    ):
        if value is not None and value not in allowed:
            raise ConfigError(
                f"--{what} is {value!r}", code="argument/bad-value", found=f"allowed: {', '.join(allowed)}"
            )
    if asked.records < 1:
        raise ConfigError(f"--records is {asked.records}", code="argument/bad-value", hint="compare at least one")
    if "://" in asked.source or "://" in asked.output:
        raise ConfigError(
            f"{asked.source} -> {asked.output}: exports are read and written on local disks",
            code="argument/bad-value",
            hint="copy it first",
        )
    old, new = os.path.realpath(asked.source), os.path.realpath(asked.output)
    if new == old or new.startswith(old + os.sep):
        raise ConfigError(
            f"the output {asked.output} lies in the old export", code="argument/conflict", hint="give another --output"
        )
    if os.path.lexists(asked.output) and not asked.overwrite:
        raise ConfigError(
            f"{asked.output} is there already",
            code="file/exists",
            hint="give another --output, or --overwrite to replace it",
        )


def migrate(asked: ExportRequest, request: ModelRequest, overrides: ExportOverrides) -> MigratedExport:
    """Make the new export.

    Raises:
        ConfigError: something does not fit; all of it is named.
    """
    side = keras_side(request)
    export = reading.read_export(asked.source)
    given, notes = records_for(
        export, examples=asked.examples, inputs=asked.inputs, count=asked.records, seed=asked.seed
    )
    old = reading.answers_of(export.path, export.signatures, given, old=True)
    fit = _Fit(asked, export, side, overrides, classes=overrides.classes or output_mappings.classes_in(export, old))
    functions = fit.functions()
    with writing.own_folder(asked.output) as temporary:
        writing.save(temporary, side, functions, export)
        carried = writing.carry_assets(export.path, temporary)
        written = reading.signatures_of(temporary)
        _verify(export, written)
        new = reading.answers_of(temporary, written, given, old=False)
        rows = _rows(export, fit.mappings, old, new, asked.tolerance)
        equal = all(row.equal for row in rows)
        if equal or asked.allow_mismatch:
            writing.place(temporary, asked.output)
    return MigratedExport(
        source=asked.source,
        output=asked.output if equal or asked.allow_mismatch else "",
        rows=rows,
        methods={key: signature.method for key, signature in export.signatures.items()},
        records=max((len(np.atleast_1d(value)) for each in given.values() for value in each.values()), default=0),
        notes=(*export.notes, *side.notes, *fit.notes, *notes, *writing.renamed_inputs(export), *carried, *_empty(old)),
    )


class _Fit:
    """How a model's inputs and outputs are those of the old signatures; all that stands against it is collected."""

    def __init__(
        self,
        asked: ExportRequest,
        export: EstimatorExport,
        side: KerasSide,
        overrides: ExportOverrides,
        *,
        classes: tuple[str, ...],
    ) -> None:
        self._asked, self._export, self._side, self._overrides, self._classes = asked, export, side, overrides, classes
        self._function = None if asked.features is None else named_function(asked.features, option="--features")
        self._problems: list[str] = []
        self.notes: list[str] = []
        self.mappings: dict[str, dict[str, OutputMapping]] = {}
        self._plans = {key: self._plan(signature) for key, signature in export.signatures.items()}
        known = {name for each in export.signatures.values() for name, *_ in self._given(each)}
        for name in overrides.inputs:
            if name not in known:
                self._problems.append(f"inputs.{name}: the old export has no such input or feature")

    def functions(self) -> dict[str, Any]:
        """Signature key -> its function.

        Raises:
            ConfigError: something does not fit.
        """
        self._refuse()
        outputs, single = self._outputs()
        self.mappings = output_mappings.output_mappings_of(
            self._export, self._overrides, model_outputs=outputs, single=single, problems=self._problems
        )
        gives = self._asked.gives or "logits"
        head = self._asked.head or self._side.head
        used = [one for each in self.mappings.values() for one in each.values()]
        of_heads = [one for one in used if one.function not in output_mappings.NOT_OF_HEADS]
        needs = bool(of_heads)
        if head is None and needs:
            # Of the outputs that are taken for logits; one that a person has not named is the only one.
            columns = {(outputs[one.of] if one.of else next(iter(outputs.values())))[-1] for one in of_heads}
            head = output_mappings.head_of(
                self.mappings,
                columns=columns.pop() if len(columns) == 1 else None,
                gives=gives,
                problems=self._problems,
            )
        activation = self._side.last_activation()
        if needs and activation and single and self._asked.gives is None:
            self._problems.append(
                f"the model's last layer has the activation {activation}: it gives probabilities, not logits; "
                "say --gives probabilities"
            )
        self._refuse()
        make = output_mappings.function_of(head, gives, self._classes)
        found = {}
        for key, signature in self._export.signatures.items():
            found[key] = self._traced(signature, lambda each, given: self._answer(each, given, make))
        self._refuse()
        return found

    def _refuse(self) -> None:
        if not self._problems:
            return
        told = list(dict.fromkeys(self._problems))
        rest = len(told) - _SHOWN
        more = [*told[1:_SHOWN], *([f"and {rest} more"] if rest > 0 else [])]
        raise ConfigError(
            f"{self._side.what} cannot answer as {self._export.path} does: {told[0]}",
            code="migrate/mismatch",
            found="; ".join(more) or None,
            hint="change the model, or describe the signature: --signature FILE.yaml (docs/guides/migrate-exports.md)",
        )

    def _outputs(self) -> tuple[dict[str, Any], bool]:
        """Return the model's outputs: name -> shape, as traced on the first signature."""
        found: dict[str, Any] = {}
        single = []

        def answer(signature: Signature, given: Mapping[str, Any]) -> dict[str, Any]:
            outputs, one = self._side.outputs(self._model_input(signature, given))
            single.append(one)
            found.update({name: tuple(value.shape.as_list()) or (None,) for name, value in outputs.items()})
            return outputs

        self._traced(next(iter(self._export.signatures.values())), answer)
        return found, single[0]

    def _traced(self, signature: Signature, answer: writing.Answer) -> Any:
        try:
            return writing.concrete(signature, answer)
        except (ValueError, TypeError, LookupError, AttributeError, compat.tensorflow().errors.OpError) as error:
            lines = str(error).strip().splitlines()
            # TensorFlow tells the way to an error before the error.
            told = [line.strip() for line in lines if _ERROR.search(line)] or lines
            raise ConfigError(
                f"{self._side.what} does not take the features of the signature {signature.key}",
                code="migrate/mismatch",
                found=told[0][:300] if told else type(error).__name__,
                hint="make its input of them with a function: --features FILE.py:NAME",
            ) from error

    def _given(self, signature: Signature) -> list[tuple[str, ExportFeature | Tensor]]:
        found: list[tuple[str, ExportFeature | Tensor]] = []
        for name, tensor in signature.inputs.items():
            parsed = self._export.parsed.get(tensor.name)
            found += [(name, tensor)] if parsed is None else [(feature.name, feature) for feature in parsed]
        return found

    def _plan(self, signature: Signature) -> dict[str, str]:
        """Feature -> the model's input."""
        inputs, given = self._side.inputs, self._given(signature)
        for name, feature in given:
            if isinstance(feature, ExportFeature) and name in self._side.defaults:
                self._check_default(name, feature)
        if self._function is not None:
            return {}
        if inputs is None:
            self._problems.append(
                f"{self._side.what} does not say what it takes: begin it with tf.keras.Input, or give "
                "--features FILE.py:NAME"
            )
            return {}
        forwarded = {
            text[len("feature(") : -1] for text in self._overrides.outputs.values() if text.startswith("feature(")
        }
        taken = [name for name, _ in given if self._overrides.inputs.get(name, name) is not None]
        alone = len(inputs) == 1 and len(taken) == 1 and self._side.form == "tensor"
        found: dict[str, str] = {}
        for name, feature in given:
            target = self._overrides.inputs.get(name, name)
            if target is None:
                continue
            if target not in inputs and name not in self._overrides.inputs and alone:
                # One tensor on either side leaves no choice.
                target = next(iter(inputs))
                self.notes.append(f"the input {name} is the model's {target}: there is no other")
            if target not in inputs:
                if name not in forwarded:
                    self._problems.append(
                        f"the input {signature.key}/{name}, {feature}, is none of the model's ({', '.join(inputs)}); "
                        f"inputs: {{{name}: INPUT}}, or null where it does without"
                    )
                continue
            if target in found.values():
                self._problems.append(f"the model's input {target} is given twice in {signature.key}")
            found[name] = target
            self._check(signature.key, name, feature, inputs[target], target)
        for target, one in inputs.items():
            if target not in found.values():
                self._problems.append(f"the model's input {target}, {one}, is nothing in the signature {signature.key}")
        self.notes = list(dict.fromkeys(self.notes))
        return found

    def _check_default(self, name: str, feature: ExportFeature) -> None:
        said = self._side.defaults[name]
        same = (said is None) == (feature.default is None)
        if same and said is not None:
            value = np.asarray([s.encode() for s in np.ravel(said)]) if feature.dtype == "string" else np.ravel(said)
            old = np.ravel(feature.default)
            same = bool((np.broadcast_to(value.astype(old.dtype), old.shape) == old).all())
        if not same:
            old_text = "none: there must be one" if feature.default is None else np.ravel(feature.default).tolist()
            self._problems.append(
                f"the default of the feature {name} is {old_text} in the old export, and "
                f"{'none: there must be one' if said is None else said} in the job"
            )

    def _check(self, key: str, name: str, feature: ExportFeature | Tensor, wanted: Input, target: str) -> None:
        sparse = isinstance(feature, ExportFeature) and feature.kind in ("sparse", "ragged")
        if sparse != wanted.sparse:
            self._problems.append(
                f"the input {key}/{name} is {feature}, and the model's {target} is {wanted}; "
                "make the one of the other with a function: --features FILE.py:NAME"
            )
            return
        if not _same_type(feature, wanted):
            self._problems.append(f"the input {key}/{name} is {feature}, and the model's {target} is {wanted}")
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
            self._problems.append(f"the input {key}/{name} is {feature}, and the model's {target} is {wanted}")

    def _model_input(self, signature: Signature, given: Mapping[str, Any]) -> Any:
        tf = compat.tensorflow()
        features = writing.features_of(self._export, signature, given)
        if self._function is not None:
            return self._function(features)
        inputs = self._side.inputs or {}
        placed = {}
        for name, target in self._plans[signature.key].items():
            dtype = tf.as_dtype(inputs[target].dtype)
            placed[target] = features[name] if features[name].dtype == dtype else tf.cast(features[name], dtype)
        if self._side.form == "tensor":
            return next(iter(placed.values()))
        return [placed[name] for name in inputs] if self._side.form == "list" else placed

    def _answer(self, signature: Signature, given: Mapping[str, Any], make: Any) -> dict[str, Any]:
        tf = compat.tensorflow()
        outputs, _ = self._side.outputs(self._model_input(signature, given))
        features = writing.features_of(self._export, signature, given)
        found = {}
        for name, tensor in signature.outputs.items():
            one = self.mappings[signature.key][name]
            if one.function == "feature":
                if one.of not in features:
                    self._problems.append(f"outputs.{name}: {signature.key} has no input {one.of}")
                    continue
                value = features[one.of]
            else:
                base = outputs[one.of] if one.of is not None else next(iter(outputs.values()))
                try:
                    value = base if one.function == "identity" else make(one.function, base)
                except ConfigError as error:
                    self._problems.append(f"output {signature.key}/{name}: {error.message}")
                    continue
            value = _as_class(value, one, tensor)
            made = Tensor("", value.dtype.name, None if value.shape.rank is None else tuple(value.shape.as_list()))
            if made.dtype != tensor.dtype or not value.shape.is_compatible_with(tf.TensorShape(tensor.shape)):
                self._problems.append(f"output {signature.key}/{name} is {tensor}, and the model's {one} is {made}")
                continue
            found[name] = tf.identity(tf.ensure_shape(value, tensor.shape), name=None)
        return found


def _as_class(value: Any, mapping: OutputMapping, tensor: Tensor) -> Any:
    """A class as the old export gives it: of one dimension or two, as an integer of another size, or a float."""
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
    # An example holds float32, int64 and strings; another type of the same kind can only be a cast.
    one = compat.tensorflow().as_dtype(wanted.dtype)
    return (feature.dtype == "float32" and one.is_floating) or (
        feature.dtype == "int64" and (one.is_integer or one.is_bool)
    )


def _verify(export: EstimatorExport, written: Mapping[str, Signature]) -> None:
    """Hold what was written against what it was to be.

    Raises:
        ConfigError: the names are others.
    """
    wrong = []
    for key, old in export.signatures.items():
        new = written.get(key)
        if new is None or new.method != old.method:
            wrong.append(f"signature {key}")
            continue
        for kind, one, other in (("input", old.inputs, new.inputs), ("output", old.outputs, new.outputs)):
            wrong += [f"{kind} {key}/{name}" for name in {*one, *other} if name not in one or name not in other]
            both = [name for name in one if name in other]
            wrong += [f"{kind} {key}/{name}: {other[name]}" for name in both if one[name].dtype != other[name].dtype]
    wrong += [f"signature {key}" for key in written if key not in export.signatures]
    if wrong:
        raise ConfigError(
            "TensorFlow wrote other signatures than those of the old export",
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
            found = differences.get(f"{key}/{name}")
            rows.append(
                ExportRow(
                    signature=key,
                    output=name,
                    meaning=str(mappings[key][name]),
                    absolute=found.largest_absolute if found else 0.0,
                    relative=found.largest_relative if found else 0.0,
                    tolerance=tolerance if old[f"{key}/{name}"].dtype.kind == "f" else "bit_equal",
                    equal=found is None or found.within,
                    message=found.message if found else "",
                )
            )
    return tuple(rows)


def _empty(old: Mapping[str, Any]) -> list[str]:
    """Answers by which nothing is proven."""
    return [
        f"{name} of the old export has no number in it: the comparison says nothing there"
        for name, value in old.items()
        if value.size == 0 or (value.dtype.kind == "f" and not np.isfinite(value).any())
    ]
