"""Data frames in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from estimator_pipeline.errors import InputError
from estimator_pipeline.inputs.features import labels_of
from estimator_pipeline.inputs.input_fn import Inputs
from estimator_pipeline.inputs.options import FactoryOptions, make_options
from estimator_pipeline.inputs.source import ArraySource, Source
from estimator_pipeline.inputs.sources.columns import column_of, convert, dtype_of
from estimator_pipeline.inputs.subset import open_splits

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Unpack

__all__ = ["from_dataframe"]


def from_dataframe(
    train: Any = None,
    eval: Any = None,
    *,
    label: str | Sequence[str],
    weight: str | None = None,
    columns: Mapping[str, Any] | None = None,
    features_key: str | Sequence[str] | None = None,
    eval_fraction: float | None = None,
    **options: Unpack[FactoryOptions],
) -> Inputs:
    """Read data frames in memory as an `input_fn`.

    Args:
        train: A data frame of pandas or Polars, or a `pyarrow.Table`. The index of pandas is not read.
        eval: The same for evaluation.
        label: The column of the label, or a sequence of columns (a dict of tensors then).
        weight: The column with the weight of each record (see `estimator_pipeline.models.sample_weights`), a further
            label, so that labels are a dict of tensors.
        columns: Name -> type ("float32", "float64", "int32", "int64", "string") or (type, value of a missing cell).
            None reads all columns: floats, dates and times as float32, integers and booleans as int64, text and
            categories as string. Dates and times are numbers of days since 1970. A missing number (None, NaN, NaT) is
            NaN in a column of floats, and an error in other columns without a value for it; a missing text is "".
        features_key: The model's input: one name for its tensor, a sequence for a dict, None for a dict of all
            columns except the labels. Each feature is a tensor of shape (batch,).
        eval_fraction: Instead of `eval`: the share of the records of `train` to evaluate, and not to train on. They
            are chosen by `seed` and the number of the record.
        **options: See `estimator_pipeline.inputs.options.InputOptions`; global_batch_size is required.

    Returns:
        The data, with `train_input_fn` and `eval_input_fn`.

    Raises:
        InputError: Something is not a data frame, lacks a column, or has values that do not match `columns`.
    """
    settings = make_options("from_dataframe", options)
    declared = dict(columns or {})

    def opened(kind: str, frame: Any) -> Source:
        table = _table(frame, kind)
        if not declared:
            declared.update((field.name, dtype_of(field.type)) for field in table.schema)
        return _source(table, declared, kind)

    training, evaluation = open_splits(
        "from_dataframe", train, eval, opened, eval_fraction=eval_fraction, seed=settings.seed
    )
    return Inputs(
        train=training,
        evaluation=evaluation,
        options=settings,
        features_key=features_key,
        label_key=labels_of(label, weight),
    )


def _table(frame: Any, kind: str) -> pa.Table:
    import pyarrow as pa

    try:
        if type(frame).__module__.partition(".")[0] == "pandas":
            table = pa.Table.from_pandas(frame, preserve_index=False)
        else:
            table = frame if isinstance(frame, pa.Table) else pa.table(frame)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InputError(
            f"The {kind} data cannot be read as a data frame",
            code="data/bad-feature",
            found=f"{type(frame).__name__}: {error}",
            hint="give a data frame of pandas or Polars with one type of value in each column",
        ) from None
    twice = sorted({name for name in table.column_names if table.column_names.count(name) > 1})
    if twice:
        raise InputError(
            f"The column {twice[0]!r} is twice in the {kind} data", code="data/bad-feature", hint="rename one of them"
        )
    return table


def _source(table: pa.Table, columns: Mapping[str, Any], kind: str) -> ArraySource:
    import pyarrow as pa

    arrays: dict[str, np.ndarray] = {}
    for name, declared in columns.items():
        if name not in table.column_names:
            raise InputError(
                f"The {kind} data have no column {name!r}",
                code="data/missing-feature",
                found=f"columns: {', '.join(table.column_names)}",
                hint="correct the columns",
            )
        column = column_of(name, declared, optional=True)
        chunks = table.column(name).combine_chunks()
        values, bad = convert(chunks.combine_chunks() if isinstance(chunks, pa.ChunkedArray) else chunks, column)
        if bad:
            problem = "no value" if bad[0].cell is None else f"a value that is not of type {column.dtype}"
            default = f"columns={{{name!r}: ({column.dtype!r}, 0), …}}"
            raise InputError(
                f"The column {name!r} of the {kind} data has {problem}",
                code="data/bad-record",
                found=", ".join(f"record {each.row}: {each.cell!r}" for each in bad[:5])
                + (f" and {len(bad) - 5} more" if len(bad) > 5 else ""),
                hint=f"fill it, or give a value for it: {default}" if bad[0].cell is None else "correct it",
            )
        arrays[name] = values.to_numpy(zero_copy_only=False)
    return ArraySource(arrays, description=f"{kind} data frame")
