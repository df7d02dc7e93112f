"""Tables in files: CSV and Parquet as programs write them, held in memory or kept in Arrow files."""

from __future__ import annotations

import bz2
import datetime
import decimal
import errno
import gzip
import os
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from estimator_pipeline import inputs
from estimator_pipeline.errors import InputError
from estimator_pipeline.inputs.source import file_digest
from estimator_pipeline.inputs.sources import arrow_files, csv, table, table_cache, table_format
from estimator_pipeline.inputs.sources.columns import Column, column_of
from estimator_pipeline.inputs.sources.csv import CsvFormat
from estimator_pipeline.inputs.sources.inference import column_types
from estimator_pipeline.inputs.sources.parquet import ParquetFormat
from estimator_pipeline.inputs.sources.table_cache import LIMIT_VARIABLE, tables_folder
from estimator_pipeline.inputs.subset import split

IN_MEMORY, IN_FILES = 2**40, 0
TEXT = {"a": "float32", "b": "string"}


@pytest.fixture
def environ(tmp_path):
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


def opened(paths, columns, environ, *, limit=IN_MEMORY, table_format=None):
    columns = [column if isinstance(column, Column) else column_of(*column) for column in columns]
    return table.open_table(
        [str(path) for path in paths], table_format or CsvFormat(), columns, description="the CSV files",
        memory_limit=limit, environ=environ,
    )  # fmt: skip


def rows_of(source):
    return [array.tolist() for array in source.raw(np.arange(source.num_records))]


def zipped(data, codec):
    return pa.compress(data, codec, asbytes=True)


# Content, columns, what is read, options of the format, the file's name.
READ = {
    "line breaks and quotes within quotes": (
        b'\xef\xbb\xbfa,b\r\n1,"x\r\ny"\r\n\r\n2,"5"""\r\n', TEXT, [[1, 2], [b"x\r\ny", b'5"']],
    ),
    "carriage returns alone": (b"a,b\r1,x\r2,y\r", TEXT, [[1, 2], [b"x", b"y"]]),
    "inch marks": (b'a,b\n1,5" pipe\n2,"q"x\n', TEXT, [[1, 2], [b'5" pipe', b"qx"]]),
    "spaces before quotes": (b'a, b\n1, "x, y"\n 2,z\n', TEXT, [[1, 2], [b"x, y", b"z"]]),
    "spaces in the header": (b"x, monthly charges ,y\n1,2,3\n", {"monthly charges": "float32"}, [[2]]),
    "columns in a different order": (b"b,c,a\nx,0,1\n", TEXT, [[1], [b"x"]]),
    "leading and trailing lines": (b"\n\na,b\n1,x\n\n\n", TEXT, [[1], [b"x"]]),
    "no line break at the end": (b"a,b\n1,x", TEXT, [[1], [b"x"]]),
    "a header without records": (b"a,b", TEXT, [[], []]),
    "missing cells with defaults": (
        b"a,b\n,\nNA,NA\n?,x\n", {"a": ("float32", 7), "b": ("string", "none")}, [[7, 7, 7], [b"none", b"NA", b"x"]],
    ),
    "other null words": (b"a\n-\n1\n", {"a": ("int64", 0)}, [[0, 1]], {"null_words": ("-",)}),
    "integers as pandas writes them": (b"a,b\n2.0,1e2\n-3,4\n", {"a": "int64", "b": "int32"}, [[2, -3], [100, 4]]),
    "integers that no float has": (b"a\n9007199254740993\n2.0\n", {"a": "int64"}, [[9007199254740993, 2]]),
    "words for bool": (b"a,b\ntrue,False\nFALSE,TRUE\n", {"a": "int64", "b": "float32"}, [[1, 0], [0, 1]]),
    "infinity": (b"a\ninf\n-1e400\n", {"a": "float32"}, [[np.inf, -np.inf]]),
    "NaN, which is a missing number": (b"a\nnan\n1\n", {"a": ("float32", 7)}, [[7, 1]]),
    "semicolons": (b"a;b\n1;x,y\n", TEXT, [[1], [b"x,y"]], {"delimiter": ";"}),
    "no header": (b"1,x\n2,y\n", TEXT, [[1, 2], [b"x", b"y"]], {"header": False, "columns": ("a", "b")}),
    "latin-1": (b"a,b\n1,\xe9\n", TEXT, [[1], ["é".encode()]], {"encoding": "latin-1"}),
    "utf-16": ("a,b\n1,é\n".encode("utf-16"), TEXT, [[1], ["é".encode()]], {"encoding": "utf-16"}),
    "gzip": (gzip.compress(b"a,b\n1,x\n"), TEXT, [[1], [b"x"]], {}, "t.csv.gz"),
    "bz2": (bz2.compress(b"a,b\n1,x\n"), TEXT, [[1], [b"x"]], {}, "t.csv.bz2"),
    "zstd": (zipped(b"a,b\n1,x\n", "zstd"), TEXT, [[1], [b"x"]], {}, "t.csv.zst"),
}  # fmt: skip


