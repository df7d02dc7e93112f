"""Tables in files: read once, kept in Arrow files of the cache, and then read by record.

A small table (`InputOptions.memory_limit`) is held in memory. A larger one is converted to Arrow files, which are
memory-mapped: any record can be read at once, and the memory does not grow with the files.
"""

from __future__ import annotations

import abc
import collections
import dataclasses
import functools
import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from estimator_pipeline.errors import InputError
from estimator_pipeline.inputs.input_fn import Inputs
from estimator_pipeline.inputs.options import InputOptions, make_options
from estimator_pipeline.inputs.source import ArraySource, Source, file_digest, raw_tensor_specs, tensorflow
from estimator_pipeline.inputs.sources.columns import BadCell, Column, column_of, convert
from estimator_pipeline.inputs.sources.index_cache import identity
from estimator_pipeline.inputs.sources.paths import find_files
from estimator_pipeline.inputs.sources.table_cache import cached
from estimator_pipeline.inputs.subset import split
from estimator_pipeline.utils import io_errors
from estimator_pipeline.utils.ahead import ahead
from estimator_pipeline.utils.fixes import fix
from estimator_pipeline.utils.logger import logger
from estimator_pipeline.utils.text import counted

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "TableBlock",
    "TableFormat",
    "TableSource",
    "check_names",
    "examine",
    "open_splits",
    "open_table",
    "table_inputs",
]

_BATCH_RECORDS = 65536  # Of an Arrow file; also the default shuffle window.
_GROUP_BYTES = 2**28  # Source bytes of an Arrow file, at least one source file.
_OPEN_BATCHES = 16
_BLOCKS_AHEAD = 2
_SMALL_BYTES = 2**15  # Smaller files are parsed together: to open a parser takes longer than the rest.
_TOGETHER_BYTES, _TOGETHER_FILES = 2**21, 512
_TEXTS, _TEXT_BYTES = 2**15, 2**18  # The largest dictionary of a text column: it is in memory, as Python's objects.
_LARGE_BYTES = 2**22  # For smaller files a thread takes longer than it saves.
_PROGRESS_SECS = 5.0
_SHOWN = 5
_VERSION = 2  # Of the conversion and its file: caches of a different version are not read.
_FACTS = b"estimator_pipeline"


@dataclass(frozen=True)
class TableBlock:
    """Some records of a file, in order.

    Attributes:
        values: The arrays of the requested columns: text, or typed values.
        end: The number of bytes of the file up to the end of the block, about.
    """

    values: Sequence[pa.Array]
    end: int


class TableFormat(abc.ABC):
    """A format of table files. Its subclasses are frozen dataclasses, whose fields are part of the key of the cache."""

    null_words: Sequence[str]
    noun: str

    @abc.abstractmethod
    def names(self, path: str) -> list[str]:
        """Return the names of a file's columns."""

    @abc.abstractmethod
    def types(self, path: str) -> dict[str, str]:
        """Return the types of a file's columns if the user declares no columns."""

    @abc.abstractmethod
    def blocks(self, path: str, columns: Sequence[Column], digest: Callable[[str], None]) -> Iterator[TableBlock]:
        """Yield the records of a file.

        Args:
            path: The file.
            columns: The columns to read. Their types are those to which the values will be converted.
            digest: Called at the end with a digest of all bytes of the file.

        Raises:
            InputError: The file is damaged, or has no such column.
        """

    def joined(
        self, paths: Sequence[str], columns: Sequence[Column]
    ) -> tuple[Sequence[pa.Array], Sequence[tuple[int, str]]] | None:
        """Parse small files as a single file.

        Returns:
            The values of the columns, and the number of records and the digest of each file; None if the files must be
            read separately, also for errors in them.
        """
        return None

    @abc.abstractmethod
    def places(self, path: str, rows: Sequence[int]) -> list[str]:
        """Return where rows are, for messages: "line 3". `rows` are sorted."""

    def stored_bytes(self, path: str) -> int:
        """Return about how many bytes the file's records take in memory."""
        return os.path.getsize(path)


