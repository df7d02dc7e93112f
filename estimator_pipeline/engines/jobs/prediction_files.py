"""Files of predictions: CSV, JSON lines, Parquet or TFRecord, with one record for each predicted record."""

from __future__ import annotations

import contextlib
import csv
import functools
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any

import numpy as np

from estimator_pipeline import compat
from estimator_pipeline.engines.jobs.loaded import Predictions
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.utils import durable_files as durable

__all__ = ["FORMATS", "STANDARD_OUTPUT", "format_of_output", "write_predictions"]

FORMATS = {
    ".csv": "csv", ".tsv": "tsv", ".jsonl": "json", ".json": "json", ".ndjson": "json", ".parquet": "parquet",
    ".tfrecord": "tfrecord",
}  # fmt: skip
"""Ending of a file's name -> its format."""
STANDARD_OUTPUT = "-"
# They follow from the probabilities, or are the same for each record.
_LEFT_OUT = ("logits", "logistic", "all_class_ids", "all_classes")


def format_of_output(path: str) -> str:
    """Return the format of an output file by the ending of its name.

    Raises:
        ConfigError: There is no such format.
    """
    if path == STANDARD_OUTPUT:
        return "csv"
    for ending, name in FORMATS.items():
        if path.lower().endswith(ending):
            return name
    raise ConfigError(
        f"{path} does not end in the name of a format",
        code="argument/bad-value",
        found=f"endings: {', '.join(FORMATS)}",
        hint="name the output for example predictions.csv",
    )


def write_predictions(
    predictions: Predictions,
    path: str,
    *,
    names: Sequence[str] = (),
    progress: Callable[[int], object] = lambda records: None,
) -> tuple[list[str], list[str]]:
    """Write predictions to a file, which appears when it is complete.

    A prediction with several values per record is a list; in CSV it is a column for each value, `probabilities_yes`,
    named by the class if the names of the classes are known, and otherwise by its number.

    Args:
        predictions: The predictions.
        path: The file, whose ending chooses the format; or "-": CSV on standard output.
        names: The predictions to write; (): all that do not follow from others.
        progress: Called with the number of written records.

    Returns:
        The names of the written columns, and of the predictions that were not written.

    Raises:
        ConfigError: There is no such prediction.
    """
    columns: list[str] = []
    left_out: list[str] = []
    kind = format_of_output(path)
    unfinished = path if path == STANDARD_OUTPUT else f"{path}.{os.getpid()}{durable.UNFINISHED}"
    try:
        with _WRITERS[kind](unfinished) as write:
            done, kept = 0, _Kept(predictions.kept)
            for batch in predictions.batches:
                if not columns:
                    names = _chosen(list(batch), names)
                    left_out = [name for name in batch if name not in names]
                count = len(next(iter(batch.values())))
                rows = kept.next(count)
                for name in names:
                    rows |= _values(name if name not in rows else f"predicted_{name}", batch[name],
                                    flat=kind in ("csv", "tsv"), classes=predictions.class_names)  # fmt: skip
                columns = columns or list(rows)
                write(rows)
                done += count
                progress(done)
        if path != STANDARD_OUTPUT:
            durable.rename(unfinished, path)
    except BaseException:
        if path != STANDARD_OUTPUT and os.path.exists(unfinished):
            os.remove(unfinished)
        raise
    return columns, left_out


def _chosen(there: list[str], names: Sequence[str]) -> Sequence[str]:
    for name in names:
        if name not in there:
            raise ConfigError(
                f"the model has no prediction {name!r}",
                code="argument/unknown-name",
                found=f"predictions: {', '.join(there)}",
                hint="name one of these with --output",
            )
    return names or [name for name in there if name.rpartition("/")[2] not in _LEFT_OUT] or there


class _Kept:
    """The kept columns, in batches of the sizes of the predictions."""

    def __init__(self, chunks: Iterator[Mapping[str, np.ndarray]]) -> None:
        self._chunks = chunks
        self._rest: dict[str, np.ndarray] = {}

    def next(self, count: int) -> dict[str, np.ndarray]:
        rest = self._rest
        while chunk := next(self._chunks, None) if not rest or len(next(iter(rest.values()))) < count else None:
            rest = {name: np.concatenate([rest[name], values]) if rest else values for name, values in chunk.items()}
        self._rest = {name: values[count:] for name, values in rest.items()}
        return {name: values[:count] for name, values in rest.items()}