@pytest.mark.parametrize("case", READ)
def test_csv_as_it_is(tmp_path, environ, case):
    """The same in memory and from the cache."""
    content, columns, wanted, *more = READ[case]
    options, name = [*more, *({}, "t.csv")[len(more) :]]
    (tmp_path / name).write_bytes(content)
    for limit in (IN_MEMORY, IN_FILES):
        source = opened([tmp_path / name], columns.items(), environ, limit=limit, table_format=CsvFormat(**options))
        assert rows_of(source) == wanted, limit
        for array, (dtype, _) in zip(source.raw(np.arange(source.num_records)), source.raw_specs, strict=True):
            assert array.dtype == (object if dtype == "string" else dtype)


def test_dates_in_csv_are_those_of_parquet(tmp_path, environ):
    """Days since 1970, of times with a fraction; a day that does not exist is text."""
    (tmp_path / "t.csv").write_text("a,b,c\n1970-01-11,1970-01-02T12:00,2026-02-30\n,1970-01-03 00:00:00,2026-02-28\n")
    source = opened([tmp_path / "t.csv"], [("a", ("int64", -1)), ("b", "float32")], environ)
    assert rows_of(source) == [[10, -1], [1.5, 2.0]]
    assert column_types([str(tmp_path / "t.csv")], CsvFormat()) == {"a": "date", "b": "date", "c": "text"}
    days = pa.array([10, None], pa.date32())
    pq.write_table(pa.table({"a": days, "b": days.cast(pa.timestamp("us")), "c": [1, 2]}), tmp_path / "t.parquet")
    assert column_types([str(tmp_path / "t.parquet")], ParquetFormat()) == {"a": "date", "b": "date", "c": "int"}


@pytest.mark.parametrize("limit", [IN_MEMORY, IN_FILES], ids=["in memory", "in files"])
def test_a_number_in_other_words_in_the_middle(tmp_path, environ, monkeypatch, limit):
    """Arrow does not parse it: the file is read as text from there on, and each record is there once."""
    monkeypatch.setattr(csv, "_BLOCK_BYTES", 2000)
    lines = [f"{i},word {i}" for i in range(3000)]
    lines[1700] = "2.0,word 1700"
    (tmp_path / "t.csv").write_text("a,b\n" + "\n".join(lines) + "\n")
    source = opened([tmp_path / "t.csv"], [("a", "int64"), ("b", "string")], environ, limit=limit)
    wanted = list(range(3000))
    wanted[1700] = 2
    assert rows_of(source) == [wanted, [f"word {i}".encode() for i in range(3000)]]
    lines[2500] = "oops,word 2500"
    (tmp_path / "t.csv").write_text("a,b\n" + "\n".join(lines) + "\n")
    with pytest.raises(InputError, match=r"t\.csv, line 2502: 'oops'"):
        opened([tmp_path / "t.csv"], [("a", "int64")], environ, limit=limit)