def table_inputs(
    factory: str, table_format: TableFormat, train: Any, eval: Any, columns: Mapping[str, Any] | None, *,
    options: Mapping[str, Any], eval_fraction: float | None, environ: Mapping[str, str] | None, **layout: Any,
) -> Inputs:  # fmt: skip
    """Return the data of a factory for tables, `factory` by name; `from_csv` describes the arguments and errors."""
    settings = make_options(factory, options)
    names = {"training": train, "evaluation": eval}
    files = {kind: find_files(each, kind=kind) for kind, each in names.items() if each is not None}
    if not files:
        raise InputError(f"{factory} got no files", code="argument/missing", hint="give train=, eval=, or both")
    if columns is None:
        columns = table_format.types(next(iter(files.values()))[0])
    typed = tuple(column_of(name, kind) for name, kind in columns.items())
    sources = open_splits(files, table_format, typed, options=settings, eval_fraction=eval_fraction, environ=environ)
    return Inputs(train=sources.get("training"), evaluation=sources.get("evaluation"), options=settings, **layout)


def open_table(
    paths: Sequence[str],
    table_format: TableFormat,
    columns: Sequence[Column],
    *,
    description: str,
    memory_limit: int,
    environ: Mapping[str, str],
) -> Source:
    """Return the records of table files.

    Args:
        paths: The files.
        table_format: Their format.
        columns: The columns to read.
        description: Name of the data, for messages: "the training CSV files".
        memory_limit: Bytes; a smaller table is held in memory.
        environ: For the folder of the cache.

    Raises:
        InputError: A file is damaged, or a cell does not convert to its column; all bad cells of a file are reported.
    """
    columns = tuple(columns)
    source: Source
    if sum(map(table_format.stored_bytes, paths)) <= memory_limit:
        source = _loaded(paths, table_format, columns, description)
    else:
        parts: list[_Part] = []
        for group in _groups(paths):
            parts += _group(group, table_format, columns, description, environ)
        source = TableSource(parts, columns, description=description)
    source.places = table_format.places
    source.nullable = frozenset(column.name for column in columns if column.optional)
    return source


def open_splits(
    files: Mapping[str, Sequence[str]],
    table_format: TableFormat,
    columns: Sequence[Column],
    *,
    options: InputOptions,
    eval_fraction: float | None,
    environ: Mapping[str, str] | None,
) -> dict[str, Source]:
    """Return the records of the "training" and the "evaluation" files, for the factories.

    Args:
        files: The files of one of them, or of both.
        table_format: Their format.
        columns: The columns to read.
        options: The options of the factory.
        eval_fraction: The share of the training files to evaluate, if there are no evaluation files; or None.
        environ: For the folder of the cache; None: `os.environ`.

    Raises:
        InputError: See `open_table`; or both evaluation files and a share are given.
    """
    if eval_fraction is not None and list(files) != ["training"]:
        raise InputError(
            "eval_fraction takes the evaluation records from the training files",
            code="argument/conflict",
            found=f"eval_fraction={eval_fraction!r} and evaluation files"
            if "evaluation" in files
            else f"eval_fraction={eval_fraction!r} and no training files",
            hint="leave out eval= or eval_fraction=, and give train=",
        )
    sources: dict[str, Source] = {
        kind: open_table(
            paths,
            table_format,
            columns,
            description=f"the {kind} {table_format.noun} files",
            memory_limit=options.memory_limit,
            environ=os.environ if environ is None else environ,
        )
        for kind, paths in files.items()
    }
    if eval_fraction is not None:
        sources["training"], sources["evaluation"] = split(sources["training"], eval_fraction, seed=options.seed)
    return sources


