"""Files with the inputs of an exported model: a table with a column for each, or TFRecord files."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.inputs.input_fn import Inputs
from estimator_pipeline.inputs.options import InputOptions
from estimator_pipeline.inputs.source import Source
from estimator_pipeline.inputs.sources.columns import Column
from estimator_pipeline.inputs.sources.csv import CsvFormat
from estimator_pipeline.inputs.sources.section import format_of_file
from estimator_pipeline.inputs.sources.table import open_table
from estimator_pipeline.inputs.sources.tfrecord import from_tfrecord
from estimator_pipeline.models.features.columns import identifier

__all__ = ["is_tfrecord", "kept_columns", "open_served"]


def is_tfrecord(path: str) -> bool:
    """Return whether a file is a TFRecord file by its name: data.tfrecord, data.tfrecord-00000-of-00002."""
    return ".tfrecord" in os.path.basename(path).lower()


def open_served(
    specs: Mapping[str, Any], paths: Sequence[str], options: InputOptions, *, single: bool, keep: Sequence[str]
) -> tuple[Inputs, Source | None]:
    """Open files that are only predicted.

    Args:
        specs: Input -> `tf.TypeSpec` of one record.
        paths: CSV, JSON lines or Parquet files, with a column for each input; or TFRecord files of `tf.train.Example`.
        options: Their options.
        single: Whether the model takes the only input as a tensor.
        keep: Columns of a table to copy.

    Returns:
        The data without labels, and the source of the columns to copy.

    Raises:
        ConfigError: A table cannot have an input with several values, or the files have no columns to copy.
        InputError: A file is damaged, or lacks an input.
    """
    tf, key = compat.tensorflow(), next(iter(specs)) if single else None
    if is_tfrecord(paths[0]):
        if keep:
            raise ConfigError(
                f"TFRecord files have no column {keep[0]!r} to keep",
                code="argument/not-applicable",
                hint="leave --keep out",
            )
        features = {name: _stored(tf, spec) for name, spec in specs.items()}
        named = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
        return from_tfrecord(eval=paths, features=features, label_key=(), features_key=key, **named), None
    columns = _columns(tf, specs, paths[0])
    convert = options.transform

    def renamed(features: Any, labels: Any) -> Any:
        values = {
            name: tf.reshape(tf.cast(features[column.name], spec.dtype), [-1, *spec.shape.as_list()])
            for (name, spec), column in zip(specs.items(), columns, strict=True)
        }
        pair = (values[key] if key else values), labels
        return pair if convert is None else convert(*pair)

    inputs = Inputs(
        train=None,
        evaluation=_opened(paths, columns, options),
        options=dataclasses.replace(options, transform=renamed),
        features_key=tuple(column.name for column in columns),
        label_key=(),
    )
    kept = _opened(paths, kept_columns(paths[0], keep), options) if keep else None
    return inputs, kept


def kept_columns(path: str, names: Sequence[str], section: Any = None) -> list[Column]:
    """Return the columns to copy: in a CSV file as text, so that 007 remains 007, and otherwise typed."""
    table_format = format_of_file(path, section)
    types = {} if isinstance(table_format, CsvFormat) else table_format.types(path)
    dtypes = {name: {"float32": "float64"}.get(types.get(name, ""), types.get(name, "string")) for name in names}
    return [Column(name, dtype, optional=dtype == "float64") for name, dtype in dtypes.items()]


def _stored(tf: Any, spec: Any) -> Any:
    dtype = spec.dtype if spec.dtype == tf.string else tf.float32 if spec.dtype.is_floating else tf.int64
    if isinstance(spec, tf.SparseTensorSpec):
        return tf.io.VarLenFeature(dtype)
    return tf.io.FixedLenFeature(spec.shape, dtype)


def _columns(tf: Any, specs: Mapping[str, Any], path: str) -> list[Column]:
    """Return the column of each input: of the same name, or of that from which an export makes the name."""
    there = format_of_file(path).names(path)
    exported: dict[str, str] = {}
    for name in there:
        exported[identifier(name, exported)] = name
    columns = []
    for name, spec in specs.items():
        if isinstance(spec, tf.SparseTensorSpec) or any(size != 1 for size in spec.shape):
            raise ConfigError(
                f"the input {name!r} has several values per record, and a column has one",
                code="argument/not-applicable",
                found=f"{spec.dtype.name} {spec.shape}; {path}",
                hint="give TFRecord files of tf.train.Example, data.tfrecord",
            )
        dtype = "string" if spec.dtype == tf.string else "float32" if spec.dtype.is_floating else "int64"
        column = name if name in there else exported.get(name, name)
        columns.append(Column(column, dtype, optional=dtype == "float32"))
    return columns


def _opened(paths: Sequence[str], columns: Sequence[Column], options: InputOptions) -> Source:
    table_format = format_of_file(paths[0])
    return open_table(
        paths, table_format, columns, description=f"the {table_format.noun} files",
        memory_limit=options.memory_limit, environ=os.environ,
    )  # fmt: skip
