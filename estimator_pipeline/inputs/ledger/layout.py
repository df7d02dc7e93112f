"""Tables of which task reads which record at which step, planned or consumed."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from estimator_pipeline.inputs.ledger.plans import plan_of, step_ids
from estimator_pipeline.inputs.ledger.reading import Ledger

__all__ = ["LedgerLayout", "consumed", "planned"]

_SHOWN = 5  # Runs of ids named in a cell; more are counted.


@dataclass
class LedgerLayout:
    """The records of each task at some steps.

    Attributes:
        tasks: The training tasks.
        steps: Step -> task -> ids, in the order of reading; None if unknown.
        records: The number of records; None if unknown.
        per_epoch: Steps per epoch, as a fraction; None without common epochs of all tasks.
        fingerprints: Whether ids are fingerprints of the content.
        lines: Text above the table.
    """

    tasks: tuple[str, ...]
    steps: dict[int, dict[str, np.ndarray | None]]
    records: int | None
    per_epoch: float | None
    fingerprints: bool = False
    lines: list[str] = field(default_factory=list)

    def shares(self) -> dict[str, tuple[int, int]]:
        """Return for each task (records that it reads in these steps, distinct records among them)."""
        shares = {}
        for task in self.tasks:
            parts = [ids for read in self.steps.values() if (ids := read.get(task)) is not None]
            ids = np.concatenate(parts) if parts else np.empty(0, np.int64)
            shares[task] = (len(ids), len(np.unique(ids)))
        return shares

    def epoch(self, step: int) -> int | None:
        """Return the epoch in which a step begins, from 1."""
        return None if self.per_epoch is None else 1 + int((step - 1) / self.per_epoch + 1e-9)

    def text(self) -> str:
        """Return a table with a row for each step and a column for each task."""
        cell = _print if self.fingerprints else _ids
        head = ["step", *([] if self.per_epoch is None else ["epoch"]), *self.tasks]
        rows = [
            [str(step), *([] if self.per_epoch is None else [str(self.epoch(step))]),
             *("?" if (ids := read.get(task)) is None else cell(ids) for task in self.tasks)]
            for step, read in sorted(self.steps.items())
        ]  # fmt: skip
        widths = [max(len(row[n]) for row in (head, *rows)) for n in range(len(head))]
        numbers = len(head) - len(self.tasks)
        lines = [
            "  ".join(
                text.rjust(width) if n < numbers else text.ljust(width)
                for n, (text, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in (head, *rows)
        ]
        total = sum(reads for reads, _ in self.shares().values()) or 1
        for task, (reads, different) in self.shares().items():
            lines.append(f"{task}: {reads} records of these steps ({reads / total:.1%}), {different} different ones")
        return "\n".join([*self.lines, *lines])

    def document(self) -> dict[str, Any]:
        """Return all ids as a JSON document."""

        def values_of(ids: np.ndarray | None) -> Any:
            if ids is None:
                return None
            return [f"{int(value):016x}" for value in ids] if self.fingerprints else ids.tolist()

        return {
            "tasks": list(self.tasks),
            "records": self.records,
            "ids": "fingerprints" if self.fingerprints else "records",
            "steps": [
                {"step": step, "epoch": self.epoch(step), "read": {t: values_of(ids) for t, ids in parts.items()}}
                for step, parts in sorted(self.steps.items())
            ],
            "shares": {t: {"records": n, "different": d} for t, (n, d) in self.shares().items()},
        }


def planned(facts: Sequence[Mapping[str, Any]], tasks: Sequence[str], steps: Iterable[int]) -> LedgerLayout:
    """Return what tasks would read.

    Args:
        facts: Metadata of each task's data; see `estimator_pipeline.inputs.ledger.plans`.
        tasks: The names of the tasks, in the same order.
        steps: The steps, from 1; steps after the end of the data are left out.
    """
    plans = {task: plan_of(metadata) for task, metadata in zip(tasks, facts, strict=True)}
    read = {}
    for step in steps:
        parts: dict[str, np.ndarray | None] = {
            task: step_ids(plans[task], metadata["part_records"], step)
            for task, metadata in zip(tasks, facts, strict=True)
        }
        if any(ids is not None and len(ids) for ids in parts.values()):
            read[step] = parts
    return LedgerLayout(tuple(tasks), read, facts[0]["records"], _per_epoch(facts[0]))


def consumed(ledger: Ledger, steps: Container[int]) -> LedgerLayout:
    """Return what tasks have consumed at the counted steps.

    Args:
        ledger: The ledger.
        steps: The steps.
    """
    read: dict[int, dict[str, np.ndarray | None]] = {}
    for run, step in ledger.counted():
        if step in steps:
            read.setdefault(step, {}).update(run.ids(step))
    plans = [p for run in ledger.runs for s in run.segments.values() if (p := s.facts.get("plan")) is not None]
    records = max((plan["records"] for plan in plans), default=None)
    alike = {_per_epoch(plan) for plan in plans} if not ledger.asynchronous else set()
    per_epoch = alike.pop() if len(alike) == 1 else None
    return LedgerLayout(ledger.tasks, dict(sorted(read.items())), records, per_epoch, ledger.kind == "fingerprints")


def _per_epoch(facts: Mapping[str, Any]) -> float | None:
    """Return the steps per epoch of a stream that all workers read."""
    if facts["asynchronous"] or facts["policy"] not in ("data", "hint"):
        return None
    return facts["records"] / facts["global_batch_size"]


def _ids(ids: np.ndarray) -> str:
    if not len(ids):
        return "-"
    edges = np.flatnonzero(np.diff(ids) != 1) + 1
    runs = np.split(ids, edges)
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs[:_SHOWN]]
    return " ".join([*texts, *([f"… ({len(ids)})"] if len(runs) > _SHOWN else [])])


def _print(ids: np.ndarray) -> str:
    texts = [f"{int(value) >> 40:06x}" for value in ids[:_SHOWN]]
    return " ".join([*texts, *([f"… ({len(ids)})"] if len(ids) > _SHOWN else [])]) or "-"
