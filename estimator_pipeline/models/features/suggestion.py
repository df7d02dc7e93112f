"""A job file for a table, from what is in its files."""

from __future__ import annotations

import collections
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from estimator_pipeline.errors import ConfigError, InputError
from estimator_pipeline.inputs.options import InputOptions
from estimator_pipeline.inputs.source import Source
from estimator_pipeline.inputs.sources.columns import Column
from estimator_pipeline.inputs.sources.csv import CsvFormat
from estimator_pipeline.inputs.sources.inference import column_types
from estimator_pipeline.inputs.sources.parquet import ParquetFormat
from estimator_pipeline.inputs.sources.paths import find_files
from estimator_pipeline.inputs.sources.table import table_splits
from estimator_pipeline.inputs.sources.table_format import TableFormat
from estimator_pipeline.models.features.analysis import analyse, plan_features
from estimator_pipeline.models.features.table import TableFeatures
from estimator_pipeline.utils.text import few, nearest

__all__ = ["SuggestedJob", "suggest"]

_DELIMITERS = ",;\t|"
_NO_DELIMITER = "\x1f"  # A header without it is one cell.
_MOST_CLASSES = 50
_EVAL_FRACTION = 0.2
_RARE = 0.2  # Of an equal share: below it, class weights are worth a comment.
_EPOCHS = 10
_BATCHES = ((256, 10_000), (64, 1000))  # Batch size, and the number of records from which on.
_SMALLEST_BATCH = 16
_LOSSES = {
    "two": "binary_crossentropy", "several": "sparse_categorical_crossentropy", "numbers": "mean_squared_error",
}  # fmt: skip
_METRICS = {"two": "[auc, accuracy]", "several": "[accuracy]", "numbers": "[mean_absolute_error]"}
_YAML_WORDS = ("yes", "no", "on", "off", "true", "false", "null", "y", "n")


@dataclass(frozen=True)
class SuggestedJob:
    """A job file, and what it was written from.

    Attributes:
        text: The job file.
        features: The features.
    """

    text: str
    features: TableFeatures


def suggest(
    files: Sequence[str], label: str | None, *, model_dir: str, workers: int, environ: Mapping[str, str]
) -> SuggestedJob:
    """Read a table, and write a job file that trains on it.

    Args:
        files: CSV or Parquet files, or patterns.
        label: The column to predict.
        model_dir: The model directory.
        workers: The number of workers of the cluster.
        environ: For the cache.

    Raises:
        ConfigError: There is no such label, or it is not clear what to predict.
        InputError: The files are missing or damaged.
    """
    paths = find_files(list(files), kind="training")
    table_format = _format_of(paths)
    types = column_types(paths, table_format)
    if label is None or label not in types:
        close = nearest(label, types) if label else None
        raise ConfigError(
            "the column to predict is not given" if label is None else f"the table has no column {label!r}",
            code="argument/missing" if label is None else "data/missing-feature",
            found=f"columns: {', '.join(types)}",
            hint=f"did you mean --label {close!r}?" if close else "name it: --label COLUMN",
        )
    plan = plan_features({}, types, without=[label])
    kind = types[label]

    def records(columns: list[Column]) -> Source:
        training, _ = table_splits(
            "new", table_format, columns, paths, None, options=InputOptions(global_batch_size=1),
            eval_fraction=_EVAL_FRACTION, environ=environ,
        )  # fmt: skip
        assert training is not None
        return training

    target = _target(records([Column(label, "string")]), label, kind) if kind in ("int", "text") else _Target(())
    dtype = "string" if target.classes else "float32"
    columns = [Column(name, raw, optional=True) for name, raw in plan.raw.items()] + [Column(label, dtype)]
    classes = {label: [value for value, _ in target.classes]} if target.classes else {}
    names = [column.name for column in columns]
    features = analyse(records(columns), plan, names, labels={label: dtype}, vocabularies=classes, declared={})
    return SuggestedJob(_text(files, label, target, table_format, features, model_dir, workers), features)