# Content after 200 lines of `1,x`, and the texts of it.
LATE_SPACES = {
    "a delimiter within": (b'2, "b, c"\n', [b"b, c"]),
    "two spaces": (b'2,  "b"\n', [b"b"]),
    "at the begin of a line": (b' "2",b\n', [b"b"]),
    "a cell that is empty": (b'2, ""\n', [b""]),
    "a line break": (b'2, "\nb"\n', [b"\nb"]),
    "the end of the file": (b'2, "b', [b"b"]),
    "an empty cell at the end of the file": (b'2, ""', [b""]),
    "a quoted text that ends with a space": (b'2,"b, "\n3,"c, ""d"", "\n', [b"b, ", b'c, "d", ']),
}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("case", LATE_SPACES)
def test_spaces_before_quotes_after_the_first_block(tmp_path, environ, monkeypatch, case, encoding):
    """Arrow takes the quotes for text: from there on the file is read row by row, and each record is there once."""
    monkeypatch.setattr(csv, "_BLOCK_BYTES", 100)
    content, texts = LATE_SPACES[case]
    (tmp_path / "t.csv").write_bytes((b"a,b\n" + b"1,x\n" * 200 + content).decode().encode(encoding))
    by_row = []
    read = CsvFormat._blocks_by_row
    monkeypatch.setattr(CsvFormat, "_blocks_by_row", lambda *args: by_row.append(1) or read(*args))
    for limit in (IN_MEMORY, IN_FILES):
        source = opened(
            [tmp_path / "t.csv"], TEXT.items(), environ, limit=limit, table_format=CsvFormat(encoding=encoding)
        )
        assert rows_of(source)[1] == [b"x"] * 200 + texts
        assert source.digest(str(tmp_path / "t.csv")) == file_digest(str(tmp_path / "t.csv"))
    assert len(by_row) == (0 if case == "a quoted text that ends with a space" else 2)


# Content, columns, the message.
REFUSED = {
    "all bad cells of a file": (
        b"x,n,y\n1,1,1\n,2.5,1\nabc,3,1\n4,yes,\n,1,1\n",
        {"x": "float32", "n": "int64", "y": "int64"},
        "3 columns of t.csv have cells that cannot be read [data/bad-record]\n"
        "  found: 'x': 2 without a value, line 3, line 6; 'n': 2 not int64, line 3: '2.5', line 5: 'yes'; "
        "'x': 1 not float32, line 4: 'abc'; 'y': 1 without a value, line 5\n"
        "  hint: correct the cells, or the types and defaults of the columns, "
        "columns={'x': ('float32', 0), 'n': 'string', 'x': 'string', 'y': ('int64', 0)}",
    ),
    "many bad cells": (
        b"x\n" + b"a\n" * 7,
        {"x": "float32"},
        "7 cells of the column 'x' are not of type float32 [data/bad-record]\n  found: t.csv, line 2: 'a', line 3: "
        "'a', line 4: 'a', line 5: 'a', line 6: 'a' and 2 more",
    ),
    "the line after a line break in a cell": (
        b'x,t\n1,"a\nb\n"\n\nz,c\n',
        {"x": "float32", "t": "string"},
        "t.csv, line 6: 'z'",
    ),
    "rows": (
        b"x,y\n1,2,3\n4,5\n6\n",
        {"x": "float32"},
        "2 rows have a wrong number of cells [data/bad-record]\n  found: t.csv, line 2: 3 cells, line 4: 1 cell, 2 "
        "columns",
    ),
    "a range": (b"x\n3000000000\n1\n", {"x": "int32"}, "t.csv, line 2: '3000000000'"),
    "an integer of 64 bits": (b"x\n9223372036854775808\n", {"x": "int64"}, "line 2: '9223372036854775808'"),
    "encoding": (
        b"x\n1\n\xe9\n",
        {"x": "string"},
        "t.csv, line 3: invalid continuation byte\n  hint: save the file as",
    ),
}


