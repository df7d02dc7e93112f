"""The features of a table, their transformation, and their file beside the model."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from estimator_pipeline.models.features.columns import FeatureSpec, identifier
from estimator_pipeline.models.features.transform import BoundTransform

__all__ = ["VERSION", "TableFeatures"]

VERSION = 1


@dataclass(frozen=True)
class TableFeatures:
    """All features of a table, what they were found from, and the label.

    Attributes:
        columns: The features.
        raw: Column that is read -> "float32" or "string".
        declared: `model.features` of the job file, and what else decides about the features, as plain values.
        records: The number of training records that were read.
        label: Label -> its `dtype`; the names or the number of its `classes`, if it has any, with the `counts` of their
            records; and the `mean` and `deviation` of a number.
        report: Rows of (column, kind, what was found) for the user, also of columns that are not used.
    """

    columns: tuple[FeatureSpec, ...]
    raw: Mapping[str, str]
    declared: Mapping[str, Any]
    records: int
    label: Mapping[str, Any]
    report: tuple[tuple[str, str, str], ...]

    @property
    def numeric(self) -> list[str]:
        """The numeric inputs of the model."""
        return [column.output for column in self.columns if column.buckets is None]

    @property
    def categorical(self) -> dict[str, Any]:
        """Input of the model -> its number of ids, and the size of its embedding if that is not the model's."""
        inputs: dict[str, Any] = {}
        for column in self.columns:
            if column.buckets is not None and column.embedding_dim is None:
                inputs[column.output] = column.buckets
            elif column.buckets is not None:
                inputs[column.output] = {"buckets": column.buckets, "embedding_dim": column.embedding_dim}
        return inputs

    @functools.cached_property
    def serving_names(self) -> dict[str, str]:
        """Column -> its name in an exported model, where names are those of arguments: "monthly charges" has spaces."""
        names: dict[str, str] = {}
        for name in self.raw:
            names[name] = identifier(name, names.values())
        return names

    def specs(self, tf: ModuleType) -> dict[str, Any]:
        """Return the specs of the model's inputs, batch axis first."""
        return {
            column.output: tf.TensorSpec([None], tf.float32 if column.buckets is None else tf.int64)
            for column in self.columns
        }

    def raw_specs(self, tf: ModuleType) -> dict[str, Any]:
        """Return the specs of the columns of one record, by their names in an exported model."""
        return {self.serving_names[name]: tf.TensorSpec([], tf.as_dtype(dtype)) for name, dtype in self.raw.items()}

    def bind(self, tf: ModuleType) -> BoundTransform:
        """Return the transformation with its lookup tables, which belong to the current graph."""
        return BoundTransform(tf, self.columns, self.serving_names)

    @property
    def digest(self) -> str:
        """A digest of the transformation."""
        columns = [dataclasses.asdict(column) for column in self.columns]
        return hashlib.sha256(json.dumps([columns, self.raw], sort_keys=True).encode()).hexdigest()[:16]

    def table(self, *, most: int | None = None) -> str:
        """Return the report as aligned lines, at most so many rows."""
        rows = self.report[:most]
        widths = [max((len(row[number]) for row in rows), default=0) for number in (0, 1)]
        lines = [f"  {name:<{widths[0]}}  {kind:<{widths[1]}}  {text}" for name, kind, text in rows]
        rest = len(self.report) - len(rows)
        return "\n".join([*lines, *([f"  and {rest} more"] if rest else [])])

    def dumps(self) -> str:
        """Return the document as JSON."""
        return json.dumps({"version": VERSION, **dataclasses.asdict(self)}, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def loads(cls, text: str) -> TableFeatures:
        """Return the features of a document.

        Raises:
            ValueError: It is not a document of `dumps` of this or an earlier version.
        """
        document = json.loads(text)
        try:
            if document.pop("version") > VERSION:
                raise ValueError(f"the document is of a later version than {VERSION}")
            columns = tuple(FeatureSpec(**_with_tuples(column)) for column in document.pop("columns"))
            report = tuple(tuple(row) for row in document.pop("report"))
            return cls(columns=columns, report=report, **document)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"this is not a document of features: {error}") from error


def _with_tuples(column: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in column.items()}
