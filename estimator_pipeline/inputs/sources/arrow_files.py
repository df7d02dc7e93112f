"""Tables as Arrow files in the cache: written once, memory-mapped, and read by record.

Text columns with few different texts are dictionaries.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from estimator_pipeline.inputs.source import Source, file_digest, raw_tensor_specs, tensorflow
from estimator_pipeline.inputs.sources.columns import Column
from estimator_pipeline.inputs.sources.index_cache import identity
from estimator_pipeline.inputs.sources.table_cache import cached
from estimator_pipeline.inputs.sources.table_format import TableFormat, read
from estimator_pipeline.progress.progress_file import from_environ
from estimator_pipeline.progress.stages import LongStep, reporter_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["TableSource", "open_in_files", "text_objects"]

_BATCH_RECORDS = 65536  # Of an Arrow file; also the default shuffle window.
_GROUP_BYTES = 2**28  # Source bytes of an Arrow file, at least one source file.
_OPEN_BATCHES = 16
_TEXTS, _TEXT_BYTES = 2**15, 2**18  # The largest dictionary of a text column: it is in memory, as Python's objects.
_VERSION = 2  # Of the conversion and its file: caches of a different version are not read.
_FACTS = b"estimator_pipeline"


def open_in_files(
    paths: Sequence[str],
    table_format: TableFormat,
    columns: Sequence[Column],
    *,
    description: str,
    environ: Mapping[str, str],
) -> TableSource:
    """Return the records of table files, converted to Arrow files of the cache; see `open_table`."""
    parts: list[_Part] = []
    for group in _groups(paths):
        parts += _group(group, table_format, columns, description, environ)
    return TableSource(parts, columns, description=description)


def text_objects(texts: pa.Array) -> np.ndarray:
    """Return text as an array of bytes objects."""
    return np.array(texts.to_pylist(), dtype=object)


def _are_few(texts: pa.Array) -> bool:
    return len(texts) <= _TEXTS and texts.nbytes <= _TEXT_BYTES


def _groups(paths: Sequence[str]) -> Iterator[list[str]]:
    """Yield runs of files that share an Arrow file, so that new files leave those of earlier ones valid."""
    group: list[str] = []
    size = 0
    for path in paths:
        group.append(path)
        size += os.path.getsize(path)
        if size >= _GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


@dataclass(frozen=True)
class _Part:
    """A source file within an Arrow file, whose batches have `_BATCH_RECORDS` records, the last one the rest."""

    path: str
    records: int
    digest: str
    start: int
    reader: pa.ipc.RecordBatchFileReader


def _group(
    paths: Sequence[str],
    table_format: TableFormat,
    columns: Sequence[Column],
    description: str,
    environ: Mapping[str, str],
) -> list[_Part]:
    import pyarrow as pa

    folder = functools.cache(os.path.realpath)  # Of a file it takes longer than to read a small file.
    key = {
        "version": _VERSION,
        "format": [table_format.noun, dataclasses.asdict(table_format)],  # type: ignore[call-overload]
        "columns": [dataclasses.astuple(column) for column in columns],
        "files": [[folder(os.path.dirname(path)), os.path.basename(path), *identity(path)] for path in paths],
    }

    def write(sink: Any) -> None:
        size = sum(map(os.path.getsize, paths))
        reading = LongStep(f"reading {description}, once", size, reporter_of(from_environ(environ)))
        _write(sink, paths, table_format, columns, reading)

    reader = pa.ipc.open_file(cached(key, write, environ=environ, description=description))
    facts = reader.get_batch_with_custom_metadata(reader.num_record_batches - 1).custom_metadata[_FACTS]
    files = json.loads(facts)
    starts = itertools.accumulate((records for records, _ in files), initial=0)
    return [
        _Part(path, records, digest, start, reader)
        for path, (records, digest), start in zip(paths, files, starts, strict=False)
    ]


def _write(
    sink: Any, paths: Sequence[str], table_format: TableFormat, columns: Sequence[Column], reading: LongStep
) -> None:
    """Write the records of files to an Arrow file; its last batch is empty and has their counts and digests."""
    texts = {number: _Texts() for number, column in enumerate(columns) if column.dtype == "string"}
    while True:
        try:
            _write_with(sink, paths, table_format, columns, reading, texts)
            return
        except _ManyTextsError as error:
            sink.seek(0)
            sink.truncate()
            texts = {number: _Texts() for number in texts if number not in error.columns}


def _write_with(
    sink: Any, paths: Sequence[str], table_format: TableFormat, columns: Sequence[Column], reading: LongStep,
    texts: Mapping[int, _Texts],
) -> None:  # fmt: skip
    """Write with the columns of `texts` as dictionaries."""
    import pyarrow as pa

    types = [pa.binary() if column.dtype == "string" else pa.type_for_alias(column.dtype) for column in columns]
    # Names of columns may occur twice with different types.
    schema = pa.schema(
        pa.field(str(number), pa.dictionary(pa.int32(), kind) if number in texts else kind)
        for number, kind in enumerate(types)
    )
    files: list[tuple[int, str]] = []
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)) as writer:

        def batch_of(arrays: Sequence[pa.Array]) -> pa.RecordBatch:
            encoded = [texts[number].encode(array) if number in texts else array for number, array in enumerate(arrays)]
            if many := [number for number, of in texts.items() if not _are_few(of.texts)]:
                raise _ManyTextsError(many)
            return pa.record_batch(encoded, schema=schema)

        for arrays in _batches(read(paths, table_format, columns, files, passed=reading.done)):
            writer.write_batch(batch_of(arrays))
        empty = batch_of([pa.array([], kind) for kind in types])
        writer.write_batch(empty, custom_metadata={_FACTS: json.dumps(files)})


class _Texts:
    """The texts of a column so far, for its indices in an Arrow file."""

    def __init__(self) -> None:
        import pyarrow as pa

        self.texts = pa.array([], pa.binary())

    def encode(self, values: pa.Array) -> pa.DictionaryArray:
        """Return text as indices of all texts so far, which later calls only extend."""
        import pyarrow as pa
        import pyarrow.compute as pc

        encoded = values.dictionary_encode()
        new = encoded.dictionary.filter(pc.invert(pc.is_in(encoded.dictionary, self.texts)))
        self.texts = pa.concat_arrays([self.texts, new])
        codes = pc.index_in(encoded.dictionary, self.texts).take(encoded.indices)
        return pa.DictionaryArray.from_arrays(codes, self.texts)


class _ManyTextsError(Exception):
    """Columns have too many texts for indices."""

    def __init__(self, columns: Sequence[int]) -> None:
        super().__init__()
        self.columns = columns


def _batches(blocks: Iterator[list[pa.Array]]) -> Iterator[list[pa.Array]]:
    """Yield the records in batches of `_BATCH_RECORDS`, the last one with the rest."""
    import pyarrow as pa

    held: list[list[pa.Array]] = []
    rows = 0
    for arrays in blocks:
        held.append(arrays)
        rows += len(arrays[0])
        while rows >= _BATCH_RECORDS:
            whole = [pa.concat_arrays(column) for column in zip(*held, strict=True)]
            yield [column[:_BATCH_RECORDS] for column in whole]
            held = [[column[_BATCH_RECORDS:] for column in whole]]
            rows -= _BATCH_RECORDS
    if rows:
        yield [pa.concat_arrays(column) for column in zip(*held, strict=True)]


class TableSource(Source):
    """The records of Arrow files."""

    part_names: tuple[str, ...]
    string_bytes = 64

    def __init__(self, parts: Sequence[_Part], columns: Sequence[Column], *, description: str) -> None:
        self.description = description
        self.part_names = tuple(part.path for part in parts)
        self.part_records = tuple(part.records for part in parts)
        self.raw_specs = tuple((column.raw_dtype, ()) for column in columns)
        self._parts, self._columns = tuple(parts), tuple(columns)
        self._readers = list(dict.fromkeys(part.reader for part in parts))
        self._reader_of = np.array([self._readers.index(part.reader) for part in parts], dtype=np.int64)
        self._starts = np.array([part.start for part in parts], dtype=np.int64)
        self._open: collections.OrderedDict[tuple[int, int], list[Any]] = collections.OrderedDict()
        self._digests = {part.path: part.digest for part in parts}
        self._lock = threading.Lock()

    @property
    def decodes_blocks(self) -> bool:
        return True

    def select(self, parts: Sequence[int]) -> TableSource:
        return TableSource([self._parts[i] for i in parts], self._columns, description=self.description)

    def raw(self, ids: np.ndarray) -> list[np.ndarray]:
        part, record = self.locate(ids)
        reader = self._reader_of[part]
        batch, row = np.divmod(self._starts[part] + record, _BATCH_RECORDS)
        if len(ids) and (reader == reader[0]).all() and (batch == batch[0]).all():
            return [_taken(*column, row) for column in self._batch(int(reader[0]), int(batch[0]))]
        arrays = [np.empty(len(ids), dtype=object if d == "string" else d) for d, _ in self.raw_specs]
        order = np.lexsort((batch, reader))
        changes = (np.diff(reader[order]) != 0) | (np.diff(batch[order]) != 0)
        for chosen in np.split(order, np.flatnonzero(changes) + 1):
            if len(chosen):  # Of no ids there is one empty part.
                columns = self._batch(int(reader[chosen[0]]), int(batch[chosen[0]]))
                for array, column in zip(arrays, columns, strict=True):
                    array[chosen] = _taken(*column, row[chosen])
        return arrays

    def _batch(self, reader: int, batch: int) -> list[tuple[Any, np.ndarray | None]]:
        """Return the columns of a batch: views of the mapped file, text as an Arrow array, or indices and texts."""
        with self._lock:
            if (reader, batch) not in self._open:
                self._open[reader, batch] = [_viewed(values) for values in self._readers[reader].get_batch(batch)]
                while len(self._open) > _OPEN_BATCHES:
                    self._open.popitem(last=False)
            self._open.move_to_end((reader, batch))
            return self._open[reader, batch]

    @property
    def is_plain(self) -> bool:
        return True

    def columns(self, names: Sequence[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
        there = {name: [column.name for column in self._columns].index(name) for name in names}
        first = 0
        for part, count in enumerate(self.part_records):
            start = int(self._starts[part])
            for batch in range(start // _BATCH_RECORDS, -(-(start + count) // _BATCH_RECORDS)):
                begin = max(start - batch * _BATCH_RECORDS, 0)
                end = min(start + count - batch * _BATCH_RECORDS, _BATCH_RECORDS)
                values = self._batch(int(self._reader_of[part]), batch)
                yield first, {name: values[column][0][begin:end] for name, column in there.items()}
                first += end - begin

    def digest(self, path: str) -> str | None:
        return self._digests.get(path)

    def is_unchanged(self, path: str) -> bool:
        return self.digest(path) == file_digest(path)

    def decode(self, raw: Sequence[Any]) -> dict[str, Any]:
        return {column.name: value for column, value in zip(self._columns, raw, strict=True)}

    def specs(self) -> dict[str, Any]:
        return raw_tensor_specs(tensorflow(), (column.name for column in self._columns), self.raw_specs)

    def loaded_bytes(self) -> int | None:
        # `open_table` holds small tables in memory.
        return None


def _viewed(values: Any) -> tuple[Any, np.ndarray | None]:
    import pyarrow as pa

    if pa.types.is_dictionary(values.type):
        return values.indices.to_numpy(), text_objects(values.dictionary)
    return (values if pa.types.is_binary(values.type) else values.to_numpy()), None


def _taken(values: Any, texts: np.ndarray | None, rows: np.ndarray) -> Any:
    if isinstance(values, np.ndarray):
        return values.take(rows) if texts is None else texts.take(values.take(rows))
    import pyarrow as pa

    return values.take(pa.array(rows)).to_numpy(zero_copy_only=False)
