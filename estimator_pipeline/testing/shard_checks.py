"""Which records the pipelines of a job read, and whether that is all of them, once. Knows nothing of TensorFlow.

There are three right ways to share data between pipelines, and an input_fn may follow any of them:

* **shards**: each pipeline has records of its own, which no other reads;
* **one order for all**: the pipelines take turns in a common order, so that of each epoch every record is read once;
* **everything, shuffled apart**: each pipeline reads all records, each in an order of its own, epoch by epoch.
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
        way: "shards", "one order", "everything", or "" where it is none of them.
        same_order: pipelines that read the same records in the same order.
        twice: records that are read too often -> the pipelines that read them.
    """

    way: str
    same_order: tuple[int, ...] = ()
    twice: Mapping[Hashable, tuple[int, ...]] = field(default_factory=dict)


def multiplicities(stream: Stream, num_records: int | None = None) -> Counter[Hashable]:
    """How often each record stands in the data: more than once where records of equal content exist.

    Endless data was read for several epochs: as many as `num_records` says, or as the record in the middle was read.
    """
    counts = stream.counts
    if stream.ended or not counts:
        return counts
    epochs = sum(counts.values()) / num_records if num_records else sorted(counts.values())[len(counts) // 2]
    return Counter({record: max(1, round(count / epochs)) for record, count in counts.items()})


def share(base: Stream, pipelines: Sequence[Stream], num_records: int | None = None) -> Sharing:
    """How `pipelines` share the records that `base`, a pipeline alone, reads. All have been read to the whole."""
    expected = multiplicities(base, num_records)
    apart = same_order(pipelines)
    if all(stream.ended for stream in pipelines) and base.ended:
        return _share_ended(expected, pipelines, apart)
    sets = [set(stream.texts) for stream in pipelines]
    readers = _readers(sets)
    # Records of equal content may rightly be read by several pipelines; which is which cannot be told.
    twice = {record: by for record, by in readers.items() if len(by) > 1 and expected.get(record, 1) == 1}
    if not twice:
        return Sharing("shards")
    if apart:
        return Sharing("", same_order=apart, twice=twice)
    again = _too_often(expected, pipelines)
    if again is not None and not again:
        return Sharing("one order")
    if not all(own >= set(expected) for own in sets):
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
        record: tuple(i for i, own in enumerate(counts) if record in own)
        for record, count in total.items()
        if count > max(1, expected.get(record, 1))
    }
    if not twice:
        return Sharing("shards")
    if apart:
        return Sharing("", same_order=apart, twice=twice)
    if len(pipelines) > 1 and all(own == expected for own in counts):
        return Sharing("everything")
    return Sharing("", twice=twice)


def same_order(pipelines: Sequence[Stream]) -> tuple[int, ...]:
    """The first pipelines found that give the same batches."""
    for i, one in enumerate(pipelines):
        alike = [i]
        for j in range(i + 1, len(pipelines)):
            common = min(len(one.batches), len(pipelines[j].batches))
            if common and one.batches[:common] == pipelines[j].batches[:common]:
                alike.append(j)
        if len(alike) > 1:
            return tuple(alike)
    return ()


def _readers(sets: Sequence[set[Hashable]]) -> dict[Hashable, tuple[int, ...]]:
    readers: dict[Hashable, tuple[int, ...]] = {}
    for i, own in enumerate(sets):
        for record in own:
            readers[record] = (*readers.get(record, ()), i)
    return readers


def _too_often(expected: Counter[Hashable], pipelines: Sequence[Stream]) -> set[Hashable] | None:
    """The records read more often than one order for all allows, all pipelines taken together, step by step.

    Within the whole steps of the first epoch each record is read once. Later one more is allowed: epochs do not end
    with a step, and not all pipelines end theirs at the same step. None where not even one step fits into an epoch.
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
    """The records that a pipeline reads again before it has read as many as there are."""
    first = Counter(stream.records[: sum(expected.values())])
    return {record for record, count in first.items() if count > max(1, expected.get(record, 1))}


def _above(seen: Counter[Hashable], expected: Counter[Hashable], epochs: int, more: int) -> set[Hashable]:
    return {record for record, count in seen.items() if count > max(1, expected.get(record, 1)) * epochs + more}


def repeats(counts: Counter[Hashable]) -> int:
    """How many times all the data was read: the greatest number that divides every count."""
    return math.gcd(*counts.values()) if counts else 1