def check_names(place: str, there: Sequence[str], names: Sequence[str], *, hint: str = "the file") -> None:
    """Raise an error if a file does not have each column once.

    Args:
        place: The file, for the message.
        there: The names of its columns.
        names: The columns to read.
        hint: What else to correct beside `columns`.
    """
    for name in names:
        if there.count(name) != 1:
            often = "not there" if name not in there else "there more than once"
            raise InputError(
                f"The column {name!r} is {often}",
                code="data/missing-feature",
                found=f"{place}: {', '.join(there)}",
                hint=f"correct {fix(python='columns=', yaml='input.columns')} or {hint}",
            )


def examine(
    paths: Sequence[str],
    table_format: TableFormat,
    columns: Sequence[Column],
    *,
    limit: int,
    watch: Callable[[Sequence[pa.Array]], None] = lambda values: None,
) -> tuple[tuple[int, ...], bool]:
    """Read and check files like `open_table`, without keeping the data.

    Args:
        paths: The files.
        table_format: Their format.
        columns: The columns to read.
        limit: The number of bytes to read, split equally among the files.
        watch: Called with the converted columns of the records, in their order.

    Returns:
        The number of records that were read of each file, and whether these are all.

    Raises:
        InputError: See `open_table`.
    """
    if sum(map(os.path.getsize, paths)) <= limit:
        files: list[tuple[int, str]] = []
        for arrays in _read(paths, table_format, columns, files):
            watch(arrays)
        return tuple(records for records, _ in files), True
    counts = []
    for path in paths:
        records = 0
        for arrays in _read_file(path, table_format, columns, lambda digest: None, limit=limit // len(paths)):
            watch(arrays)
            records += len(arrays[0])
        counts.append(records)
    return tuple(counts), False


def _read(
    paths: Sequence[str], table_format: TableFormat, columns: Sequence[Column], files: list[tuple[int, str]]
) -> Iterator[list[pa.Array]]:
    """Yield the converted columns of the records of files.

    Args:
        paths: The files.
        table_format: Their format.
        columns: The columns to read.
        files: The number of records and the digest of each file are added at its end.
    """
    for run in _small_groups(paths):
        if together := table_format.joined(run, columns) if len(run) > 1 else None:
            converted = [
                convert(values, column, null_words=table_format.null_words)
                for column, values in zip(columns, together[0], strict=True)
            ]
            if not any(bad for _, bad in converted):
                yield [array for array, _ in converted]
                files += together[1]
                continue
        for path in run:
            records, digests = 0, list[str]()
            for arrays in _read_file(path, table_format, columns, digests.append):
                yield arrays
                records += len(arrays[0])
            files.append((records, digests[0]))


def _small_groups(paths: Sequence[str]) -> Iterator[list[str]]:
    """Yield small files in groups, and each of the others as a group."""
    run: list[str] = []
    size = 0
    for path in paths:
        bytes_here = os.path.getsize(path)
        size += bytes_here
        if run and (bytes_here > _SMALL_BYTES or size > _TOGETHER_BYTES or len(run) == _TOGETHER_FILES):
            yield run
            run, size = [], bytes_here
        run.append(path)
        if bytes_here > _SMALL_BYTES:
            yield run
            run, size = [], 0
    if run:
        yield run


def _read_file(
    path: str,
    table_format: TableFormat,
    columns: Sequence[Column],
    digest: Callable[[str], None],
    *,
    limit: int | None = None,
) -> Iterator[list[pa.Array]]:
    """Yield the converted columns of a file's records; with bad cells nothing more, and an error at the end."""
    row, bad = 0, _BadCells()
    with io_errors.naming(path):
        blocks = table_format.blocks(path, columns, digest)
        if os.path.getsize(path) > _LARGE_BYTES:
            blocks = ahead(blocks, depth=_BLOCKS_AHEAD)
        for block in blocks:
            arrays = []
            for column, values in zip(columns, block.values, strict=True):
                array, cells = convert(values, column, null_words=table_format.null_words)
                bad.add(cells, first_row=row)
                arrays.append(array)
            row += len(arrays[0])
            if not bad.counts:
                yield arrays
            if limit is not None and block.end >= limit:
                break
    if bad.counts:
        raise bad.error(path, table_format)


class _BadCells:
    """The bad cells of a file, by column and kind."""

    def __init__(self) -> None:
        self.counts: collections.Counter[tuple[Column, bool]] = collections.Counter()
        self._first: dict[tuple[Column, bool], list[tuple[int, str | None]]] = {}

    def add(self, cells: Sequence[BadCell], *, first_row: int) -> None:
        for cell in cells:
            key = cell.column, cell.cell is None
            self.counts[key] += 1
            first = self._first.setdefault(key, [])
            if len(first) < _SHOWN:
                first.append((first_row + cell.row, cell.cell))

    def error(self, path: str, table_format: TableFormat) -> InputError:
        rows = sorted({row for first in self._first.values() for row, _ in first})
        places = dict(zip(rows, table_format.places(path, rows), strict=True))
        keys = sorted(self.counts, key=lambda key: self._first[key][0][0])
        cells = [self._cells(key, places) for key in keys]
        if len(keys) == 1:
            (column, is_missing), (first,) = keys[0], cells
            count = self.counts[keys[0]]
            subject = "A cell" if count == 1 else f"{count} cells"
            verb, has = ("is", "has") if count == 1 else ("are", "have")
            problem = f"{has} no value" if is_missing else f"{verb} not of type {column.dtype}"
            return InputError(
                f"{subject} of the column {column.name!r} {problem}",
                code="data/bad-record",
                found=f"{path}, {first}",
                hint=_hint(keys[0]),
            )
        texts = [
            f"{column.name!r}: {self.counts[column, is_missing]} "
            f"{'without a value' if is_missing else f'not {column.dtype}'}, {text}"
            for (column, is_missing), text in zip(keys, cells, strict=True)
        ]
        return InputError(
            f"{counted(len({column.name for column, _ in keys}), 'column')} of {path} have cells that cannot be read",
            code="data/bad-record",
            found="; ".join(texts),
            hint=_hint(keys[0])
            if any(column.optional for column, _ in keys)
            else f"correct the cells, or the types and defaults of the columns, {_corrections(keys)}",
        )

    def _cells(self, key: tuple[Column, bool], places: Mapping[int, str]) -> str:
        first = self._first[key]
        texts = [places[row] if cell is None else f"{places[row]}: {cell!r}" for row, cell in first]
        more = self.counts[key] - len(first)
        return ", ".join(texts) + (f" and {more} more" if more else "")


def _corrections(keys: Sequence[tuple[Column, bool]]) -> str:
    """Return the columns with defaults, or as text."""
    python = [f"{c.name!r}: ({c.dtype!r}, 0)" if missing else f"{c.name!r}: 'string'" for c, missing in keys]
    yaml = [f"{c.name}: [{c.dtype}, 0]" if missing else f"{c.name}: string" for c, missing in keys]
    return fix(python=f"columns={{{', '.join(python)}}}", yaml=f"columns: {{{', '.join(yaml)}}}")


def _hint(key: tuple[Column, bool]) -> str:
    column, is_missing = key
    if is_missing:
        features = ", or leave input.columns out (docs/guides/tables.md)"
        return f"fill it, or give a default: {_corrections([key])}{fix(python='', yaml=features)}"
    if column.optional:
        return (
            f"correct the cell or leave it empty, add the word to null_words, or set model.features: "
            f"{{{column.name}: categorical}}"
        )
    return f"correct the cell, or change the type of the column: {_corrections([key])}"


def _loaded(
    paths: Sequence[str], table_format: TableFormat, columns: Sequence[Column], description: str
) -> ArraySource:
    chunks: list[list[pa.Array]] = [[] for _ in columns]
    files: list[tuple[int, str]] = []
    for arrays in _read(paths, table_format, columns, files):
        for kept, array in zip(chunks, arrays, strict=True):
            kept.append(array)
    return ArraySource(
        {column.name: _memory(column, kept) for column, kept in zip(columns, chunks, strict=True)},
        description=description,
        part_names=tuple(paths),
        part_records=tuple(records for records, _ in files),
        digests={path: digest for path, (_, digest) in zip(paths, files, strict=True)},
    )


def _memory(column: Column, chunks: Sequence[pa.Array]) -> np.ndarray:
    """Return a column as an array in memory; equal texts share one object."""
    import pyarrow as pa

    if column.dtype != "string":
        arrays = [chunk.to_numpy(zero_copy_only=False) for chunk in chunks]
        return np.concatenate(arrays) if arrays else np.empty(0, dtype=column.raw_dtype)
    encoded = pa.chunked_array(chunks, pa.binary()).combine_chunks()
    encoded = (encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded).dictionary_encode()
    return _objects(encoded.dictionary)[encoded.indices.to_numpy()]


def _objects(texts: pa.Array) -> np.ndarray:
    return np.array(texts.to_pylist(), dtype=object)


def _are_few(texts: pa.Array) -> bool:
    return len(texts) <= _TEXTS and texts.nbytes <= _TEXT_BYTES


# Arrow files ------------------------------------------------------------------------------------------------------


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
        _write(sink, paths, table_format, columns, description)

    reader = pa.ipc.open_file(cached(key, write, environ=environ, description=description))
    facts = reader.get_batch_with_custom_metadata(reader.num_record_batches - 1).custom_metadata[_FACTS]
    files = json.loads(facts)
    starts = itertools.accumulate((records for records, _ in files), initial=0)
    return [
        _Part(path, records, digest, start, reader)
        for path, (records, digest), start in zip(paths, files, starts, strict=False)
    ]


def _write(
    sink: Any, paths: Sequence[str], table_format: TableFormat, columns: Sequence[Column], description: str
) -> None:
    """Write the records of files to an Arrow file; its last batch is empty and has their counts and digests."""
    texts = {number: _Texts() for number, column in enumerate(columns) if column.dtype == "string"}
    while True:
        try:
            _write_with(sink, paths, table_format, columns, description, texts)
            return
        except _ManyTextsError as error:
            sink.seek(0)
            sink.truncate()
            texts = {number: _Texts() for number in texts if number not in error.columns}


def _write_with(
    sink: Any, paths: Sequence[str], table_format: TableFormat, columns: Sequence[Column], description: str,
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
    due = time.monotonic() + _PROGRESS_SECS
    files: list[tuple[int, str]] = []
    records = 0
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)) as writer:

        def batch_of(arrays: Sequence[pa.Array]) -> pa.RecordBatch:
            encoded = [texts[number].encode(array) if number in texts else array for number, array in enumerate(arrays)]
            if many := [number for number, of in texts.items() if not _are_few(of.texts)]:
                raise _ManyTextsError(many)
            return pa.record_batch(encoded, schema=schema)

        for arrays in _batches(_read(paths, table_format, columns, files)):
            writer.write_batch(batch_of(arrays))
            records += len(arrays[0])
            if time.monotonic() >= due:
                path = paths[min(len(files), len(paths) - 1)]
                logger.info("Reading %s, once: %s, %d records so far", description, path, records)
                due = time.monotonic() + _PROGRESS_SECS
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
        return values.indices.to_numpy(), _objects(values.dictionary)
    return (values if pa.types.is_binary(values.type) else values.to_numpy()), None


def _taken(values: Any, texts: np.ndarray | None, rows: np.ndarray) -> Any:
    if isinstance(values, np.ndarray):
        return values.take(rows) if texts is None else texts.take(values.take(rows))
    import pyarrow as pa

    return values.take(pa.array(rows)).to_numpy(zero_copy_only=False)
