"""Files that a job predicts or evaluates in place of its data, read in their order, each record once.

| `input.source` | what FILE names |
| --- | --- |
| csv, parquet | CSV, JSON lines or Parquet files, by their endings |
| tfrecord | TFRecord files |
| arrays | an .npz file |
| images | a folder: for an evaluation with a folder for each class |
| tfds | a split, such as `test[:100]` |
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from estimator_pipeline.engines.jobs.data import (
    arrays_of,
    common_options,
    compression_of,
    feature_spec,
    job_inputs,
)
from estimator_pipeline.engines.jobs.served_files import kept_columns, open_served
from estimator_pipeline.engines.jobs.serving import serving_of
from estimator_pipeline.engines.jobs.table import open_files, opened_with_features, stored_features, with_features
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.inputs import from_images, from_tfds, from_tfrecord
from estimator_pipeline.inputs.features import labels_of
from estimator_pipeline.inputs.input_fn import Inputs
from estimator_pipeline.inputs.options import InputOptions, make_options
from estimator_pipeline.inputs.source import ArraySource, Source
from estimator_pipeline.inputs.sources.arrays import named_arrays
from estimator_pipeline.inputs.sources.columns import column_of
from estimator_pipeline.inputs.sources.images import ImageFiles, ImageSource, find_images, images_below
from estimator_pipeline.inputs.sources.paths import find_files
from estimator_pipeline.inputs.sources.section import format_of_file
from estimator_pipeline.job import FunctionInput, Job
from estimator_pipeline.utils.fixes import of_job_file

__all__ = ["FileData", "open_file_data", "evaluation_data", "without_records"]


@dataclasses.dataclass(frozen=True)
class FileData:
    """Records of files in place of the data of a job.

    Attributes:
        inputs: The data: `eval_input_fn` reads the records in their order; there is no `train_input_fn`.
        kept: The source of the columns to copy beside the predictions; None: there are none.
        columns: Their names.
    """

    inputs: Inputs
    kept: Source | None = None
    columns: tuple[str, ...] = ()

    def rows(self, start: int, stop: int) -> Iterator[Mapping[str, Any]]:
        """Yield chunks of the kept columns of the records from `start` up to `stop`, in order."""
        return iter(()) if self.kept is None else self.kept.rows(self.columns, start, stop)


def evaluation_data(job: Job) -> Inputs:
    """Return the job's evaluation data, without reading its training files where that is possible."""
    section: Any = job.input
    files = getattr(section, "eval_split" if section.source == "tfds" else "eval", None)
    if isinstance(section, FunctionInput) or files is None:
        return job_inputs(job)
    return open_file_data(job, [files] if isinstance(files, str) else files, labelled=True).inputs


def without_records(job: Job) -> Inputs:
    """Return the data of a job for a model that is only exported: names, shapes and types are known."""
    if not job.has_features:
        return evaluation_data(job)
    features = stored_features(job.run.model_dir)
    row = {name: np.array([b"" if dtype == "string" else np.nan], object if dtype == "string" else dtype)
           for name, dtype in features.raw.items()}  # fmt: skip
    source = ArraySource(row, description="a record without values")
    return with_features(job, features, source, make_options("source", common_options(job.input)), labelled=False)


@of_job_file()
def open_file_data(
    job: Job, files: Sequence[str], *, labelled: bool, keep: Sequence[str] = (), batch_size: int | None = None
) -> FileData:
    """Open files with the format of a job's data.

    Args:
        job: The job.
        files: Paths and patterns; see the table above.
        labelled: Whether the files have labels (and weights), which are then read.
        keep: Columns to copy beside the predictions, as they are in the files.
        batch_size: Records per batch of all workers; None: as in the job's evaluations.

    Raises:
        ConfigError: The job's data are functions, or a column to keep does not exist.
        InputError: A file is missing or damaged, or lacks a column.
    """
    section: Any = job.input
    if isinstance(section, FunctionInput) and (labelled or section.serving is None):
        raise ConfigError(
            "the job's data are functions, which do not define how a file is read",
            code="argument/not-applicable",
            found=f"input.eval {section.eval}",
            hint="change what input.eval reads: --set input.params.NAME=VALUE"
            if labelled
            else "name a function that returns the inputs of a prediction as input.serving, my.py:features",
        )
    common = common_options(section)
    # One process, or independent ones, read ranges of the records.
    common |= {"shard_policy": "auto", "worker_seeds": "same"}
    common["eval_batch_size"] = batch_size or section.evaluation_batch_size
    settings = make_options(f"source: {section.source}", common)
    keep, kind = tuple(dict.fromkeys(keep)), "evaluation" if labelled else "prediction"
    if section.source == "function":
        return _served(job, find_files(files, kind=kind), common, keep=keep)
    if section.source in ("csv", "parquet"):
        return _table(job, find_files(files, kind=kind), settings, labelled=labelled, keep=keep)
    if section.source == "images":
        return _images(job, files, common, labelled=labelled, keep=keep)
    if section.source == "tfrecord":
        return _tfrecord(section, find_files(files, kind=kind), common, labelled=labelled, keep=keep)
    if section.source == "tfds":
        keys_of = {name: getattr(section, name) for name in ("features_key", "label_key", "weight_key", "data_dir")}
        inputs = from_tfds(
            section.name, train_split=None, eval_split=_single(files, "split"), scale=section.scale, **keys_of, **common
        )
    else:
        inputs = _arrays(section, _single(files, ".npz file"), settings, labelled=labelled)
    return _with_kept(inputs, keep)


