"""The section `input` of the job file: the data source, batching, shuffling and sharding."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    Tag,
    model_serializer,
)

from estimator_pipeline.job.base import Factor, FunctionRef, Paths, Problem, Section, explained
from estimator_pipeline.utils.text import nearest

__all__ = [
    "ArraysInput",
    "CsvInput",
    "FeatureSection",
    "FunctionInput",
    "ImagesInput",
    "InputCommon",
    "InputSource",
    "ParquetInput",
    "TableInput",
    "TFRecordInput",
    "TfdsInput",
]

_Text = Annotated[str, Field(min_length=1)]
_Labels = _Text | Annotated[list[_Text], Field(min_length=1)]


def _encoding(value: str) -> str:
    try:
        codecs.lookup(value)
    except LookupError:
        raise explained(
            "there is no such encoding.",
            found=f"{value!r}; allowed: names that Python knows",
            hint="write a name such as utf-8, latin-1, cp1252 or utf-16.",
        ) from None
    return value


class InputCommon(Section):
    """Fields of every source.

    Fields:
        global_batch_size: Records per training step, over all replicas.
        eval_batch_size: Records per evaluation step. null: `global_batch_size`.
        seed: Seed of the order of records.
        shuffle: Use a different order in each epoch.
        shard_policy: How training tasks share the records: by `file`, by record (`data`; `auto` is the same), by record
            with a hint to TensorFlow (`hint`, for the engine keras), or not (`off`). See docs/guides/inputs.md.
        worker_seeds: `distinct`: with shard_policy off, every task reads all records in a different order.
        drop_remainder: Drop the last incomplete batch of training.
        prefetch: Batches to prepare in advance. null: 4.
        cache: Keep decoded records in memory. null: if they take less than 1 GiB.
        weight_key: Name of a feature, column or array with the weight of each record in loss and metrics. The model
            does not receive it. For a function, it is in the labels or the features. null: equal weights.
        serving: A function that returns the inputs of exported models: a `tf.TensorSpec` of one record for each name;
            or these and a function from the tensors to the features. null: the features; for functions unknown.
        continue_with: Files on which a run that has trained continues, from its latest checkpoint: each record that it
            has not trained on once. See docs/guides/continuing.md.
        continue_epochs: How often each record of `continue_with` is read.
    """

    global_batch_size: Annotated[int, Field(gt=0)]
    eval_batch_size: Annotated[int, Field(gt=0)] | None = None
    seed: Annotated[int, Field(ge=0)] = 0
    shuffle: bool = True
    shard_policy: Literal["auto", "file", "data", "hint", "off"] = "auto"
    worker_seeds: Literal["same", "distinct"] = "same"
    drop_remainder: bool = True
    prefetch: Annotated[int, Field(ge=0)] | None = None
    cache: bool | None = None
    weight_key: Annotated[str, Field(min_length=1)] | None = None
    serving: FunctionRef | None = None
    continue_with: Paths | None = None
    continue_epochs: Annotated[int, Field(gt=0)] = 1

    @property
    def evaluation_batch_size(self) -> int:
        """`eval_batch_size`, or the training batch size if it is null."""
        return self.eval_batch_size or self.global_batch_size

    @property
    def memory_limit(self) -> int | None:
        """Bytes of data to hold in memory, as `cache` sets it; None for the default limit of `inputs`."""
        return None if self.cache is None else 2**62 if self.cache else 0

    @property
    def labels(self) -> list[str]:
        """The names of the labels, if the job file has them."""
        keys: str | list[str] | None = getattr(self, "label_key", None)
        return [keys] if isinstance(keys, str) else list(keys or ())

    def problems(self) -> Iterator[Problem]:
        if self.worker_seeds == "distinct" and self.shard_policy != "off":
            yield Problem(
                ("worker_seeds",),
                "distinct seeds are for workers that all read every record.",
                f"worker_seeds distinct with shard_policy {self.shard_policy}",
                "set shard_policy: off, or worker_seeds: same.",
            )
        if self.worker_seeds == "distinct" and not self.shuffle:
            yield Problem(
                ("worker_seeds",),
                "distinct seeds do nothing without a shuffle: every worker would read the same batches.",
                "worker_seeds distinct with shuffle false",
                "set shuffle: true, or worker_seeds: same.",
            )
        labels = self.labels
        if len(set(labels)) < len(labels):
            yield Problem(
                ("label_key",), "a label is named twice.", f"{labels}", "name each label once.", code="job/bad-value"
            )
        if self.weight_key in labels:
            yield Problem(
                ("weight_key",),
                "the label cannot be the weight as well.",
                f"{self.weight_key!r} for both",
                "name a different feature.",
            )


class TfdsInput(InputCommon):
    """A data set of TensorFlow Datasets.

    Fields:
        source: TensorFlow Datasets.
        name: Name of the dataset. `digits` is included in this package.
        data_dir: Directory of the prepared dataset. null: the default of TFDS.
        train_split: Split for training.
        eval_split: Split for evaluation.
        features_key: Feature that is the model's input. null: the supervised one.
        label_key: Feature that is the label, or a list for several outputs. null: the supervised one.
        scale: Factor of the features, which become float32, such as 1/255. null: unchanged.
    """

    source: Literal["tfds"]
    name: _Text
    data_dir: _Text | None = None
    train_split: _Text = "train"
    eval_split: _Text = "test"
    features_key: _Text | None = None
    label_key: _Labels | None = None
    scale: Factor | None = None


_EXAMPLE_TYPES = ("float32", "int64", "string")
_DataType = Literal[
    "float32", "int64", "string", "bool", "float16", "float64",
    "int8", "int16", "int32", "uint8", "uint16", "uint32", "uint64",
]  # fmt: skip
# Kind of a feature -> its dtypes, and the fields that it has.
_KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "fixed": (_EXAMPLE_TYPES, ("shape", "default")),
    "varlen": (_EXAMPLE_TYPES, ()),
    "raw": (tuple(dtype for dtype in get_args(_DataType) if dtype != "string"), ("shape",)),
    "image": (("uint8", "uint16"), ("shape", "resize")),
}


class FeatureSection(Section):
    """One feature of a tf.train.Example.

    Fields:
        dtype: Type of the stored values, required except for images. Kinds `fixed` and `varlen` support float32, int64
            and string; `raw` all except string; `image` uint8 and uint16.
        shape: Shape of a fixed or raw feature; `[]` is a scalar. Of an image: height, width, channels.
        default: Value of this shape for records without the feature. null: such records are an error.
        kind: `fixed` length, `varlen` (a sparse tensor), `raw` (the bytes of an array) or `image` (the bytes of a PNG,
            JPEG, BMP or GIF file).
        resize: Images of other sizes are resized to `shape`, bilinear. false: they are an error.
    """

    dtype: _DataType = "uint8"
    shape: list[Annotated[int, Field(gt=0)]] = []
    default: Any = None
    kind: Literal["fixed", "varlen", "raw", "image"] = "fixed"
    resize: bool = False

    @model_serializer(mode="wrap")
    def _serialized(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = serialize(self)
        if not self.resize:
            values.pop("resize", None)  # Runs of earlier versions resume: their identity has no such field.
        return values

    def problems(self) -> Iterator[Problem]:
        dtypes, fields = _KINDS[self.kind]
        kind = f"{'an' if self.kind == 'image' else 'a'} {self.kind} feature"
        for field in {"shape", "default", "resize"}.difference(fields):
            if getattr(self, field) not in (None, False, []):
                yield Problem(
                    (field,),
                    f"{kind} has no {field}.",
                    f"{field} {getattr(self, field)!r} with kind {self.kind}",
                    f"leave {field} out, or set kind: {'image' if field == 'resize' else 'fixed'}.",
                    code="job/unknown-field",
                )
        if self.dtype not in dtypes:
            yield Problem(
                ("dtype",),
                f"{kind} cannot have the dtype {self.dtype}.",
                f"dtype {self.dtype} with kind {self.kind}; allowed: {', '.join(dtypes)}",
                "set the dtype of the records, or a different kind.",
            )
        elif self.default is not None and not self._is_default(self.default, self.shape):
            yield Problem(
                ("default",),
                "this is not a value of the feature.",
                f"{self.default!r}; allowed: {self.dtype} of the shape {self.shape}",
                "set a default of the dtype and the shape of the feature.",
                code="job/bad-value",
            )
        if self.kind == "image" and len(self.shape) != 3:
            yield Problem(
                ("shape",),
                "an image has a height, a width and channels.",
                f"shape {self.shape}",
                "write three numbers, such as [28, 28, 1].",
                code="job/bad-value",
            )

    def _is_default(self, value: Any, shape: list[int]) -> bool:
        if shape:
            return isinstance(value, list) and len(value) == shape[0] and all(
                self._is_default(element, shape[1:]) for element in value
            )  # fmt: skip
        numbers: Any = {"string": str, "int64": int}.get(self.dtype, int | float)
        return isinstance(value, numbers)


class TFRecordInput(InputCommon):
    """TFRecord files of tf.train.Example records.

    Fields:
        source: TFRecord files of tf.train.Example records.
        train: File names or glob patterns for training.
        eval: File names or glob patterns for evaluation.
        features: Name and description of each feature.
        label_key: Feature that is the label, or a list for several outputs.
        features_key: A name: the model gets a tensor. A list: it gets a dict. null: a dict of all features except the
            label.
        compression: Compression of the files. With `none`, files that end in .gz are read as GZIP.
        scale: Factor of the features, which become float32, such as 1/255. null: unchanged.
    """

    source: Literal["tfrecord"]
    train: Paths
    eval: Paths
    features: Annotated[dict[str, FeatureSection], Field(min_length=1)]
    label_key: _Labels = "label"
    features_key: _Text | list[_Text] | None = None
    compression: Literal["none", "gzip"] = "none"
    scale: Factor | None = None

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        yield from _label_problems(self, list(self.features), "features")


_ColumnType = Literal["float32", "float64", "int32", "int64", "string"]


class TableColumn(Section):
    """A column of a table with a default for missing cells.

    Fields:
        dtype: Type of the column.
        default: Value of a missing cell.
    """

    dtype: _ColumnType
    default: Any = None

    def problems(self) -> Iterator[Problem]:
        numbers: Any = str if self.dtype == "string" else int if self.dtype.startswith("int") else int | float
        if self.default is not None and (not isinstance(self.default, numbers) or isinstance(self.default, bool)):
            yield Problem(
                ("default",),
                f"this is not a value of a column of the type {self.dtype}.",
                repr(self.default),
                "set a default of the column's dtype, or change the dtype.",
                code="job/bad-value",
            )


def _column(value: Any) -> Any:
    """Convert [float32, 40] to a mapping."""
    return {"dtype": value[0], "default": value[1]} if isinstance(value, list) and len(value) == 2 else value


def _column_tag(value: Any) -> str:
    return "~column" if isinstance(value, dict | TableColumn) else "~type"


_Tagged = Annotated[TableColumn, Tag("~column")] | Annotated[_ColumnType, Tag("~type")]
_Column = Annotated[Annotated[_Tagged, Discriminator(_column_tag)], BeforeValidator(_column)]


class TableInput(InputCommon):
    """Fields of files with a table. The concrete sources describe them."""

    train: Paths
    eval: Paths | None = None
    eval_fraction: Annotated[float, Field(gt=0, lt=1)] | None = None
    columns: Annotated[dict[str, _Column], Field(min_length=1)] | None = None
    label_key: _Labels = "label"
    features_key: _Text | list[_Text] | None = None

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        if self.columns is not None:
            yield from _label_problems(self, list(self.columns), "columns")
        yield from _evaluation_problems(self)

    def types(self) -> dict[str, tuple[str, Any]]:
        """Return the dtype of each column and the value of its missing cells, or None."""
        return {
            name: (column.dtype, column.default) if isinstance(column, TableColumn) else (column, None)
            for name, column in (self.columns or {}).items()
        }


class CsvInput(TableInput):
    """CSV files.

    Fields:
        source: CSV files.
        train: File names or glob patterns for training. Files that end in .gz, .zst, .bz2 or .lz4 are decompressed.
        eval: File names or glob patterns for evaluation.
        eval_fraction: Instead of `eval`, the share of the records of `train` to evaluate and not to train on, chosen by
            `seed`.
        columns: Name and type of each column (float32, float64, int32, int64, string), in the order of the file. With a
            value for missing cells: `{dtype: float32, default: 40}` or `[float32, 40]`. null: all columns, with
            `model.features`.
        label_key: Column that is the label, or a list for several outputs.
        features_key: A name: the model gets a tensor. A list: it gets a dict. null: a dict of all columns except the
            label.
        delimiter: One character.
        header: The first line of each file has the column names.
        encoding: Encoding of the text, such as latin-1, cp1252 or utf-16.
        null_words: Words that mean a missing number, in addition to an empty cell. null: `#N/A`, `N/A`, `n/a`, `NA`,
            `NULL`, `null`, `None`, `?`.
    """

    source: Literal["csv"]
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] = ","
    header: bool = True
    encoding: Annotated[str, AfterValidator(_encoding)] = "utf-8"
    null_words: list[str] | None = None

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        if not self.header and self.columns is None:
            yield Problem(
                ("header",),
                "without a header the columns have no names.",
                "header false, and no columns",
                "add columns, in the order of the file.",
                code="job/missing-field",
            )


class ParquetInput(TableInput):
    """Parquet files.

    Fields:
        source: Parquet files.
        train: File names or glob patterns for training.
        eval: File names or glob patterns for evaluation.
        eval_fraction: Instead of `eval`, the share of the records of `train` to evaluate and not to train on, chosen by
            `seed`.
        columns: Name and type of each column to read (float32, float64, int32, int64, string). With a value for
            missing cells: `{dtype: float32, default: 40}` or `[float32, 40]`. Dates are days since 1970. null: all
            columns, with `model.features`.
        label_key: Column that is the label, or a list for several outputs.
        features_key: A name: the model gets a tensor. A list: it gets a dict. null: a dict of all columns except the
            label.
    """

    source: Literal["parquet"]


class ArraysInput(InputCommon):
    """NumPy arrays in .npz files; the first axis of each array is the records.

    Fields:
        source: NumPy arrays in .npz files; the first axis is the records.
        train: The .npz file for training.
        eval: The .npz file for evaluation.
        label_key: Array that is the label, or a list for several outputs. The other arrays are the features: a tensor
            if there is one, else a dict.
    """

    source: Literal["arrays"]
    train: _Text
    eval: _Text
    label_key: _Labels = "label"

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        for field in ("train", "eval"):
            path = getattr(self, field)
            if not path.endswith(".npz"):
                yield Problem(
                    (field,),
                    "this is not an .npz file.",
                    f"{path!r}; allowed: a path that ends in .npz",
                    "save the arrays with numpy.savez under their names.",
                    code="job/bad-value",
                )


class ImagesInput(InputCommon):
    """Image files in a folder for each class.

    Fields:
        source: Image files (JPEG, PNG, BMP, GIF) in a folder for each class. The names of these folders, sorted, are
            the classes, and `model.label_vocabulary`, if that is not set.
        train: Folder of the training images: `train/cat/1.jpg`, `train/dog/2.jpg`.
        eval: Folder of the evaluation images, with the same classes.
        eval_fraction: Instead of `eval`, the share of the training images to evaluate and not to train on, chosen by
            `seed`.
        size: Height and width. Images of other sizes are resized, bilinear.
        channels: 1 (gray), 3 (RGB) or 4 (RGBA).
        scale: Factor of the images, which become float32: 1/255. null: they are uint8.
    """

    source: Literal["images"]
    train: _Text
    eval: _Text | None = None
    eval_fraction: Annotated[float, Field(gt=0, lt=1)] | None = None
    size: Annotated[list[Annotated[int, Field(gt=0)]], Field(min_length=2, max_length=2)]
    channels: Literal[1, 3, 4] = 3
    scale: Factor | None = 1 / 255

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        yield from _evaluation_problems(self)
        if self.weight_key is not None:
            yield Problem(
                ("weight_key",),
                "images have no weights.",
                f"weight_key {self.weight_key!r}",
                "leave it out; model.class_weights has the weights of classes.",
            )


class FunctionInput(InputCommon):
    """User input functions, `input_fn(input_context=None)`.

    Fields:
        source: Input functions, `input_fn(input_context=None)`.
        train: The input function for training.
        eval: The input function for evaluation.
        params: Keyword arguments of both.
    """

    source: Literal["function"]
    train: FunctionRef
    eval: FunctionRef
    params: dict[str, Any] = {}


_SOURCES = ["tfds", "tfrecord", "csv", "parquet", "arrays", "images", "function"]


def _source_tag(value: Any) -> str | None:
    source = value.get("source") if isinstance(value, dict) else getattr(value, "source", None)
    return f"~{source}" if source in _SOURCES else None


InputSource = Annotated[
    Annotated[TfdsInput, Tag("~tfds")]
    | Annotated[TFRecordInput, Tag("~tfrecord")]
    | Annotated[CsvInput, Tag("~csv")]
    | Annotated[ParquetInput, Tag("~parquet")]
    | Annotated[ArraysInput, Tag("~arrays")]
    | Annotated[ImagesInput, Tag("~images")]
    | Annotated[FunctionInput, Tag("~function")],
    Discriminator(
        _source_tag,
        custom_error_type="choose",
        custom_error_message="no such source",
        custom_error_context={"key": "source", "choices": ", ".join(_SOURCES)},
    ),
]
"""One of the sources, chosen by the field `source`."""


def _evaluation_problems(section: TableInput | ImagesInput) -> Iterator[Problem]:
    if (section.eval is None) == (section.eval_fraction is None):
        both = section.eval is not None
        yield Problem(
            ("eval_fraction",) if both else (),
            "the evaluation records are set twice." if both else "the evaluation records are not set.",
            "eval and eval_fraction" if both else "neither eval nor eval_fraction",
            "keep one of them." if both else "add eval, or the share of the training files: eval_fraction: 0.2.",
            code="job/conflict" if both else "job/missing-field",
        )


def _label_problems(section: TFRecordInput | TableInput, names: list[str], field: str) -> Iterator[Problem]:
    labels, weight, chosen = section.labels, section.weight_key, section.features_key
    missing = False
    for key, noun, name in (*(("label_key", "label", label) for label in labels), ("weight_key", "weight", weight)):
        if name is not None and name not in names:
            close, missing = nearest(name, names), True
            yield Problem(
                (key,),
                f"the {noun} is not one of the {field}.",
                f"{name!r}; allowed: {', '.join(names)}",
                f"did you mean {close!r}?" if close else f"name one of the {field} as {key}.",
                code="job/bad-value",
            )
    if not missing and not set(names) - {*labels, weight}:
        yield Problem(
            (field,),
            f"{field} has only the {'label' if len(labels) == 1 else 'labels'}"
            f"{'' if weight is None else ' and the weight'}.",
            f"only {', '.join(map(repr, names))}",
            "name at least one input of the model.",
        )
    if weight is not None and weight in ([chosen] if isinstance(chosen, str) else chosen or []):
        yield Problem(
            ("features_key",),
            "the weight cannot be an input of the model as well.",
            f"{weight!r} for both",
            "leave it out of features_key.",
        )
