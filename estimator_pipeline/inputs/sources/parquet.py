"""Parquet files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from estimator_pipeline.errors import InputError
from estimator_pipeline.inputs.features import labels_of
from estimator_pipeline.inputs.input_fn import Inputs
from estimator_pipeline.inputs.options import FactoryOptions
from estimator_pipeline.inputs.source import file_digest
from estimator_pipeline.inputs.sources.columns import Column, dtype_of
from estimator_pipeline.inputs.sources.table import table_inputs
from estimator_pipeline.inputs.sources.table_format import TableBlock, TableFormat, check_names
from estimator_pipeline.utils import io_errors

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["ParquetFormat", "from_parquet"]

_BATCH_RECORDS = 65536
_STORED = 2  # Of the size without compression: dictionaries are stored once.


def from_parquet(
    train: Any = None,
    eval: Any = None,
    *,
    columns: Mapping[str, Any] | None = None,
    label_key: str | Sequence[str] = "label",
    weight_key: str | None = None,
    features_key: str | Sequence[str] | None = None,
    eval_fraction: float | None = None,
    environ: Mapping[str, str] | None = None,
    **options: Unpack[FactoryOptions],
) -> Inputs:
    """Read Parquet files as an `input_fn`.

    Tables larger than `memory_limit` are converted once to Arrow files in the cache folder of the user, which all
    processes of a machine share.

    Args:
        train: Files to train on: a path, a pattern, or a list of these.
        eval: Files to evaluate.
        columns: Name -> type ("float32", "float64", "int32", "int64", "string") or (type, default for a missing
            value). Dates and times are numbers of days since 1970. None reads all columns: floats, decimals and dates
            as float32, integers and booleans as int64, others as string.
        label_key: The column of the label, or a sequence of columns (a dict of tensors then).
        weight_key: The column with the weight of each record, as for `from_csv`.
        features_key: The model's input: one name for its tensor, a sequence for a dict, None for a dict of all
            columns except the labels. Each feature is a tensor of shape (batch,).
        eval_fraction: Instead of `eval`: the share of the records of `train` to evaluate, as for `from_csv`.
        environ: For the cache folder; `os.environ` by default.
        **options: See `estimator_pipeline.inputs.options.InputOptions`; global_batch_size is required.

    Returns:
        The data, with `train_input_fn` and `eval_input_fn`.

    Raises:
        InputError: Files are missing or damaged, or values do not match `columns`.
    """
    return table_inputs(
        "from_parquet", ParquetFormat(), train, eval, columns, options=options, eval_fraction=eval_fraction,
        environ=environ, features_key=features_key, label_key=labels_of(label_key, weight_key),
    )  # fmt: skip


@dataclass(frozen=True)
class ParquetFormat(TableFormat):
    """Parquet files; they have names and types."""

    null_words: Sequence[str] = ()

    noun = "Parquet"

    def names(self, path: str) -> list[str]:
        return list(self._opened(path).schema_arrow.names)

    def types(self, path: str) -> dict[str, str]:
        return {field.name: dtype_of(field.type) for field in self._opened(path).schema_arrow}

    def stored_bytes(self, path: str) -> int:
        metadata = self._opened(path).metadata
        return _STORED * sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))

    def blocks(self, path: str, columns: Sequence[Column], digest: Callable[[str], None]) -> Iterator[TableBlock]:
        import pyarrow as pa

        file, names = self._opened(path), [column.name for column in columns]
        check_names(path, file.schema_arrow.names, names)
        done, size = 0, os.path.getsize(path)
        try:
            for batch in file.iter_batches(batch_size=_BATCH_RECORDS, columns=list(dict.fromkeys(names))):
                done += batch.num_rows
                end = size * done // max(file.metadata.num_rows, 1)
                yield TableBlock([batch.column(batch.schema.get_field_index(name)) for name in names], end)
        except (pa.ArrowException, OSError) as error:
            raise (error if io_errors.failed(error) else _damaged(path, error)) from None
        digest(file_digest(path))

    def places(self, path: str, rows: Sequence[int]) -> list[str]:
        return [f"record {row}" for row in rows]

    def _opened(self, path: str) -> Any:
        import pyarrow as pa
        import pyarrow.parquet

        try:
            return pyarrow.parquet.ParquetFile(path, memory_map=False)
        except (pa.ArrowException, OSError) as error:
            raise (error if io_errors.failed(error) else _damaged(path, error)) from None


def _damaged(path: str, error: Exception) -> InputError:
    return InputError(
        "A Parquet file cannot be read",
        code="data/bad-record",
        found=f"{path}: {error}",
        hint="check that it is a Parquet file, or write it again",
    )
