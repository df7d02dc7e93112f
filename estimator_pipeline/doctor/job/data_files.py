"""The files of a job's data, with their record counts, and prepared TFDS data sets."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from estimator_pipeline.doctor.context import Context
from estimator_pipeline.doctor.findings import CheckSkipped, DoctorFinding, error, info, of_error, warning
from estimator_pipeline.errors import InputError
from estimator_pipeline.inputs.options import InputOptions
from estimator_pipeline.inputs.sources.columns import Column, column_of
from estimator_pipeline.inputs.sources.images import find_images
from estimator_pipeline.inputs.sources.paths import find_files
from estimator_pipeline.inputs.sources.proxies import silent_host
from estimator_pipeline.inputs.sources.section import format_of
from estimator_pipeline.inputs.sources.table_format import TableFormat, examine
from estimator_pipeline.inputs.sources.tfds import catalogue, no_such_data_set, prepare_elsewhere
from estimator_pipeline.inputs.sources.tfrecord_index import IndexedTFRecords, cache_dir, compression_of
from estimator_pipeline.inputs.value_checks import job_scan, not_finite, unknown_ids, unscaled
from estimator_pipeline.job import ArraysInput, ImagesInput, Job, TableInput, TfdsInput, TFRecordInput
from estimator_pipeline.utils.fixes import of_job_file
from estimator_pipeline.utils.text import few

__all__ = [
    "COUNTED_BYTES",
    "Files",
    "NotPrepared",
    "array_shapes",
    "data_set_folder",
    "files_of",
    "table_plan_of",
    "tfrecord_reader",
]

COUNTED_BYTES = 2**30
_UNPACKED_BYTES = 2**26  # Bytes of compressed files that are decompressed, which takes some seconds.
_PARSED_BYTES = 2**26  # Bytes of tables that are parsed, which takes a second or two.


@dataclass(frozen=True)
class Files:
    """Training or evaluation data.

    Attributes:
        use: "training" or "evaluation".
        description: The data, for messages.
        paths: The files; empty where the data has no known files.
        records: The number of records in each file; None where they were not counted.
        in_files: Whether the data can be sharded by file.
        values: Findings about the values of the columns.
    """

    use: str
    description: str
    paths: tuple[str, ...] = ()
    records: tuple[int, ...] | None = None
    in_files: bool = True
    values: tuple[DoctorFinding, ...] = ()

    @property
    def text(self) -> str:
        """The data and its number of records, for messages."""
        count = f", {sum(self.records)} records" if self.records is not None else ""
        return f"{self.use}: {self.description}{count}"


def files_of(context: Context) -> list[Files]:
    """Return the job's training and evaluation data; examined once for all checks.

    Raises:
        InputError: Files are missing or damaged.
        CheckSkipped: The data cannot be examined without TensorFlow.
        NotPrepared: The TFDS data set is not prepared yet.
    """
    return context.once(_files_of)


@of_job_file()
def _files_of(context: Context) -> list[Files]:
    section = context.needed_job().input
    if isinstance(section, TfdsInput):
        return _prepared(context, section)
    if isinstance(section, ArraysInput):
        return [_arrays(use, getattr(section, key)) for use, key in _uses(section)]
    if isinstance(section, TFRecordInput):
        return [_tfrecord(use, find_files(getattr(section, key), kind=use), section) for use, key in _uses(section)]
    if isinstance(section, ImagesInput):
        return _images(context.needed_job(), section)
    if isinstance(section, TableInput):
        return _tables(context, section)
    raise CheckSkipped("a custom input function; see `inspect` and estimator_pipeline.testing")


def _uses(section: Any) -> tuple[tuple[str, str], ...]:
    """Return what the data of a start are for, and the fields that name them."""
    training = "train" if section.continue_with is None else "continue_with"
    return ("training", training), ("evaluation", "eval")


def tfrecord_reader(paths: tuple[str, ...], section: TFRecordInput) -> IndexedTFRecords:
    """Return a reader of TFRecord files that rejects what training rejects; it does not write a cache."""
    return IndexedTFRecords(
        paths,
        compression="GZIP" if section.compression == "gzip" else compression_of(paths),
        cache=None,
        memory_limit=InputOptions.memory_limit if section.memory_limit is None else section.memory_limit,
    )


def _tfrecord(use: str, paths: tuple[str, ...], section: TFRecordInput) -> Files:
    size = sum(map(os.path.getsize, paths))
    reader = tfrecord_reader(paths, section)
    records = reader.counts() if size <= (_UNPACKED_BYTES if reader.compression else COUNTED_BYTES) else None
    return Files(use, f"{len(paths)} TFRecord file(s), {size} bytes", paths, records)


def table_plan_of(context: Context) -> tuple[Any, list[Column]]:
    """Return the features of a table's job, before any record is read, and the columns that they need."""
    from estimator_pipeline.engines.jobs.table import table_plan

    job = context.needed_job()
    plan, columns, _ = table_plan(job, find_files(job.input.continue_with or job.input.train, kind="training"))  # type: ignore[union-attr]
    return plan, columns


