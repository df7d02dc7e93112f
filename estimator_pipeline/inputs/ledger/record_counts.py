"""Fingerprints counted: how often each record was read, held against how often it stands in the data."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from estimator_pipeline.inputs.ledger.reading import Ledger
from estimator_pipeline.inputs.ledger.report import LedgerReport

__all__ = ["check_fingerprints"]


def check_fingerprints(ledger: Ledger, report: LedgerReport, counts: Mapping[int, int] | None) -> None:
    """Whether the records were read evenly, as far as their content tells.

    Workers may share the data in three right ways (:mod:`estimator_pipeline.testing.shard_checks`): in one order for
    all, in shards of their own, or each reads everything.

    Args:
        ledger: of fingerprints.
        report: told what is found.
        counts: fingerprint -> how often it stands in the data, where that was counted.
    """
    parts: dict[str, list[np.ndarray]] = {task: [] for task in ledger.tasks}
    for run, step in ledger.counted():
        for task, ids in run.ids(step).items():
            if ids is not None:
                parts[task].append(ids.astype(np.uint64))
    read = {task: _counted(found) for task, found in parts.items()}
    values, every = _counted([ids for found in parts.values() for ids in found])
    reads = int(every.sum())
    if not reads:
        return
    report.notes.append(
        f"records stand in this ledger by fingerprints of their content: {reads} reads of {len(values)} different "
        f"records, each read {every.min()} to {every.max()} times; records of equal content cannot be told apart"
    )
    if counts is None:
        report.notes.append("how often each stands in the data was not counted, so nothing is known to be missing")
        return
    known = np.array(sorted(counts), dtype=np.uint64)
    often = np.array([counts[int(value)] for value in known], dtype=np.int64)
    foreign = int(np.count_nonzero(~np.isin(values, known)))
    if foreign:
        report.find(
            "unknown",
            f"{foreign} of {len(values)} different records are not in the data that were counted; an input function "
            "that changes records at random gives others each time, and cannot be checked so",
        )
        return
    total = _aligned(known, values, every)
    own = {task: _aligned(known, *found) for task, found in read.items()}
    size = int(often.sum())
    if _even(total, often, reads / size):
        return
    alike = _same_order(parts)
    if alike:
        report.find(
            "twice",
            f"{' and '.join(alike)} read the same records at the same steps: the input function does not shard by its "
            "input_context, and each step trains on the same batch several times",
        )
        return
    if len(own) > 1 and all(_even(found, often, int(found.sum()) / size) for found in own.values()):
        report.notes.append("each worker reads all the data, in an order of its own")
        return
    never = total == 0
    single = often == 1
    owners = np.sum([found > 0 for found in own.values()], axis=0)
    if len(own) > 1 and not np.any(owners[single] > 1):
        shards = {task: np.where(found > 0, often, 0) for task, found in own.items()}
        even = all(_even(own[task], shard, own[task].sum() / max(shard.sum(), 1)) for task, shard in shards.items())
        begun = any(own[task].sum() < 2 * shard.sum() for task, shard in shards.items() if shard.sum())
        # A worker in its first epoch has not come to all of its own yet.
        if even and (not never.any() or begun):
            report.notes.append(f"the workers read shards of their own; {int(never.sum())} records not yet")
            return
    epochs = reads / size
    if never.any() and epochs >= 1:
        report.find("never", f"{int(often[never].sum())} record(s) were never read, in {epochs:.2f} epochs")
    often_read = total > np.ceil(epochs) * often
    if often_read.any():
        most = int(np.argmax(total / often))
        report.find(
            "twice",
            f"{int(np.count_nonzero(often_read))} different record(s) were read more often than {epochs:.2f} epochs "
            f"allow: fingerprint {int(known[most]):016x} {total[most]} times, and it stands in the data {often[most]} "
            "time(s)",
        )
    if not (never.any() and epochs >= 1) and not often_read.any():
        report.find(
            "uneven", f"in {epochs:.2f} epochs records were read {int(total.min())} to {int(total.max())} times"
        )


def _same_order(parts: Mapping[str, list[np.ndarray]]) -> list[str]:
    """The first tasks found that read the same, batch by batch."""
    tasks = [task for task, batches in parts.items() if batches]
    for task in tasks:
        alike = [
            other
            for other in tasks
            if all(map(np.array_equal, parts[task], parts[other]))  # As far as both have come.
        ]
        if len(alike) > 1:
            return alike
    return []


def _counted(parts: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    if not parts:
        return np.empty(0, np.uint64), np.empty(0, np.int64)
    values, counts = np.unique(np.concatenate(parts), return_counts=True)
    return values, counts.astype(np.int64)


def _aligned(known: np.ndarray, values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    found = np.zeros(len(known), dtype=np.int64)
    found[np.searchsorted(known, values)] = counts
    return found


def _even(found: np.ndarray, often: np.ndarray, epochs: float) -> bool:
    """Whether each record was read as often as the epochs have it, the one that is not at its end included."""
    low, high = int(np.floor(epochs + 1e-9)), int(np.ceil(epochs - 1e-9))
    return bool(np.all((found >= low * often) & (found <= high * often)))
