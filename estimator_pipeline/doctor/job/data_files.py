"""A job's data as far as it is known: files, their records, and whether a prepared data set is there."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import zipfile
from dataclasses import dataclass

from estimator_pipeline.doctor.context import Context
from estimator_pipeline.doctor.findings import DoctorFinding, NotLookedAt, error, info, of_error, warning
from estimator_pipeline.errors import InputError
from estimator_pipeline.inputs.sources import csv as csv_files
from estimator_pipeline.inputs.sources.paths import find_files
from estimator_pipeline.inputs.sources.proxies import silent_host
from estimator_pipeline.inputs.sources.tfds import catalogue, no_such_data_set, prepare_elsewhere
from estimator_pipeline.inputs.sources.tfrecord_index import cache_dir, index_file
from estimator_pipeline.job import ArraysInput, CsvInput, TfdsInput, TFRecordInput

__all__ = ["COUNTED_BYTES", "Files", "NotPrepared", "array_shapes", "data_set_folder", "files_of"]

COUNTED_BYTES = 2**30


_PARSED_BYTES = 2**22  # Of CSV files: a second or two.


@dataclass(frozen=True)
class Files:
    """Training or evaluation data as far as it is known.

    Attributes:
        use: "training" or "evaluation".
        what: for a person.
        paths: the files; empty where the data is in none that are known.
        records: how many records each file holds; None where they were not counted.
        in_files: whether the data can be shared by file.
    """

    use: str
    what: str
    paths: tuple[str, ...] = ()
    records: tuple[int, ...] | None = None
    in_files: bool = True

    @property
    def told(self) -> str:
        """In words."""
        count = f", {sum(self.records)} records" if self.records is not None else ""
        return f"{self.use}: {self.what}{count}"


def files_of(context: Context) -> list[Files]:
    """The job's data, looked at once for all checks.

    Raises:
        InputError: Files are not there, or damaged.
        NotLookedAt: The data cannot be looked at without TensorFlow.
        NotPrepared: It is a data set that is not there yet.
    """
    return context.once(_files_of)


def _files_of(context: Context) -> list[Files]:
    section = context.needed_job().input
    if isinstance(section, TfdsInput):
        return _prepared(context, section)
    if isinstance(section, ArraysInput):
        return [_arrays(use, getattr(section, key)) for use, key in _USES]
    if isinstance(section, TFRecordInput):
        return [_tfrecord(use, find_files(getattr(section, key), kind=use), section.compression) for use, key in _USES]
    if isinstance(section, CsvInput):
        return [_csv(use, find_files(getattr(section, key), kind=use), section) for use, key in _USES]
    raise NotLookedAt("an own input function; see `inspect` and estimator_pipeline.testing")


_USES = (("training", "train"), ("evaluation", "eval"))


def _tfrecord(use: str, paths: tuple[str, ...], compression: str) -> Files:
    size = sum(map(os.path.getsize, paths))
    records = None
    if compression == "none" and size <= COUNTED_BYTES:
        records = tuple(len(index_file(path, cache=None)) for path in paths)
    return Files(use, f"{len(paths)} TFRecord file(s), {size} bytes", paths, records)


def _csv(use: str, paths: tuple[str, ...], section: CsvInput) -> Files:
    records = csv_files.examine(
        paths, columns=section.types(), header=section.header, delimiter=section.delimiter, limit=_PARSED_BYTES
    )
    begun = "" if records is not None else f", the first {_PARSED_BYTES} of them read"
    return Files(use, f"{len(paths)} CSV file(s), {sum(map(os.path.getsize, paths))} bytes{begun}", paths, records)


def array_shapes(use: str, path: str) -> dict[str, tuple[int, ...]]:
    """The shapes of the arrays in an .npz file. They stand in the headers, and no array is read.

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
        told = ", ".join(f"{name} {length}" for name, length in lengths.items()) or "no array"
        raise InputError(
            f"The arrays of the {use} data are not of one length",
            code="data/bad-feature",
            found=f"{path}: {told}",
            hint="the first axis of each array are the records",
        )
    count = next(iter(lengths.values()))
    return Files(use, f"{path}, arrays {', '.join(lengths)}", (path,), (count,), in_files=False)


