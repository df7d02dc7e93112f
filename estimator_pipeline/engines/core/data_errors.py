"""Errors of training that the records explain: an unknown id, and NaN.

TensorFlow's error has the operation and the value, but neither the feature nor the record. The records are read again
to find them, only after the failure and for a limited time.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.engines.core.context import TaskContext
from estimator_pipeline.errors import DivergedError, InputError, PipelineError
from estimator_pipeline.inputs.sources.tfrecord import ExampleSource
from estimator_pipeline.inputs.value_checks import ValueScan, not_finite
from estimator_pipeline.utils.fixes import fix
from estimator_pipeline.utils.text import counted, few

__all__ = ["explained"]

# Seconds for reading the records again, less than a launcher waits for the cause of a failure.
_READING_SECS = 5.0
_LAST_RECORDS = 100_000
# TensorFlow's message of Gather.
_ID = re.compile(r"indices\[[\d,]*\] = (-?\d+) is not in \[0, (\d+)\)")


def explained(context: TaskContext, error: BaseException) -> PipelineError | None:
    """Return the error that names feature and record; None for a different error, or if no record explains it."""
    if isinstance(error, DivergedError):
        return None if error.found else _not_finite(context, error)  # With `found` it has been here before.
    if not isinstance(error, compat.tensorflow().errors.InvalidArgumentError):
        return None
    text = str(getattr(error, "message", error))
    if match := _ID.search(text):
        return _unknown_id(context, text, int(match[1]), int(match[2]))
    return None


def _inputs(context: TaskContext) -> Iterator[tuple[str, Any]]:
    """Yield the input functions of this package: "training" and "evaluation"."""
    for use, input_fn in (("training", context.input_fn), ("evaluation", getattr(context.eval_spec, "input_fn", None))):
        if hasattr(input_fn, "source"):
            yield use, input_fn


def _unknown_id(context: TaskContext, text: str, value: int, size: int) -> InputError | None:
    for use, input_fn in _inputs(context):
        source, (features, _) = input_fn.source, input_fn.names
        with contextlib.suppress(InputError):
            scan = ValueScan(dict.fromkeys(features, size), wanted=value).read(source, seconds=_READING_SECS)
            # The layer's name has that of the feature in the models of this package, and often in others.
            for name in sorted(scan.bad, key=lambda name: name not in text)[:1]:
                column = scan.columns[name]
                assert column.first is not None
                hint = (
                    _more_ids(name, int(column.most) + 1, text) if value >= 0 else "correct the records: ids start at 0"
                )
                return InputError(
                    f"The feature {name!r} has the id {value}, and the model has {size} ids (0 to {size - 1})",
                    code="data/unknown-id",
                    found=f"{source.place(column.first[0])}; {counted(column.bad, f'{use} record')} with this id, the "
                    f"ids are {column.range}",
                    hint=hint,
                )
    return None  # A model may compute ids.


def _more_ids(name: str, ids: int, text: str) -> str:
    layer = f"correct the records, or give the layer {ids} rows"
    if not re.search(rf"(embedding|wide)_{re.escape(name)}(_\d+)?/", text):
        return layer
    params = f"{{categorical: {{{name}: {ids}}}}}"
    return fix(python=layer, yaml=f"correct the records, or set model: {{params: {params}}}")


def _not_finite(context: TaskContext, error: DivergedError) -> PipelineError | None:
    """Return the error for NaN or an infinity in the training records; `error` with their ranges if all are finite."""
    if not hasattr(context.input_fn, "source"):
        return None
    source, (features, labels) = context.input_fn.source, context.input_fn.names
    numbers = (*features, *labels)
    try:
        scan = ValueScan(numbers=numbers, nullable=source.nullable).read(source, seconds=_READING_SECS)
        if not scan.is_whole and not scan.bad and error.step is not None:
            # Of more data than can be read in this time, the records that training read last.
            ids = context.input_fn.records_before(error.step, most=_LAST_RECORDS)
            last = ValueScan(numbers=numbers, nullable=source.nullable)
            scan = last if last.read(source, seconds=_READING_SECS, records=ids).bad else scan
    except InputError:
        return None
    hints = {name: _default_of(name) for name in features if _is_scalar_example(source, name)}
    if (wrong := not_finite(scan, place=source.place, labels=labels, failure=error.message, hints=hints)) is not None:
        return wrong
    large = [f"{name!r} {column.range}" for name, column in scan.columns.items() if column.is_unscaled]
    records = "all training records" if scan.is_whole else "the first training records"
    plain = DivergedError(
        error.message,
        found=f"{records} are finite; " + (f"far from 0: {few(large)}" if large else "no numbers are far from 0"),
        hint=("scale the numbers that are far from 0, " if large else "")
        + fix(
            python="lower the learning rate, or clip gradients (clip_norm=1.0)",
            yaml="lower model.optimizer.learning_rate, or set model: {clip_norm: 1.0}",
        )
        + "; earlier checkpoints are kept",
    )
    plain.caused_by = error.caused_by
    return plain


def _is_scalar_example(source: Any, name: str) -> bool:
    spec = source.specs()[name]
    return isinstance(source, ExampleSource) and getattr(spec.shape, "rank", None) == 1


def _default_of(name: str) -> str:
    value = fix(
        python=f"{name}=tf.io.FixedLenFeature([], tf.float32, default_value=0.0)",
        yaml=f"input: {{features: {{{name}: {{dtype: float32, default: 0.0}}}}}}",
    )
    return f", or leave the feature out of it and replace it in training: {value}"
