"""Data sets written as TFRecord files before training, one file per worker.

    written = inputs.partition(data, "parts", parts=2)
    data = inputs.from_partition("parts", global_batch_size=64, shard_policy="file")

The folder contains `train-00000-of-00002.tfrecord` and so on, the same for `eval` if the source has evaluation
data, and `partition.json`: the feature spec, the keys and the number of records in each file. Records are written
as the source decodes them, before `scale` and the transforms; these are options of reading.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from estimator_pipeline.errors import InputError
from estimator_pipeline.inputs.input_fn import Inputs
from estimator_pipeline.inputs.source import Source, tensorflow
from estimator_pipeline.inputs.sources.tfrecord import STORED, from_tfrecord
from estimator_pipeline.utils import durable_files as durable

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from estimator_pipeline.inputs.options import FactoryOptions

__all__ = ["Partition", "from_partition", "partition"]

_ABOUT = "partition.json"
# Types that an Example stores natively; other types are written as bytes.
_LISTS = ("float32", "int64", "string")


@dataclass(frozen=True)
class Partition:
    """The files that `partition` has written.

    Attributes:
        folder: The folder.
        train: Training file (its name in the folder) -> records in it.
        eval: The same for evaluation; empty without evaluation data.
        features: Feature name -> text for `from_tfrecord`, labels included.
        features_key: As `from_tfrecord` takes it.
        label_key: As `from_tfrecord` takes it.
    """

    folder: str
    train: Mapping[str, int]
    eval: Mapping[str, int]
    features: Mapping[str, str]
    features_key: str | tuple[str, ...] | None
    label_key: str | tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{self.folder}: {sum(self.train.values())} training records in {len(self.train)} part(s)"]
        lines += [f"  {name}: {count} records" for name, count in {**self.train, **self.eval}.items()]
        return "\n".join(lines)

    def section(self) -> dict[str, Any]:
        """Return the `input` section of a job file that reads the files, without the batch size."""
        features = {}
        for name, text in self.features.items():
            kind, dtype, shape = re.fullmatch(r"(?:(raw|varlen) )?(\w+)(?:\[([\d,]*)\])?", text).groups()  # type: ignore[union-attr]
            features[name] = {"dtype": dtype}
            if shape:
                features[name]["shape"] = [int(side) for side in shape.split(",")]
            if kind:
                features[name]["kind"] = kind
        keys = {} if self.features_key is None else {"features_key": _plain(self.features_key)}
        files = {"train": os.path.join(self.folder, "train-*.tfrecord")}
        if self.eval:
            files["eval"] = os.path.join(self.folder, "eval-*.tfrecord")
        label = {} if self.label_key == "label" else {"label_key": _plain(self.label_key)}
        return {"source": "tfrecord", **files, "features": features, **keys, **label, "shard_policy": "file"}


def partition(source: Inputs, folder: str | os.PathLike[str], *, parts: int) -> Partition:
    """Write a data set as TFRecord files, `parts` for the training data and `parts` for the evaluation data.

    Record i is written to file i modulo `parts`, in the order of the source: the same source yields the same bytes,
    the files differ by at most one record, and sorted data are spread over all files. The folder appears only when it
    is complete.

    Args:
        source: The data, from a factory of `estimator_pipeline.inputs`.
        folder: The target folder; must not exist, or be empty.
        parts: The number of training files, at least one per worker.

    Returns:
        The written files.

    Raises:
        InputError: The folder is not empty, there are fewer records than files, a record cannot be decoded, or a
            feature has a type that cannot be written.
    """
    readers = {"train": source._train, "eval": source._eval}
    sources = {kind: reader.source for kind, reader in readers.items() if reader is not None}
    if "train" not in sources:
        raise InputError(
            "There is no training data to partition",
            code="data/empty",
            hint="give the factory its training data (train=)",
        )
    count = sources["train"].num_records
    if isinstance(parts, bool) or not isinstance(parts, int) or not 1 <= parts <= count:
        raise InputError(
            f"{count} training records cannot be written as {parts!r} parts",
            code="data/cannot-shard",
            found=f"parts={parts!r}",
            hint=f"give a whole number from 1 to {count}",
        )
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(
            "The folder for the parts exists and is not empty",
            code="file/exists",
            found=str(target),
            hint="name a new folder, or remove this one",
        )
    layout = source._layout
    spec = sources["train"].specs()
    features = {name: _text(name, spec[name]) for name in spec}
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        files = {kind: _write(each, features, unfinished, kind, parts) for kind, each in sources.items()}
        written = Partition(
            folder=str(target),
            train=files["train"],
            eval=files.get("eval", {}),
            features=features,
            features_key=_fixed(layout.features_key),
            label_key=_fixed(layout.label_key) or "label",
        )
        about = {
            "features": written.features,
            "features_key": _plain(written.features_key),
            "label_key": _plain(written.label_key),
            "train": written.train,
            "eval": written.eval,
        }
        (unfinished / _ABOUT).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
        unfinished.chmod(0o755)
        # An atomic rename, which also replaces an empty folder.
        durable.rename(unfinished, target, by=os.rename)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return written


def from_partition(folder: str | os.PathLike[str], **options: Unpack[FactoryOptions]) -> Inputs:
    """Read a folder of `partition` as an `input_fn`.

    Args:
        folder: The folder.
        **options: See `estimator_pipeline.inputs.options.InputOptions`; global_batch_size is required, and
            shard_policy="file" gives each worker a separate file.

    Returns:
        The data, with `train_input_fn` and, if there is evaluation data, `eval_input_fn`.

    Raises:
        InputError: The folder has no partition, or a file is missing or has a different number of records.
    """
    where = Path(folder)
    try:
        about = json.loads((where / _ABOUT).read_text(encoding="utf-8"))
        files = {kind: {str(where / name): count for name, count in about[kind].items()} for kind in ("train", "eval")}
        keys = {name: about[name] for name in ("features", "features_key", "label_key")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{where} is not a folder of inputs.partition",
            code="file/not-found",
            found=f"{_ABOUT}: {type(error).__name__}: {error}",
            hint="name the folder that partition has written, or use from_tfrecord",
        ) from error
    data = from_tfrecord(list(files["train"]), list(files["eval"]) or None, **keys, **options)
    for kind, reader in (("train", data._train), ("eval", data._eval)):
        if reader is None:
            continue
        held = dict(zip(reader.source.part_names or (), reader.source.part_records, strict=True))
        for name, count in files[kind].items():
            if held[name] != count:
                raise InputError(
                    f"{name} has changed since it was written",
                    code="data/unreadable",
                    found=f"{held[name]} records, {count} in {_ABOUT}",
                    hint="write the partition again",
                )
    return data


def _text(name: str, spec: Any) -> str:
    """Return a feature's spec as text for `from_tfrecord`."""
    tf = tensorflow()
    dtype = spec.dtype.name
    if isinstance(spec, tf.SparseTensorSpec) and dtype in _LISTS:
        return f"varlen {dtype}"
    sides = spec.shape[1:].as_list() if isinstance(spec, tf.TensorSpec) and spec.shape.rank else [None]
    if None in sides or dtype not in STORED:
        raise InputError(
            f"The feature {name!r} cannot be written to parts",
            code="data/bad-feature",
            found=str(spec),
            hint="only features of one fixed shape, and lists of any length (varlen), can; leave it out",
        )
    text = dtype + (f"[{','.join(map(str, sides))}]" if sides else "")
    return text if dtype in _LISTS else f"raw {text}"


