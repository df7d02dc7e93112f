"""The format of the tables that a job file describes."""

from __future__ import annotations

from estimator_pipeline.inputs.sources.columns import NULL_WORDS
from estimator_pipeline.inputs.sources.csv import CsvFormat
from estimator_pipeline.inputs.sources.parquet import ParquetFormat
from estimator_pipeline.inputs.sources.table_format import TableFormat
from estimator_pipeline.job import CsvInput, TableInput

__all__ = ["format_of"]


def format_of(section: TableInput) -> TableFormat:
    """Return the format of the files of a section `input`."""
    if not isinstance(section, CsvInput):
        return ParquetFormat()
    names = None if section.header else tuple(section.columns or ())
    words = NULL_WORDS if section.null_words is None else tuple(section.null_words)
    return CsvFormat(section.delimiter, section.header, names, section.encoding, words)
