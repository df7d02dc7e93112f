"""Whether several tasks read the same records, by the fingerprints of their batches.

Records of equal content have equal fingerprints, so equal fingerprints alone prove nothing: a batch may be repeated for
ever, as in benchmarks with synthetic data, and data may have few different records.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

__all__ = ["in_any_order", "in_same_order"]

# Fewer equal records may be records of equal content.
_ENOUGH = 8

Batches = Sequence[np.ndarray]


def in_same_order(read: Mapping[str, Batches]) -> list[str]:
    """Return the first tasks that read the same records in the same order, or an empty list.

    Args:
        read: Task -> fingerprints of each of its batches, from the first on.
    """
    records = _varied(read)
    for wanted in records.values():
        same = [other for other, some in records.items() if _begin_alike(wanted, some)]
        if len(same) > 1:
            return same
    return []


def in_any_order(read: Mapping[str, Batches]) -> tuple[list[str], int, int] | None:
    """Return the tasks that read the same records in their first epoch, or None.

    A task's records count up to the first fingerprint that occurs again: there the next epoch starts, or the data has
    many records of equal content.

    Args:
        read: Task -> fingerprints of each of its batches, from the first on.

    Returns:
        The tasks; how many records of the last another task reads, too; the number of its records.
    """
    epochs = {task: _before_repetition(records) for task, records in _varied(read).items()}
    pairs = itertools.combinations(epochs, 2)
    sharing = {
        task
        for first, other in pairs
        if len(np.intersect1d(epochs[first], epochs[other])) >= _ENOUGH
        for task in (first, other)
    }
    tasks = [task for task in epochs if task in sharing]
    if not tasks:
        return None
    *others, last = (epochs[task] for task in tasks)
    return tasks, int(np.count_nonzero(np.isin(last, np.concatenate(others)))), len(last)


def _varied(read: Mapping[str, Batches]) -> dict[str, np.ndarray]:
    """Return the records of each task that does not repeat its first batch for ever."""
    records = {task: np.concatenate(batches) for task, batches in read.items() if batches}
    return {task: some for task, some in records.items() if len(np.unique(some)) > len(np.unique(read[task][0]))}


def _begin_alike(first: np.ndarray, other: np.ndarray) -> bool:
    length = min(len(first), len(other))
    return np.array_equal(first[:length], other[:length]) and len(np.unique(first[:length])) >= _ENOUGH


def _before_repetition(records: np.ndarray) -> np.ndarray:
    is_first = np.zeros(len(records), bool)
    is_first[np.unique(records, return_index=True)[1]] = True
    return records if is_first.all() else records[: int(np.argmin(is_first))]