class NotPrepared(Exception):
    """The data set is not there yet, which need not be an error."""

    def __init__(self, finding: DoctorFinding) -> None:
        super().__init__(finding.what)
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
            hint="prepare it anew",
        ) from problem
    found = []
    for use, given in (("training", section.train_split), ("evaluation", section.eval_split)):
        split = re.split(r"[\[(+]", given)[0].strip()
        if split not in splits:
            raise InputError(
                f"The data set {name} has no split {split!r}",
                code="data/not-found",
                found=f"splits: {', '.join(splits)}",
                hint="correct input.train_split or input.eval_split",
            )
        lengths = splits[split]
        _check_files(folder, name, split, len(lengths))
        whole = given.strip() == split
        what = f"{name} {given} in {folder}, {len(lengths)} file(s)"
        found.append(Files(use, what, _shards(folder, split), tuple(lengths) if whole else None))
    return found


def data_set_folder(context: Context, section: TfdsInput) -> str | None:
    """Where the prepared data set is; None: nowhere."""
    name, _, version = section.name.partition(":")
    return _version_folder(os.path.join(data_dir_of(context, section, name), *name.split("/")), version)


def data_dir_of(context: Context, section: TfdsInput, name: str) -> str:
    given = section.data_dir or context.environ.get("TFDS_DATA_DIR")
    if given:
        return os.path.expanduser(given)
    if name == "digits":
        return str(cache_dir(context.environ) / "tfds")
    return os.path.join(context.environ.get("HOME") or os.path.expanduser("~"), "tensorflow_datasets")


def _version_folder(folder: str, version: str) -> str | None:
    """The folder of the version asked for, or of the newest; where a data set has one configuration, that one's."""
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
    """Of a data set that is nowhere, whether it cannot be made either."""
    if context.other_python or ":" in name or not (names := catalogue()) or name.split("/")[0] in names:
        return None
    return of_error(no_such_data_set(name, base, names), "every task that reads it ends with this error")


def _not_prepared(context: Context, name: str, base: str) -> DoctorFinding:
    if name == "digits":
        place = base
        while not os.path.isdir(place) and os.path.dirname(place) != place:
            place = os.path.dirname(place)
        if not os.access(place, os.W_OK):
            return error(
                f"the embedded data set digits is to be prepared in {base}, and {place} cannot be written",
                "every task that reads it ends with an error",
                "set TFDS_DATA_DIR or input.data_dir to a folder that can be written, or prepare it beforehand",
            )
        return info(f"the embedded data set digits is prepared in {base} by the first task that reads it")
    if (unknown := unknown_data_set(context, name, base)) is not None:
        return unknown
    silent = silent_host(_urls(name), environ=context.environ, timeout=context.timeout) if context.connect else None
    if silent:
        return error(
            f"the data set {name} is not prepared in {base}, and there is no network: {silent} does not answer",
            "every task that reads it ends with an error",
            prepare_elsewhere(name, base),
        )
    return warning(
        f"the data set {name} is not prepared in {base}",
        "each host downloads it when the job starts, for as long as that takes; compute nodes often have no network",
        f"run `tfds build {name}` (or tfds.load) with data_dir in a folder that all tasks share, and name that in "
        "input.data_dir or TFDS_DATA_DIR",
    )


def _urls(name: str) -> list[str]:
    """What a data set is downloaded from, as TFDS's own list of its files has it; none where there is none."""
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
    # Names of another template are not known here.
    if there and there != count:
        raise InputError(
            f"Files of the data set {name} are missing",
            code="data/not-found",
            found=f"{there} of {count} files of the split {split} in {folder}",
            hint="copy it again, or prepare it anew",
        )
