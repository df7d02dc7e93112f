"""Columns of tables: their types, and the conversion of Arrow arrays to them.

Text (CSV) and typed values (Parquet, data frames) convert by one set of rules. A cell that is empty or has a null word
is missing: a number is then the column's default, NaN if the column is optional, or an error; text is the default, or
"".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from estimator_pipeline.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["NULL_WORDS", "TYPES", "BadCell", "Column", "are_dates", "column_of", "convert", "dtype_of"]

TYPES = ("float32", "float64", "int32", "int64", "string")
NULL_WORDS = ("#N/A", "N/A", "n/a", "NA", "NULL", "null", "None", "?")
"""Words for a missing number. In a text column they are text."""
_DAY = 86_400 * 10**6  # microseconds
_EXACT = 2.0**53
_DATE = r"^\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,6})?)?)?$"


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: Its name in the table.
        dtype: One of `TYPES`.
        default: The value of a missing cell; None: a missing number is an error.
        optional: Whether a missing number without a default is NaN; only for floats.
    """

    name: str
    dtype: str
    default: Any = None
    optional: bool = False

    @property
    def raw_dtype(self) -> Any:
        """The dtype in `Source.raw_specs`."""
        return self.dtype if self.dtype == "string" else np.dtype(self.dtype)


class BadCell(NamedTuple):
    """A cell that does not convert.

    Attributes:
        column: Its column.
        row: Its row.
        cell: Its text; None if it is missing.
    """

    column: Column
    row: int
    cell: str | None


def column_of(name: str, kind: Any, *, optional: bool = False) -> Column:
    """Return the column of a type, or of (type, default); if it is optional, missing floats are NaN.

    Raises:
        InputError: There is no such type, or the default is not a value of it.
    """
    dtype, default = kind if isinstance(kind, (tuple, list)) and len(kind) == 2 else (kind, None)
    if dtype not in TYPES:
        raise InputError(
            f"The type of the column {name!r} is unknown",
            code="argument/bad-value",
            found=repr(kind),
            hint=f"use {', '.join(TYPES)}, or (type, default)",
        )
    if default is not None and (isinstance(default, str) != (dtype == "string")):
        raise InputError(
            f"The default of the column {name!r} is not a value of its type",
            code="argument/bad-value",
            found=repr(kind),
            hint="give text for a string column, and a number for other columns",
        )
    return Column(name, dtype, default, optional=optional and dtype.startswith("float"))


def dtype_of(kind: pa.DataType) -> str:
    """Return the type of a column of typed values, if none is declared."""
    import pyarrow as pa

    types = pa.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_floating(kind) or types.is_decimal(kind) or types.is_date(kind) or types.is_timestamp(kind):
        return "float32"
    return "int64" if types.is_integer(kind) or types.is_boolean(kind) else "string"


def convert(
    values: pa.Array, column: Column, *, null_words: Sequence[str] = NULL_WORDS
) -> tuple[pa.Array, list[BadCell]]:
    """Convert an array to the type of a column.

    Args:
        values: Text, numbers, booleans, dates or times. A date, in text 2026-11-30 or 2026-11-30 08:15:00, is a number
            of days since 1970.
        column: The column.
        null_words: Words for a missing number.

    Returns:
        The converted array, text as bytes; and the cells that do not convert, in whose places the array has any value.

    Raises:
        InputError: The values are lists, structures or other kinds that are not a column of one value per record.
    """
    import pyarrow as pa

    types = pa.types
    if types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if types.is_null(values.type):
        values = values.cast(pa.string())
    is_text = types.is_string(values.type) or types.is_large_string(values.type) or types.is_string_view(values.type)
    if column.dtype == "string":
        return _text(values if is_text else _as_text(values, column), column), []
    if is_text:
        numbers, bad = _parsed(values, column, null_words)
    else:
        numbers, bad = _as_numbers(values, column)
    return _filled(numbers, column, bad)


def _text(values: pa.Array, column: Column) -> pa.Array:
    """Return text as bytes, without the spaces before it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
        return values.fill_null((column.default or "").encode()).cast(pa.binary())
    values = pc.utf8_ltrim(values, " ").fill_null("")
    if column.default:
        values = pc.if_else(pc.equal(values, ""), column.default, values)
    return values.cast(pa.binary())


def _as_text(values: pa.Array, column: Column) -> pa.Array:
    """Return typed values as text; whole numbers without a fraction."""
    import pyarrow as pa
    import pyarrow.compute as pc

    types = pa.types
    if types.is_binary(values.type) or types.is_large_binary(values.type):
        return values
    if types.is_floating(values.type):
        values = _without_nan(values)
        if pc.all(pc.equal(values, pc.floor(values))).as_py() is not False:
            values = values.cast(pa.int64(), safe=False)
    if types.is_nested(values.type):
        raise _unsupported(values, column)
    try:
        return values.cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise _unsupported(values, column) from None


def _parsed(values: pa.Array, column: Column, null_words: Sequence[str]) -> tuple[pa.Array, list[BadCell]]:
    """Return the numbers of text, null where they are missing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    text = pc.ascii_trim_whitespace(values)
    missing = pc.or_kleene(pc.equal(text, ""), pc.is_in(text, pa.array(["", *null_words], text.type)))
    text = pc.if_else(missing.fill_null(True), pa.scalar(None, text.type), text)
    kind = pa.float64() if column.dtype.startswith("float") else pa.int64()
    try:
        return _in_range(_without_nan(text.cast(kind)), column, text)
    except pa.ArrowInvalid:
        pass
    lower = pc.ascii_lower(text)
    if pc.all(pc.is_in(lower, pa.array(["true", "false"], lower.type)).filter(lower.is_valid())).as_py():
        return pc.equal(lower, "true").cast(kind), []
    if are_dates(text):
        days = _days(text.cast(pa.timestamp("us")))
        return (days, []) if kind == pa.float64() else _whole(days, column, text)
    # Larger floats do not have all integers.
    with_fractions = _floats(text) if kind == pa.int64() else None
    if with_fractions is not None and pc.max(pc.abs(with_fractions)).as_py() < _EXACT:
        return _whole(with_fractions, column, text)
    numbers, bad = [], []
    for row, cell in enumerate(text.to_pylist()):
        try:
            number = None if cell is None else float(cell) if kind == pa.float64() else _integer(cell)
            numbers.append(None if number != number else number)
        except (ValueError, OverflowError):
            numbers.append(None)
            bad.append(BadCell(column, row, cell))
    checked, out = _in_range(pa.array(numbers, kind), column, text)
    return checked, bad + out


