"""The field `features` of the section `model`: what the columns of a table mean."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from estimator_pipeline.job.base import Problem, Section, explained

__all__ = ["FeatureColumns", "TableFeature"]

_Text = Annotated[str, Field(min_length=1)]
# The fields of each kind.
_FIELDS = {
    "numeric": ("normalize", "missing"),
    "categorical": ("vocabulary", "oov_buckets", "hash_buckets", "embedding_dim"),
    "bucketized": ("source", "boundaries", "missing", "embedding_dim"),
    "crossed": ("sources", "hash_buckets", "embedding_dim"),
    "key": (),
    "ignored": (),
}
_REQUIRED = {"bucketized": ("boundaries",), "crossed": ("sources", "hash_buckets")}


def _missing(value: Any) -> Any:
    if value in ("median", "mean") or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    raise explained(
        "this is not a number.", found=f"{value!r}; allowed: median, mean, or a number", hint="write one of these."
    )


def _vocabulary(value: Any) -> Any:
    words = isinstance(value, list) and value and all(isinstance(word, str) and word for word in value)
    if value is None or words or (isinstance(value, str) and value):
        return value
    raise explained(
        "this is not a vocabulary.",
        found=f"{value!r}; allowed: a list of texts, or the path of a file with one value a line",
        hint='write numbers as text: ["1", "2"].',
    )


class TableFeature(Section):
    """The meaning of a column of a table.

    Fields:
        kind: `numeric`; `categorical`; `bucketized`: ranges of a numeric column; `crossed`: combinations of columns;
            `key`: names a record, not an input of the model; `ignored`: not read.
        normalize: Of a numeric column: `standard` (mean 0, standard deviation 1), `min_max` (0 to 1), `log`
            (log(1 + x)) or `none`.
        missing (median, mean or number): Number in place of a missing one.
        vocabulary (list of str, or path): Values of a categorical column: a list, or a file with one value a line.
            null: those of the training records.
        oov_buckets: Number of ids that all values outside the vocabulary share.
        hash_buckets: Number of ids of a column without a vocabulary, by a hash; for a crossed column required.
        embedding_dim: Size of the embedding. null: that of the model (`model.params.embedding_dim`).
        source: Column of a bucketized feature. null: the column of the feature's name.
        boundaries: Boundaries of the ranges, ascending: `[25, 40]` are the ranges below 25, from 25 to below 40, from
            40.
        sources: Columns of a crossed feature: categorical columns, or bucketized features.
    """

    kind: Literal["numeric", "categorical", "bucketized", "crossed", "key", "ignored"]
    normalize: Literal["standard", "min_max", "log", "none"] = "standard"
    missing: Annotated[Any, AfterValidator(_missing)] = "median"
    vocabulary: Annotated[Any, AfterValidator(_vocabulary)] = None
    oov_buckets: Annotated[int, Field(ge=1)] = 1
    hash_buckets: Annotated[int, Field(ge=2)] | None = None
    embedding_dim: Annotated[int, Field(ge=1)] | None = None
    source: _Text | None = None
    boundaries: Annotated[list[float], Field(min_length=1)] = []
    sources: Annotated[list[_Text], Field(min_length=2)] = []

    def problems(self) -> Iterator[Problem]:
        allowed = _FIELDS[self.kind]
        for name in sorted(self.model_fields_set - {"kind", *allowed}):
            fields = ", ".join(allowed) or "none"
            yield Problem(
                (name,),
                f"a feature of the kind {self.kind} has no such field.",
                f"{name} {getattr(self, name)!r}; allowed: {fields}",
                "leave it out, or change the kind.",
                code="job/unknown-field",
            )
        for name in _REQUIRED.get(self.kind, ()):
            if not getattr(self, name):
                yield Problem(
                    (name,), f"a feature of the kind {self.kind} needs it.", None, f"add {name}.", "job/missing-field"
                )
        if self.kind == "categorical" and self.hash_buckets is not None:
            for name in ("vocabulary", "oov_buckets"):
                if name in self.model_fields_set:
                    yield Problem(
                        (name,),
                        "ids by a hash have no vocabulary.",
                        f"{name} and hash_buckets",
                        "keep one of them.",
                    )
        if sorted(set(self.boundaries)) != list(self.boundaries):
            yield Problem(
                ("boundaries",),
                "the boundaries do not ascend.",
                f"{self.boundaries}",
                "sort them, each once.",
                code="job/bad-value",
            )


def _kind(value: Any) -> Any:
    """Convert the name of a kind to a mapping."""
    return {"kind": value} if isinstance(value, str) else value


FeatureColumns = dict[_Text, Annotated[TableFeature, BeforeValidator(_kind)]]
"""Name of a column or a new feature -> its meaning."""
