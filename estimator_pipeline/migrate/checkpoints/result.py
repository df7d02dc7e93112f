"""What the migration of a checkpoint came to."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from estimator_pipeline.migrate.checkpoints.draft import PlanRow

__all__ = ["MigratedCheckpoint", "summary"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MigratedCheckpoint:
    """What `migrate_checkpoint` has done.

    Attributes:
        source: the checkpoint that was read.
        to: "keras", "keras3" or "estimator".
        output: the checkpoint, or the file, that was written.
        step: the global step that it stands at.
        rows: what became of each variable.
        mapping: the target's weight -> the checkpoint's.
        mapping_file: where that was written.
        notes: what a person should know of it.
    """

    source: str
    to: str
    output: str
    step: int
    rows: tuple[PlanRow, ...]
    mapping: Mapping[str, str]
    mapping_file: str
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> MigratedCheckpoint:
        """From what `to_dict` gave, also by way of JSON."""
        rows = tuple(PlanRow(**{**row, "shape": tuple(row["shape"])}) for row in told["rows"])
        return cls(**{**told, "rows": rows, "notes": tuple(told["notes"])})

    def __str__(self) -> str:
        return summary(self)


def summary(done: MigratedCheckpoint) -> str:
    """Return a table of all variables, and what was done."""
    table = [("target", "checkpoint", "shape", "how")]
    table += [(row.target or "-", row.source or "-", f"{row.dtype} {list(row.shape)}", row.how) for row in done.rows]
    widths = [max(len(row[column]) for row in table) for column in range(3)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]) for row in table
    ]
    lines += ["", *(f"note: {note}" for note in done.notes)]
    lines += [f"step {done.step}: {done.source} -> {done.output}", f"mapping: {done.mapping_file}"]
    return "\n".join(lines).replace("\n\n\n", "\n\n")
