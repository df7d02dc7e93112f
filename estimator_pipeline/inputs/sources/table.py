"""Tables in files, for factories and jobs.

A small table (`InputOptions.memory_limit`) is held in memory. A larger one is converted to Arrow files, which are
memory-mapped: any record can be read at once, and the memory does not grow with the files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from estimator_pipeline.inputs.input_fn import Inputs
from estimator_pipeline.inputs.options import InputOptions, make_options
from estimator_pipeline.inputs.source import ArraySource, Source
from estimator_pipeline.inputs.sources.arrow_files import open_in_files, text_objects
from estimator_pipeline.inputs.sources.columns import Column, column_of
from estimator_pipeline.inputs.sources.paths import find_files
from estimator_pipeline.inputs.sources.table_format import TableFormat, read
from estimator_pipeline.inputs.subset import open_splits

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["open_table", "table_inputs", "table_splits"]


def table_inputs(
    factory: str, table_format: TableFormat, train: Any, eval: Any, columns: Mapping[str, Any] | None, *,
    options: Mapping[str, Any], eval_fraction: float | None, environ: Mapping[str, str] | None, **layout: Any,
) -> Inputs:  # fmt: skip
    """Return the data of a factory for tables, `factory` by name; `from_csv` describes the arguments and errors."""
    settings = make_options(factory, options)
    names = {"training": train, "evaluation": eval}
    files = {kind: None if each is None else find_files(each, kind=kind) for kind, each in names.items()}
    first = next((paths[0] for paths in files.values() if paths), None)
    if columns is None:
        columns = {} if first is None else table_format.types(first)
    typed = tuple(column_of(name, kind) for name, kind in columns.items())
    training, evaluation = table_splits(
        factory, table_format, typed, files["training"], files["evaluation"], options=settings,
        eval_fraction=eval_fraction, environ=environ,
    )  # fmt: skip
    return Inputs(train=training, evaluation=evaluation, options=settings, **layout)


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
        source = open_in_files(paths, table_format, columns, description=description, environ=environ)
    source.places = table_format.places
    source.nullable = frozenset(column.name for column in columns if column.optional)
    return source


def table_splits(
    factory: str, table_format: TableFormat, columns: Sequence[Column], train: Sequence[str] | None,
    eval: Sequence[str] | None, *, options: InputOptions, eval_fraction: float | None,
    environ: Mapping[str, str] | None,
) -> tuple[Source | None, Source | None]:  # fmt: skip
    """Return the records of the training and the evaluation files; see `open_splits` and `open_table`."""

    def opened(kind: str, paths: Sequence[str]) -> Source:
        return open_table(
            paths,
            table_format,
            columns,
            description=f"the {kind} {table_format.noun} files",
            memory_limit=options.memory_limit,
            environ=os.environ if environ is None else environ,
        )

    return open_splits(factory, train, eval, opened, eval_fraction=eval_fraction, seed=options.seed)


def _loaded(
    paths: Sequence[str], table_format: TableFormat, columns: Sequence[Column], description: str
) -> ArraySource:
    chunks: list[list[pa.Array]] = [[] for _ in columns]
    files: list[tuple[int, str]] = []
    for arrays in read(paths, table_format, columns, files):
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
    return text_objects(encoded.dictionary)[encoded.indices.to_numpy()]