@pytest.mark.parametrize("limit", [IN_MEMORY, IN_FILES], ids=["in memory", "in files"])
@pytest.mark.parametrize("case", REFUSED)
def test_bad_csv_is_refused_at_once(tmp_path, environ, case, limit):
    content, columns, words = REFUSED[case]
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(InputError) as refused:
        opened([tmp_path / "t.csv"], columns.items(), environ, limit=limit)
    assert words in str(refused.value).replace(f"{tmp_path}/", "")
    assert not list(tmp_path.glob("cache/**/*.arrow")) and not list(tmp_path.glob("cache/**/*.tmp"))


@pytest.mark.parametrize(
    ("name", "content"), [("t.csv.gz", gzip.compress(b"a,b\n1,x\n")[:-9]), ("t.csv.zst", b"a,b")], ids=["gz", "zst"]
)
def test_a_damaged_compressed_file(tmp_path, environ, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=f"A compressed CSV file cannot be read(.|\n)*{name}"):
        opened([tmp_path / name], TEXT.items(), environ)


# Parquet ----------------------------------------------------------------------------------------------------------


def test_parquet_of_all_types(tmp_path, environ):
    day = datetime.date(1970, 1, 11)
    noon = datetime.datetime(1970, 1, 2, 12)
    content = pa.table(
        {
            "int8": pa.array([1, 2], pa.int8()),
            "uint64": pa.array([1, 2], pa.uint64()),
            "double": pa.array([0.5, None]),
            "flag": pa.array([True, False]),
            "day": pa.array([day, day]),
            "time": pa.array([noon, None], pa.timestamp("ns", "UTC")),
            "price": pa.array([decimal.Decimal("1.25"), None], pa.decimal128(5, 2)),
            "city": pa.array(["x", None]).dictionary_encode(),
            "large": pa.array(["x", "y"], pa.large_string()),
            "bytes": pa.array([b"\xff", b""]),
            "none": pa.nulls(2),
        }
    )
    pq.write_table(content, tmp_path / "t.parquet")
    types = ParquetFormat().types(str(tmp_path / "t.parquet"))
    assert list(types.values()) == [
        "int64", "int64", "float32", "int64", "float32", "float32", "float32", "string", "string", "string", "string",
    ]  # fmt: skip
    columns = [Column(name, dtype, optional=dtype == "float32") for name, dtype in types.items()]
    for limit in (IN_MEMORY, IN_FILES):
        source = opened([tmp_path / "t.parquet"], columns, environ, limit=limit, table_format=ParquetFormat())
        first, second = ([array[row] for array in source.raw(np.arange(2))] for row in (0, 1))
        assert first == [1, 1, 0.5, 1, 10, 1.5, 1.25, b"x", b"x", b"\xff", b""]
        assert [value for value in second if value == value] == [2, 2, 0, 10, b"", b"y", b"", b""]
    # Numbers as text have no fraction if they are whole; missing ones are an error without a default.
    pq.write_table(pa.table({"id": pa.array([1.0, float("nan")]), "n": [1, 2]}), tmp_path / "t.parquet")
    source = opened(
        [tmp_path / "t.parquet"], [("id", "string"), ("n", "string")], environ, table_format=ParquetFormat()
    )
    assert rows_of(source) == [[b"1", b""], [b"1", b"2"]]
    with pytest.raises(InputError, match=r"A cell of the column 'id' has no value(.|\n)*t.parquet, record 1\n"):
        opened([tmp_path / "t.parquet"], [("id", "float32")], environ, table_format=ParquetFormat())


