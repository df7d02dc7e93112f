"""CSV files."""

from __future__ import annotations

import csv
import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from estimator_pipeline.errors import InputError
from estimator_pipeline.inputs.features import labels_of
from estimator_pipeline.inputs.input_fn import Inputs
from estimator_pipeline.inputs.options import FactoryOptions, make_options
from estimator_pipeline.inputs.source import ArraySource, Source, file_digest, raw_tensor_specs, tensorflow
from estimator_pipeline.inputs.sources.paths import find_files
from estimator_pipeline.utils import io_errors

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["CsvSource", "examine", "from_csv"]

_TYPES = ("float32", "float64", "int32", "int64", "string")
_STORED_BYTES = 4  # Text of a CSV file takes about as much again once it is parsed; strings up to four times.
_OPEN_FILES = 64


def from_csv(
    train: Any = None,
    eval: Any = None,
    *,
    columns: Mapping[str, Any] | None = None,
    label_key: str | Sequence[str] = "label",
    weight_key: str | None = None,
    features_key: str | Sequence[str] | None = None,
    header: bool = True,
    delimiter: str = ",",
    **options: Unpack[FactoryOptions],
) -> Inputs:
    """Read CSV files as an `input_fn`.

    Every process reads all files once, to parse them (below `memory_limit`) or to find the offsets of their rows;
    the shard policy determines the records it trains on.

    Args:
        train: Files to train on: a path, a pattern, or a list of these.
        eval: Files to evaluate.
        columns: Name -> type ("float32", "float64", "int32", "int64", "string") or (type, default for an
            empty cell). With a header the columns to read, in any order; without one all columns, in the
            order of the files. None, with a header, reads all columns as float32.
        label_key: The column of the label, or a sequence of columns (a dict of tensors then).
        weight_key: The column with the weight of each record (see `estimator_pipeline.models.sample_weights`), a
            further label, so that labels are a dict of tensors.
        features_key: The model's input: one name for its tensor, a sequence for a dict, None for a dict of all
            columns except the labels. Each feature is a tensor of shape (batch,).
        header: Whether the first line of each file names its columns.
        delimiter: The delimiter, one character.
        **options: See `estimator_pipeline.inputs.options.InputOptions`; global_batch_size is required.

    Returns:
        The data, with `train_input_fn` and `eval_input_fn`.

    Raises:
        InputError: Files are missing, or a row does not match `columns`; the message names the file and the
            line. Data above `memory_limit` is parsed while it is read, and bad cells are reported then.
    """
    settings = make_options("from_csv", options)
    if not isinstance(delimiter, str) or len(delimiter) != 1:
        raise InputError(
            "A delimiter is one character", code="argument/bad-value", found=repr(delimiter), hint="use ',' or '\\t'"
        )
    files_by_kind = {
        kind: find_files(files, kind=kind)
        for kind, files in (("training", train), ("evaluation", eval))
        if files is not None
    }
    if not files_by_kind:
        raise InputError("from_csv got no files", code="argument/missing", hint="give train=, eval=, or both")
    if columns is None:
        if not header:
            raise InputError(
                "CSV files without a header need columns",
                code="argument/missing",
                hint="give columns={name: type, ...}",
            )
        columns = dict.fromkeys(_header(next(iter(files_by_kind.values()))[0], delimiter), "float32")
    wanted = tuple(_column(name, kind) for name, kind in columns.items())
    sources: dict[str, Source] = {}
    for kind, paths in files_by_kind.items():
        source = CsvSource(
            paths, columns=wanted, header=header, delimiter=delimiter, description=f"the {kind} CSV files"
        )
        size = sum(os.path.getsize(path) for path in paths) * _STORED_BYTES
        sources[kind] = source.load() if source.num_records and size <= settings.memory_limit else source
    return Inputs(
        train=sources.get("training"),
        evaluation=sources.get("evaluation"),
        options=settings,
        features_key=features_key,
        label_key=labels_of(label_key, weight_key),
    )


@dataclass(frozen=True)
class _Column:
    name: str
    dtype: str
    default: Any = None