def _format_of(paths: Sequence[str]) -> TableFormat:
    parquet = [path.endswith((".parquet", ".pq")) for path in paths]
    if any(parquet):
        if not all(parquet):
            raise InputError(
                "Some files are Parquet files and some are not",
                code="argument/conflict",
                found=f"{paths[parquet.index(True)]} and {paths[parquet.index(False)]}",
                hint="name files of one format",
            )
        return ParquetFormat()
    encoding = "utf-8"
    try:
        header = CsvFormat(delimiter=_NO_DELIMITER).names(paths[0])[0]
    except InputError as error:
        if error.code != "data/bad-record" or "UTF-8" not in str(error):
            raise
        encoding = "cp1252"
        header = CsvFormat(delimiter=_NO_DELIMITER, encoding=encoding).names(paths[0])[0]
    counts = collections.Counter(character for character in header if character in _DELIMITERS)
    return CsvFormat(delimiter=counts.most_common(1)[0][0] if counts else ",", encoding=encoding)


@dataclass(frozen=True)
class _Target:
    """What is predicted: classes with the number of records of each, or numbers."""

    classes: Sequence[tuple[str, int]]
    are_numbers: bool = False  # Whether the classes are 0, 1, 2, ...


def _target(source: Source, label: str, kind: str) -> _Target:
    counts: collections.Counter[bytes] = collections.Counter()
    for start in range(0, source.num_records, 65536):
        ids = np.arange(start, min(start + 65536, source.num_records), dtype=np.int64)
        counts.update(source.raw(ids)[0].tolist())
    values = {value.decode(errors="replace"): count for value, count in counts.items() if value}
    if len(values) < 2:
        raise ConfigError(
            f"the label {label!r} has one value only" if values else f"the label {label!r} has no values",
            code="model/labels-mismatch",
            found=few(values, 4) or "empty cells",
            hint="name a different column: --label COLUMN",
        )
    if kind == "int":
        numbers = sorted({int(float(value)) for value in values})
        if len(numbers) > _MOST_CLASSES:
            return _Target(())
        ordered = sorted(values.items(), key=lambda item: float(item[0]))
        return _Target(ordered, are_numbers=numbers == list(range(len(numbers))))
    if len(values) > max(_MOST_CLASSES, source.num_records // 20):
        raise ConfigError(
            f"the label {label!r} is text with {len(values):,} different values",
            code="model/labels-mismatch",
            found=few(values, 4),
            hint="name a column of classes or of numbers: --label COLUMN",
        )
    return _Target(sorted(values.items()))


def _text(
    files: Sequence[str], label: str, target: _Target, table_format: TableFormat, features: TableFeatures,
    model_dir: str, workers: int,
) -> str:  # fmt: skip
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, "."), trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    classes = [value for value, _ in target.classes]
    kind = "numbers" if not classes else "two" if len(classes) == 2 else "several"
    batch = next((size for size, least in _BATCHES if features.records >= least), _SMALLEST_BATCH)
    steps = int(max(200, min(20_000, round(_EPOCHS * features.records / batch, -2))))
    return environment.get_template("job.yaml.jinja").render(
        label=_yaml(label),
        records=features.records,
        loss=_LOSSES[kind],
        metrics=_METRICS[kind],
        vocabulary=_yaml(classes) if classes and not target.are_numbers else "",
        positive=_yaml(classes[1]) if kind == "two" else "",
        rare=_rare(target),
        table=[line for line in features.table().splitlines() if line.split()[0] != "label"],
        source=table_format.noun.lower(),
        train=_yaml(files[0] if len(files) == 1 else list(files)),
        eval_fraction=_EVAL_FRACTION,
        notation=_notation(table_format),
        batch=batch,
        steps=steps,
        checkpoint_steps=max(100, steps // 5),
        model_dir=_yaml(model_dir),
        workers=workers,
    )


def _yaml(value: Any) -> str:
    """Return plain values as JSON, which is YAML; a simple word without quotes."""
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w./*-]*", value) and value.lower() not in _YAML_WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)


def _rare(target: _Target) -> str:
    total = sum(count for _, count in target.classes)
    if not total:
        return ""
    value, count = min(target.classes, key=lambda item: item[1])
    return (
        f"{count / total:.1%} of the records are {_yaml(value)}" if count < _RARE * total / len(target.classes) else ""
    )


def _notation(table_format: TableFormat) -> list[tuple[str, str]]:
    if not isinstance(table_format, CsvFormat):
        return []
    notation = [("delimiter", json.dumps(table_format.delimiter))] if table_format.delimiter != "," else []
    return [*notation, *([("encoding", table_format.encoding)] if table_format.encoding != "utf-8" else [])]
