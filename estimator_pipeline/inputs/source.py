"""Sources of the factories: records by number, in memory or in files.

A source returns the raw bytes or values of any records (`raw`, NumPy, called while a step is fetched) and
converts them to tensors (`decode`, called while the graph is built). Any record can be read at any time, so that
data can be addressed by step.
"""

from __future__ import annotations

import abc
import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from estimator_pipeline.errors import InputError

__all__ = [
    "DECODE_CHUNK",
    "ArraySource",
    "Source",
    "contents",
    "file_digest",
    "files_of",
    "fingerprint",
    "raw_tensor_specs",
    "tensorflow",
]

DECODE_CHUNK = 4096
"""Records decoded in one go while a source is loaded into memory."""
_SEARCH_CHUNK = 256  # Records decoded in one go while a damaged one is searched for.


def tensorflow() -> ModuleType:
    """Return TensorFlow with `tf.estimator`; imported on first use."""
    from estimator_pipeline import compat

    return compat.tensorflow()


class Source(abc.ABC):
    """Records that can be read by number.

    Attributes:
        description: Name of the source, for messages: "TFDS digits, split train".
        part_names: A name for each part (a file's path); None for data without files.
        part_records: Records in each part; ids count through the parts in this order.
        raw_specs: For each value of `raw` its dtype ("string" for bytes or text) and the shape of one record.
        string_bytes: The length of a string, about.
        places: `places(part name, sorted rows)` returns where rows are, such as "line 3"; None: "record 3".
        nullable: Names of values in which NaN is a missing number.
    """

    description: str
    part_names: tuple[str, ...] | None
    part_records: tuple[int, ...]
    raw_specs: tuple[tuple[Any, tuple[int, ...]], ...]
    string_bytes = 1024
    places: Callable[[str, Sequence[int]], list[str]] | None = None
    nullable: frozenset[str] = frozenset()

    @property
    def num_records(self) -> int:
        """Records in all the parts."""
        return sum(self.part_records)

    @property
    def in_memory(self) -> bool:
        """Whether the records are in memory."""
        return False

    @property
    def decodes_blocks(self) -> bool:
        """Whether `decode` also takes tensors with further axes before that of the batch."""
        return self.in_memory

    @abc.abstractmethod
    def select(self, parts: Sequence[int]) -> Source:
        """Return the source with only these parts; ids count from 0 within them. Opens no file."""

    @abc.abstractmethod
    def raw(self, ids: np.ndarray) -> list[np.ndarray]:
        """Return the raw values of records; one array of shape (len(ids), ...) for each of `raw_specs`."""

    @abc.abstractmethod
    def decode(self, raw: Sequence[Any]) -> dict[str, Any]:
        """Convert a batch of raw tensors to tensors by name, of shape (batch, ...). Builds graph operations."""

    @abc.abstractmethod
    def specs(self) -> dict[str, Any]:
        """Return the specs of `decode`'s result, batch axis first.

        They are not traced: a graph with a loop or a function would start TensorFlow's runtime, after which
        TensorFlow rejects a new MultiWorkerMirroredStrategy.
        """

    def parse_examples(self, records: Any, names: Sequence[str]) -> dict[str, Any] | None:
        """Return these values of serialized tf.train.Example records, string [B]; None without such records."""
        return None

    def examples(self, ids: np.ndarray) -> list[bytes]:
        """Return records that `parse_examples` parses; [] without such records."""
        return []

    def record_names(self) -> list[str] | None:
        """Return what identifies the records, in their order; None if files with records or arrays do."""
        return None

    def loaded_bytes(self) -> int | None:
        """Return the size of the decoded records in bytes; None if it is unknown or cannot be held."""
        return _stored_bytes(tensorflow(), self.specs(), self.num_records)

    def digest(self, path: str) -> str | None:
        """Return a digest of a file's content, or None."""
        return None

    def is_unchanged(self, path: str) -> bool:
        """Read a file again, and return whether it still has the content of `digest`; False if that is not known."""
        return False

    def load(self) -> ArraySource:
        """Return the records decoded into memory.

        Raises:
            InputError: A record cannot be decoded; the message names it.
        """
        chunks = list(self.decoded())
        arrays = {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}
        return ArraySource(
            arrays, description=self.description, part_names=self.part_names, part_records=self.part_records
        )

    def decoded(self, records: np.ndarray | None = None) -> Iterator[dict[str, Any]]:
        """Yield the decoded records in order, some thousand at a time; at least one chunk, which may be empty.

        Args:
            records: The ids of the records; None: all.

        Raises:
            InputError: A record cannot be decoded; the message names it.
        """
        tf = tensorflow()
        with self._decoding(tf) as run:
            records = np.arange(self.num_records, dtype=np.int64) if records is None else records
            for start in range(0, max(len(records), 1), DECODE_CHUNK):
                ids = records[start : start + DECODE_CHUNK]
                try:
                    chunk = run(ids)
                except tf.errors.OpError as error:
                    # TensorFlow's error is quoted; its traceback would hide this one.
                    raise self._undecodable(run, ids, tf, error) from None
                yield chunk

    def undecodable(self, ids: np.ndarray) -> InputError | None:
        """Return the error of the first of these records that cannot be decoded, or None."""
        tf = tensorflow()
        with self._decoding(tf) as run:
            for chunk in np.split(ids, range(_SEARCH_CHUNK, len(ids), _SEARCH_CHUNK)):
                try:
                    run(chunk)
                except tf.errors.OpError as error:
                    return self._undecodable(run, chunk, tf, error)
        return None

    @contextlib.contextmanager
    def _decoding(self, tf: ModuleType) -> Iterator[Callable[[np.ndarray], dict[str, Any]]]:
        """Provide a function that returns the decoded values of records."""
        # With separate threads: this may run within a step of a different session that uses all its threads.
        config = tf.compat.v1.ConfigProto(device_count={"GPU": 0}, use_per_session_threads=True)
        with tf.Graph().as_default() as graph, tf.device("/cpu:0"):
            raw = self.placeholders(tf)
            values = self.decode(raw)
        with tf.compat.v1.Session(graph=graph, config=config) as session:
            yield lambda ids: session.run(values, dict(zip(raw, self.raw(ids), strict=True)))

    @property
    def is_plain(self) -> bool:
        """Whether `columns` is only a pass over arrays, without TensorFlow: tables, and arrays in memory."""
        return False

    def columns(self, names: Sequence[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield values of all records in order: the number of the first record of a chunk, and at least these values.

        Raises:
            InputError: A record cannot be decoded; the message names it.
        """
        for number, chunk in enumerate(self.decoded()):
            yield number * DECODE_CHUNK, chunk

    def rows(self, names: Sequence[str], start: int, stop: int) -> Iterator[Mapping[str, Any]]:
        """Yield chunks of these values of the records from `start` up to `stop`, in order."""
        for first, values in self.columns(names):
            begin, end = max(start - first, 0), min(stop - first, len(values[names[0]]))
            if begin < end:
                yield {name: values[name][begin:end] for name in names}

    def place(self, record: int) -> str:
        """Return the location of a record for messages: the part and the record's line or number in it."""
        for index, count in enumerate(self.part_records):
            if record < count:
                if self.part_names is None:
                    return f"{self.description}, record {record}"
                name = self.part_names[index]
                return f"{name}, {self.places(name, [record])[0] if self.places else f'record {record}'}"
            record -= count
        raise IndexError(record)

    def check_record(self, record: int) -> None:
        """Compare a record that cannot be decoded with its description.

        Raises:
            InputError: The feature that differs; sources without such a description do not raise it.
        """
        return

    def locate(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the part of each id and its number within the part."""
        ends = np.cumsum(np.asarray(self.part_records, dtype=np.int64))
        part = np.searchsorted(ends, ids, side="right")
        return part, ids - (ends[part] - np.asarray(self.part_records, dtype=np.int64)[part])

    def placeholders(self, tf: ModuleType) -> list[Any]:
        """Return placeholders for the raw values of a batch, in the current graph."""
        return [tf.compat.v1.placeholder(dtype, [None, *shape]) for dtype, shape in self.raw_specs]

    def _undecodable(self, run: Any, ids: np.ndarray, tf: ModuleType, error: Exception) -> InputError:
        for record in ids:
            try:
                run(np.array([record], dtype=np.int64))
            except tf.errors.OpError as single:
                try:
                    self.check_record(int(record))
                except InputError as wrong:
                    return wrong
                return InputError(
                    f"A record of {self.description} cannot be decoded",
                    code="data/bad-record",
                    found=f"{self.place(int(record))}: {_first_line(single)}",
                    hint="write it again, or remove it; of TFRecord files, compare the feature spec with the records",
                )
        # Each single record can be decoded: only the shapes differ.
        return InputError(
            f"The records of {self.description} cannot be batched together",
            code="data/bad-record",
            found=_first_line(error),
            hint="give record_transform=, a function that converts records to one shape",
        )


class ArraySource(Source):
    """Arrays in memory.

    Args:
        arrays: Array by name, each with the records along its first axis.
        description: Name of the data, for messages.
        part_names: Files that the arrays were read from, if any.
        part_records: Records in each file; defaults to one part.
        digests: Digests of the files' content.
    """

    def __init__(
        self,
        arrays: Mapping[str, np.ndarray],
        *,
        description: str,
        part_names: tuple[str, ...] | None = None,
        part_records: tuple[int, ...] | None = None,
        digests: Mapping[str, str] | None = None,
    ) -> None:
        self.arrays = dict(arrays)
        self._digests = digests or {}
        self.description = description
        self.part_names = part_names
        count = len(next(iter(self.arrays.values())))
        self.part_records = part_records or (count,)
        self.raw_specs = tuple(
            ("string" if a.dtype.kind in "OSU" else a.dtype, a.shape[1:]) for a in self.arrays.values()
        )

    @property
    def in_memory(self) -> bool:
        return True

    @property
    def is_plain(self) -> bool:
        return True

    def columns(self, names: Sequence[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
        for start in range(0, self.num_records, DECODE_CHUNK):
            yield start, {name: self.arrays[name][start : start + DECODE_CHUNK] for name in names}

    def select(self, parts: Sequence[int]) -> ArraySource:
        counts = np.asarray(self.part_records, dtype=np.int64)
        starts = np.cumsum(counts) - counts
        rows = np.concatenate([np.arange(starts[i], starts[i] + counts[i]) for i in parts])
        names = None if self.part_names is None else tuple(self.part_names[i] for i in parts)
        arrays = {name: array[rows] for name, array in self.arrays.items()}
        return ArraySource(
            arrays,
            description=self.description,
            part_names=names,
            part_records=tuple(self.part_records[i] for i in parts),
        )

    def digest(self, path: str) -> str | None:
        return self._digests.get(path)

    def is_unchanged(self, path: str) -> bool:
        return self._digests.get(path) == file_digest(path)

    def raw(self, ids: np.ndarray) -> list[np.ndarray]:
        return [array.take(ids, axis=0) for array in self.arrays.values()]

    def decode(self, raw: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(self.arrays, raw, strict=True))

    def specs(self) -> dict[str, Any]:
        return raw_tensor_specs(tensorflow(), self.arrays, self.raw_specs)


def raw_tensor_specs(tf: ModuleType, names: Iterable[str], raw_specs: Sequence[Any]) -> dict[str, Any]:
    """Return the specs of tensors of the raw values."""
    return {
        name: tf.TensorSpec([None, *shape], tf.as_dtype(dtype))
        for name, (dtype, shape) in zip(names, raw_specs, strict=True)
    }


def _stored_bytes(tf: ModuleType, specs: Mapping[str, Any], num_records: int) -> int | None:
    """Return the size of `num_records` records of these specs in bytes; None for strings and unknown shapes."""
    total = 0
    for spec in specs.values():
        if not isinstance(spec, tf.TensorSpec) or spec.dtype == tf.string or spec.shape.rank is None:
            return None
        if any(side is None for side in spec.shape[1:]):
            return None
        total += int(np.prod(spec.shape[1:], dtype=np.int64)) * spec.dtype.size * num_records
    return total


def _first_line(error: Exception) -> str:
    lines = getattr(error, "message", str(error)).strip().splitlines()
    # In a graph the reason follows the traceback of the operation's creation.
    node = next((number for number, line in enumerate(lines) if line.startswith("Node: ")), -1)
    if node >= 0 and node + 1 < len(lines):
        return lines[node + 1][:300]
    return next((line for line in lines if line and line != "Graph execution error:"), "")[:300]


def files_of(source: Source) -> dict[str, str]:
    """Return the paths of a source's files by names that do not depend on the machine."""
    files: dict[str, str] = {}
    for path in dict.fromkeys(source.part_names or ()):
        name, number = os.path.basename(path), 1
        while name in files:
            number += 1
            name = f"{os.path.basename(path)} ({number})"
        files[name] = path
    return files


def contents(source: Source) -> dict[str, str]:
    """Return the digests of the files by the names of `files_of`."""
    digests = {name: source.digest(path) for name, path in files_of(source).items()}
    return {name: digest for name, digest in digests.items() if digest is not None}


def file_digest(path: str) -> str:
    """Return a digest of all bytes of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()[:16]


def fingerprint(source: Source) -> str:
    """Return a fingerprint of a data set without reading it: names, sizes and record counts of its files.

    Of records with names, only these are included.

    Folders are not included, because they may differ between machines. Arrays without files are identified by their
    content.
    """
    digest = hashlib.sha256()
    if (names := source.record_names()) is not None:
        digest.update("\n".join(names).encode(errors="surrogateescape"))
    elif source.part_names is None:
        for name, array in sorted(getattr(source, "arrays", {}).items()):
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(repr(array.tolist()).encode() if array.dtype.kind == "O" else array.tobytes())
    else:
        size = tensorflow().io.gfile.stat
        for path, records in zip(source.part_names, source.part_records, strict=True):
            digest.update(f"{os.path.basename(path)} {size(path).length} {records}\n".encode())
    return digest.hexdigest()[:16]