def test_parquet_that_is_refused(tmp_path, environ):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"tags": [["a"], []]}), path)
    with pytest.raises(InputError, match="does not have one value per record"):
        opened([path], [("tags", "string")], environ, table_format=ParquetFormat())
    with pytest.raises(InputError, match="The column 'x' is not there"):
        opened([path], [("x", "string")], environ, table_format=ParquetFormat())
    path.write_bytes(b"a,b\n1,2\n")
    with pytest.raises(InputError, match="A Parquet file cannot be read"):
        opened([path], [("x", "string")], environ, table_format=ParquetFormat())


# The cache --------------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Three files of 1,000 records in all, in batches of 64."""
    monkeypatch.setattr(arrow_files, "_BATCH_RECORDS", 64)
    paths, record = [], 0
    for number, count in enumerate((500, 1, 499)):
        lines = [f"{record + i},text {(record + i) % 7}\n" for i in range(count)]
        paths.append(tmp_path / f"{number}.csv")
        paths[-1].write_text("a,b\n" + "".join(lines))
        record += count
    return paths


def cached_files(environ):
    return sorted(tables_folder(environ).glob("*.arrow"))


def test_records_from_the_cache_are_those_of_memory(files, environ):
    kept = opened(files, TEXT.items(), environ, limit=IN_FILES)
    held = opened(files, TEXT.items(), environ)
    ids = np.random.default_rng(0).integers(0, 1000, 777)
    for first, second in zip(kept.raw(ids), held.raw(ids), strict=True):
        assert first.tolist() == second.tolist() and len(first) == 777
    assert kept.raw(ids)[0].tolist() == ids.tolist()
    assert kept.part_records == held.part_records == (500, 1, 499)
    assert kept.select([2, 1]).raw(np.array([0, 499]))[0].tolist() == [501, 500]
    assert kept.raw(np.array([], dtype=np.int64))[0].shape == (0,)
    paths = kept.part_names
    assert [kept.digest(path) for path in paths] == [held.digest(path) for path in paths]
    assert kept.is_unchanged(paths[0])


def test_a_later_start_reads_the_cache_alone(files, environ, monkeypatch):
    opened(files, TEXT.items(), environ, limit=IN_FILES)
    monkeypatch.setattr(arrow_files, "read", lambda *_, **__: pytest.fail("the files were read"))
    assert opened(files, TEXT.items(), environ, limit=IN_FILES).num_records == 1000


def test_what_has_changed_is_read_again(files, environ, monkeypatch):
    """A file, or the types of the columns. Files of other groups are not."""
    monkeypatch.setattr(arrow_files, "_GROUP_BYTES", 1)
    opened(files, TEXT.items(), environ, limit=IN_FILES)
    assert len(cached_files(environ)) == 3
    files[2].write_text("a,b\n-1,new\n")
    source = opened(files, TEXT.items(), environ, limit=IN_FILES)
    assert source.num_records == 502 and source.raw(np.array([501]))[1].tolist() == [b"new"]
    assert len(cached_files(environ)) == 4
    columns = [("a", "string"), ("b", "string")]
    assert opened(files, columns, environ, limit=IN_FILES).raw(np.array([3]))[0].tolist() == [b"3"]


def test_a_cache_that_is_damaged_or_lost(files, environ):
    source = opened(files, TEXT.items(), environ, limit=IN_FILES)
    (path,) = cached_files(environ)
    path.write_bytes(path.read_bytes()[:1000])
    assert opened(files, TEXT.items(), environ, limit=IN_FILES).num_records == 1000
    other = opened(files, TEXT.items(), environ, limit=IN_FILES)
    path.unlink()
    assert other.raw(np.array([999]))[0].tolist() == [999], "a mapped file stays"
    assert source.num_records == 1000


def test_a_full_cache_folder(files, environ, monkeypatch, logged):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(table_cache, "write_aside", full)
    assert rows_of(opened(files, TEXT.items(), environ, limit=IN_FILES))[0] == list(range(1000))
    assert "is not writable ([Errno 28] No space left on device)" in logged.text


