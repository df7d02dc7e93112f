"""The features of a table as they were found, and their file beside the model."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["VERSION", "FeatureSpec", "TableFeatures", "identifier"]

VERSION = 1


@dataclass(frozen=True)
class FeatureSpec:
    """A feature with its statistics.

    Attributes:
        name: Its name in the job file.
        kind: "numeric", "categorical", "bucketized" or "crossed".
        output: Its name as an input of the model, a valid name of an operation.
        sources: The columns of the table that it reads; of a crossed feature also bucketized features.
        missing: The number in place of a missing one.
        log: Whether log(1 + x) is taken first.
        shift: Is subtracted from a numeric feature.
        scale: The difference is divided by it.
        boundaries: Of a bucketized feature.
        vocabulary: The values of a categorical feature, in the order of their ids; None for ids by a hash.
        oov_buckets: The ids for all other values, after those of the vocabulary.
        hash_buckets: The number of ids by a hash.
        embedding_dim: The size of the embedding; None for that of the model.
    """

    name: str
    kind: str
    output: str
    sources: tuple[str, ...]
    missing: float = 0.0
    log: bool = False
    shift: float = 0.0
    scale: float = 1.0
    boundaries: tuple[float, ...] = ()
    vocabulary: tuple[str, ...] | None = None
    oov_buckets: int = 1
    hash_buckets: int | None = None
    embedding_dim: int | None = None

    @property
    def buckets(self) -> int | None:
        """The number of ids; None for a numeric feature."""
        if self.kind == "numeric":
            return None
        if self.kind == "bucketized":
            return len(self.boundaries) + 1
        return self.hash_buckets or len(self.vocabulary or ()) + self.oov_buckets


@dataclass(frozen=True)
class TableFeatures:
    """All features of a table, what they were found from, and the label.

    Attributes:
        columns: The features.
        raw: Column that is read -> "float32" or "string".
        declared: `model.features` of the job file, and what else decides about the features, as plain values.
        records: The number of training records that were read.
        label: The label's column, its dtype, and the names or the number of its classes, if it has any.
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

    @property
    def digest(self) -> str:
        """A digest of the transformation."""
        columns = [dataclasses.asdict(column) for column in self.columns]
        return hashlib.sha256(json.dumps([columns, self.raw], sort_keys=True).encode()).hexdigest()[:16]

    def table(self) -> str:
        """Return the report as aligned lines."""
        widths = [max((len(row[number]) for row in self.report), default=0) for number in (0, 1)]
        return "\n".join(f"  {name:<{widths[0]}}  {kind:<{widths[1]}}  {text}" for name, kind, text in self.report)

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


def identifier(name: str, taken: Iterable[str]) -> str:
    """Return a name for a column that operations and arguments can have, and that is not taken."""
    base = re.sub(r"\W", "_", name, flags=re.ASCII)
    base = base if re.match(r"[A-Za-z]", base) else f"column_{base}"
    others, unique, number = set(taken), base, 1
    while unique in others:
        number += 1
        unique = f"{base}_{number}"
    return unique


def _with_tuples(column: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in column.items()}
