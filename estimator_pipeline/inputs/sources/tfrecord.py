"""TFRecord files of tf.train.Example."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from estimator_pipeline.errors import InputError
from estimator_pipeline.inputs.features import labels_of
from estimator_pipeline.inputs.input_fn import Inputs
from estimator_pipeline.inputs.options import FactoryOptions, InputOptions, make_options
from estimator_pipeline.inputs.source import Source, tensorflow
from estimator_pipeline.inputs.sources.images import decode_images
from estimator_pipeline.inputs.sources.paths import find_files
from estimator_pipeline.inputs.sources.tfrecord_index import IndexedTFRecords, cache_dir, compression_of
from estimator_pipeline.inputs.subset import open_splits
from estimator_pipeline.progress.progress_file import from_environ
from estimator_pipeline.progress.stages import reporter_of
from estimator_pipeline.utils.fixes import fix

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["ExampleSource", "digests_of", "from_tfrecord"]

_TEXT = re.compile(
    r"^(?:(?P<coding>image|raw|varlen)\s+)?(?P<dtype>[a-z]+[0-9]*)\s*(?:\[(?P<shape>[0-9,\s]*)\])?(?P<resize> resize)?$"
)
# Type of a feature -> the type that an Example holds for it.
STORED = {
    "float32": "float32",
    "float64": "float32",
    "float16": "float32",
    "string": "string",
    "bool": "int64",
}
STORED.update({f"{sign}int{bits}": "int64" for sign in ("", "u") for bits in (8, 16, 32, 64)})
_KINDS = {"bytes_list": "string", "float_list": "float32", "int64_list": "int64"}


def from_tfrecord(
    train: Any = None,
    eval: Any = None,
    *,
    features: Mapping[str, Any],
    label_key: str | Sequence[str] = "label",
    weight_key: str | None = None,
    features_key: str | Sequence[str] | None = None,
    compression: str | None = None,
    environ: Mapping[str, str] | None = None,
    **options: Unpack[FactoryOptions],
) -> Inputs:
    """Return an `input_fn` from TFRecord files of tf.train.Example.

    The first reading of a file walks through it to find where its records begin; the result is kept in the
    user's cache (XDG_CACHE_HOME or ~/.cache), so that later processes open only the files that they read.

    Args:
        train: Files to train on: a path, a pattern, or a list of these.
        eval: Files to evaluate.
        features: Name -> what the Examples hold, labels included: a tf.io feature spec, or text. Text is a
            type with a shape, "float32[4]", "int64", "string"; "image uint8[28,28,1]" for an encoded PNG,
            JPEG, BMP or GIF, "image uint8[28,28,1] resize" for images of any size; "raw float32[28,28]" for the
            bytes of an array; "varlen int64" for a list of any length.
        label_key: The label, or a sequence of labels (a dict of tensors then).
        weight_key: The feature with the weight of each record (see `estimator_pipeline.models.sample_weights`),
            a further label, so that labels are a dict of tensors.
        features_key: The model's input: one name for its tensor, a sequence for a dict, None for a dict of all
            features except the labels.
        compression: "" or "GZIP"; None takes "GZIP" for names that end in .gz.
        environ: Where XDG_CACHE_HOME and HOME are looked up; os.environ by default.
        **options: See `estimator_pipeline.inputs.options.InputOptions`; global_batch_size is required.

    Returns:
        The data, with `train_input_fn` and `eval_input_fn`.

    Raises:
        InputError: Files are missing or damaged, or do not match `features`.
    """
    settings = make_options("from_tfrecord", options)
    fields = {name: _field(name, spec) for name, spec in features.items()}

    def opened(kind: str, files: Any) -> Source:
        paths = find_files(files, kind=kind)
        reader = _reader(paths, compression, settings, os.environ if environ is None else environ)
        description = f"the {kind} TFRecord files"
        counts = reader.counts(str(files))
        source = ExampleSource(paths, fields=fields, reader=reader, description=description, counts=counts)
        source.check_first()
        return source

    training, evaluation = open_splits("from_tfrecord", train, eval, opened)
    return Inputs(
        train=training,
        evaluation=evaluation,
        options=settings,
        features_key=features_key,
        label_key=labels_of(label_key, weight_key),
    )


@dataclass(frozen=True)
class _Field:
    """One feature: its spec in an Example, and its decoding."""

    spec: Any
    coding: str | None = None
    dtype: str | None = None
    shape: tuple[int, ...] = ()
    resize: bool = False


class ExampleSource(Source):
    """tf.train.Example records in TFRecord files."""

    part_names: tuple[str, ...]
    raw_specs = (("string", ()),)

    def __init__(
        self,
        paths: Sequence[str],
        *,
        fields: Mapping[str, _Field],
        reader: IndexedTFRecords,
        description: str,
        counts: tuple[int, ...],
    ) -> None:
        self.description = description
        self.part_names = tuple(paths)
        self.part_records = counts
        self._fields = dict(fields)
        self._reader = reader
        defaults = {name: getattr(field.spec, "default_value", None) for name, field in self._fields.items()}
        self.nullable = frozenset(name for name, value in defaults.items() if _is_nan(value))

    def select(self, parts: Sequence[int]) -> ExampleSource:
        return ExampleSource(
            [self.part_names[i] for i in parts],
            fields=self._fields,
            reader=self._reader,
            description=self.description,
            counts=tuple(self.part_records[i] for i in parts),
        )

    def raw(self, ids: np.ndarray) -> list[np.ndarray]:
        part, record = self.locate(ids)
        data = np.empty(len(ids), dtype=object)
        for index in np.unique(part):
            chosen = np.flatnonzero(part == index)
            data[chosen] = self._reader.read(self.part_names[index], record[chosen])
        return [data]

    def digest(self, path: str) -> str | None:
        return self._reader.digest(path)

    def is_unchanged(self, path: str) -> bool:
        return self._reader.is_unchanged(path)

    def decode(self, raw: Sequence[Any]) -> dict[str, Any]:
        return self.parse_examples(raw[0], list(self._fields))

    def examples(self, ids: np.ndarray) -> list[bytes]:
        return list(self.raw(ids)[0])

    def parse_examples(self, records: Any, names: Sequence[str]) -> dict[str, Any]:
        tf = tensorflow()
        parsed = tf.io.parse_example(records, {name: self._fields[name].spec for name in names})
        return {name: _decoded(tf, parsed[name], self._fields[name]) for name in names}

    def specs(self) -> dict[str, Any]:
        tf = tensorflow()
        with tf.Graph().as_default():  # Parsing alone: no loop, no function.
            raw = self.placeholders(tf)[0]
            parsed = tf.io.parse_example(raw, {name: field.spec for name, field in self._fields.items()})
            return {
                name: tf.type_spec_from_value(parsed[name])
                if field.dtype is None
                else tf.TensorSpec([None, *field.shape], tf.as_dtype(field.dtype))
                for name, field in self._fields.items()
            }

    def check_first(self) -> None:
        """Compare the first record with the feature spec, so that most mistakes show before a job starts.

        Raises:
            InputError: A feature is missing, or of another type or size.
        """
        if self.num_records:
            self.check_record(0)

    def check_record(self, record: int) -> None:
        tf = tensorflow()
        serialized = self.raw(np.array([record], dtype=np.int64))[0][0]
        try:
            held = tf.train.Example.FromString(serialized).features.feature
        except Exception as error:  # protobuf's DecodeError has no stable home across its versions
            raise InputError(
                "A record is not a tf.train.Example",
                code="data/bad-record",
                found=f"{self.place(record)}: {error}",
                hint="write records with tf.train.Example(...).SerializeToString()",
            ) from error
        place = self.place(record)
        self._check_lists(tf, serialized, held, place)
        for name, field in self._fields.items():
            _check_field(tf, name, field, held, place)

    def _check_lists(self, tf: Any, serialized: bytes, held: Mapping[str, Any], place: str) -> None:
        """Reject a tf.train.SequenceExample, which parses as an Example with only its context."""
        lists = tf.train.SequenceExample.FromString(serialized).feature_lists.feature_list
        lost = [key for name, field in self._fields.items() for key in _keys(name, field.spec)
                if key in lists and key not in held]  # fmt: skip
        if lost:
            raise InputError(
                "The records are tf.train.SequenceExample, but tf.train.Example are required",
                code="data/bad-record",
                found=f"{place} has {', '.join(sorted(lost))} in its feature_lists, which would be empty",
                hint="write each list as a feature of a tf.train.Example (read as 'varlen' or with its shape), or read "
                "the files in a user input function with tf.io.parse_sequence_example",
            )


def _check_field(tf: Any, name: str, field: _Field, held: Mapping[str, Any], place: str) -> None:
    spec, fixed = field.spec, isinstance(field.spec, tf.io.FixedLenFeature)
    if name not in held:
        if fixed and spec.default_value is None:
            hint = "correct the name, or write the record again"
            if field.coding is None:
                default = np.full(spec.shape, "" if spec.dtype == tf.string else 0).tolist()
                hint += ", or set a default: " + fix(
                    python=f"tf.io.FixedLenFeature({list(spec.shape)}, {spec.dtype!r}, default_value={default!r})",
                    yaml=_as_yaml(name, tf.as_dtype(spec.dtype).name, spec.shape, f", default: {default!r}"),
                )
            raise InputError(
                f"A record has no feature {name!r}",
                code="data/missing-feature",
                found=f"{place} has {', '.join(sorted(held)) or 'no features'}",
                hint=hint,
            )
        return
    kind = held[name].WhichOneof("kind")
    wanted = tf.as_dtype(spec.dtype).name if isinstance(spec, (tf.io.FixedLenFeature, tf.io.VarLenFeature)) else None
    if kind is None or wanted is None:
        return
    again = "write the record again, or if all records are like this, correct "
    if _KINDS[kind] != wanted:
        kinds = ", kind: varlen" if isinstance(spec, tf.io.VarLenFeature) else ""
        raise InputError(
            f"The feature {name!r} has a different type",
            code="data/bad-feature",
            found=f"{place} has {_KINDS[kind]}, the spec has {wanted}",
            hint=again
            + fix(python="the type in features", yaml=_as_yaml(name, _KINDS[kind], getattr(spec, "shape", ()), kinds)),
        )
    count = len(getattr(held[name], kind).value)
    if fixed and count != int(np.prod(spec.shape, dtype=np.int64)):
        raise InputError(
            f"The feature {name!r} has a different size",
            code="data/bad-feature",
            found=f"{place} holds {count} value(s), the spec's shape is {list(spec.shape)}",
            hint=again
            + fix(
                python="the shape in features ('varlen' for lists of any length)",
                yaml=f"{_as_yaml(name, wanted, (count,))} (kind: varlen for lists of any length)",
            ),
        )


def _as_yaml(name: str, dtype: str, shape: Sequence[int], more: str = "") -> str:
    """Return the description of a feature in a job file."""
    sizes = f", shape: {list(shape)}" if len(shape) else ""
    return f"input: {{features: {{{name}: {{dtype: {dtype}{sizes}{more}}}}}}}"


def _is_nan(value: Any) -> bool:
    return bool(np.isnan(value).any()) if np.asarray(value).dtype.kind == "f" else False


def _keys(name: str, spec: Any) -> list[str]:
    """Return the features of an Example that a spec reads."""
    keys = [key for name in ("index_key", "value_key") for key in _listed(getattr(spec, name, None))]
    return [key for key in keys if key] or [name]


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else (value,)


def _reader(
    paths: Sequence[str], compression: str | None, settings: InputOptions, environ: Mapping[str, str]
) -> IndexedTFRecords:
    if compression is None:
        compression = compression_of(paths)
    if compression not in ("", "GZIP"):
        raise InputError(
            "An unknown compression", code="argument/unknown-name", found=repr(compression), hint="use '' or 'GZIP'"
        )
    return IndexedTFRecords(
        paths,
        compression=compression,
        cache=cache_dir(environ) / "index",
        memory_limit=settings.memory_limit,
        report=reporter_of(from_environ(environ)),
    )


def digests_of(paths: Sequence[str], compression: str | None, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the digests of TFRecord files, by which a run identifies them."""
    reader = _reader(paths, compression, InputOptions(global_batch_size=1), environ)
    return {path: reader.digest(path) for path in paths}