def test_a_cache_folder_that_cannot_be_written(files, tmp_path, logged):
    (tmp_path / "cache").write_text("a file where the folder would be")
    source = opened(files, TEXT.items(), {"XDG_CACHE_HOME": str(tmp_path / "cache")}, limit=IN_FILES)
    assert rows_of(source)[0] == list(range(1000))
    assert "is kept in a temporary file: the cache" in logged.text


def test_text_of_the_cache(tmp_path, environ, logged):
    """Made once; without a cache at each call, with a warning."""
    texts = iter("abc")
    (tmp_path / "file").touch()
    for folder, wanted in (("cache", "a"), ("cache", "a"), ("file", "b"), ("file", "c")):
        more = {"environ": {"XDG_CACHE_HOME": str(tmp_path / folder)}, "description": "the features"}
        assert table_cache.cached_text({"key": 1}, lambda: next(texts), **more) == wanted
    assert logged.text.count("the features are computed by each process: the cache") == 2


def test_one_process_writes_and_the_others_wait(files, environ, monkeypatch):
    """Threads here: locks are of open files."""
    read, begun, go_on = arrow_files.read, threading.Event(), threading.Event()
    calls = []

    def slow(path, *args, **kwargs):
        calls.append(path)
        begun.set()
        assert go_on.wait(60)
        return read(path, *args, **kwargs)

    monkeypatch.setattr(arrow_files, "read", slow)
    counts = []
    threads = [
        threading.Thread(target=lambda: counts.append(opened(files, TEXT.items(), environ, limit=IN_FILES).num_records))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    assert begun.wait(60)
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert counts == [1000] * 3 and len(calls) == 1


def test_the_cache_is_limited(files, environ):
    """Those that were not used for longest are removed."""
    for path in files[:2]:
        opened([path], TEXT.items(), environ, limit=IN_FILES)
    first = next(path for path in cached_files(environ) if path.stat().st_size > 5000)
    small = next(path for path in cached_files(environ) if path != first)
    for path, age in ((first, 2), (small, 1)):
        stat = path.stat()
        os.utime(path, (stat.st_atime - age, stat.st_mtime - 3600 * age))
    limit = (small.stat().st_size + first.stat().st_size + 10) / 2**30
    opened([files[2]], TEXT.items(), environ | {LIMIT_VARIABLE: str(limit)}, limit=IN_FILES)
    assert first not in cached_files(environ) and small in cached_files(environ) and len(cached_files(environ)) == 2


def test_text_with_few_values_is_a_dictionary(tmp_path, environ, monkeypatch):
    """Of an Arrow file; that there are too many may show late. What is read is the same."""
    monkeypatch.setattr(arrow_files, "_BATCH_RECORDS", 64)
    monkeypatch.setattr(arrow_files, "_TEXTS", 10)
    kinds = {"few": lambda i: i % 10, "late": lambda i: max(0, i - 500) % 11, "many": lambda i: i}
    names = [f"{name}{repeat}" for name in kinds for repeat in (0, 1)]
    paths = [tmp_path / f"{number}.csv" for number in range(3)]
    for number, path in enumerate(paths):
        rows = [[kind(i + 400 * number) for kind in kinds.values() for _ in (0, 1)] for i in range(400)]
        path.write_text("\n".join(",".join(map(str, row)) for row in [names, *rows]))
    columns = [(name, "string") for name in names]
    wanted = [[str(kind(i)).encode() for i in range(1200)] for kind in kinds.values() for _ in (0, 1)]
    for limit, group in ((IN_MEMORY, 2**28), (IN_FILES, 2**28), (IN_FILES, 1)):
        monkeypatch.setattr(arrow_files, "_GROUP_BYTES", group)
        source = opened(paths, columns, environ, limit=limit)
        assert rows_of(source)[:6] == wanted
        assert rows_of(source.select([2]))[3] == wanted[3][800:]
    stored = sorted(
        [pa.types.is_dictionary(kind) for kind in pa.ipc.open_file(path).schema.types[::2]]
        for path in cached_files(environ)
    )
    whole, first, others = [True, False, False], [True, True, False], [True, False, False]
    assert stored == sorted([whole, first, others, others])


@pytest.mark.tf
@pytest.mark.parametrize("limit", [IN_MEMORY, IN_FILES], ids=["in memory", "in files"])
def test_tensors_of_texts(files, environ, limit):
    """Those of a share for evaluation, and of a record_transform, too."""
    data = inputs.from_csv(
        [str(path) for path in files], columns=TEXT, label_key="a", global_batch_size=10, epochs=1, environ=environ,
        memory_limit=limit, drop_remainder=False, eval_fraction=0.2,
    )  # fmt: skip
    for input_fn in (data.train_input_fn, data.eval_input_fn):
        for features, labels in input_fn():
            wanted = [f"text {int(label) % 7}".encode() for label in labels.numpy()]
            assert features["b"].numpy().tolist() == wanted


# Many small files -------------------------------------------------------------------------------------------------


def small_files(tmp_path, contents):
    paths = []
    for number, content in enumerate(contents):
        paths.append(tmp_path / f"{number}.csv")
        paths[-1].write_bytes(content)
    return paths


@pytest.mark.parametrize("limit", [IN_MEMORY, IN_FILES], ids=["in memory", "in files"])
def test_small_files_are_parsed_together(tmp_path, environ, monkeypatch, limit):
    contents = [
        b"a,b\n1,x\n2,y\n",
        b"a,b\n",
        b"a,b\n3,z",
        b'a,b\n\n4,"x\n\ny"\n5," ""q"", "\n\n',
        b"a,b\n6,x\r\n7,y\r8,z\r",
        b"a,b\n" + "9,é".encode(),
    ]
    paths = small_files(tmp_path, contents)
    monkeypatch.setattr(table_format, "_read_file", lambda *_, **__: pytest.fail("a file was read separately"))
    source = opened(paths, TEXT.items(), environ, limit=limit)
    assert rows_of(source)[0] == list(range(1, 10))
    assert rows_of(source)[1][3:5] == [b"x\n\ny", b'"q", ']
    assert source.part_records == (2, 0, 1, 2, 3, 1)
    assert [source.digest(path) for path in source.part_names] == [file_digest(path) for path in source.part_names]
    assert source.place(6) == f"{paths[4]}, line 3"


# The content of a file between two others.
READ_ALONE = {
    "a different header": b"b,a\nx,2\n",
    "a number in other words": b"a,b\ntrue,x\n",
    "spaces before quotes": b'a,b\n2, "x"\n',
    "an odd number of quotes": b'a,b\n2,""x"\n',
    "quotes that would reach into the next file": b'a,b\n2,5"\n3,"b\n',
    "a byte-order mark": b"\xef\xbb\xbfa,b\n2,x\n",
}


@pytest.mark.parametrize("case", READ_ALONE)
def test_small_files_that_cannot_be_parsed_together(tmp_path, environ, case):
    paths = small_files(tmp_path, [b"a,b\n1,w\n", READ_ALONE[case], b"a,b\n3,y\n"])
    source, only = opened(paths, TEXT.items(), environ), opened(paths[1:2], TEXT.items(), environ)
    assert source.part_records == (1, only.num_records, 1)
    assert rows_of(source)[1] == [b"w", *rows_of(only)[1], b"y"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a,b\n1,x\noops,y\n", r"1\.csv, line 3: 'oops'"),
        (b"a,b\n1,x,y\n", r"1\.csv, line 2: 3 cells"),
        (b'a,b\n1,"x\n', r"1\.csv, line 2: the cell reaches to the end"),
        (b"a,bc\n1,x\n", r"1\.csv, line 1: a, bc"),
        (b"a,b\n1,\xe9\n", r"1\.csv, line 2: invalid continuation byte"),
        (b"", r"1\.csv: empty"),
    ],
)
def test_the_message_names_the_small_file(tmp_path, environ, content, words):
    paths = small_files(tmp_path, [b"a,b\n1,x\n", content, b"a,b\n1,x\n"])
    with pytest.raises(InputError, match=words):
        opened(paths, TEXT.items(), environ)


