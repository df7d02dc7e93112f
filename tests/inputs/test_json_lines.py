"""Files of JSON lines: types, missing values, and errors with their line."""

from __future__ import annotations

import gzip

import pytest

from estimator_pipeline.errors import InputError
from estimator_pipeline.inputs.sources.columns import Column
from estimator_pipeline.inputs.sources.json_lines import JsonLinesFormat
from estimator_pipeline.inputs.sources.table_format import read

LINES = """{"age": 31, "city": "Rome", "day": "2026-11-29", "id": 7}

{"city": null, "id": "x8", "age": "40"}
{"age": 1.5, "city": "Oslo", "id": 9, "more": [1]}
"""
COLUMNS = [Column("age", "float32", optional=True), Column("city", "string"), Column("day", "string"),
           Column("id", "string")]  # fmt: skip


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_values_are_typed_and_may_be_missing(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(gzip.compress(LINES.encode()) if name.endswith(".gz") else LINES.encode())
    files: list[tuple[int, str]] = []
    (arrays,) = read([str(path)], JsonLinesFormat(), COLUMNS, files)
    assert [array.to_pylist() for array in arrays] == [
        [31.0, 40.0, 1.5], [b"Rome", b"", b"Oslo"], [b"2026-11-29", b"", b""], [b"7", b"x8", b"9"],
    ]  # fmt: skip
    assert files[0][0] == 3
    assert JsonLinesFormat().places(str(path), [0, 2]) == ["line 1", "line 4"]


@pytest.mark.parametrize(
    ("line", "place"),
    [("[1, 2]", "line 2: a value of the type list"), ('{"a": 1', "line 2: Expecting"), ("a,b", "line 2: Expecting")],
)
def test_a_line_that_is_not_an_object_is_named(tmp_path, line, place):
    path = tmp_path / "a.json"
    path.write_text(f'{{"a": 1}}\n{line}\n')
    with pytest.raises(InputError) as error:
        list(read([str(path)], JsonLinesFormat(), [Column("a", "float32")], []))
    assert place in error.value.found and "one object per line" in error.value.hint


def test_a_column_that_is_not_there_and_a_cell_of_another_type(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"a": 1}\n{"a": "x"}\n')
    with pytest.raises(InputError, match="The column 'b' is not there"):
        list(read([str(path)], JsonLinesFormat(), [Column("b", "float32")], []))
    with pytest.raises(InputError) as error:
        list(read([str(path)], JsonLinesFormat(), [Column("a", "float32")], []))
    assert "line 2: 'x'" in error.value.found
