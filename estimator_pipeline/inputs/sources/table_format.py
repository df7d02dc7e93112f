"""Formats of table files, and the reading of their records into the types of columns.

All cells that do not convert are reported together.
"""

from __future__ import annotations

import abc
import collections
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from estimator_pipeline.errors import InputError
from estimator_pipeline.inputs.sources.columns import BadCell, Column, convert
from estimator_pipeline.utils import io_errors
from estimator_pipeline.utils.ahead import ahead
from estimator_pipeline.utils.fixes import fix
from estimator_pipeline.utils.text import counted

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["TableBlock", "TableFormat", "check_names", "examine", "read"]

_BLOCKS_AHEAD = 2
_SMALL_BYTES = 2**15  # Smaller files are parsed together: to open a parser takes longer than the rest.
_TOGETHER_BYTES, _TOGETHER_FILES = 2**21, 512
_LARGE_BYTES = 2**22  # For smaller files a thread takes longer than it saves.
_SHOWN = 5


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
        for arrays in read(paths, table_format, columns, files):
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


def read(
    paths: Sequence[str],
    table_format: TableFormat,
    columns: Sequence[Column],
    files: list[tuple[int, str]],
    *,
    passed: Callable[[int], object] = lambda size: None,
) -> Iterator[list[pa.Array]]:
    """Yield the converted columns of the records of files.

    Args:
        paths: The files.
        table_format: Their format.
        columns: The columns to read.
        files: The number of records and the digest of each file are added at its end.
        passed: Called with about how many bytes of all files have been read.
    """
    before = 0
    for run in _small_groups(paths):
        if together := table_format.joined(run, columns) if len(run) > 1 else None:
            converted = [
                convert(values, column, null_words=table_format.null_words)
                for column, values in zip(columns, together[0], strict=True)
            ]
            if not any(bad for _, bad in converted):
                yield [array for array, _ in converted]
                files += together[1]
                before += sum(map(os.path.getsize, run))
                passed(before)
                continue
        for path in run:
            records, digests = 0, list[str]()
            passed_here = functools.partial(_passed, passed, before)
            for arrays in _read_file(path, table_format, columns, digests.append, passed=passed_here):
                yield arrays
                records += len(arrays[0])
            before += os.path.getsize(path)
            files.append((records, digests[0]))


def _passed(passed: Callable[[int], object], before: int, end: int) -> None:
    passed(before + end)


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
    passed: Callable[[int], object] = lambda size: None,
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
            passed(block.end)
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
