"""The types of the columns of a table, from its first records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from estimator_pipeline.inputs.sources.columns import Column, convert
from estimator_pipeline.inputs.sources.table import TableFormat

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["column_types"]

_FILES = 8  # The first block of each is read.
_LEADING_ZERO = r"^\s*[+-]?0\d"


def column_types(paths: Sequence[str], table_format: TableFormat) -> dict[str, str]:
    """Return "int", "float" or "text" for each column of a table; columns without a name are left out.

    Numbers with a leading zero, as in postal codes, are text. Booleans are integers, dates in Parquet files floats.

    Args:
        paths: The files; the first records of some of them are read.
        table_format: Their format.

    Raises:
        InputError: A file is damaged, or lacks a column of the first file.
    """
    names = [name for name in table_format.names(paths[0]) if name]
    step = -(-len(paths) // _FILES)
    types = dict.fromkeys(names, "int")
    for path in paths[::step]:
        for block in table_format.blocks(path, [Column(name, "string") for name in names], lambda digest: None):
            for name, values in zip(names, block.values, strict=True):
                types[name] = max(types[name], _type(name, values, table_format.null_words), key=_WIDER.index)
            break
    return types


_WIDER = ("int", "float", "text")


def _type(name: str, values: pa.Array, null_words: Sequence[str]) -> str:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    is_text = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
    if not is_text and (_is_nested_or_binary(values.type) or pa.types.is_null(values.type)):
        return "int" if pa.types.is_null(values.type) else "text"
    if is_text and pc.any(pc.match_substring_regex(values, _LEADING_ZERO)).as_py():
        return "text"
    for dtype, kind in (("int64", "int"), ("float32", "float")):
        _, bad = convert(values, Column(name, dtype, default=0), null_words=null_words)
        if not bad:
            whole = is_text or (not pa.types.is_floating(values.type) and not _is_time(values.type))
            return kind if whole or kind == "float" else "float"
    return "text"


def _is_time(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_decimal(kind))


def _is_nested_or_binary(kind: pa.DataType) -> bool:
    import pyarrow as pa

    types = pa.types
    return bool(types.is_nested(kind) or types.is_binary(kind) or types.is_large_binary(kind) or types.is_time(kind))