class CsvSource(Source):
    """Rows of CSV files, read by the offsets of their lines."""

    part_names: tuple[str, ...]

    def __init__(
        self,
        paths: Sequence[str],
        *,
        columns: Sequence[_Column],
        header: bool,
        delimiter: str,
        description: str,
        counts: tuple[int, ...] | None = None,
    ) -> None:
        self.description = description
        self.part_names = tuple(paths)
        self._digests: dict[str, str] = {}
        self._columns = tuple(columns)
        self._header = header
        self._delimiter = delimiter
        self._open: OrderedDict[str, tuple[np.ndarray, np.ndarray, list[str]]] = OrderedDict()
        self._lock = threading.Lock()
        self.raw_specs = tuple((c.dtype if c.dtype == "string" else np.dtype(c.dtype), ()) for c in columns)
        self.part_records = counts or tuple(len(self._lines(path)[0]) for path in paths)

    def select(self, parts: Sequence[int]) -> CsvSource:
        return CsvSource(
            [self.part_names[i] for i in parts],
            columns=self._columns,
            header=self._header,
            delimiter=self._delimiter,
            description=self.description,
            counts=tuple(self.part_records[i] for i in parts),
        )

    def raw(self, ids: np.ndarray) -> list[np.ndarray]:
        part, record = self.locate(ids)
        arrays = [np.empty(len(ids), dtype=object if d == "string" else d) for d, _ in self.raw_specs]
        for index in np.unique(part):
            chosen = np.flatnonzero(part == index)
            for array, values in zip(arrays, self._rows(self.part_names[index], record[chosen]), strict=True):
                array[chosen] = values
        return arrays

    def digest(self, path: str) -> str | None:
        return self._digests.get(path)

    def is_unchanged(self, path: str) -> bool:
        return self._digests.get(path) == file_digest(path)

    def decode(self, raw: Sequence[Any]) -> dict[str, Any]:
        return {column.name: value for column, value in zip(self._columns, raw, strict=True)}

    def specs(self) -> dict[str, Any]:
        return raw_tensor_specs(tensorflow(), (column.name for column in self._columns), self.raw_specs)

    def loaded_bytes(self) -> int | None:
        # The factory parses small files, so that their errors are reported there.
        return None

    def load(self) -> ArraySource:
        arrays = self.raw(np.arange(self.num_records, dtype=np.int64))
        names = [column.name for column in self._columns]
        return ArraySource(
            dict(zip(names, arrays, strict=True)),
            description=self.description,
            part_names=self.part_names,
            part_records=self.part_records,
            digests=self._digests,
        )

    def _lines(self, path: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
        """Return the offset and line number of each row of a file, and the names of its columns."""
        with self._lock:
            if path in self._open:
                self._open.move_to_end(path)
                return self._open[path]
        starts: list[int] = []
        numbers: list[int] = []
        names: list[str] | None = None if self._header else [column.name for column in self._columns]
        position = 0
        digest = hashlib.sha256()
        with io_errors.naming(path), open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                digest.update(line)
                if line.strip():
                    if line.count(b'"') % 2:
                        raise _broken_line(path, number)
                    if names is None:
                        names = _cells(line, self._delimiter, path, number, first=True)
                        self._check_names(path, names)
                    else:
                        starts.append(position)
                        numbers.append(number)
                position += len(line)
        if names is None:
            raise _no_header(path)
        # The digest of the pass that counted the records is kept.
        self._digests.setdefault(path, digest.hexdigest()[:16])
        lines = np.array(starts, dtype=np.int64), np.array(numbers, dtype=np.int64), names
        with self._lock:
            self._open[path] = lines
            while len(self._open) > _OPEN_FILES:
                self._open.popitem(last=False)
        return lines

    def count(self, path: str, limit: int) -> int:
        """Read the rows of a file up to `limit` bytes in one pass, and return their number."""
        names: list[str] | None = None if self._header else [column.name for column in self._columns]
        places = [] if names is None else list(range(len(names)))
        count = position = 0
        with io_errors.naming(path), open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                if position >= limit:
                    break
                position += len(line)
                if not line.strip():
                    continue
                if line.count(b'"') % 2:
                    raise _broken_line(path, number)
                if names is None:
                    names = _cells(line, self._delimiter, path, number, first=True)
                    self._check_names(path, names)
                    places = [names.index(column.name) for column in self._columns]
                    continue
                self._values(line, names, places, path, number)
                count += 1
        if names is None:
            raise _no_header(path)
        return count

    def _values(self, line: bytes, names: list[str], places: list[int], path: str, number: int) -> list[Any]:
        """Return the values of a row, one for each column."""
        cells = _cells(line, self._delimiter, path, number)
        if len(cells) != len(names):
            raise InputError(
                "A row has a wrong number of cells",
                code="data/bad-record",
                found=f"{path}, line {number}: {len(cells)} cells, {len(names)} columns",
                hint="correct the line, or the delimiter",
            )
        return [_value(cells[i], column, path, number) for i, column in zip(places, self._columns, strict=True)]

    def _check_names(self, path: str, names: list[str]) -> None:
        for column in self._columns:
            if names.count(column.name) != 1:
                often = "not there" if column.name not in names else "there more than once"
                raise InputError(
                    f"The column {column.name!r} is {often}",
                    code="data/missing-feature",
                    found=f"{path}, line 1: {', '.join(names)}",
                    hint="correct columns= or the file's header (header=False if it has none)",
                )

    def _rows(self, path: str, records: np.ndarray) -> list[list[Any]]:
        starts, numbers, names = self._lines(path)
        places = [names.index(column.name) for column in self._columns]
        values_by_column: list[list[Any]] = [[] for _ in self._columns]
        with io_errors.naming(path), open(path, "rb") as file:
            expected = -1
            for record in records.tolist():
                if starts[record] != expected:
                    file.seek(starts[record])
                line, number = file.readline(), int(numbers[record])
                expected = starts[record] + len(line) if record + 1 < len(numbers) else -1
                row = self._values(line, names, places, path, number)
                for values, value in zip(values_by_column, row, strict=True):
                    values.append(value)
        return values_by_column


def _broken_line(path: str, number: int) -> InputError:
    return InputError(
        "A quoted cell contains a line break, so that the file cannot be read by record",
        code="data/bad-record",
        found=f"{path}, line {number}",
        hint="replace the line breaks within cells",
    )


def _no_header(path: str) -> InputError:
    return InputError(
        "A CSV file has no header",
        code="data/bad-record",
        found=f"{path}: empty",
        hint="remove the file, or pass header=False",
    )


def examine(
    paths: Sequence[str], *, columns: Mapping[str, Any], header: bool, delimiter: str, limit: int
) -> tuple[int, ...] | None:
    """Read and check files like `from_csv`, without keeping the data.

    Args:
        paths: The files.
        columns: As for `from_csv`.
        header: Whether the first line of each file names its columns.
        delimiter: The delimiter.
        limit: The number of bytes to read, split equally among the files.

    Returns:
        The number of records in each file; None if the limit left out records.

    Raises:
        InputError: A row does not match `columns`.
    """
    wanted = [_column(name, kind) for name, kind in columns.items()]
    source = CsvSource([], columns=wanted, header=header, delimiter=delimiter, description="the CSV files")
    each = limit // len(paths)
    counts = tuple(source.count(path, each) for path in paths)
    return counts if all(os.path.getsize(path) <= each for path in paths) else None


def _header(path: str, delimiter: str) -> list[str]:
    with io_errors.naming(path), open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                return _cells(line, delimiter, path, number, first=True)
    raise InputError(
        "A CSV file has no header",
        code="data/bad-record",
        found=f"{path}: empty",
        hint="check the file, or give columns= and header=False",
    )


def _cells(line: bytes, delimiter: str, path: str, number: int, *, first: bool = False) -> list[str]:
    try:
        # Spreadsheets put a byte-order mark before the first name.
        text = line.decode("utf-8-sig" if first else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise InputError(
            "A line is not UTF-8 text",
            code="data/bad-record",
            found=f"{path}, line {number}: {error.reason}",
            hint="save the file as UTF-8",
        ) from error
    return next(csv.reader([text], delimiter=delimiter, skipinitialspace=True), [])


def _column(name: str, kind: Any) -> _Column:
    dtype, default = kind if isinstance(kind, (tuple, list)) and len(kind) == 2 else (kind, None)
    if dtype not in _TYPES:
        raise InputError(
            f"The type of the column {name!r} is unknown",
            code="argument/bad-value",
            found=repr(kind),
            hint=f"use {', '.join(_TYPES)}, or (type, default)",
        )
    if default is not None and (isinstance(default, str) != (dtype == "string")):
        raise InputError(
            f"The default of the column {name!r} is not a value of its type",
            code="argument/bad-value",
            found=repr(kind),
            hint="give text for a string column, and a number for other columns",
        )
    return _Column(name, dtype, default)


def _value(cell: str, column: _Column, path: str, number: int) -> Any:
    if column.dtype == "string":
        return (cell or column.default or "").encode()
    cell = cell.strip()
    if not cell:
        if column.default is not None:
            return column.default
        raise InputError(
            f"A cell of the column {column.name!r} is empty",
            code="data/bad-record",
            found=f"{path}, line {number}",
            hint=f"fill it, or give a default: columns={{{column.name!r}: ({column.dtype!r}, 0)}}; in a job file "
            f"columns: {{{column.name}: [{column.dtype}, 0]}}",
        )
    try:
        value = float(cell) if column.dtype.startswith("float") else int(cell)
        if column.dtype.startswith("int") and not np.iinfo(column.dtype).min <= value <= np.iinfo(column.dtype).max:
            raise ValueError
    except ValueError:
        raise InputError(
            f"A cell of the column {column.name!r} is not of type {column.dtype}",
            code="data/bad-record",
            found=f"{path}, line {number}: {cell!r}",
            hint=f"correct the cell, or change the type of the column: columns={{{column.name!r}: 'string'}}; in a job "
            f"file columns: {{{column.name}: string}}",
        ) from None
    return value
