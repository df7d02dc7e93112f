"""The section `input` of the job file: the data source, batching, shuffling and sharding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from estimator_pipeline.job.base import Factor, FunctionRef, Paths, Problem, Section
from estimator_pipeline.utils.text import nearest

__all__ = [
    "ArraysInput",
    "CsvInput",
    "FeatureSection",
    "FunctionInput",
    "InputCommon",
    "InputSource",
    "TFRecordInput",
    "TfdsInput",
]

_Text = Annotated[str, Field(min_length=1)]
_Labels = _Text | Annotated[list[_Text], Field(min_length=1)]


class InputCommon(Section):
    """Fields of every source.

    Fields:
        global_batch_size: Records per training step, over all replicas.
        eval_batch_size: Records per evaluation batch; null uses global_batch_size.
        seed: Seed of the shuffle.
        shuffle: Whether to shuffle the records, differently in each epoch.
        shard_policy: How to shard the records among the training tasks: by "file", by record ("data"), by record
            and by TensorFlow ("hint", engine keras only), not sharded ("off"), or "auto": by record.
        worker_seeds: "same"; or "distinct", with shard_policy "off": every task reads all records in a
            different order.
        drop_remainder: Whether to drop the last, incomplete batch in training.
        prefetch: Batches to prefetch; null leaves it to tf.data.
        cache: Whether to keep decoded records in memory: true, false, or null for data below 1 GiB.
        weight_key: The feature with the weight of each record in the loss and the metrics, which is not an input of
            the model. A user function returns it in its labels or features. Null: equal weights.
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

    @property
    def evaluation_batch_size(self) -> int:
        """`eval_batch_size`, or the training batch size if it is null."""
        return self.eval_batch_size or self.global_batch_size

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
        data_dir: The folder of the prepared data set; null uses TFDS's default.
        features_key: The feature that is the model's input; null uses the supervised input of the data set.
        label_key: The feature that is the label; null uses the supervised label of the data set. A list gives the
            model a dict of labels.
        scale: A factor for the features, which become float32: 1/255 maps bytes to 0 to 1. Null does not scale.
    """

    source: Literal["tfds"]
    name: _Text
    data_dir: _Text | None = None
    train_split: _Text = "train"
    eval_split: _Text = "test"
    features_key: _Text | None = None
    label_key: _Labels | None = None
    scale: Factor | None = None


class FeatureSection(Section):
    """One feature of a tf.train.Example.

    Fields:
        dtype: The dtype in the record; kind raw allows further numeric dtypes.
        shape: The shape of a fixed or raw feature; [] is a scalar.
        default: The value for records without the feature; null rejects such records.
        kind: "fixed" length, "varlen" (a sparse tensor), or "raw" (the bytes of an array).
    """

    dtype: Literal[
        "float32", "int64", "string", "bool", "float16", "float64",
        "int8", "int16", "int32", "uint8", "uint16", "uint32", "uint64",
    ]  # fmt: skip
    shape: list[Annotated[int, Field(gt=0)]] = []
    default: Any = None
    kind: Literal["fixed", "varlen", "raw"] = "fixed"

    def problems(self) -> Iterator[Problem]:
        for field in ("shape", "default"):
            if getattr(self, field) and (self.kind == "varlen" or (self.kind == "raw" and field == "default")):
                yield Problem(
                    (field,),
                    f"a {self.kind} feature has no {field}.",
                    f"{field} {getattr(self, field)!r} with kind {self.kind}",
                    f"leave {field} out, or set kind: fixed.",
                    code="job/unknown-field",
                )
        stored = ("float32", "int64", "string")
        if (self.kind == "raw" and self.dtype == "string") or (self.kind != "raw" and self.dtype not in stored):
            allowed = "all but string" if self.kind == "raw" else ", ".join(stored)
            yield Problem(
                ("dtype",),
                f"a {self.kind} feature cannot have the dtype {self.dtype}.",
                f"dtype {self.dtype} with kind {self.kind}; allowed: {allowed}",
                "set kind: fixed." if self.kind == "raw" else "set the dtype of the records, or kind: raw.",
            )


class TFRecordInput(InputCommon):
    """TFRecord files of tf.train.Example records.

    Fields:
        train: A file name or glob pattern, or a list of them.
        eval: The same for evaluation.
        features: Feature names with their types.
        label_key: The feature that is the label; a list gives the model a dict of labels.
        features_key: The model's input: a name for its tensor, a list for a dict; null for a dict of all features
            except the label.
        scale: A factor for the features, as for tfds.
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


