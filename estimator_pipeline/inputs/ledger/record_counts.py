"""Check of fingerprints: how often each record was read, compared with how often it occurs in the data."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from estimator_pipeline.inputs.ledger import same_records
from estimator_pipeline.inputs.ledger.reading import Ledger
from estimator_pipeline.inputs.ledger.report import LedgerReport

__all__ = ["check_fingerprints"]


def check_fingerprints(ledger: Ledger, report: LedgerReport, counts: Mapping[int, int] | None) -> None:
    """Check by content that the records were read evenly.

    Workers may divide the data in three correct ways (`estimator_pipeline.testing.shard_checks`): one common
    order, separate shards, or each worker reads everything.

    Args:
        ledger: A ledger of fingerprints.
        report: The report for the findings.
        counts: How often each fingerprint occurs in the data, if counted.
    """
    parts: dict[str, list[np.ndarray]] = {task: [] for task in ledger.tasks}
    for run, step in ledger.counted():
        for task, ids in run.ids(step).items():
            if ids is not None:
                parts[task].append(ids.astype(np.uint64))
    read = {task: _counted(batches) for task, batches in parts.items()}
    values, every = _counted([ids for batches in parts.values() for ids in batches])
    reads = int(every.sum())
    if not reads:
        return
    least, most = int(every.min()), int(every.max())
    each = "once" if most == 1 else f"{most} times" if least == most else f"{least} to {most} times"
    report.notes.append(
        f"this ledger identifies records by fingerprints of their content: {reads} reads of {len(values)} different "
        f"records, each read {each}; records of equal content are indistinguishable"
    )
    alike = same_records.in_same_order(parts)
    if alike:
        report.find(
            "twice",
            f"{' and '.join(alike)} read the same records at the same steps, so that a step trains on one batch "
            "several times: the input function has to shard by its input_context, which differs between them",
        )
        return
    if counts is None:
        report.notes.append("the records in the data were not counted, so missing records cannot be detected")
        return
    known = np.array(sorted(counts), dtype=np.uint64)
    often = np.array([counts[int(value)] for value in known], dtype=np.int64)
    foreign = int(np.count_nonzero(~np.isin(values, known)))
    if foreign:
        report.find(
            "unknown",
            f"{foreign} of {len(values)} different records are not in the counted data; an input function that changes "
            "records at random returns different records each time, and cannot be checked this way",
        )
        return
    total = _aligned(known, values, every)
    by_task = {task: _aligned(known, *counted) for task, counted in read.items()}
    size = int(often.sum())
    if _even(total, often, reads / size):
        return
    if len(by_task) > 1 and all(_even(times, often, int(times.sum()) / size) for times in by_task.values()):
        report.notes.append("each worker reads all data, in a different order")
        return
    never = total == 0
    single = often == 1
    owners = np.sum([times > 0 for times in by_task.values()], axis=0)
    if len(by_task) > 1 and not np.any(owners[single] > 1):
        shards = {task: np.where(times > 0, often, 0) for task, times in by_task.items()}
        even = all(
            _even(by_task[task], shard, by_task[task].sum() / max(shard.sum(), 1)) for task, shard in shards.items()
        )
        begun = any(by_task[task].sum() < 2 * shard.sum() for task, shard in shards.items() if shard.sum())
        # A worker in its first epoch has not read its whole shard yet.
        if even and (not never.any() or begun):
            report.notes.append(f"the workers read separate shards; {int(never.sum())} records not yet")
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
            f"allow: fingerprint {int(known[most]):016x} {total[most]} times, and it occurs {often[most]} "
            "time(s) in the data",
        )
    if not (never.any() and epochs >= 1) and not often_read.any():
        report.find(
            "uneven", f"in {epochs:.2f} epochs records were read {int(total.min())} to {int(total.max())} times"
        )


def _counted(parts: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    if not parts:
        return np.empty(0, np.uint64), np.empty(0, np.int64)
    values, counts = np.unique(np.concatenate(parts), return_counts=True)
    return values, counts.astype(np.int64)


def _aligned(known: np.ndarray, values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    aligned = np.zeros(len(known), dtype=np.int64)
    aligned[np.searchsorted(known, values)] = counts
    return aligned


def _even(times: np.ndarray, often: np.ndarray, epochs: float) -> bool:
    """Return whether each record was read as often as the epochs allow, including an incomplete last epoch."""
    low, high = int(np.floor(epochs + 1e-9)), int(np.ceil(epochs - 1e-9))
    return bool(np.all((times >= low * often) & (times <= high * often)))