def _write(source: Source, features: Mapping[str, str], folder: Path, kind: str, parts: int) -> dict[str, int]:
    tf = tensorflow()
    names = [f"{kind}-{part:05d}-of-{parts:05d}.tfrecord" for part in range(parts)]
    writers = [tf.io.TFRecordWriter(str(folder / name)) for name in names]
    done = 0
    try:
        for chunk in source.decoded():
            columns = {name: _column(tf, chunk[name], text) for name, text in features.items()}
            for values in zip(*columns.values(), strict=True):
                feature = dict(zip(columns, values, strict=True))
                record = tf.train.Example(features=tf.train.Features(feature=feature))
                writers[done % parts].write(record.SerializeToString(deterministic=True))
                done += 1
    finally:
        for writer in writers:
            writer.close()
    return {name: len(range(part, done, parts)) for part, name in enumerate(names)}


def _column(tf: Any, value: Any, text: str) -> list[Any]:
    """Return a `tf.train.Feature` for each record of a chunk."""
    train = tf.train
    if text.startswith("raw "):
        return [train.Feature(bytes_list=train.BytesList(value=[np.ascontiguousarray(row).tobytes()])) for row in value]
    if text.startswith("varlen "):
        ends = np.searchsorted(value.indices[:, 0], np.arange(value.dense_shape[0] + 1))
        rows = [value.values[start:end] for start, end in itertools.pairwise(ends)]
    else:
        rows = [np.ravel(row) for row in value]
    dtype = text.removeprefix("varlen ").partition("[")[0]
    if dtype == "string":
        return [train.Feature(bytes_list=train.BytesList(value=row)) for row in rows]
    if dtype == "int64":
        return [train.Feature(int64_list=train.Int64List(value=row)) for row in rows]
    return [train.Feature(float_list=train.FloatList(value=row)) for row in rows]


def _fixed(key: Any) -> Any:
    return key if key is None or isinstance(key, str) else tuple(key)


def _plain(key: Any) -> Any:
    return list(key) if isinstance(key, tuple) else key