def _tables(context: Context, section: TableInput) -> list[Files]:
    job = context.needed_job()
    table_format = format_of(section)
    columns = [column_of(name, kind) for name, kind in section.types().items()]
    uses: list[Files] = []
    for use, key in _uses(section):
        patterns = getattr(section, key)
        if patterns is None:
            share = f"{section.eval_fraction:g} of the training records"
            uses.append(Files(use, share, uses[0].paths, uses[0].records, in_files=False))
            continue
        paths = find_files(patterns, kind=use)
        if job.has_features:
            columns = context.once(table_plan_of)[1]
        scan = _JobScan(job, use, [column.name for column in columns])
        records, is_whole = examine(paths, table_format, columns, limit=_PARSED_BYTES, watch=scan.add)
        begun = "" if is_whole else f", the first {_PARSED_BYTES} of them checked"
        size = sum(map(os.path.getsize, paths))
        description = f"{len(paths)} {table_format.noun} file(s), {size} bytes{begun}"
        values = tuple(scan.findings(functools.partial(_place, paths, records, table_format)))
        uses.append(Files(use, description, paths, records if is_whole else None, values=values))
    return uses


def _place(paths: Sequence[str], records: Sequence[int], table_format: TableFormat, record: int) -> str:
    for path, count in zip(paths, records, strict=True):
        if record < count:
            return f"{path}, {table_format.places(path, [record])[0]}"
        record -= count
    raise IndexError(record)


def _images(job: Job, section: ImagesInput) -> list[Files]:
    uses: list[Files] = []
    classes = job.model.label_vocabulary or None
    for use, key in _uses(section):
        folder = getattr(section, key)
        if folder is None:
            share = f"{section.eval_fraction:g} of the training records"
            uses.append(Files(use, share, records=uses[0].records, in_files=False))
            continue
        images = find_images(folder, use=use, classes=classes, some=bool(uses))
        classes = list(images.classes)
        description = f"images in {folder}, {len(classes)} classes ({few(classes, 8)})"
        uses.append(Files(use, description, records=(len(images.names),), in_files=False))
    return uses


class _JobScan:
    """The values of the columns of a job's built-in model."""

    def __init__(self, job: Job, use: str, names: Sequence[str]) -> None:
        self._job, self._use, self._names, self._scan = job, use, names, job_scan(job, names)
        self._count = 0

    def add(self, arrays: Sequence[Any]) -> None:
        if self._scan is not None:
            there = dict(zip(self._names, arrays, strict=True))
            chunk = {name: there[name].to_numpy(zero_copy_only=False) for name in self._scan.columns}
            self._scan.add(chunk, self._count)
            self._count += len(arrays[0])

    def findings(self, place: Callable[[int], str]) -> Iterator[DoctorFinding]:
        if self._scan is None:
            return
        for wrong in (
            unknown_ids(self._scan, self._job, use=self._use, place=place),
            not_finite(self._scan, place=place),
        ):
            if wrong is not None:
                yield of_error(wrong, "training fails with this error")
        if self._use == "training" and (problem := unscaled(self._scan, self._job)) is not None:
            yield warning(*problem)


