"""CSV files."""

from __future__ import annotations

import codecs
import collections
import csv
import hashlib
import io
import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from estimator_pipeline.errors import InputError
from estimator_pipeline.inputs.features import labels_of
from estimator_pipeline.inputs.input_fn import Inputs
from estimator_pipeline.inputs.options import FactoryOptions
from estimator_pipeline.inputs.source import file_digest
from estimator_pipeline.inputs.sources.columns import NULL_WORDS, Column
from estimator_pipeline.inputs.sources.table import table_inputs
from estimator_pipeline.inputs.sources.table_format import TableBlock, TableFormat, check_names
from estimator_pipeline.utils import io_errors
from estimator_pipeline.utils.fixes import fix
from estimator_pipeline.utils.text import counted

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Unpack

__all__ = ["CsvFormat", "from_csv"]

_BLOCK_BYTES = 2**22
_UNPACKED = 4  # Compressed text takes about as many times its size.
_STORED = 4  # Text takes about as much again once it is parsed; strings up to four times.
_SHOWN = 5
_ROWS = 8192
_TAIL_BYTES = 64
_COMPRESSED = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}


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
    encoding: str = "utf-8",
    null_words: Sequence[str] = NULL_WORDS,
    eval_fraction: float | None = None,
    environ: Mapping[str, str] | None = None,
    **options: Unpack[FactoryOptions],
) -> Inputs:
    """Read CSV files as an `input_fn`.

    Quoted cells may contain delimiters and line breaks; files that end in .gz, .zst, .bz2 or .lz4 are decompressed.
    Every cell is checked before training. Tables of up to `memory_limit` (as text, about a quarter of it) are held in
    memory. Larger ones are converted once to Arrow files in the cache folder of the user, which all processes of a
    machine share.

    Args:
        train: Files to train on: a path, a pattern, or a list of these.
        eval: Files to evaluate.
        columns: Name -> type ("float32", "float64", "int32", "int64", "string") or (type, default for a missing
            cell). With a header the columns to read, in any order; without one all columns, in the order of the
            files. None, with a header, reads all columns as float32.
        label_key: The column of the label, or a sequence of columns (a dict of tensors then).
        weight_key: The column with the weight of each record (see `estimator_pipeline.models.sample_weights`), a
            further label, so that labels are a dict of tensors.
        features_key: The model's input: one name for its tensor, a sequence for a dict, None for a dict of all
            columns except the labels. Each feature is a tensor of shape (batch,).
        header: Whether the first line of each file names its columns.
        delimiter: The delimiter, one character.
        encoding: The encoding of the text, a name that Python knows.
        null_words: Words that mean a missing number, in addition to an empty cell.
        eval_fraction: Instead of `eval`: the share of the records of `train` to evaluate, and not to train on. They
            are chosen by `seed`, the file's name and the number of the record in it.
        environ: For the cache folder; `os.environ` by default.
        **options: See `estimator_pipeline.inputs.options.InputOptions`; global_batch_size is required.

    Returns:
        The data, with `train_input_fn` and `eval_input_fn`.

    Raises:
        InputError: Files are missing, or rows do not match `columns`; the message names the file and the lines.
    """
    names = None if header else tuple(columns or ())
    table_format = CsvFormat(delimiter, header, names, encoding, tuple(null_words))
    return table_inputs(
        "from_csv", table_format, train, eval, columns, options=options, eval_fraction=eval_fraction, environ=environ,
        features_key=features_key, label_key=labels_of(label_key, weight_key),
    )  # fmt: skip


