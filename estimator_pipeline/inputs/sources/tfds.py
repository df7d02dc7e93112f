"""TensorFlow Datasets by name."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from estimator_pipeline.errors import InputError
from estimator_pipeline.inputs.features import labels_of
from estimator_pipeline.inputs.input_fn import Inputs
from estimator_pipeline.inputs.options import FactoryOptions, make_options
from estimator_pipeline.inputs.source import Source, tensorflow
from estimator_pipeline.inputs.sources import digits
from estimator_pipeline.inputs.sources.proxies import silent_host
from estimator_pipeline.inputs.sources.tfrecord_index import IndexedTFRecords, cache_dir, sampled

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["TfdsSource", "catalogue", "from_tfds", "no_such_data_set", "prepare_elsewhere"]


def from_tfds(
    name: str,
    *,
    train_split: str | None = "train",
    eval_split: str | None = None,
    features_key: str | Sequence[str] | None = None,
    label_key: str | Sequence[str] | None = None,
    weight_key: str | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = True,
    environ: Mapping[str, str] | None = None,
    **options: Unpack[FactoryOptions],
) -> Inputs:
    """Return an `input_fn` from a TensorFlow Datasets data set.

    `digits` is embedded and needs no network. Others are read where their files are; where they are not
    prepared yet, they are downloaded if there is a network.

    Args:
        name: "digits", "mnist", "name/config:1.2.3": whatever `tfds.builder` takes.
        train_split: The split to train on, or a slice of one ("train[:80%]"); None for none.
        eval_split: The split to evaluate; by default "test", else "validation", if there is one.
        features_key: One name: the model gets its tensor. A sequence of names: a dict of these. By default
            the data set's supervised input.
        label_key: The label, or a sequence of labels (a dict of tensors then); by default the supervised
            target.
        weight_key: What weighs each record (see `estimator_pipeline.models.sample_weights`): one label more, so
            that labels are a dict of tensors.
        data_dir: Where the prepared files are, or are to be.
        download: Whether to download and prepare a data set that is not there. That starts TensorFlow's
            runtime, so make a MultiWorkerMirroredStrategy before, or prepare the data set beforehand.
        environ: Where TFDS_DATA_DIR, XDG_CACHE_HOME, HOME and proxies are looked up; os.environ by default.
        **options: See `estimator_pipeline.inputs.options.InputOptions`; global_batch_size is required.

    Returns:
        The data, with `train_input_fn` and `eval_input_fn`.

    Raises:
        InputError: The data set, split or feature is unknown, or its files are missing and cannot be downloaded.
    """
    settings = make_options("from_tfds", options)
    environ = os.environ if environ is None else environ
    builder = _prepared(name, data_dir, download, environ)
    features_key, label_key = _keys(name, builder, features_key, label_key, weight_key)
    if eval_split is None:
        eval_split = next((split for split in ("test", "validation") if split in builder.info.splits), None)
    fields = [key for keys in (features_key, label_key) for key in ([keys] if isinstance(keys, str) else keys)]
    # The counts are in the data set's metadata: no file has to be opened to count its records.
    sources = [
        None if split is None else _source(name, builder, split, fields, settings.memory_limit, environ)
        for split in (train_split, eval_split)
    ]
    return Inputs(
        train=sources[0],
        evaluation=sources[1],
        options=settings,
        features_key=features_key,
        label_key=label_key,
        num_classes=_num_classes(builder, label_key),
    )


class TfdsSource(Source):
    """Records of a prepared TFDS split; each part is a file or a range of records in a file.

    Args:
        runs: For each part the file, the first record in it, and how many.
        decoder: The data set's features.
        fields: The selected features.
        reader: Reads the files.
        description: Name of the data, for messages.
    """

    raw_specs = (("string", ()),)

    def __init__(
        self,
        runs: Sequence[tuple[str, int, int]],
        *,
        decoder: Any,
        fields: Sequence[str],
        reader: IndexedTFRecords,
        description: str,
    ) -> None:
        self.description = description
        self.part_names = tuple(path for path, _, _ in runs)
        self.part_records = tuple(count for _, _, count in runs)
        self._runs = tuple(runs)
        self._decoder = decoder
        self._fields = tuple(fields)
        self._reader = reader

    def select(self, parts: Sequence[int]) -> TfdsSource:
        runs = [self._runs[i] for i in parts]
        return TfdsSource(
            runs, decoder=self._decoder, fields=self._fields, reader=self._reader, description=self.description
        )

    def raw(self, ids: np.ndarray) -> list[np.ndarray]:
        part, record = self.locate(ids)
        data = np.empty(len(ids), dtype=object)
        for index in np.unique(part):
            chosen = np.flatnonzero(part == index)
            path, first, _ = self._runs[index]
            data[chosen] = self._reader.read(path, record[chosen] + first)
        return [data]

    def digest(self, path: str) -> str | None:
        # The number of records is known: scanning the whole file would only delay the first step.
        return sampled(path)

    def decode(self, raw: Sequence[Any]) -> dict[str, Any]:
        tf = tensorflow()
        spec = self._decoder.get_tensor_spec()
        return tf.map_fn(
            lambda data: _picked(self._decoder.deserialize_example(data), self._fields),
            raw[0],
            fn_output_signature=_picked(spec, self._fields),
        )

    def specs(self) -> dict[str, Any]:
        tf = tensorflow()
        specs = _picked(self._decoder.get_tensor_spec(), self._fields)
        return {
            name: tf.TensorSpec([None, *spec.shape], spec.dtype)
            if isinstance(spec, tf.TensorSpec) and spec.shape.rank is not None
            else spec
            for name, spec in specs.items()
        }


def _picked(values: Mapping[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    picked = {}
    for field in fields:
        value: Any = values
        for key in field.split("/"):
            value = value[key]
        picked[field] = value
    return picked


def _num_classes(builder: Any, label_key: Any) -> int | None:
    """Return the number of classes if exactly one label is a ClassLabel of the data set."""
    labels = _picked(builder.info.features, [label_key] if isinstance(label_key, str) else label_key)
    counts = [label.num_classes for label in labels.values() if hasattr(label, "num_classes")]
    return counts[0] if len(counts) == 1 else None


def _source(
    name: str, builder: Any, split: str, fields: Sequence[str], memory_limit: int, environ: Mapping[str, str]
) -> TfdsSource:
    try:
        instructions = builder.info.splits[split].file_instructions
    except (KeyError, ValueError) as error:
        raise InputError(
            f"The data set {name} has no split {split!r}",
            code="data/not-found",
            found=f"splits {', '.join(builder.info.splits)}",
            hint="use one of these, or a slice such as 'train[:80%]'",
        ) from error
    runs = [
        (str(file.filename), file.skip, file.examples_in_shard - file.skip if file.take < 0 else file.take)
        for file in instructions
    ]
    kept = cache_dir(environ) / "index"
    reader = IndexedTFRecords([path for path, _, _ in runs], compression="", cache=kept, memory_limit=memory_limit)
    return TfdsSource(
        runs, decoder=builder.info.features, fields=fields, reader=reader, description=f"TFDS {name}, split {split}"
    )


def _keys(name: str, builder: Any, features_key: Any, label_key: Any, weight_key: Any) -> tuple[Any, Any]:
    supervised = builder.info.supervised_keys
    simple = supervised is not None and len(supervised) == 2 and all(isinstance(key, str) for key in supervised)
    for option, key in (("features_key", features_key), ("label_key", label_key)):
        if key is None and not simple:
            raise InputError(
                f"The data set {name} does not define its features and labels",
                code="argument/missing",
                found=f"features {', '.join(builder.info.features)}",
                hint=f"give {option}",
            )
    features_key = supervised[0] if features_key is None else features_key
    label_key = labels_of(supervised[1] if label_key is None else label_key, weight_key)
    for keys in (features_key, label_key):
        for key in [keys] if isinstance(keys, str) else keys:
            if key.split("/")[0] not in builder.info.features:
                raise InputError(
                    f"The data set {name} has no feature {key!r}",
                    code="data/missing-feature",
                    found=f"features {', '.join(builder.info.features)}",
                    hint="use one of these",
                )
    return features_key, label_key


def _import_tfds() -> Any:
    tensorflow()  # first, so that TFDS finds the TensorFlow that the job uses
    try:
        import tensorflow_datasets as tfds

        _ = (
            tfds.core.DatasetBuilder,
            tfds.features.FeaturesDict,
        )  # its own imports are lazy, and fail here if they do
    except (ImportError, AttributeError) as error:
        raise InputError(
            "tensorflow_datasets cannot be imported",
            code="tensorflow/not-installed",
            found=str(error.__cause__ or error),
            hint="pip install 'tensorflow-datasets>=4.9' importlib_resources, with TensorFlow 2.15 to "
            "2.19 also 'tensorflow-metadata<1.18'",
        ) from error
    return tfds


def _prepared(name: str, data_dir: Any, download: bool, environ: Mapping[str, str]) -> Any:
    tfds = _import_tfds()
    if name.split(":")[0] == digits.NAME and name in (digits.NAME, f"{digits.NAME}:{digits.VERSION}"):
        return tfds.builder_from_directory(str(digits.prepare(data_dir, environ=environ)))
    folder = data_dir if data_dir is not None else environ.get("TFDS_DATA_DIR")
    where = None if folder is None else os.fspath(folder)
    try:
        # Without try_gcs=False a missing data set may be looked for in a bucket, for minutes where there is
        # no network.
        builder = tfds.builder(name, data_dir=where, try_gcs=False)
    except tfds.core.DatasetNotFoundError as error:
        raise no_such_data_set(name, where or "the default data directory", tfds.list_builders()) from error
    except (ValueError, AssertionError, OSError) as error:
        raise InputError(
            f"The data set {name} cannot be opened",
            code="data/not-found",
            found=str(error).splitlines()[0],
            hint="check its name and data_dir",
        ) from error
    if not _is_there(builder):
        if not download:
            raise _not_there(name, builder, "download=False")
        _download(name, builder, environ)
    if builder.info.file_format is not None and builder.info.file_format.value != "tfrecord":
        raise InputError(
            f"The files of the data set {name} are of a format that is not read here",
            code="data/unreadable",
            found=builder.info.file_format.value,
            hint="prepare it as tfrecord: tfds build --file_format=tfrecord",
        )
    return builder


def catalogue() -> list[str]:
    """Return the names of all data sets of TensorFlow Datasets; none if it is not installed.

    Takes half a second and imports no TensorFlow.
    """
    try:
        import tensorflow_datasets as tfds

        return list(tfds.list_builders(with_community_datasets=False))
    except (ImportError, AttributeError):
        return []


def no_such_data_set(name: str, where: str, names: Sequence[str]) -> InputError:
    """For a data set that is neither in the catalogue nor prepared.

    Args:
        name: as it was given.
        where: where it was looked for.
        names: those of the catalogue.
    """
    close = difflib.get_close_matches(name.split("/")[0].split(":")[0], [digits.NAME, *names], n=3)
    return InputError(
        f"There is no TensorFlow Datasets data set {name!r}",
        code="data/not-found",
        found=f"neither in the catalogue nor under {where}",
        hint=f"did you mean {' or '.join(close)}?" if close else "check the name",
    )


def _is_there(builder: Any) -> bool:
    return bool(builder.info.splits) and Path(str(builder.data_path), "dataset_info.json").is_file()


def _download(name: str, builder: Any, environ: Mapping[str, str]) -> None:
    try:
        urls = list(builder.url_infos)
    except ImportError as error:
        raise _not_there(name, builder, f"downloading needs a package that is missing: {error}") from error
    if silent := silent_host(urls, environ=environ):
        raise _not_there(name, builder, f"no network: {silent} does not answer")
    with digits.locked(Path(str(builder.data_path)).parent, name.replace("/", "_").replace(":", "_")):
        if _is_there(builder):
            return
        try:
            builder.download_and_prepare()
        except Exception as error:  # whatever the data set's own code raises, the user needs the same advice
            raise _not_there(name, builder, f"{type(error).__name__}: {str(error).splitlines()[0][:200]}") from error


def _not_there(name: str, builder: Any, why: str) -> InputError:
    base = str(builder.data_path).split(f"/{builder.name}/")[0]
    return InputError(
        f"The data set {name} is not prepared, and cannot be downloaded here",
        code="data/not-found",
        found=f"nothing at {builder.data_path}; {why}",
        hint=prepare_elsewhere(name, base),
    )


def prepare_elsewhere(name: str, looked_in: str) -> str:
    """Return what a person can do for a data set that is not there and cannot be downloaded."""
    return (
        f"on a machine with a network run `tfds build {name} --data_dir=DIR` (or tfds.load), copy DIR here and name it "
        f"as data_dir, input.data_dir or TFDS_DATA_DIR (looked in {looked_in}); or use the embedded data set "
        f"{digits.NAME!r}"
    )
