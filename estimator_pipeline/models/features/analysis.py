"""Statistics and vocabularies of the training records, and the features that follow from them."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from estimator_pipeline.errors import ConfigError, InputError
from estimator_pipeline.inputs.source import Source
from estimator_pipeline.inputs.subset import uniform
from estimator_pipeline.models.features.columns import FeatureSpec, identifier
from estimator_pipeline.models.features.table import TableFeatures
from estimator_pipeline.utils.text import counted, few, nearest

__all__ = ["FeaturePlan", "analyse", "plan_features"]

_CHUNK = 65536
_SAMPLE = 250_000  # Records of which medians are taken.
_MAX_VALUES = 10**6  # Distinct texts that are counted.
_MAX_VOCABULARY = 10_000
_MAX_CLASSES = 10_000  # Of which the numbers of records are kept.
_FEW_RECORDS = 50  # With fewer, all values may differ by chance.
_SHOWN = 4


@dataclass(frozen=True)
class FeaturePlan:
    """What is read from a table, and for which features, before any record is read.

    Attributes:
        types: Column of the table -> "int", "float", "date" or "text".
        raw: Column that is read -> "float32" or "string".
        declared: Feature -> its fields in the job file.
        automatic: Columns whose kind follows from their type and values.
    """

    types: Mapping[str, str]
    raw: Mapping[str, str]
    declared: Mapping[str, Mapping[str, Any]]
    automatic: Sequence[str]


def plan_features(
    declared: Mapping[str, Mapping[str, Any]], types: Mapping[str, str], *, without: Sequence[str] = ()
) -> FeaturePlan:
    """Return which columns are read, and how.

    Args:
        declared: Feature -> its fields in the job file, with `kind`.
        types: Column -> "int", "float", "date" or "text", in the order of the table.
        without: Columns that are not features: labels, weights.

    Raises:
        ConfigError: A feature names a column that the table does not have, or needs numbers of a text column.
    """
    raw: dict[str, str] = {}
    names = [name for name in types if name not in without]
    for name, feature in declared.items():
        for column in _sources(name, feature):
            is_feature = column in declared and column != name and feature["kind"] == "crossed"
            if column not in names and not (is_feature and declared[column]["kind"] == "bucketized"):
                close = nearest(column, names)
                raise ConfigError(
                    f"model.features.{name}: the data have no column {column!r}"
                    if column not in without
                    else f"model.features.{name}: {column!r} is the label or the weight",
                    code="model/features-mismatch",
                    found=f"columns: {', '.join(names)}",
                    hint=f"did you mean {close!r}?" if close and column not in without else "name one of the columns",
                )
    for name in names:
        kind = declared.get(name, {}).get("kind")
        if kind in ("ignored", "key"):
            continue
        raw[name] = "string" if kind == "categorical" or (kind is None and types[name] == "text") else "float32"
    for name, feature in declared.items():
        wanted = {"bucketized": "float32", "crossed": "string", "numeric": "float32"}.get(feature["kind"])
        for column in _sources(name, feature):
            if declared.get(column, {}).get("kind") == "bucketized" and column not in types:
                continue
            there = raw.setdefault(column, wanted or "string")
            if wanted and there != wanted:
                raise _wrong_type(name, feature["kind"], column, is_text=there == "string")
    # A crossed feature may have the name of a column, which is then a feature, too.
    automatic = [name for name in names if name in raw and declared.get(name, {}).get("kind") in (None, "crossed")]
    return FeaturePlan(types, raw, declared, automatic)


def _sources(name: str, feature: Mapping[str, Any]) -> list[str]:
    if feature["kind"] == "crossed":
        return list(feature["sources"])
    return [feature.get("source") or name]


def _wrong_type(name: str, kind: str, column: str, *, is_text: bool) -> ConfigError:
    return ConfigError(
        f"model.features.{name}: a {kind} feature needs {'numbers' if is_text else 'a categorical column'}, and "
        f"{column!r} is {'text or categorical' if is_text else 'numeric'}",
        code="model/features-mismatch",
        hint=f"correct the cells that are not numbers, or leave {name} out"
        if is_text
        else f"add {column}: categorical, or cross a bucketized feature of it",
    )


# Statistics -------------------------------------------------------------------------------------------------------


class _Numbers:
    """Statistics of a numeric column."""

    def __init__(self, rate: float) -> None:
        self.count = self.missing = 0
        self.mean = self.squares = 0.0
        self.least, self.most = math.inf, -math.inf
        self.is_whole = self.grows = True
        self._last = -math.inf
        self._rate = rate
        self._sample: list[np.ndarray] = []

    def add(self, values: np.ndarray, start: int) -> None:
        there = ~np.isnan(values)
        self.missing += int(len(values) - there.sum())
        if self._rate < 1:
            chosen = there & (uniform("median", len(values), first=start) < self._rate)
            self._sample.append(values[chosen])
        values = values[there].astype(np.float64)
        if self._rate >= 1:
            self._sample.append(values.astype(np.float32))
        if not len(values):
            return
        # Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances" (1979).
        count, mean = len(values), float(values.mean())
        squares = float(np.square(values - mean).sum())
        total = self.count + count
        difference = mean - self.mean
        self.squares += squares + difference**2 * self.count * count / total
        self.mean += difference * count / total
        self.count = total
        self.least, self.most = min(self.least, float(values.min())), max(self.most, float(values.max()))
        self.is_whole = self.is_whole and bool((values == np.floor(values)).all())
        self.grows = self.grows and bool((np.diff(values) > 0).all()) and float(values[0]) > self._last
        self._last = float(values[-1])

    @property
    def median(self) -> float:
        return float(np.median(np.concatenate(self._sample))) if self.count else 0.0

    @property
    def deviation(self) -> float:
        return math.sqrt(self.squares / self.count) if self.count else 0.0

    @property
    def is_row_number(self) -> bool:
        records = self.count + self.missing
        return self.is_whole and self.grows and records >= _FEW_RECORDS and self.most - self.least < 2 * records


class _Values:
    """The values of a text column, or classes, and how often each occurs."""

    def __init__(self) -> None:
        self.counts: collections.Counter[Any] = collections.Counter()
        self.records = 0
        self.is_whole = True  # Whether all values are counted.

    def add(self, values: np.ndarray) -> None:
        self.records += len(values)
        if self.is_whole:
            self.counts.update(values.tolist())
            self.is_whole = len(self.counts) <= _MAX_VALUES

    @property
    def missing(self) -> int:
        return self.counts.get(b"", 0)

    def values(self) -> list[tuple[str, int]]:
        """Return the values but the missing one, the most frequent first."""
        known = [(value.decode(errors="replace"), count) for value, count in self.counts.items() if value]
        return sorted(known, key=lambda item: (-item[1], item[0]))


def analyse(
    source: Source,
    plan: FeaturePlan,
    names: Sequence[str],
    *,
    labels: Mapping[str, str],
    vocabularies: Mapping[str, Sequence[str]],
    declared: Mapping[str, Any],
    passed: Callable[[int], Any] = lambda records: None,
) -> TableFeatures:
    """Read the training records once, and return the features.

    Args:
        source: The training records.
        plan: From `plan_features`.
        names: The columns of `source`, in their order.
        labels: Label -> its dtype, "string", "int64" or "float32".
        vocabularies: Label -> the names of its classes, if it is text.
        declared: What decides about the features, for `TableFeatures.declared`.
        passed: Called with the number of records that have been read.

    Raises:
        ConfigError: The statistics do not allow a declared feature; or labels are missing or not in the vocabulary.
        InputError: A number is infinite.
    """
    records = source.num_records
    rate = min(1.0, _SAMPLE / max(records, 1))
    statistics: dict[str, Any] = {}
    for name in names:
        is_text = plan.raw.get(name, labels.get(name)) == "string"
        statistics[name] = _Values() if is_text else _Numbers(rate)
    classes = {name: _Values() for name, dtype in labels.items() if dtype == "int64"}
    for start in range(0, records, _CHUNK):
        ids = np.arange(start, min(start + _CHUNK, records), dtype=np.int64)
        for name, values in zip(names, source.raw(ids), strict=True):
            if isinstance(statistics[name], _Values):
                statistics[name].add(values)
                continue
            if name in classes:
                classes[name].add(values)
            infinite = np.flatnonzero(np.isinf(values))
            if len(infinite):
                raise InputError(
                    f"A number of the column {name!r} is infinite",
                    code="data/bad-record",
                    found=f"{source.place(int(ids[infinite[0]]))}: {values[infinite[0]]}",
                    hint="correct it, or leave the cell empty",
                )
            statistics[name].add(values, start)
        passed(int(ids[-1]) + 1)
    builder = _Builder(plan, statistics, records)
    for name, feature in plan.declared.items():
        builder.declared(name, feature)
    for name in plan.automatic:
        builder.automatic(name)
    label, rows = _label(labels, statistics, classes, vocabularies)
    order = {name: number for number, name in enumerate(names)}
    report = sorted(builder.report, key=lambda row: order.get(row[0], len(order)))
    if not builder.columns:
        raise ConfigError(
            "no column of the table can be an input of the model",
            code="model/features-mismatch",
            found="; ".join(f"{name}: {kind}, {text}" for name, kind, text in report),
            hint="declare the columns to use: model.features: {NAME: {kind: categorical, hash_buckets: 1000}}",
        )
    used = {source for column in builder.columns for source in column.sources}
    return TableFeatures(
        columns=tuple(builder.columns),
        raw={name: dtype for name, dtype in plan.raw.items() if name in used},
        declared=declared,
        records=records,
        label=label,
        report=(*report, *rows),
    )


class _Builder:
    """Features from statistics, with a row of the report for each."""

    def __init__(self, plan: FeaturePlan, statistics: Mapping[str, Any], records: int) -> None:
        self._plan, self._statistics, self._records = plan, statistics, records
        self.columns: list[FeatureSpec] = []
        self.report: list[tuple[str, str, str]] = []

    def automatic(self, name: str) -> None:
        """Add the feature of a column by its type and values, or leave it out."""
        statistic = self._statistics[name]
        if isinstance(statistic, _Numbers):
            if statistic.count == 0 or statistic.least == statistic.most:
                self._left_out(
                    name, "no numbers" if not statistic.count else f"all numbers are {_short(statistic.least)}"
                )
            elif statistic.is_row_number:
                self._key(name, f"a number of the record, {_short(statistic.least)} to {_short(statistic.most)}")
            else:
                self._numeric(name, {})
            return
        values = statistic.values()
        if statistic.is_whole and len(values) + bool(statistic.missing) < 2:
            self._left_out(name, f"all texts are {values[0][0]!r}" if values else "no texts")
        elif self._records >= _FEW_RECORDS and (len(values) > self._records / 2 or not statistic.is_whole):
            self._key(name, f"{len(values):,} different texts in {self._records:,} records")
        else:
            self._categorical(name, {})

    def declared(self, name: str, feature: Mapping[str, Any]) -> None:
        """Add a feature of the job file."""
        kind = feature["kind"]
        if kind == "numeric":
            self._numeric(name, feature)
        elif kind == "categorical":
            self._categorical(name, feature)
        elif kind == "bucketized":
            source = feature.get("source") or name
            missing = _missing(feature, self._statistics[source])
            boundaries = tuple(map(float, feature["boundaries"]))
            text = f"{len(boundaries) + 1} ranges of {source}"
            self._add(name, kind, (source,), text, feature, boundaries=boundaries, missing=missing)
        elif kind == "crossed":
            sources, buckets = tuple(feature["sources"]), feature["hash_buckets"]
            text = f"{' and '.join(sources)}, {buckets:,} ids by a hash"
            self._add(name, kind, sources, text, feature, hash_buckets=buckets)
        else:
            self.report.append((name, kind, "not an input of the model"))

    def _numeric(self, name: str, feature: Mapping[str, Any]) -> None:
        statistic = self._statistics[name]
        if not statistic.count:
            raise ConfigError(
                f"model.features.{name} is numeric, and no training record has a number there",
                code="model/features-mismatch",
                hint="leave it out, or set kind: ignored",
            )
        normalize, missing = feature.get("normalize", "standard"), _missing(feature, statistic)
        shift, scale = 0.0, 1.0
        if normalize == "log":
            if statistic.least <= -1:
                raise ConfigError(
                    f"model.features.{name}: normalize: log needs numbers from 0 on",
                    code="model/features-mismatch",
                    found=f"numbers from {_short(statistic.least)}",
                    hint="use normalize: standard",
                )
        elif normalize == "min_max":
            shift, scale = statistic.least, statistic.most - statistic.least
        elif normalize == "standard":
            shift, scale = statistic.mean, statistic.deviation
        short = _date if self._plan.types[name] == "date" else _short
        text = f"{short(statistic.least)} to {short(statistic.most)}, mean {short(statistic.mean)}"
        text += f", {statistic.missing:,} missing: {short(missing)}" if statistic.missing else ""
        text += f"; {normalize}"
        self._add(
            name, "numeric", (name,), text, feature,
            missing=missing, log=normalize == "log", shift=_rounded(shift), scale=_rounded(scale) or 1.0,
        )  # fmt: skip

    def _categorical(self, name: str, feature: Mapping[str, Any]) -> None:
        statistic, buckets = self._statistics[name], feature.get("hash_buckets")
        if buckets:
            self._add(name, "categorical", (name,), f"{buckets:,} ids by a hash", feature, hash_buckets=buckets)
            return
        values = statistic.values()
        vocabulary = feature.get("vocabulary")
        if vocabulary is None:
            kept = [value for value, _ in values[:_MAX_VOCABULARY]]
            if statistic.missing:
                kept.append("")
            text = f"{counted(len(values), 'value')}: {few([_quoted(value) for value, _ in values], _SHOWN)}"
            if len(values) > _MAX_VOCABULARY:
                text = f"the {_MAX_VOCABULARY:,} most frequent of {len(values):,} values"
            text += f", {statistic.missing:,} missing" if statistic.missing else ""
        else:
            kept = list(vocabulary)
            known_values = set(kept)
            known = sum(count for value, count in statistic.values() if value in known_values)
            text = f"{counted(len(kept), 'given value')}, in {known / max(statistic.records, 1):.1%} of the records"
        oov = feature.get("oov_buckets", 1)
        self._add(
            name, "categorical", (name,), text, feature, vocabulary=tuple(dict.fromkeys(kept)), oov_buckets=oov
        )  # fmt: skip

    def _add(
        self, name: str, kind: str, sources: tuple[str, ...], text: str, feature: Mapping[str, Any], **more: Any
    ) -> None:
        output = identifier(name, [column.output for column in self.columns])
        embedding_dim = feature.get("embedding_dim")
        self.columns.append(FeatureSpec(name, kind, output, sources, embedding_dim=embedding_dim, **more))
        self.report.append((name, kind, text))

    def _left_out(self, name: str, why: str) -> None:
        self.report.append((name, "left out", why))

    def _key(self, name: str, why: str) -> None:
        """Leave out a column that names each record."""
        self.report.append((name, "key", why))


def _missing(feature: Mapping[str, Any], statistic: _Numbers) -> float:
    choice = feature.get("missing", "median")
    return _rounded(statistic.median if choice == "median" else statistic.mean if choice == "mean" else float(choice))


def _label(
    labels: Mapping[str, str],
    statistics: Mapping[str, Any],
    classes: Mapping[str, _Values],
    vocabularies: Mapping[str, Sequence[str]],
) -> tuple[dict[str, Any], list[tuple[str, str, str]]]:
    label: dict[str, Any] = {}
    rows = []
    for name, dtype in labels.items():
        statistic, vocabulary = statistics[name], vocabularies.get(name, ())
        if isinstance(statistic, _Values):
            values = statistic.values()
            if statistic.missing:
                raise ConfigError(
                    f"{counted(statistic.missing, 'training record')} without a label",
                    code="data/bad-record",
                    found=f"empty cells of the column {name!r}",
                    hint="remove these records, or fill the cells",
                )
            unknown = [value for value, _ in values if value not in vocabulary]
            if unknown:
                raise ConfigError(
                    f"labels of the column {name!r} are not in model.label_vocabulary",
                    code="model/labels-mismatch",
                    found=f"{few(unknown, _SHOWN)}; the vocabulary: {few(list(vocabulary), _SHOWN)}",
                    hint="correct the vocabulary, or the labels",
                )
            counts = dict(values)
            text = few([f"{_quoted(value)} {counts.get(value, 0):,}" for value in vocabulary], 10)
            label[name] = {
                "dtype": dtype,
                "classes": list(vocabulary),
                "counts": [counts.get(value, 0) for value in vocabulary],
            }
        else:
            text = f"{_short(statistic.least)} to {_short(statistic.most)}, mean {_short(statistic.mean)}"
            number = int(statistic.most) + 1 if name in classes and statistic.least >= 0 else None
            label[name] = {
                "dtype": dtype,
                "classes": number,
                "mean": _rounded(statistic.mean),
                "deviation": _rounded(statistic.deviation),
            }
            if number is not None and number <= _MAX_CLASSES:
                label[name]["counts"] = [classes[name].counts.get(value, 0) for value in range(number)]
        rows.append((name, "label", text))
    return label, rows


def _quoted(value: str) -> str:
    return f'"{value}"' if "," in value or value != value.strip() else value


def _rounded(value: float) -> float:
    """Return 7 digits, as many as float32 has: machines may sum in a different order."""
    return float(f"{value:.7g}")


def _date(days: float) -> str:
    return str(np.datetime64(round(days), "D"))


def _short(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) and abs(value) < 1e12 else f"{value:.4g}"
