"""Checks of the values of records: ids that a model does not have, numbers that are not scaled, NaN.

Tables and arrays are checked before training, which takes the time of one pass over a column in memory. Other data are
read again after training has failed, to name the record.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from estimator_pipeline.errors import InputError
from estimator_pipeline.inputs.source import DECODE_CHUNK, Source
from estimator_pipeline.job import Job, TableInput
from estimator_pipeline.utils.text import counted, few

__all__ = ["ValueScan", "job_scan", "not_finite", "unknown_ids", "unscaled"]

# Measured with a column that decides the label (1,000 records, 100 steps): with the default optimizer, SGD with a
# learning rate of 0.01, linear and wide_deep learn from means up to 10 and standard deviations up to 100. From a mean
# of 30 or a deviation of 1,000 on, they predict the same class for all records, or the loss is NaN.
_FAR, _WIDE = 10.0, 300.0
_SHOWN = 4


@dataclasses.dataclass
class _Column:
    """What is known of the values of a column."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0
    least: float = math.inf
    most: float = -math.inf
    bad: int = 0  # ids that the model does not have, NaN and infinities
    first: tuple[int, float] | None = None  # the first of them: record, value

    def add(self, values: np.ndarray, is_bad: np.ndarray, record_of: Callable[[int], int]) -> None:
        where = np.flatnonzero(is_bad)
        if len(where) and self.first is None:
            self.first = record_of(int(where[0])), values[where[0]].item()
        self.bad += len(where)
        if len(where) and values.dtype.kind == "f":
            values = values[np.isfinite(values)]
        if not len(values):
            return
        self.least, self.most = min(self.least, values.min().item()), max(self.most, values.max().item())
        numbers = values.astype(np.float64)
        self.count += len(numbers)
        self.total += float(numbers.sum())
        self.squares += float(np.square(numbers).sum())

    @property
    def is_unscaled(self) -> bool:
        mean = self.total / max(self.count, 1)
        deviation = math.sqrt(max(self.squares / max(self.count, 1) - mean**2, 0.0))
        return abs(mean) > _FAR or deviation > _WIDE

    @property
    def range(self) -> str:
        return f"{_short(self.least)} to {_short(self.most)}"


class ValueScan:
    """The values of some columns, collected chunk by chunk.

    Args:
        ids: Name of a column of ids -> their number; ids from 0 to below it are valid.
        numbers: Names of columns of numbers; NaN and infinities are counted.
        nullable: Those of them in which NaN is a missing value, and only infinities are counted.
        wanted: If set, this id is counted instead of all that are not valid.

    Attributes:
        columns: The columns by name.
        is_whole: Whether all records were added.
    """

    def __init__(
        self,
        ids: Mapping[str, int] | None = None,
        numbers: Collection[str] = (),
        *,
        nullable: Collection[str] = (),
        wanted: int | None = None,
    ) -> None:
        self._wanted = wanted
        self.ids, self.numbers, self._nullable = dict(ids or {}), list(numbers), set(nullable)
        self.columns = {name: _Column() for name in (*self.ids, *self.numbers)}
        self.is_whole = True

    def add(self, values: Mapping[str, Any], first: int) -> None:
        """Add the values of records from the number `first` on: arrays of shape [N, ...], or sparse values."""
        for name, column in self.columns.items():
            array, record_of = _flat(values[name], first)
            if array.dtype.kind not in "fiub":
                continue
            if name in self.ids:
                if array.dtype.kind not in "iu":
                    continue
                is_bad = (array < 0) | (array >= self.ids[name]) if self._wanted is None else array == self._wanted
            elif array.dtype.kind == "f":
                is_bad = np.isinf(array) if name in self._nullable else ~np.isfinite(array)
            else:
                is_bad = np.zeros(len(array), bool)
            column.add(array, is_bad, record_of)

    @property
    def bad(self) -> list[str]:
        """The names of the columns with values that were counted."""
        return [name for name, column in self.columns.items() if column.bad]

    def read(self, source: Source, *, seconds: float = math.inf, records: np.ndarray | None = None) -> ValueScan:
        """Add the records of a source, as far as it takes about `seconds`, and return this object.

        Args:
            source: The source.
            seconds: The time limit.
            records: The ids of the records; None: all.

        Raises:
            InputError: A record cannot be decoded; the message names it.
        """
        end = time.monotonic() + seconds
        some = () if records is None else enumerate(source.decoded(records))
        chunks = ((number * DECODE_CHUNK, values) for number, values in some)
        for first, values in source.columns(list(self.columns)) if records is None else chunks:
            if time.monotonic() > end:
                self.is_whole = False
                break
            self.add(values, first)
        if records is not None:
            self.is_whole = False
            for column in self.columns.values():
                if column.first is not None:
                    column.first = int(records[column.first[0]]), column.first[1]
        return self