def test_a_header_that_begins_like_that_of_the_first_file(tmp_path, environ):
    paths = small_files(tmp_path, [b"a", b"ab\n1\n"])
    with pytest.raises(InputError, match=r"1\.csv, line 1: ab"):
        opened(paths, [("a", "string")], environ)


# A share for evaluation -------------------------------------------------------------------------------------------


def test_a_share_of_the_records(files, environ):
    """Disjoint and complete, the same from the cache and in memory, and for the records of a file whatever others."""
    chosen = {}
    for limit in (IN_MEMORY, IN_FILES):
        training, evaluation = split(opened(files, TEXT.items(), environ, limit=limit), 0.2, seed=3)
        ids = [rows_of(share)[0] for share in (training, evaluation)]
        assert sorted(ids[0] + ids[1]) == list(range(1000)) and 150 < len(ids[1]) < 250
        assert sum(training.part_records) == len(ids[0]) and training.part_names == evaluation.part_names
        chosen[limit] = ids[1]
    assert chosen[IN_MEMORY] == chosen[IN_FILES]
    alone = rows_of(split(opened(files[2:], TEXT.items(), environ), 0.2, seed=3)[1])[0]
    assert alone == [record for record in chosen[IN_MEMORY] if record >= 501]
    other = rows_of(split(opened(files, TEXT.items(), environ), 0.2, seed=4)[1])[0]
    assert other != chosen[IN_MEMORY]