def _field(name: str, spec: Any) -> _Field:
    tf = tensorflow()
    if not isinstance(spec, str):
        known = (tf.io.FixedLenFeature, tf.io.VarLenFeature, tf.io.RaggedFeature, tf.io.SparseFeature)
        if not isinstance(spec, (*known, tf.io.FixedLenSequenceFeature)):
            raise _bad_spec(name, spec)
        return _Field(spec)
    match = _TEXT.match(spec.strip())
    if match is None or match["dtype"] not in STORED or (match["resize"] and match["coding"] != "image"):
        raise _bad_spec(name, spec)
    dtype, coding = match["dtype"], match["coding"]
    shape = tuple(int(side) for side in (match["shape"] or "").split(",") if side.strip())
    if coding == "varlen":
        if STORED[dtype] != dtype or shape:
            raise _bad_spec(name, spec)
        return _Field(tf.io.VarLenFeature(tf.as_dtype(dtype)))
    if coding == "image":
        if dtype not in ("uint8", "uint16") or len(shape) != 3:
            raise _bad_spec(name, spec)
        return _Field(tf.io.FixedLenFeature([], tf.string), coding, dtype, shape, resize=match["resize"] is not None)
    if coding == "raw":
        if dtype == "string":
            raise _bad_spec(name, spec)
        return _Field(tf.io.FixedLenFeature([], tf.string), coding, dtype, shape)
    return _Field(tf.io.FixedLenFeature(list(shape), tf.as_dtype(STORED[dtype])), None, dtype, shape)


def _bad_spec(name: str, spec: Any) -> InputError:
    return InputError(
        f"The spec of the feature {name!r} is not understood",
        code="argument/bad-value",
        found=repr(spec),
        hint="use tf.io.FixedLenFeature and its kin, or text: 'float32[4]', 'int64', 'string', "
        "'image uint8[28,28,1]', 'raw float32[28,28]', 'varlen int64'",
    )


def _decoded(tf: Any, value: Any, field: _Field) -> Any:
    if field.coding == "image":
        return decode_images(tf, value, field.shape, dtype=field.dtype or "uint8", resize=field.resize)
    if field.coding == "raw":
        size = int(np.prod(field.shape, dtype=np.int64))
        if field.dtype == "bool":
            flat = tf.cast(tf.io.decode_raw(value, tf.uint8), tf.bool)
        else:
            flat = tf.io.decode_raw(value, tf.as_dtype(field.dtype))
        # With the number of records unknown, a wrong number of bytes must not be reshaped into other records.
        return tf.reshape(tf.ensure_shape(flat, [None, size]), [-1, *field.shape])
    if field.dtype is not None and tf.as_dtype(field.dtype) != value.dtype:
        return tf.cast(value, tf.as_dtype(field.dtype))
    return value
