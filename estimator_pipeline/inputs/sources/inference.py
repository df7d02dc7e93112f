"""The types of the columns of a table, from its first records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from estimator_pipeline.inputs.sources.columns import Column, are_dates, convert
from estimator_pipeline.inputs.sources.table_format import TableFormat

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["column_types"]

_FILES = 8  # The first block of each is read.
_LEADING_ZERO = r"^\s*[+-]?0\d"


def column_types(paths: Sequence[str], table_format: TableFormat) -> dict[str, str]:
    """Return "int", "float", "date" or "text" for each column of a table; columns without a name are left out.

    Numbers with a leading zero, as in postal codes, are text. Booleans are integers.

    Args:
        paths: The files; the first records of some of them are read.
        table_format: Their format.

    Raises:
        InputError: A file is damaged, or lacks a column of the first file.
    """
    names = [name for name in table_format.names(paths[0]) if name]
    step = -(-len(paths) // _FILES)
    types: dict[str, str | None] = {}
    for path in paths[::step]:
        for block in table_format.blocks(path, [Column(name, "string") for name in names], lambda digest: None):
            for name, values in zip(names, block.values, strict=True):
                new = _type(name, values, table_format.null_words)
                old = types.setdefault(name, new)
                if new is not None and old != new:
                    types[name] = new if old is None else "float" if {old, new} == {"int", "float"} else "text"
            break
    return {name: types.get(name) or "int" for name in names}


def _type(name: str, values: pa.Array, null_words: Sequence[str]) -> str | None:
    """Return the type of the values; None if all are missing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    types = pa.types
    if types.is_dictionary(values.type):
        values = values.dictionary_decode()
    is_text = types.is_string(values.type) or types.is_large_string(values.type)
    if is_text:
        missing = pc.is_in(pc.ascii_trim_whitespace(values), pa.array(["", *null_words], values.type))
        values = values.filter(pc.invert(missing))
    if values.null_count == len(values):
        return None
    if not is_text and _is_nested_or_binary(values.type):
        return "text"
    if are_dates(values):
        return "date"
    if is_text and pc.any(pc.match_substring_regex(values, _LEADING_ZERO)).as_py():
        return "text"
    for dtype, kind in (("int64", "int"), ("float32", "float")):
        _, bad = convert(values, Column(name, dtype, default=0), null_words=null_words)
        if not bad:
            return "float" if types.is_floating(values.type) or types.is_decimal(values.type) else kind
    return "text"


def _is_nested_or_binary(kind: pa.DataType) -> bool:
    import pyarrow as pa

    types = pa.types
    return bool(types.is_nested(kind) or types.is_binary(kind) or types.is_large_binary(kind) or types.is_time(kind))
