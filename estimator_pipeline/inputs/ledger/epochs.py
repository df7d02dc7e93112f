"""Check of one stream of records against its epochs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from estimator_pipeline.inputs.ledger.plans import plan_of
from estimator_pipeline.inputs.ledger.report import LISTED, LedgerReport
from estimator_pipeline.inputs.sharding import TrainShards
from estimator_pipeline.utils.text import few

__all__ = ["Epochs"]


class Epochs:
    """A checker that gets a stream's steps in ascending order and reports records read twice or never.

    Args:
        facts: Metadata of the data, of any pipeline; see `estimator_pipeline.inputs.ledger.plans`.
        report: The report for the findings.
        who: The task of the stream; empty if all workers read one stream.
        number: The number of the continuation of the run; 0: the data with which it began.
    """

    def __init__(self, facts: Mapping[str, Any], report: LedgerReport, *, who: str = "", number: int = 0) -> None:
        self._report, self._who, self._number = report, who, number
        self._ids: np.ndarray | None = None
        plan = self.follow(facts)
        self._size = plan.sampler.num_records
        if plan.parts is not None:
            counts = np.asarray(facts["part_records"], dtype=np.int64)
            starts = np.cumsum(counts) - counts
            self._ids = np.concatenate([np.arange(starts[p], starts[p] + counts[p]) for p in plan.parts])
        self._epoch = -1
        self._next: int | None = None
        self._covered = 0
        self._seen: list[tuple[int, dict[str, np.ndarray]]] = []

    def follow(self, facts: Mapping[str, Any]) -> TrainShards:
        """Use the metadata of a run for the steps from now on."""
        plan = plan_of(facts)
        self._full = plan.full_steps
        self._per_step = plan.batch * plan.replicas.local * (1 if self._who else plan.replicas.num_pipelines)
        self._interleaved = plan.policy == "hint"
        self._total, self._origin = plan.sampler.total, facts.get("origin", 0)
        return plan

    def add(self, step: int, parts: Mapping[str, np.ndarray | None]) -> None:
        """Add the ids of a step of these data by task, in the order of the pipelines; None if unknown."""
        if self._full is None or step <= self._full or self._next is None:
            position = (step - 1) * self._per_step
        else:
            position = self._next
        known = {task: ids for task, ids in parts.items() if ids is not None}
        if self._next is not None and position != self._next:
            self._report.find(
                "jump",
                f"step {step + self._origin}{self._of()} continues at position {position} of the stream, but the step "
                f"before ended at {self._next}: a global batch of a different size reads different records",
            )
            self.close()
        if len(known) < len(parts):
            self._next = position + self._per_step
            self._start(position // self._size)
            return
        names = np.repeat(np.arange(len(known)), [len(ids) for ids in known.values()])
        merged = np.concatenate(list(known.values())) if known else np.empty(0, np.int64)
        if self._interleaved and len({len(ids) for ids in known.values()}) == 1:
            shape = (len(known), -1)
            merged, names = merged.reshape(shape).T.ravel(), names.reshape(shape).T.ravel()
        tasks = list(known)
        self._next = position + len(merged)
        start = 0
        while start < len(merged):
            epoch, within = divmod(position + start, self._size)
            stop = min(len(merged), start + self._size - within)
            self._start(epoch)
            cut = slice(start, stop)
            self._seen.append((step, {t: merged[cut][names[cut] == n] for n, t in enumerate(tasks)}))
            self._covered += stop - start
            start = stop

    def close(self) -> None:
        """Check the current epoch."""
        seen, self._seen = self._seen, []
        covered, self._covered = self._covered, 0
        if not seen:
            return
        ids = np.concatenate([part for _, parts in seen for part in parts.values()])
        values, counts = np.unique(ids, return_counts=True)
        expected = self._ids if self._ids is not None else np.arange(self._size)
        named = f"epoch {self._epoch + 1}{self._of()}"
        for kind, records, verb in (
            ("unknown", values[~np.isin(values, expected)], "are not in the data"),
            ("twice", values[counts > 1], "were read more than once"),
        ):
            if len(records):
                # The places of the first records alone: to find one reads all that was seen.
                first = [f"{record} ({self._places(seen, int(record))})" for record in records[:LISTED]]
                text = few([*first, *records[LISTED:]], LISTED)
                self._report.find(kind, f"{named}: {len(records)} record(s) {verb}: {text}")
        if covered == self._size and len(lost := np.setdiff1d(expected, values)):
            self._report.find("never", f"{named}: {len(lost)} record(s) were never read: {few(lost.tolist(), LISTED)}")

    def require_end(self) -> None:
        """Check that the stream was read to its end: other data were trained after it."""
        missing = (self._total or 0) - (self._next or 0)
        if missing > 0:
            self._report.find("never", f"the run left{self._of()} {missing} record(s) before their end")

    def _start(self, epoch: int) -> None:
        if epoch != self._epoch:
            self.close()
            self._epoch = epoch

    def _of(self) -> str:
        return (f" of continuation {self._number}" if self._number else "") + (f" of {self._who}" if self._who else "")

    def _places(self, seen: list[tuple[int, dict[str, np.ndarray]]], record: int) -> str:
        places = [
            f"step {step + self._origin} {task}"
            for step, parts in seen
            for task, ids in parts.items()
            for _ in range(int(np.count_nonzero(ids == record)))
        ]
        return ", ".join(places[:4])
