"""The data of a job whose model takes the columns of a table: their features are found, kept, and applied."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.engines.model_dir.checkpoints import latest_checkpoint
from estimator_pipeline.engines.model_dir.disk_errors import read_whole, write_whole
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.inputs.features import labels_of
from estimator_pipeline.inputs.input_fn import Inputs
from estimator_pipeline.inputs.options import InputOptions, make_options
from estimator_pipeline.inputs.source import Source, contents, fingerprint
from estimator_pipeline.inputs.sources.columns import Column
from estimator_pipeline.inputs.sources.inference import column_types
from estimator_pipeline.inputs.sources.paths import find_files
from estimator_pipeline.inputs.sources.section import format_of, format_of_file
from estimator_pipeline.inputs.sources.table import open_table, table_splits
from estimator_pipeline.inputs.sources.table_cache import cached_text
from estimator_pipeline.job import Job
from estimator_pipeline.models.features.analysis import FeaturePlan, analyse, plan_features
from estimator_pipeline.models.features.table import VERSION, TableFeatures
from estimator_pipeline.progress.progress_file import ProgressWriter, from_environ
from estimator_pipeline.progress.stages import LongStep, reporter_of
from estimator_pipeline.utils.logger import logger
from estimator_pipeline.utils.text import nearest

__all__ = [
    "FEATURES_FILE",
    "keep_features",
    "open_files",
    "opened_with_features",
    "stored_features",
    "table_inputs",
    "table_plan",
    "with_features",
]

FEATURES_FILE = "features.json"
"""The features in the model directory: a run keeps those with which it began."""
_SHOWN = 40  # Columns.
_REPORT = 2  # The version of the rows in `TableFeatures.report`; an older one has no keys.
_DTYPES = {"int": "int64", "float": "float32", "date": "float32", "text": "string"}
_TYPES = {"int32": "int", "int64": "int", "float32": "float", "float64": "float", "string": "text"}


def table_inputs(job: Job, options: Mapping[str, Any], *, environ: Mapping[str, str] | None = None) -> Inputs:
    """Return the data of a job with features; they are its `transform`.

    Args:
        job: The job; `Job.has_features` is true.
        options: The options of every factory.
        environ: For the cache; `os.environ` by default.

    Raises:
        ConfigError: The declared features do not match the table, or not those with which the run began.
        InputError: The files are missing or damaged.
    """
    environ = os.environ if environ is None else environ
    section: Any = job.input
    settings = make_options(f"source: {section.source}", options)
    paths = find_files(section.train, kind="training")
    plan, columns, labels = table_plan(job, paths)
    training, evaluation = table_splits(
        f"source: {section.source}", format_of(section), columns, paths,
        None if section.eval is None else find_files(section.eval, kind="evaluation"), options=settings,
        eval_fraction=section.eval_fraction, environ=environ,
    )  # fmt: skip
    assert training is not None
    names = [column.name for column in columns]
    features = _features(job, training, plan, names, labels, environ)
    return Inputs(
        train=training,
        evaluation=evaluation,
        options=settings,
        features_key=tuple(features.raw),
        label_key=labels_of(section.label_key, section.weight_key),
        num_classes=_num_classes(features),
        transform=features,
    )


def table_plan(job: Job, paths: Sequence[str]) -> tuple[FeaturePlan, list[Column], dict[str, str]]:
    """Return what is read from a table: for which features, its columns, and the dtypes of its labels.

    Args:
        job: The job; `Job.has_features` is true.
        paths: The training files, of which the first records are read.

    Raises:
        ConfigError: The declared features do not match the table.
        InputError: A file is damaged.
    """
    section: Any = job.input
    types = _types(job, paths)
    labels = _labels(job, types)
    others = [*labels, *([section.weight_key] if section.weight_key else [])]
    declared = {name: feature.model_dump(mode="json") for name, feature in (job.model.features or {}).items()}
    if section.features_key is not None:
        types = {name: kind for name, kind in types.items() if name in section.features_key or name in others}
    plan = plan_features(_with_vocabularies(declared), types, without=others)
    return plan, [*_feature_columns(section, plan.raw), *_label_columns(section, labels)], labels


def _feature_columns(section: Any, raw: Mapping[str, str]) -> list[Column]:
    defaults = {name: default for name, (_, default) in section.types().items()}
    return [
        Column(name, dtype, default=_default(defaults.get(name), dtype), optional=True) for name, dtype in raw.items()
    ]


def _label_columns(section: Any, labels: Mapping[str, str]) -> list[Column]:
    """Return the columns of labels, by their dtypes, and of the weight."""
    columns = [Column(name, dtype) for name, dtype in labels.items()]
    if section.weight_key:
        _, default = section.types().get(section.weight_key, (None, None))
        columns.append(Column(section.weight_key, "float32", default=default))
    return columns


def opened_with_features(job: Job, paths: Sequence[str], options: InputOptions, *, labelled: bool) -> Inputs:
    """Return the records of table files with the features that a run stored, without reading its training data.

    Args:
        job: The job; `Job.has_features` is true.
        paths: The files: CSV, JSON lines or Parquet.
        options: The options of every factory.
        labelled: Whether labels and weights are read.

    Raises:
        ConfigError: The run has no features yet.
        InputError: A file is damaged, or lacks a column.
    """
    section: Any = job.input
    features = stored_features(job.run.model_dir)
    columns = _feature_columns(section, features.raw)
    if labelled:
        columns += _label_columns(section, features.declared["settings"]["labels"])
    return with_features(job, features, open_files(paths, section, columns, options), options, labelled=labelled)


def with_features(
    job: Job, features: TableFeatures, source: Source, options: InputOptions, *, labelled: bool
) -> Inputs:
    """Return the records of a source, which are only evaluated or predicted, with the features of a run."""
    section: Any = job.input
    return Inputs(
        train=None,
        evaluation=source,
        options=options,
        features_key=tuple(features.raw),
        label_key=labels_of(section.label_key, section.weight_key) if labelled else (),
        num_classes=_num_classes(features),
        transform=features,
    )


def stored_features(model_dir: str) -> TableFeatures:
    """Return the features that a run stored in its model directory.

    Raises:
        ConfigError: It has none yet.
    """
    features = _stored(model_dir)
    if features is None:
        raise ConfigError(
            f"{os.path.join(model_dir, FEATURES_FILE)} is missing",
            code="file/not-found",
            found="a model directory without the features of a table",
            hint="train the job first, or name its model directory: --set run.model_dir=DIR",
        )
    return features


def open_files(paths: Sequence[str], section: Any, columns: Sequence[Column], options: InputOptions) -> Source:
    """Return the records of table files of one format."""
    table_format = format_of_file(paths[0], section)
    different = [path for path in paths if type(format_of_file(path, section)) is not type(table_format)]
    if different:
        raise ConfigError(
            "the files have different formats",
            code="argument/conflict",
            found=f"{paths[0]}, {different[0]}",
            hint="name files of one format",
        )
    description = f"the {table_format.noun} files"
    return open_table(
        paths, table_format, columns, description=description, memory_limit=options.memory_limit, environ=os.environ
    )


def _default(value: Any, dtype: str) -> Any:
    """Return the default of a column of `input.columns`, which a feature may read as a different type."""
    if value is None or (dtype != "string" and isinstance(value, str)):
        return None
    return str(value) if dtype == "string" else value


def _types(job: Job, paths: Sequence[str]) -> Mapping[str, str]:
    """Return "int", "float", "date" or "text" for each column; in a run that has begun, those of its beginning."""
    section: Any = job.input
    if section.columns is not None:
        return {name: _TYPES[dtype] for name, (dtype, _) in section.types().items()}
    stored = _stored(job.run.model_dir)
    if stored is not None and "types" in stored.declared and latest_checkpoint(job.run.model_dir) is not None:
        types: Mapping[str, str] = stored.declared["types"]
        return types
    return column_types(paths, format_of(section))


def _labels(job: Job, types: Mapping[str, str]) -> dict[str, str]:
    """Return label -> dtype.

    Raises:
        ConfigError: The table has no such column.
    """
    labels: dict[str, str] = {}
    section: Any = job.input
    for key, name in (*(("label_key", name) for name in section.labels), ("weight_key", section.weight_key)):
        if name is None:
            continue
        if name not in types:
            close = nearest(name, types)
            raise ConfigError(
                f"input.{key}: the data have no column {name!r}",
                code="data/missing-feature",
                found=f"columns: {', '.join(types)}",
                hint=f"did you mean {close!r}?" if close else f"name one of the columns as input.{key}",
            )
        if key == "label_key":
            output = job.model.outputs.get(name)
            vocabulary = output.label_vocabulary if output is not None else job.model.label_vocabulary
            labels[name] = "string" if vocabulary else _DTYPES[types[name]]
            if labels[name] == "string" and not vocabulary:
                raise ConfigError(
                    f"the label {name!r} is text, and the names of its classes are not given",
                    code="argument/missing",
                    hint='add them in order: model.label_vocabulary: ["no", "yes"]',
                )
    return labels


def _with_vocabularies(declared: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the declared features with the content of vocabulary files."""
    features = {}
    for name, feature in declared.items():
        path = feature.get("vocabulary")
        if isinstance(path, str):
            try:
                with open(path, encoding="utf-8") as file:
                    feature = {**feature, "vocabulary": [line.rstrip("\r\n") for line in file if line.strip("\r\n")]}
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(
                    f"model.features.{name}: the file of the vocabulary cannot be read",
                    code="data/unreadable",
                    found=f"{path}: {error}",
                    hint="name a text file with one value a line, or write the values as a list",
                ) from None
        features[name] = feature
    return features