def _values(name: str, values: np.ndarray, *, flat: bool, classes: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the columns of a prediction."""
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim == 1 or not flat:
        return {name: values}
    several = values.reshape(len(values), -1)
    labels = classes if values.shape[1:] == (len(classes),) else range(several.shape[1])
    return {f"{name}_{label}": several[:, number] for number, label in enumerate(labels)}


def _texts(values: np.ndarray) -> Any:
    """Return values as Python texts and numbers; floats have the fewest digits that are read as the same number."""
    if values.dtype.kind == "O":
        return [_texts(v) if isinstance(v, np.ndarray) else _text(v) for v in values]
    if values.dtype.kind == "f":
        return values.astype("U").astype(np.float64).tolist()
    return values.tolist()


def _finite(value: Any) -> Any:
    """Return a value with null for NaN and infinity, which JSON does not have."""
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _text(value: Any) -> Any:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value


_Write = Callable[[Mapping[str, np.ndarray]], None]


@contextlib.contextmanager
def _csv_writer(path: str, delimiter: str = ",") -> Iterator[_Write]:
    with contextlib.ExitStack() as stack:
        file: IO[str] = sys.stdout
        if path != STANDARD_OUTPUT:
            file = stack.enter_context(open(path, "w", encoding="utf-8", newline=""))
        writer, has_header = csv.writer(file, delimiter=delimiter, lineterminator="\n"), False

        def write(rows: Mapping[str, np.ndarray]) -> None:
            nonlocal has_header
            if not has_header:
                writer.writerow(rows)
                has_header = True
            writer.writerows(zip(*(_texts(values) for values in rows.values()), strict=True))

        yield write
        file.flush()


@contextlib.contextmanager
def _json_writer(path: str) -> Iterator[_Write]:
    with open(path, "w", encoding="utf-8") as file:

        def write(rows: Mapping[str, np.ndarray]) -> None:
            for row in zip(*(_texts(values) for values in rows.values()), strict=True):
                record = {name: _finite(value) for name, value in zip(rows, row, strict=True)}
                file.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")

        yield write


@contextlib.contextmanager
def _parquet_writer(path: str) -> Iterator[_Write]:
    import pyarrow as pa
    import pyarrow.parquet

    with contextlib.ExitStack() as stack:
        writer: Any = None

        def array(values: np.ndarray) -> Any:
            if values.dtype.kind == "O":
                return pa.array(_texts(values))
            return pa.array(values if values.ndim == 1 else list(values.reshape(len(values), -1)))

        def write(rows: Mapping[str, np.ndarray]) -> None:
            nonlocal writer
            table = pa.table({name: array(values) for name, values in rows.items()})
            writer = writer or stack.enter_context(pyarrow.parquet.ParquetWriter(path, table.schema))
            writer.write_table(table.cast(writer.schema))

        yield write


@contextlib.contextmanager
def _tfrecord_writer(path: str) -> Iterator[_Write]:
    tf = compat.tensorflow()
    with tf.io.TFRecordWriter(path) as file:

        def write(rows: Mapping[str, np.ndarray]) -> None:
            for row in zip(*rows.values(), strict=True):
                example = tf.train.Example()
                for name, value in zip(rows, row, strict=True):
                    feature, values = example.features.feature[name], np.asarray(value).ravel()
                    if values.dtype.kind == "f":
                        feature.float_list.value.extend(values.tolist())
                    elif values.dtype.kind in "iub":
                        feature.int64_list.value.extend(values.astype(np.int64).tolist())
                    else:
                        feature.bytes_list.value.extend(v if isinstance(v, bytes) else str(v).encode() for v in values)
                file.write(example.SerializeToString())

        yield write


_WRITERS: dict[str, Callable[[str], contextlib.AbstractContextManager[_Write]]] = {
    "csv": _csv_writer,
    "tsv": functools.partial(_csv_writer, delimiter="\t"),
    "json": _json_writer,
    "parquet": _parquet_writer,
    "tfrecord": _tfrecord_writer,
}
