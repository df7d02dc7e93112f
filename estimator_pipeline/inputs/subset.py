"""Some of the records of a source: the training and the evaluation share of one set of files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from estimator_pipeline.errors import InputError
from estimator_pipeline.inputs.source import Source

__all__ = ["Subset", "open_splits", "split", "uniform"]

_UNIT = 2.0**-64


class Subset(Source):
    """Records of a source, in its order.

    Args:
        source: The source.
        records: Their ids, ascending.
        description: Name of the data, for messages.
    """

    def __init__(self, source: Source, records: np.ndarray, *, description: str) -> None:
        self._source, self._records = source, records
        self.description = description
        self.part_names = source.part_names
        self.raw_specs, self.string_bytes, self.nullable = source.raw_specs, source.string_bytes, source.nullable
        parts, _ = source.locate(records)
        self.part_records = tuple(np.bincount(parts, minlength=len(source.part_records)).tolist())

    def select(self, parts: Sequence[int]) -> Subset:
        selected = self._source.select(parts)
        part, record = self._source.locate(self._records)
        starts = np.cumsum([0, *selected.part_records[:-1]])
        chosen = [record[part == index] + start for index, start in zip(parts, starts, strict=True)]
        return Subset(selected, np.concatenate(chosen), description=self.description)

    def raw(self, ids: np.ndarray) -> list[np.ndarray]:
        return self._source.raw(self._records[ids])

    def decode(self, raw: Sequence[Any]) -> dict[str, Any]:
        return self._source.decode(raw)

    def specs(self) -> dict[str, Any]:
        return self._source.specs()

    def parse_examples(self, records: Any, names: Sequence[str]) -> dict[str, Any] | None:
        return self._source.parse_examples(records, names)

    def examples(self, ids: np.ndarray) -> list[bytes]:
        return self._source.examples(self._records[ids])

    def record_names(self) -> list[str] | None:
        names = self._source.record_names()
        return None if names is None else [names[record] for record in self._records]

    @property
    def in_memory(self) -> bool:
        return self._source.in_memory

    @property
    def decodes_blocks(self) -> bool:
        return self._source.decodes_blocks

    def loaded_bytes(self) -> int | None:
        return self._source.loaded_bytes()

    @property
    def is_plain(self) -> bool:
        return self._source.is_plain

    def columns(self, names: Sequence[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
        if not self.is_plain:
            yield from super().columns(names)
            return
        for first, values in self._source.columns(names):
            count = len(values[names[0]])
            begin, end = np.searchsorted(self._records, (first, first + count))
            rows = self._records[begin:end] - first
            yield int(begin), {name: values[name][rows] for name in names}

    def digest(self, path: str) -> str | None:
        return self._source.digest(path)

    def is_unchanged(self, path: str) -> bool:
        return self._source.is_unchanged(path)

    def place(self, record: int) -> str:
        return self._source.place(int(self._records[record]))


def open_splits(
    factory: str,
    train: Any,
    eval: Any,
    opened: Callable[[str, Any], Source],
    *,
    eval_fraction: float | None = None,
    seed: int = 0,
) -> tuple[Source | None, Source | None]:
    """Return the training and the evaluation records of a factory.

    Args:
        factory: Its name, for messages.
        train: The training data: files, or what else the factory takes; or None.
        eval: The same for evaluation.
        opened: Returns the records of one of them, with "training" or "evaluation".
        eval_fraction: Instead of `eval`: the share of the training records to evaluate; or None.
        seed: See `split`.

    Raises:
        InputError: There is neither of them, or `eval_fraction` is not alone; also errors of `opened` and `split`.
    """
    if train is None and eval is None:
        raise InputError(f"{factory} got no data", code="argument/missing", hint="give train=, eval=, or both")
    if eval_fraction is not None and (train is None or eval is not None):
        raise InputError(
            "eval_fraction takes the evaluation records from the training data",
            code="argument/conflict",
            found=f"eval_fraction={eval_fraction!r} and "
            + ("no training data" if train is None else "evaluation data"),
            hint="leave out eval= or eval_fraction=, and give train=",
        )
    training = None if train is None else opened("training", train)
    if training is not None and eval_fraction is not None:
        return split(training, eval_fraction, seed=seed)
    return training, None if eval is None else opened("evaluation", eval)


def split(source: Source, fraction: float, *, seed: int) -> tuple[Subset, Subset]:
    """Divide the records of a source into training and evaluation records.

    The choice depends on the seed, the name of a record's file without its folder, and its number in the file; or on
    what identifies the record. It is the same on each machine, and stays the same if further files are added.

    Args:
        source: The records.
        fraction: About this share is for evaluation, more than 0 and less than 1.
        seed: The seed.

    Returns:
        The training and the evaluation records.

    Raises:
        InputError: A share has no records.
    """
    if not isinstance(fraction, float) or not 0 < fraction < 1:
        raise InputError(
            "eval_fraction is the share of the records to evaluate",
            code="argument/bad-value",
            found=f"eval_fraction={fraction!r}",
            hint="give a number between 0 and 1, such as 0.2",
        )
    if (records := source.record_names()) is not None:
        evaluated = np.array([_word(f"{seed} {name}") * _UNIT for name in records]) < fraction
    else:
        names = [os.path.basename(name) for name in source.part_names or ("",) * len(source.part_records)]
        counted_names = zip(names, source.part_records, strict=True)
        evaluated = np.concatenate([uniform(f"{seed} {name}", count) < fraction for name, count in counted_names])
    shares = []
    for use, mask in (("training", ~evaluated), ("evaluation", evaluated)):
        if not mask.any():
            raise InputError(
                f"There are no records for {use}",
                code="data/empty",
                found=f"{len(mask)} records of {source.description}, and eval_fraction={fraction:g}",
                hint="change eval_fraction, add data, or give the evaluation data separately (eval=)",
            )
        share = f"the {use} share of {source.description}"
        shares.append(Subset(source, np.flatnonzero(mask).astype(np.int64), description=share))
    return shares[0], shares[1]


def _word(key: str) -> int:
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "little")


def uniform(key: str, count: int, *, first: int = 0) -> np.ndarray:
    """Return `count` numbers in [0, 1) from the position `first` on: SplitMix64 of a key and of the position."""
    start = _word(key)
    with np.errstate(over="ignore"):
        mixed = np.uint64(start) + np.arange(first + 1, first + count + 1, dtype=np.uint64) * np.uint64(
            0x9E3779B97F4A7C15
        )
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return mixed * _UNIT