def test_a_share_by_file(files, environ):
    training, _ = split(opened(files, TEXT.items(), environ, limit=IN_FILES), 0.2, seed=3)
    selected = training.select([2, 0])
    assert rows_of(selected)[0] == [i for i in rows_of(training)[0] if i >= 501] + [
        i for i in rows_of(training)[0] if i < 500
    ]
    assert training.place(0).endswith("line 2") or training.place(0).endswith("line 3")


def test_a_share_that_is_refused(files, environ):
    source = opened(files[1:2], TEXT.items(), environ)
    with pytest.raises(InputError, match=r"There are no records for (training|evaluation)"):
        split(source, 0.5, seed=0)
    with pytest.raises(InputError, match=r"eval_fraction=1\.5"):
        split(source, 1.5, seed=0)
    for more in ({"eval": str(files[0])}, {"train": None, "eval": str(files[0])}):
        with pytest.raises(InputError, match="eval_fraction takes the evaluation records from the training data"):
            inputs.from_csv(
                **{"train": str(files[0]), **more}, columns=TEXT, label_key="a", global_batch_size=4, eval_fraction=0.5
            )


@pytest.mark.tf
def test_workers_share_what_is_not_evaluated(files, environ):
    """An epoch of two workers is all records but the share, each once; the evaluation has the share, each once."""
    import tensorflow as tf

    data = inputs.from_csv(
        [str(path) for path in files], columns=TEXT, label_key="a", global_batch_size=10, eval_fraction=0.2, epochs=1,
        drop_remainder=False, environ=environ, memory_limit=0,
    )  # fmt: skip
    seen = {"train": [], "eval": []}
    for pipeline in range(2):
        context = tf.distribute.InputContext(2, pipeline, 2)
        for use, input_fn in (("train", data.train_input_fn), ("eval", data.eval_input_fn)):
            for _, labels in input_fn(context):
                seen[use] += labels.numpy().tolist()
    assert sorted(seen["train"] + seen["eval"]) == list(range(1000))
    assert len(seen["eval"]) == data.num_eval_records and len(seen["train"]) == data.num_train_records