@dataclass(frozen=True)
class CsvFormat(TableFormat):
    """The notation of CSV files.

    Attributes:
        delimiter: The delimiter.
        header: Whether the first line names the columns.
        columns: Otherwise their names.
        encoding: The encoding of the text.
        null_words: Words that mean a missing number.
    """

    delimiter: str = ","
    header: bool = True
    columns: tuple[str, ...] | None = None
    encoding: str = "utf-8"
    null_words: Sequence[str] = NULL_WORDS

    noun = "CSV"

    def __post_init__(self) -> None:
        if not isinstance(self.delimiter, str) or len(self.delimiter) != 1:
            raise InputError(
                "A delimiter is one character",
                code="argument/bad-value",
                found=repr(self.delimiter),
                hint="use ',' or '\\t'",
            )
        try:
            codecs.lookup(self.encoding)
        except LookupError:
            raise InputError(
                "The encoding is unknown",
                code="argument/bad-value",
                found=repr(self.encoding),
                hint="use a name that Python knows, such as utf-8, latin-1, cp1252 or utf-16",
            ) from None

    def names(self, path: str) -> list[str]:
        return self._head(path)[0]

    def types(self, path: str) -> dict[str, str]:
        if not self.header:
            raise InputError(
                "CSV files without a header need columns",
                code="argument/missing",
                hint="give columns={name: type, ...}",
            )
        return dict.fromkeys(self.names(path), "float32")

    def _head(self, path: str) -> tuple[list[str], int]:
        """Return the names of the columns, and the number of lines before the first record."""
        if self.columns is not None:
            return list(self.columns), 0
        with io_errors.naming(path), self._text(path) as text:
            rows = self._rows(text)
            try:
                for cells in rows:
                    if cells:
                        return [cell.strip() for cell in cells], rows.line_num
            except UnicodeDecodeError as error:
                raise self._undecodable(path, error) from None
            except OSError as error:
                raise (_damaged(path, error) if _is_damage(path, error) else error) from None
        raise InputError(
            "A CSV file has no header",
            code="data/bad-record",
            found=f"{path}: empty",
            hint=f"remove the file, or set {fix(python='header=False', yaml='input: {header: false}')}",
        )

    def stored_bytes(self, path: str) -> int:
        return os.path.getsize(path) * _STORED * (_UNPACKED if _compression(path) else 1)

    def blocks(self, path: str, columns: Sequence[Column], digest: Callable[[str], None]) -> Iterator[TableBlock]:
        there, lines = self._head(path)
        names = [column.name for column in columns]
        header = fix(python="header=False", yaml="header: false")
        check_names(f"{path}, line {lines}", there, names, hint=f"the file's header ({header} if it has none)")
        # Arrow cannot parse a number: true, 2.0 in a column of integers, or a bad cell. Text shows all bad ones.
        ways: list[Callable[[], Iterator[TableBlock]]] = [
            lambda: self._parsed(path, there, lines, columns, digest, as_text=False),
            lambda: self._parsed(path, there, lines, columns, digest, as_text=True),
            lambda: self._blocks_by_row(path, there, names, digest),
        ]
        done = 0
        while True:
            known = done
            try:
                for block in ways.pop(0)():
                    yield TableBlock([values[known:] for values in block.values], block.end)
                    done += max(0, len(block.values[0]) - known)
                    known = max(0, known - len(block.values[0]))
                return
            except _OtherNotationError as error:
                if error.has_spaces:
                    del ways[:-1]

    def joined(
        self, paths: Sequence[str], columns: Sequence[Column]
    ) -> tuple[Sequence[pa.Array], Sequence[tuple[int, str]]] | None:
        if codecs.lookup(self.encoding).name != "utf-8" or any(map(_compression, paths)):
            return None
        there, lines = self._head(paths[0])
        contents = []
        for path in paths:
            with io_errors.naming(path), open(path, "rb") as file:
                contents.append(file.read())
        header = b"".join(contents[0].splitlines(keepends=True)[:lines])
        if header == contents[0]:
            return None  # Without a line break, a longer name of a column would begin like it.
        bodies, files = [header], []
        try:
            for content in contents:
                body = content[len(header) :]
                if not content.startswith(header) or body.startswith(codecs.BOM_UTF8) or content.count(b'"') % 2:
                    return None
                text = io.StringIO(body.decode(), newline="")
                records = sum(map(bool, self._rows(text) if b'"' in body else body.splitlines()))
                files.append((records, hashlib.sha256(content).hexdigest()[:16]))
                bodies += [body, b"\n"]
            data = b"".join(bodies)
            blocks = list(self._parsed(paths[0], there, lines, columns, lambda digest: None, as_text=False, data=data))
        except (UnicodeDecodeError, csv.Error, InputError, _OtherNotationError):
            return None
        # Where Arrow counts differently, a quote of a file may reach into the next.
        if len(blocks) != 1 or len(blocks[0].values[0]) != sum(records for records, _ in files):
            return None
        return blocks[0].values, files

    def _parsed(
        self, path: str, there: Sequence[str], lines: int, columns: Sequence[Column], digest: Callable[[str], None],
        *, as_text: bool, data: bytes | None = None,
    ) -> Iterator[TableBlock]:  # fmt: skip
        """Yield blocks of a file, or of data instead; numbers as numbers unless `as_text`.

        Raises:
            _OtherNotationError: Arrow cannot parse a cell of a column of numbers.
        """
        import pyarrow as pa
        import pyarrow.csv as arrow_csv

        wrong = 0

        def skip(row: Any) -> str:
            nonlocal wrong
            wrong += 1
            return "skip"

        names = list(dict.fromkeys(column.name for column in columns))
        types = {column.name: pa.binary() for column in columns}
        if not as_text:
            number = {True: pa.float64(), False: pa.int64()}
            types |= {c.name: number[c.dtype.startswith("float")] for c in columns if c.dtype != "string"}
        with open(path, "rb") if data is None else io.BytesIO(data) as file:
            hashed = text = _Watched(file, self)
            if compression := _compression(path):
                text = _Watched(pa.CompressedInputStream(pa.PythonFile(hashed, mode="r"), compression), self)
            reader = None
            try:
                reader = arrow_csv.open_csv(
                    pa.PythonFile(text, mode="r"),
                    read_options=arrow_csv.ReadOptions(
                        block_size=_BLOCK_BYTES,
                        use_threads=os.path.getsize(path) > _BLOCK_BYTES,
                        column_names=there,
                        skip_rows=lines,
                        encoding=self.encoding,
                    ),
                    parse_options=arrow_csv.ParseOptions(
                        delimiter=self.delimiter, newlines_in_values=True, invalid_row_handler=skip
                    ),
                    convert_options=arrow_csv.ConvertOptions(
                        column_types=types,
                        include_columns=names,
                        null_values=["", *self.null_words],
                        strings_can_be_null=False,
                    ),
                )
                for batch in reader:
                    if text.has_spaces:
                        break
                    if not wrong:
                        values = [self._decoded(path, batch.column(column.name)) for column in columns]
                        yield TableBlock(values, hashed.count)
            except pa.ArrowInvalid as error:
                if text.has_spaces or "conversion error" in str(error):
                    raise _OtherNotationError(text.has_spaces) from None
                # Arrow has no different error for a header without records.
                if not any(words in str(error) for words in ("Empty CSV", "Could not skip initial")):
                    raise _damaged(path, error) from None
            except UnicodeDecodeError as error:
                raise self._undecodable(path, error) from None
            except OSError as error:
                raise (_damaged(path, error) if _is_damage(path, error) else error) from None
            finally:
                if reader is not None:
                    reader.close()
            if text.has_spaces:
                raise _OtherNotationError(True)
            while hashed.read(_BLOCK_BYTES):
                pass
        if wrong:
            raise self._wrong_rows(path, len(there), wrong)
        if text.quotes % 2:
            self._check_end(path)
        digest(hashed.digest)

    def _blocks_by_row(
        self, path: str, there: Sequence[str], names: Sequence[str], digest: Callable[[str], None]
    ) -> Iterator[TableBlock]:
        import pyarrow as pa

        places, wrong, size = [there.index(name) for name in names], 0, os.path.getsize(path)
        records = (cells for _, cells in self._records(path))
        try:
            while rows := list(itertools.islice(records, _ROWS)):
                wrong += sum(len(cells) != len(there) for cells in rows)
                if not wrong:
                    yield TableBlock([pa.array([row[place] for row in rows], pa.string()) for place in places], size)
        except UnicodeDecodeError as error:
            raise self._undecodable(path, error) from None
        if wrong:
            raise self._wrong_rows(path, len(there), wrong)
        digest(file_digest(path))

    def _check_end(self, path: str) -> None:
        """Reject a quote that is never closed: all records after it would be one cell."""
        ((line, cells),) = collections.deque(self._records(path), maxlen=1) or [(0, [""])]
        with self._text(path) as text:
            last = "".join(collections.deque(text, maxlen=1))
        if "\n" in cells[-1] and not last.rstrip().endswith('"'):
            raise InputError(
                "A quote is not closed",
                code="data/bad-record",
                found=f"{path}, line {line}: the cell reaches to the end of the file",
                hint="close the quote, or write quotes within a quoted cell twice",
            )

    def _decoded(self, path: str, values: Any) -> Any:
        import pyarrow as pa

        if not pa.types.is_binary(values.type):
            return values
        try:
            return values.cast(pa.string())
        except pa.ArrowInvalid:
            pass
        with self._text(path) as text:
            try:
                for _ in text:
                    pass
            except UnicodeDecodeError as error:
                raise self._undecodable(path, error) from None
        raise AssertionError("text that Arrow cannot decode is not valid")

    def places(self, path: str, rows: Sequence[int]) -> list[str]:
        places, wanted = [], iter(rows)
        row = next(wanted, None)
        for number, (line, _) in enumerate(self._records(path)):
            while row == number:
                places.append(f"line {line}")
                row = next(wanted, None)
            if row is None:
                break
        return places + [f"record {row}" for row in rows[len(places) :]]

    def _records(self, path: str) -> Iterator[tuple[int, list[str]]]:
        """Yield the line of each record, and its cells."""
        with self._text(path) as text:
            reader = self._rows(text)
            line, header = 1, self.header
            for cells in reader:
                if cells and not header:
                    yield line, cells
                header = header and not cells
                line = reader.line_num + 1

    def _rows(self, text: Any) -> Any:
        return csv.reader(text, delimiter=self.delimiter, skipinitialspace=True)

    def _text(self, path: str) -> io.TextIOWrapper:
        """Open a file as text, without its byte-order mark."""
        import pyarrow as pa

        file: Any = open(path, "rb")  # noqa: SIM115 - the text file closes it
        if compression := _compression(path):
            file = io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(file, mode="r"), compression))
        encoding = "utf-8-sig" if codecs.lookup(self.encoding).name == "utf-8" else self.encoding
        return io.TextIOWrapper(file, encoding=encoding, newline="")

    def _wrong_rows(self, path: str, expected: int, wrong: int) -> InputError:
        places = ((line, len(cells)) for line, cells in self._records(path) if len(cells) != expected)
        first = ", ".join(f"line {line}: {counted(count, 'cell')}" for line, count in itertools.islice(places, _SHOWN))
        more = f" and {wrong - _SHOWN} more" if wrong > _SHOWN else ""
        return InputError(
            "A row has a wrong number of cells" if wrong == 1 else f"{wrong} rows have a wrong number of cells",
            code="data/bad-record",
            found=f"{path}, {first}{more}, {counted(expected, 'column')}",
            hint="correct the line, or the delimiter",
        )

    def _undecodable(self, path: str, error: UnicodeDecodeError) -> InputError:
        line, is_found = 0, False
        with open(path, "rb") as file:
            while not is_found and (text := file.readline()):
                line += 1
                try:
                    text.decode(self.encoding)
                except UnicodeDecodeError as first:
                    error, is_found = first, True
        return InputError(
            f"A line is not {'UTF-8' if self.encoding == 'utf-8' else self.encoding} text",
            code="data/bad-record",
            found=f"{path}, line {line}: {error.reason}",
            hint="save the file as UTF-8, or give its encoding, such as "
            + fix(python="encoding='latin-1'", yaml="input: {encoding: latin-1}"),
        )