def job_scan(job: Job, names: Collection[str]) -> ValueScan | None:
    """Return a scan of the columns of a job's built-in model; None if the model takes none, or has features.

    Args:
        job: The job.
        names: The names in the data.
    """
    params = job.model.params
    if job.model.name is None or job.has_features:
        return None
    ids, numbers = params.get("categorical"), params.get("numeric")
    sizes = {name: _buckets(about) for name, about in ids.items()} if isinstance(ids, Mapping) else {}
    known = {name: size for name, size in sizes.items() if isinstance(size, int) and name in names}
    listed = [name for name in numbers if name in names] if isinstance(numbers, list | tuple) else []
    return ValueScan(known, listed) if known or listed else None


def _buckets(about: Any) -> Any:
    return about.get("buckets") if isinstance(about, Mapping) else about


def unknown_ids(scan: ValueScan, job: Job, *, use: str, place: Callable[[int], str]) -> InputError | None:
    """Return the error for ids that a job's built-in model does not have; None if it has all.

    Args:
        scan: A scan of all records, or of the first ones.
        job: The job.
        use: "training" or "evaluation".
        place: Returns where a record is.
    """
    name = next((name for name in scan.ids if scan.columns[name].first is not None), None)
    if name is None:
        return None
    column, size, about = scan.columns[name], scan.ids[name], job.model.params["categorical"][name]
    assert column.first is not None
    record, value = column.first
    if column.least < 0:
        hint = "correct the records: ids start at 0"
    else:
        ids = int(column.most) + 1
        entry = f"{{{', '.join(f'{k}: {v}' for k, v in {**about, 'buckets': ids}.items())}}}" if about != size else ids
        hint = f"correct the records, or set model: {{params: {{categorical: {{{name}: {entry}}}}}}}"
    if isinstance(job.input, TableInput):
        hint += f"; or number the values by model: {{features: {_as_features(job)}}}, without params.categorical"
    return InputError(
        f"The column {name!r} has the id {value}, and model.params.categorical has {size} ids (0 to {size - 1})",
        code="data/unknown-id",
        found=f"{place(record)}; {counted(column.bad, f'{use} record')} with such ids, "
        f"the ids are {_short(column.least)} to {_short(column.most)}",
        hint=hint,
    )


def not_finite(
    scan: ValueScan,
    *,
    place: Callable[[int], str],
    labels: Collection[str] = (),
    failure: str = "",
    hints: Mapping[str, str] | None = None,
) -> InputError | None:
    """Return the error for numbers that are NaN or infinite; None if all are finite.

    Args:
        scan: A scan of the records.
        place: Returns where a record is.
        labels: Names of the labels.
        failure: The error of a training that has diverged on these records.
        hints: What else to do about a feature, by name.
    """
    firsts = {name: scan.columns[name].first for name in scan.numbers}
    known = {name: first for name, first in firsts.items() if first is not None}
    if not known:
        return None
    name = min(known, key=lambda name: known[name][0])
    record, value = known[name]
    column = scan.columns[name]
    more = f"; {counted(column.bad, 'number')} of {name!r} {'is' if column.bad == 1 else 'are'} NaN or infinite"
    return InputError(
        f"The {'label' if name in labels else 'feature'} {name!r} is {'NaN' if math.isnan(value) else 'infinite'}",
        code="data/not-finite",
        found=place(record) + more + (f"; {failure}" if failure else ""),
        hint="correct or remove the record" + (hints or {}).get(name, ""),
    )


def unscaled(scan: ValueScan, job: Job) -> tuple[str, str, str] | None:
    """Return a warning for numbers from which the default optimizer learns nothing, why, and a hint; or None."""
    ranges = [f"{name!r} ({scan.columns[name].range})" for name in scan.numbers if scan.columns[name].is_unscaled]
    if not ranges:
        return None
    if isinstance(job.input, TableInput):
        hint = f"normalize them by model: {{features: {_as_features(job)}}}, without params.numeric and "
        hint += "params.categorical (docs/guides/tables.md)"
    else:
        hint = "write (x - mean) / standard deviation in the data, or normalize in the layers of model.function"
    return (
        f"numbers are inputs of the model as they are: {few(ranges)}",
        "training often learns nothing from numbers far from 0",
        hint,
    )


def _as_features(job: Job) -> str:
    """Return `model.features` for the columns of a built-in model, as YAML."""
    kinds = dict.fromkeys(job.model.params.get("numeric", ()), "numeric")
    kinds |= dict.fromkeys(job.model.params.get("categorical", {}), "categorical")
    return f"{{{', '.join(f'{name}: {kind}' for name, kind in kinds.items())}}}"


def _flat(values: Any, first: int) -> tuple[np.ndarray, Callable[[int], int]]:
    """Return numbers in one axis, and a function that returns the record of the n-th.

    Sparse values are a `tf.compat.v1.SparseTensorValue`.
    """
    if hasattr(values, "dense_shape"):
        return np.asarray(values.values), lambda number: first + int(values.indices[number][0])
    array = np.asarray(values)
    size = max(array[:1].size, 1)
    return array.ravel(), lambda number: first + number // size


def _short(value: float) -> str:
    return f"{value:,.6g}" if isinstance(value, float) else f"{value:,}"
