"""Analysis of the records that each pipeline of a job reads, without TensorFlow.

An input_fn may distribute data to pipelines in three correct ways:

* shards: each pipeline reads different records;
* one order: the pipelines take turns in a common order, so that every record is read once per epoch;
* everything: each pipeline reads all records in each epoch, in a different order.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from estimator_pipeline.testing.record_stream import Stream

__all__ = ["Sharing", "multiplicities", "repeats", "same_order", "share"]


@dataclass
class Sharing:
    """How the pipelines of one layout share the records.

    Attributes:
        way: "shards", "one order", "everything", or "" for an incorrect way.
        twice: Records that are read too often -> the pipelines that read them.
    """

    way: str
    twice: Mapping[Hashable, tuple[int, ...]] = field(default_factory=dict)


def multiplicities(stream: Stream, num_records: int | None = None) -> Counter[Hashable]:
    """Return how often each record occurs in the data; more than once for records of equal content.

    Endless data was read for several epochs. Their number follows from `num_records`, or is the median of the counts.
    """
    counts = stream.counts
    if stream.ended or not counts:
        return counts
    epochs = sum(counts.values()) / num_records if num_records else sorted(counts.values())[len(counts) // 2]
    return Counter({record: max(1, round(count / epochs)) for record, count in counts.items()})


def share(base: Stream, pipelines: Sequence[Stream], num_records: int | None = None) -> Sharing:
    """Return how `pipelines` share the records that the single pipeline `base` reads; all have been read completely."""
    expected = multiplicities(base, num_records)
    apart = same_order(pipelines)
    if all(stream.ended for stream in pipelines) and base.ended:
        return _share_ended(expected, pipelines, apart)
    sets = [set(stream.texts) for stream in pipelines]
    readers = _readers(sets)
    # Several pipelines may correctly read records of equal content, which cannot be distinguished.
    twice = {record: by for record, by in readers.items() if len(by) > 1 and expected.get(record, 1) == 1}
    if not twice:
        return Sharing("shards")
    if apart:
        return Sharing("", twice=twice)
    again = _too_often(expected, pipelines)
    if again is not None and not again:
        return Sharing("one order")
    if not all(records >= set(expected) for records in sets):
        return Sharing("", twice={record: by for record, by in twice.items() if record in (again or ())} or twice)
    if not _early(base, expected):
        for i, stream in enumerate(pipelines):
            early = _early(stream, expected)
            if early:
                return Sharing("", twice=dict.fromkeys(early, (i,)))
    return Sharing("everything")


def _share_ended(expected: Counter[Hashable], pipelines: Sequence[Stream], apart: tuple[int, ...]) -> Sharing:
    counts = [stream.counts for stream in pipelines]
    total = sum(counts, Counter())
    twice = {
        record: tuple(i for i, count_of in enumerate(counts) if record in count_of)
        for record, count in total.items()
        if count > max(1, expected.get(record, 1))
    }
    if not twice:
        return Sharing("shards")
    if apart:
        return Sharing("", twice=twice)
    if len(pipelines) > 1 and all(count_of == expected for count_of in counts):
        return Sharing("everything")
    return Sharing("", twice=twice)


def same_order(pipelines: Sequence[Stream]) -> tuple[int, ...]:
    """Return the first group of pipelines with equal batches."""
    for i, stream in enumerate(pipelines):
        alike = [i]
        for j in range(i + 1, len(pipelines)):
            common = min(len(stream.batches), len(pipelines[j].batches))
            if common and stream.batches[:common] == pipelines[j].batches[:common]:
                alike.append(j)
        if len(alike) > 1:
            return tuple(alike)
    return ()


def _readers(sets: Sequence[set[Hashable]]) -> dict[Hashable, tuple[int, ...]]:
    readers: dict[Hashable, tuple[int, ...]] = {}
    for i, records in enumerate(sets):
        for record in records:
            readers[record] = (*readers.get(record, ()), i)
    return readers


def _too_often(expected: Counter[Hashable], pipelines: Sequence[Stream]) -> set[Hashable] | None:
    """Return the records that all pipelines together read more often than a common order allows.

    In the complete steps of the first epoch each record is read once. Later one more read is allowed: epochs do not end
    with a step, and pipelines end them at different steps. None if an epoch is shorter than one step.
    """
    size, read = sum(expected.values()), 0
    seen: Counter[Hashable] = Counter()
    first: set[Hashable] | None = None
    for step in range(min(len(stream.batches) for stream in pipelines)):
        merged = [record for stream in pipelines for record in stream.batches[step]]
        if read + len(merged) > size and first is None:
            if not read:
                return None
            first = _above(seen, expected, 1, 0)
        read += len(merged)
        seen.update(merged)
    return (first or set()) | _above(seen, expected, math.ceil(read / size), 1)


def _early(stream: Stream, expected: Counter[Hashable]) -> set[Hashable]:
    """Return the records that a pipeline reads again within its first epoch."""
    first = Counter(stream.records[: sum(expected.values())])
    return {record for record, count in first.items() if count > max(1, expected.get(record, 1))}


def _above(seen: Counter[Hashable], expected: Counter[Hashable], epochs: int, more: int) -> set[Hashable]:
    return {record for record, count in seen.items() if count > max(1, expected.get(record, 1)) * epochs + more}


def repeats(counts: Counter[Hashable]) -> int:
    """Return how many times all data was read: the greatest common divisor of the counts."""
    return math.gcd(*counts.values()) if counts else 1