def are_dates(values: pa.Array) -> bool:
    """Return whether all values are dates or times, typed or as text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        return bool(pa.types.is_date(values.type) or pa.types.is_timestamp(values.type))
    if values.null_count == len(values) or not pc.all(pc.match_substring_regex(values, _DATE)).as_py():
        return False
    try:
        values.cast(pa.timestamp("us"))
    except pa.ArrowInvalid:  # 2026-02-30
        return False
    return True


def _days(times: pa.Array) -> pa.Array:
    """Return the number of days since 1970 of times in microseconds."""
    import pyarrow as pa

    days = times.cast(pa.int64()).to_numpy(zero_copy_only=False) / _DAY
    return pa.array(days, mask=np.asarray(times.is_null()))


def _floats(text: pa.Array) -> pa.Array | None:
    import pyarrow as pa

    try:
        return text.cast(pa.float64())
    except pa.ArrowInvalid:
        return None


def _integer(cell: str) -> int:
    """Parse an integer, also as pandas writes it in a column with missing values: 2.0."""
    try:
        number = int(cell)
    except ValueError:
        fraction = float(cell)
        number = int(fraction)
        if number != fraction:
            raise
    if not -(2**63) <= number < 2**63:
        raise OverflowError
    return number


def _as_numbers(values: pa.Array, column: Column) -> tuple[pa.Array, list[BadCell]]:
    """Return typed values as numbers, null where they are missing."""
    import pyarrow as pa

    types, kind = pa.types, values.type
    if types.is_boolean(kind):
        values = values.cast(pa.int64())
    elif types.is_date(kind) or types.is_timestamp(kind):
        values = _days(values.cast(pa.timestamp("us", tz=getattr(kind, "tz", None)), safe=False))
    elif types.is_decimal(kind):
        values = values.cast(pa.float64())
    elif not (types.is_integer(kind) or types.is_floating(kind)):
        raise _unsupported(values, column)
    if types.is_floating(values.type):
        values = _without_nan(values.cast(pa.float64()))
        return (values, []) if column.dtype.startswith("float") else _whole(values, column, values)
    if column.dtype.startswith("float"):
        return values.cast(pa.float64(), safe=False), []
    return _in_range(values, column, values)


def _without_nan(values: pa.Array) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_floating(values.type):
        return values
    return pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)


def _whole(values: pa.Array, column: Column, cells: pa.Array) -> tuple[pa.Array, list[BadCell]]:
    """Convert floats to integers; those with a fraction are bad."""
    import pyarrow as pa
    import pyarrow.compute as pc

    good = pc.and_(pc.equal(values, pc.floor(values)), pc.less(pc.abs(values), 2.0**63))
    bad = _bad(pc.invert(good), column, cells)
    whole = pc.if_else(good, values, pa.scalar(None, values.type)).cast(pa.int64())
    whole, out = _in_range(whole, column, cells)
    return whole, bad + out


def _in_range(numbers: pa.Array, column: Column, cells: pa.Array) -> tuple[pa.Array, list[BadCell]]:
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.dtype.startswith("float"):
        return numbers, []
    limits = np.iinfo(column.dtype)
    outside = pc.or_(pc.less(numbers, limits.min), pc.greater(numbers, limits.max))
    return pc.if_else(outside, pa.scalar(None, numbers.type), numbers), _bad(outside, column, cells)


def _bad(mask: pa.Array, column: Column, cells: pa.Array) -> list[BadCell]:
    rows = np.flatnonzero(mask.fill_null(False).to_numpy(zero_copy_only=False))
    return [BadCell(column, int(row), str(cells[int(row)].as_py())) for row in rows]


def _filled(numbers: pa.Array, column: Column, bad: list[BadCell]) -> tuple[pa.Array, list[BadCell]]:
    """Return the numbers in the column's type, with values for missing ones, and the bad cells."""
    import pyarrow as pa

    if numbers.null_count:
        if column.default is not None:
            numbers = numbers.fill_null(column.default)
        else:
            if not column.optional:
                known = {cell.row for cell in bad}
                rows = np.flatnonzero(numbers.is_null().to_numpy(zero_copy_only=False))
                missing = [BadCell(column, int(row), None) for row in rows if int(row) not in known]
                bad = sorted([*bad, *missing], key=lambda cell: cell.row)
            numbers = numbers.fill_null(float("nan") if column.optional else 0)
    return numbers.cast(pa.type_for_alias(column.dtype), safe=False), bad


def _unsupported(values: pa.Array, column: Column) -> InputError:
    return InputError(
        f"The column {column.name!r} does not have one value per record",
        code="data/bad-feature",
        found=f"values of the type {values.type}",
        hint="leave it out of the columns, or store its values in separate columns",
    )