_CsvType = Literal["float32", "float64", "int32", "int64", "string"]


class CsvColumn(Section):
    """A column of CSV files with a default for empty cells.

    Fields:
        dtype: The dtype of the column.
        default: The value of an empty cell.
    """

    dtype: _CsvType
    default: Any = None

    def problems(self) -> Iterator[Problem]:
        numbers: Any = str if self.dtype == "string" else int if self.dtype.startswith("int") else int | float
        if self.default is not None and (not isinstance(self.default, numbers) or isinstance(self.default, bool)):
            yield Problem(
                ("default",),
                f"this is not a value of a column of dtype {self.dtype}.",
                repr(self.default),
                "set a default of the column's dtype, or change the dtype.",
                code="job/bad-value",
            )


def _csv_column(value: Any) -> Any:
    """Convert [float32, 40] to a mapping."""
    return {"dtype": value[0], "default": value[1]} if isinstance(value, list) and len(value) == 2 else value


def _csv_column_tag(value: Any) -> str:
    return "~column" if isinstance(value, dict | CsvColumn) else "~type"


_CsvColumn = Annotated[
    Annotated[Annotated[CsvColumn, Tag("~column")] | Annotated[_CsvType, Tag("~type")], Discriminator(_csv_column_tag)],
    BeforeValidator(_csv_column),
]


class CsvInput(InputCommon):
    """CSV files.

    Fields:
        train: A file name or glob pattern, or a list of them.
        eval: The same for evaluation.
        columns: Column names with dtypes, in the order of the file; {dtype, default} or [dtype, default] sets the
            value of empty cells.
        label_key: The column that is the label; a list gives the model a dict of labels.
        features_key: As for TFRecord files.
        header: Whether the first line of each file has the column names.
    """

    source: Literal["csv"]
    train: Paths
    eval: Paths
    columns: Annotated[dict[str, _CsvColumn], Field(min_length=1)]
    label_key: _Labels = "label"
    features_key: _Text | list[_Text] | None = None
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] = ","
    header: bool = True

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        yield from _label_problems(self, list(self.columns), "columns")

    def types(self) -> dict[str, tuple[str, Any]]:
        """Return the dtype of each column and the value of its empty cells, or None."""
        return {
            name: (column.dtype, column.default) if isinstance(column, CsvColumn) else (column, None)
            for name, column in self.columns.items()
        }


class ArraysInput(InputCommon):
    """NumPy arrays in .npz files; the first axis of each array is the records.

    Fields:
        train: The file for training.
        eval: The file for evaluation.
        label_key: The array that is the label; a list gives the model a dict of labels. The other arrays are the
            features: a tensor if there is one, otherwise a dict.
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


_SOURCES = ["tfds", "tfrecord", "csv", "arrays", "function"]


def _source_tag(value: Any) -> str | None:
    source = value.get("source") if isinstance(value, dict) else getattr(value, "source", None)
    return f"~{source}" if source in _SOURCES else None


InputSource = Annotated[
    Annotated[TfdsInput, Tag("~tfds")]
    | Annotated[TFRecordInput, Tag("~tfrecord")]
    | Annotated[CsvInput, Tag("~csv")]
    | Annotated[ArraysInput, Tag("~arrays")]
    | Annotated[FunctionInput, Tag("~function")],
    Discriminator(
        _source_tag,
        custom_error_type="choose",
        custom_error_message="no such source",
        custom_error_context={"key": "source", "choices": ", ".join(_SOURCES)},
    ),
]
"""One of the sources, chosen by the field `source`."""


def _label_problems(section: TFRecordInput | CsvInput, names: list[str], field: str) -> Iterator[Problem]:
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