def _features(
    job: Job, source: Source, plan: FeaturePlan, names: Sequence[str], labels: Mapping[str, str],
    environ: Mapping[str, str],
) -> TableFeatures:  # fmt: skip
    """Return the features of the run in the model directory, or those that are found in the training records."""
    vocabularies = {
        name: output.label_vocabulary for name, output in job.model.outputs.items() if output.label_vocabulary
    }
    if job.model.label_vocabulary:
        vocabularies = dict.fromkeys(labels, job.model.label_vocabulary)
    settings = {"features": plan.declared, "columns": plan.raw, "labels": labels, "vocabularies": vocabularies}
    section: Any = job.input
    records = {
        "fingerprint": fingerprint(source),
        "contents": contents(source),
        "format": dataclasses.asdict(format_of(section)),  # type: ignore[call-overload]
        "eval_fraction": section.eval_fraction,
        "seed": None if section.eval_fraction is None else section.seed,
    }
    declared = json.loads(json.dumps({"settings": settings, "types": plan.types, "records": records}))
    stored, has_checkpoint = _stored(job.run.model_dir), latest_checkpoint(job.run.model_dir) is not None
    if stored is not None and (stored.declared == declared or has_checkpoint):
        # Also with --accept-changes: the checkpoint's variables are those of its features.
        if stored.declared["settings"] != declared["settings"]:
            raise ConfigError(
                "the features are not those with which this run began",
                code="model-dir/other-run",
                found=_difference(stored.declared["settings"], declared["settings"]),
                hint="restore model.features and the columns, or use a different model_dir",
            )
        return stored
    key = {"version": VERSION, "report": _REPORT, "features": declared}

    def compute() -> str:
        report = reporter_of(from_environ(environ))
        step = LongStep("reading the training records for their features, once", source.num_records, report)
        values = {"labels": labels, "vocabularies": vocabularies, "declared": declared}
        return analyse(source, plan, names, **values, passed=step.done).dumps()

    text = cached_text(
        key,
        compute,
        environ=environ,
        description="the features of the training records",
    )
    return TableFeatures.loads(text)