def _with_kept(inputs: Inputs, keep: tuple[str, ...], source: Source | None = None) -> FileData:
    source = source or inputs.eval_input_fn.source
    there = list(source.specs()) if keep else []
    for name in keep:
        if name not in there:
            raise ConfigError(
                f"the data have no {name!r} to keep",
                code="data/missing-feature",
                found=f"names: {', '.join(there)}",
                hint="name one of these",
            )
    return FileData(inputs, source if keep else None, keep)


def _single(files: Sequence[str], noun: str) -> str:
    if len(files) != 1:
        raise ConfigError(
            f"the job's data are read from one {noun}",
            code="argument/conflict",
            found=", ".join(files),
            hint=f"name one {noun}",
        )
    return files[0]


def _table(job: Job, paths: Sequence[str], options: InputOptions, *, labelled: bool, keep: tuple[str, ...]) -> FileData:
    section: Any = job.input
    if job.has_features:
        inputs = opened_with_features(job, paths, options, labelled=labelled)
        there = format_of_file(paths[0], section).names(paths[0])
        keep = tuple(dict.fromkeys([*(name for name in _keys(job) if name in there), *keep]))
    else:
        beside = [*section.labels, *([section.weight_key] if section.weight_key else [])]
        typed = [column_of(name, kind) for name, kind in section.types().items() if labelled or name not in beside]
        inputs = Inputs(
            train=None,
            evaluation=open_files(paths, section, typed, options),
            options=options,
            features_key=section.features_key,
            label_key=labels_of(section.label_key, section.weight_key) if labelled else (),
        )
    if not keep:
        return FileData(inputs)
    return FileData(inputs, open_files(paths, section, kept_columns(paths[0], keep, section), options), keep)


def _served(job: Job, paths: Sequence[str], common: dict[str, Any], *, keep: tuple[str, ...]) -> FileData:
    """Return the inputs of the job's exports in files, converted to the model's features."""
    serving = serving_of(job, None)
    convert = None if serving.transform is None else serving.transform.served
    if convert is not None:
        common["transform"] = lambda features, labels: (convert(features), labels)
    options = make_options("source: function", common)
    return FileData(*open_served(serving.specs or {}, paths, options, single=serving.single, keep=keep), keep)


def _keys(job: Job) -> list[str]:
    """Return the columns that name a record: declared as keys, or found in the training records."""
    declared = [name for name, feature in (job.model.features or {}).items() if feature.kind == "key"]
    return [*declared, *(name for name, kind, _ in stored_features(job.run.model_dir).report if kind == "key")]


def _tfrecord(
    section: Any, paths: Sequence[str], common: dict[str, Any], *, labelled: bool, keep: tuple[str, ...]
) -> FileData:
    spec, beside = feature_spec(section.features), {*section.labels, section.weight_key}

    def opened(features: dict[str, Any], **keys: Any) -> Inputs:
        return from_tfrecord(eval=paths, features=features, compression=compression_of(section), **keys, **common)

    if labelled:
        label_key, weight_key = section.label_key, section.weight_key
    else:
        spec = {name: feature for name, feature in spec.items() if name not in beside}
        label_key, weight_key = (), None
    inputs = opened(
        spec, label_key=label_key, weight_key=weight_key, features_key=section.features_key, scale=section.scale
    )
    kept = {name: feature for name, feature in feature_spec(section.features).items() if name in keep}
    if not kept:
        return _with_kept(inputs, keep)
    return _with_kept(inputs, keep, opened(kept, label_key=()).eval_input_fn.source)


def _arrays(section: Any, path: str, options: InputOptions, *, labelled: bool) -> Inputs:
    arrays, _ = named_arrays(arrays_of(path), "features", "prediction")
    beside = [*section.labels, *([section.weight_key] if section.weight_key else [])]
    features = [name for name in arrays if name not in beside]
    return Inputs(
        train=None,
        evaluation=ArraySource(arrays, description=f"the arrays of {path}"),
        options=options,
        features_key=features[0] if len(features) == 1 else tuple(features),
        label_key=labels_of(section.label_key, section.weight_key) if labelled else (),
    )


def _images(
    job: Job, files: Sequence[str], common: dict[str, Any], *, labelled: bool, keep: tuple[str, ...]
) -> FileData:
    section: Any = job.input
    classes = tuple(job.model.label_vocabulary) or find_images(section.train, use="training").classes
    folder = _single(files, "folder of images")
    if labelled:
        size = {"size": section.size, "channels": section.channels, "scale": section.scale}
        return _with_kept(from_images(eval=folder, classes=classes, **size, **common), keep)
    names = tuple(images_below(folder))
    if keep:
        raise ConfigError(
            f"images have no {keep[0]!r} to keep",
            code="data/missing-feature",
            found="paths, which are always kept as `file`",
            hint="leave --keep out",
        )
    source = ImageSource(
        ImageFiles(folder, classes, names, (0,) * len(names)),
        (*section.size, section.channels),
        description=f"the images in {folder}",
    )
    inputs = Inputs(
        train=None,
        evaluation=source,
        options=make_options("source: images", {**common, "scale": section.scale}),
        features_key="image",
        label_key=(),
        num_classes=len(classes),
        class_names=classes,
    )
    paths = np.array([os.fsencode(name) for name in names], dtype=object)
    return FileData(inputs, ArraySource({"file": paths}, description=source.description), ("file",))
