"""JSON lines: files with one JSON object per line, such as the records of a log."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, cast

from estimator_pipeline.errors import InputError
from estimator_pipeline.inputs.source import file_digest
from estimator_pipeline.inputs.sources.columns import NULL_WORDS, Column, dtype_of
from estimator_pipeline.inputs.sources.table_format import TableBlock, TableFormat, check_names
from estimator_pipeline.utils import io_errors

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["JsonLinesFormat"]

_BLOCK_BYTES = 2**22


@dataclass(frozen=True)
class JsonLinesFormat(TableFormat):
    """JSON lines. A name that a line lacks, and null, are missing values."""

    null_words: Sequence[str] = NULL_WORDS

    noun = "JSON lines"

    def names(self, path: str) -> list[str]:
        return next((_names(records) for records, _ in _blocks(path)), [])

    def types(self, path: str) -> dict[str, str]:
        records = next((records for records, _ in _blocks(path)), [])
        return {name: dtype_of(_array(path, name, records).type) for name in _names(records)}

    def blocks(self, path: str, columns: Sequence[Column], digest: Callable[[str], None]) -> Iterator[TableBlock]:
        names = [column.name for column in columns]
        for number, (records, end) in enumerate(_blocks(path)):
            if number == 0:  # A later block may lack a value that is often missing.
                check_names(path, _names(records), names)
            yield TableBlock([_array(path, name, records) for name in names], end)
        digest(file_digest(path))

    def places(self, path: str, rows: Sequence[int]) -> list[str]:
        wanted, places = list(rows), list[str]()
        with io_errors.naming(path), _opened(path) as file:
            record = -1
            for number, line in enumerate(file, 1):
                record += bool(line.strip())
                if len(places) < len(wanted) and record == wanted[len(places)]:
                    places.append(f"line {number}")
        return places


def _opened(path: str) -> IO[bytes]:
    return cast("IO[bytes]", (gzip.open if path.endswith(".gz") else open)(path, "rb"))


def _blocks(path: str) -> Iterator[tuple[list[dict[str, Any]], int]]:
    """Yield some records of a file, and the number of bytes of the file up to their end, about."""
    number, done = 0, 0
    with io_errors.naming(path), _opened(path) as file:
        while lines := file.readlines(_BLOCK_BYTES):
            records = []
            for line in lines:
                number += 1
                if line.strip():
                    records.append(_record(path, number, line))
            done += sum(map(len, lines))
            if records:
                yield records, done


def _record(path: str, number: int, line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
        problem = None if isinstance(record, dict) else f"a value of the type {type(record).__name__}"
    except ValueError as error:
        problem = str(error)
    if problem is not None:
        raise InputError(
            "A line of a file of JSON lines is not an object",
            code="data/bad-record",
            found=f"{path}, line {number}: {problem}",
            hint='write one object per line, such as {"age": 31, "city": "Rome"}',
        )
    return cast("dict[str, Any]", record)


def _names(records: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for record in records for name in record))


def _array(path: str, name: str, records: Sequence[Mapping[str, Any]]) -> pa.Array:
    """Return the values of a name: typed, or as text if there is any text among them."""
    import pyarrow as pa

    values = [record.get(name) for record in records]
    if any(isinstance(value, str) for value in values):
        values = [v if v is None or isinstance(v, str) else json.dumps(v) for v in values]
    try:
        return pa.array(values)
    except pa.ArrowException as error:
        raise InputError(
            f"The values of {name!r} have different types",
            code="data/bad-record",
            found=f"{path}: {str(error).splitlines()[0]}",
            hint="write numbers, texts or null",
        ) from None