def keep_features(features: TableFeatures, model_dir: str, progress: ProgressWriter) -> None:
    """Write the features of a run to its model directory, if it has different ones, and report them."""
    if _stored(model_dir) != features:
        path = os.path.join(model_dir, FEATURES_FILE)
        compat.tensorflow().io.gfile.makedirs(model_dir)
        write_whole(path, features.dumps())
        table = features.table(most=_SHOWN)
        logger.info("The columns of %d training records (%s):\n%s", features.records, path, table)
        progress.emit("features", records=features.records, path=path, table=table)


def _stored(model_dir: str) -> TableFeatures | None:
    path = os.path.join(model_dir, FEATURES_FILE)
    text = read_whole(path)
    if text is None:
        return None
    try:
        return TableFeatures.loads(text)
    except ValueError as error:
        raise ConfigError(
            f"{path} cannot be read: {error}",
            code="model-dir/damaged",
            hint="restore it from the same run, or use a different model_dir",
        ) from None


def _difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    for key in ("features", "columns", "labels", "vocabularies"):
        old, new = before.get(key, {}), now[key]
        for name in sorted({*old, *new}):
            if old.get(name) != new.get(name):
                return f"{key}: {name} was {old.get(name, 'not given')}, and is {new.get(name, 'not given')}"
    return "a different order of columns"


def _num_classes(features: TableFeatures) -> int | None:
    if len(features.label) != 1:
        return None
    classes = next(iter(features.label.values()))["classes"]
    return len(classes) if isinstance(classes, list) else classes
