"""The format of the tables that a job file describes, and of table files by their names."""

from __future__ import annotations

from estimator_pipeline.inputs.sources.columns import NULL_WORDS
from estimator_pipeline.inputs.sources.csv import CsvFormat
from estimator_pipeline.inputs.sources.json_lines import JsonLinesFormat
from estimator_pipeline.inputs.sources.parquet import ParquetFormat
from estimator_pipeline.inputs.sources.table_format import TableFormat
from estimator_pipeline.job import CsvInput, TableInput

__all__ = ["format_of", "format_of_file"]


def format_of(section: TableInput) -> TableFormat:
    """Return the format of the files of a section `input`."""
    if not isinstance(section, CsvInput):
        return ParquetFormat()
    names = None if section.header else tuple(section.columns or ())
    words = NULL_WORDS if section.null_words is None else tuple(section.null_words)
    return CsvFormat(section.delimiter, section.header, names, section.encoding, words)


def format_of_file(path: str, section: TableInput | None = None) -> TableFormat:
    """Return the format of a table file by the ending of its name; with another ending, that of a section `input`."""
    suffixes = set(path.lower().rpartition("/")[2].split(".")[1:])
    if suffixes & {"json", "jsonl", "ndjson"}:
        return JsonLinesFormat()
    if suffixes & {"parquet", "pq"}:
        return ParquetFormat()
    if isinstance(section, CsvInput) or (section is not None and "csv" not in suffixes):
        return format_of(section)
    return CsvFormat(delimiter="\t" if "tsv" in suffixes else ",")
