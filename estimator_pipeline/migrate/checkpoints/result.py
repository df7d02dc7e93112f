"""The result of migrating a checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from estimator_pipeline.migrate.checkpoints.draft import PlanRow

__all__ = ["MigratedCheckpoint"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MigratedCheckpoint:
    """The result of `migrate_checkpoint`.

    Attributes:
        source: The checkpoint that was read.
        to: "keras", "keras3" or "estimator".
        output: The checkpoint or file that was written.
        step: Its global step.
        rows: The result for each variable.
        mapping: Weight of the target -> weight of the checkpoint.
        mapping_file: The file with this mapping.
        notes: Remarks for the user.
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
        """Return the result as plain values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> MigratedCheckpoint:
        """Create a result from the values of `to_dict`, also if read from JSON."""
        rows = tuple(PlanRow(**{**row, "shape": tuple(row["shape"])}) for row in values["rows"])
        return cls(**{**values, "rows": rows, "notes": tuple(values["notes"])})

    def __str__(self) -> str:
        """Format a table of all variables, followed by the notes."""
        table = [("target", "checkpoint", "shape", "how")]
        table += [
            (row.target or "-", row.source or "-", f"{row.dtype} {list(row.shape)}", row.how) for row in self.rows
        ]
        widths = [max(len(row[column]) for row in table) for column in range(3)]
        lines = [
            "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]) for row in table
        ]
        lines += ["", *(f"note: {note}" for note in self.notes)]
        lines += [f"step {self.step}: {self.source} -> {self.output}", f"mapping: {self.mapping_file}"]
        return "\n".join(lines).replace("\n\n\n", "\n\n")