class _OtherNotationError(Exception):
    """Arrow does not parse a number that Python may parse, or there are spaces before quotes."""

    def __init__(self, has_spaces: bool) -> None:
        super().__init__()
        self.has_spaces = has_spaces


class _Watched(io.RawIOBase):
    """A file that computes the digest of all that is read from it, counts its bytes and quotes, and looks at spaces.

    `has_spaces`: whether spaces precede the quotes of a cell so far. Arrow takes such a cell for text with quotes.
    """

    def __init__(self, file: Any, notation: CsvFormat) -> None:
        self._file, self._sha256, self.count, self.quotes, self.has_spaces = file, hashlib.sha256(), 0, 0, False
        before = re.escape(notation.delimiter).encode() + rb"\r\n"
        self._spaces = re.compile(rb'[%b] +"(?:([^"%b])|"?[%b])' % (before, before, before))
        self._tail = b"\n"
        self._is_wide = " ".encode(notation.encoding) != b" "

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._file.read(size)
        self._sha256.update(data)
        self.count += len(data)
        quotes = data.count(b'"')
        if (quotes or not data) and not self.has_spaces:
            seen = self._tail + (data or b"\n")
            seen = seen.replace(b"\0", b"") if self._is_wide else seen
            # Within a quoted cell, quotes are doubled or end the cell, and the number of quotes before is odd.
            before = self.quotes - self._tail.count(b'"')
            self.has_spaces = b' "' in seen and any(
                match[1] or (before + seen.count(b'"', 0, match.start())) % 2 == 0
                for match in self._spaces.finditer(seen)
            )
        self.quotes += quotes
        self._tail = (self._tail + data[-_TAIL_BYTES:])[-_TAIL_BYTES:]
        return data

    @property
    def digest(self) -> str:
        """As `file_digest`."""
        return self._sha256.hexdigest()[:16]


def _is_damage(path: str, error: OSError) -> bool:
    return _compression(path) is not None and not io_errors.failed(error)


def _damaged(path: str, error: Exception) -> InputError:
    return InputError(
        "A compressed CSV file cannot be read" if _compression(path) else "A CSV file cannot be read",
        code="data/bad-record",
        found=f"{path}: {error}",
        hint="write the file again",
    )


def _compression(path: str) -> str | None:
    return _COMPRESSED.get(os.path.splitext(path)[1].lower())