def array_shapes(use: str, path: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arrays in an .npz file; only the headers are read.

    Raises:
        InputError: There is no such file, or it cannot be read.
    """
    import numpy as np

    if not os.path.isfile(path):
        raise InputError(
            f"The file of the {use} data is missing", code="data/not-found", found=path, hint="check the path"
        )
    shapes: dict[str, tuple[int, ...]] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                with archive.open(name) as file:
                    version = np.lib.format.read_magic(file)
                    read = (
                        np.lib.format.read_array_header_1_0
                        if version == (1, 0)
                        else np.lib.format.read_array_header_2_0
                    )
                    shapes[name.removesuffix(".npy")] = read(file)[0]
    except (zipfile.BadZipFile, ValueError, OSError) as problem:
        raise InputError(
            f"The file of the {use} data cannot be read",
            code="data/unreadable",
            found=f"{path}: {problem}",
            hint="write it with numpy.savez",
        ) from problem
    return shapes


def _arrays(use: str, path: str) -> Files:
    lengths = {name: shape[0] if shape else 0 for name, shape in array_shapes(use, path).items()}
    if len(set(lengths.values())) != 1:
        details = ", ".join(f"{name} {length}" for name, length in lengths.items()) or "no array"
        raise InputError(
            f"The arrays of the {use} data have different lengths",
            code="data/bad-feature",
            found=f"{path}: {details}",
            hint="make the first axis of every array the records",
        )
    count = next(iter(lengths.values()))
    return Files(use, f"{path}, arrays {', '.join(lengths)}", (path,), (count,), in_files=False)


class NotPrepared(Exception):
    """The data set is not prepared yet, which may be no error."""

    def __init__(self, finding: DoctorFinding) -> None:
        super().__init__(finding.message)
        self.finding = finding


def _prepared(context: Context, section: TfdsInput) -> list[Files]:
    name = section.name.partition(":")[0]
    folder = data_set_folder(context, section)
    if folder is None:
        raise NotPrepared(_not_prepared(context, name, data_dir_of(context, section, name)))
    try:
        with open(os.path.join(folder, "dataset_info.json"), encoding="utf-8") as file:
            document = json.load(file)
        splits = {split["name"]: [int(n) for n in split["shardLengths"]] for split in document["splits"]}
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise InputError(
            f"The description of the data set {name} cannot be read",
            code="data/unreadable",
            found=f"{folder}: {problem}",
            hint="prepare it again",
        ) from problem
    every = []
    for use, expression in (("training", section.train_split), ("evaluation", section.eval_split)):
        split = re.split(r"[\[(+]", expression)[0].strip()
        if split not in splits:
            raise InputError(
                f"The data set {name} has no split {split!r}",
                code="data/not-found",
                found=f"splits: {', '.join(splits)}",
                hint="correct input.train_split or input.eval_split",
            )
        lengths = splits[split]
        _check_files(folder, name, split, len(lengths))
        whole = expression.strip() == split
        description = f"{name} {expression} in {folder}, {len(lengths)} file(s)"
        every.append(Files(use, description, _shards(folder, split), tuple(lengths) if whole else None))
    return every


def data_set_folder(context: Context, section: TfdsInput) -> str | None:
    """Return the folder of the prepared data set; None if it does not exist."""
    name, _, version = section.name.partition(":")
    return _version_folder(os.path.join(data_dir_of(context, section, name), *name.split("/")), version)


def data_dir_of(context: Context, section: TfdsInput, name: str) -> str:
    """Return the folder in which TFDS looks for a data set."""
    configured = section.data_dir or context.environ.get("TFDS_DATA_DIR")
    if configured:
        return os.path.expanduser(configured)
    if name == "digits":
        return str(cache_dir(context.environ) / "tfds")
    return os.path.join(context.environ.get("HOME") or os.path.expanduser("~"), "tensorflow_datasets")


def _version_folder(folder: str, version: str) -> str | None:
    """Return the folder of the requested or newest version; also below a single configuration folder."""
    try:
        names = os.listdir(folder)
    except OSError:
        return None
    versions = sorted((tuple(map(int, n.split("."))), n) for n in names if re.fullmatch(r"\d+\.\d+\.\d+", n))
    wanted = [n for _, n in versions if not version or re.fullmatch(version.replace(".", r"\.").replace("*", r".*"), n)]
    if wanted:
        return os.path.join(folder, wanted[-1])
    below = [os.path.join(folder, n) for n in names if not versions and os.path.isdir(os.path.join(folder, n))]
    return _version_folder(below[0], version) if len(below) == 1 else None


def unknown_data_set(context: Context, name: str, base: str) -> DoctorFinding | None:
    """Return a finding if TFDS has no data set of this name."""
    if context.other_python or ":" in name or not (names := catalogue()) or name.split("/")[0] in names:
        return None
    return of_error(no_such_data_set(name, base, names), "every task that reads it fails with this error")


def _not_prepared(context: Context, name: str, base: str) -> DoctorFinding:
    if name == "digits":
        place = base
        while not os.path.isdir(place) and os.path.dirname(place) != place:
            place = os.path.dirname(place)
        if not os.access(place, os.W_OK):
            return error(
                f"the built-in data set digits would be prepared in {base}, and {place} is not writable",
                "every task that reads it fails",
                "set TFDS_DATA_DIR or input.data_dir to a writable folder, or prepare the data set beforehand",
                code="data/not-found",
            )
        return info(f"the built-in data set digits is prepared in {base} by the first task that reads it")
    if (unknown := unknown_data_set(context, name, base)) is not None:
        return unknown
    silent = silent_host(_urls(name), environ=context.environ, timeout=context.timeout) if context.connect else None
    if silent:
        return error(
            f"the data set {name} is not prepared in {base}, and there is no network: {silent} does not answer",
            "every task that reads it fails",
            prepare_elsewhere(name, base),
            code="data/not-found",
        )
    return warning(
        f"the data set {name} is not prepared in {base}",
        "each host downloads it when the job starts, which may take long; compute nodes often have no network",
        f"run `tfds build {name}` (or tfds.load) with data_dir in a folder that all tasks share, and set "
        "input.data_dir or TFDS_DATA_DIR to it",
    )


def _urls(name: str) -> list[str]:
    """Return the download URLs of a data set, from TFDS's checksum list; empty if it has no list."""
    package = importlib.util.find_spec("tensorflow_datasets")
    if package is None or not package.submodule_search_locations:
        return []
    first = name.split("/")[0]
    urls: list[str] = []
    for parts in (("url_checksums", f"{first}.txt"), ("datasets", first, "checksums.tsv")):
        with (
            contextlib.suppress(OSError),
            open(os.path.join(package.submodule_search_locations[0], *parts), encoding="utf-8") as file,
        ):
            urls += [line.split()[0] for line in file if line.strip()]
    return urls


def _shards(folder: str, split: str) -> tuple[str, ...]:
    mark = re.compile(rf"-{re.escape(split)}\.[\w.]+?-\d{{5}}-of-(\d{{5}})$")
    return tuple(os.path.join(folder, name) for name in sorted(os.listdir(folder)) if mark.search(name))


def _check_files(folder: str, name: str, split: str, count: int) -> None:
    there = len(_shards(folder, split))
    # Files with a different naming template are not counted.
    if there and there != count:
        raise InputError(
            f"Files of the data set {name} are missing",
            code="data/not-found",
            found=f"{there} of {count} files of the split {split} in {folder}",
            hint="copy it again, or prepare it again",
        )
