"""What the migration of an export came to."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

__all__ = ["ExportRow", "MigratedExport", "summary"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportRow:
    """One output of one signature, on both sides.

    Attributes:
        signature: its key.
        output: its name.
        meaning: what of the model it is.
        absolute: the largest absolute difference.
        relative: the largest relative difference.
        tolerance: its name.
        equal: whether it is within the tolerance.
        message: what is told of a difference.
    """

    signature: str
    output: str
    meaning: str
    absolute: float
    relative: float
    tolerance: str
    equal: bool
    message: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MigratedExport:
    """What `migrate_export` has done.

    Attributes:
        source: the old export.
        output: the new one; "" where it was not kept.
        rows: every output of every signature.
        methods: signature key -> method name.
        records: how many were compared.
        notes: what a person should know of it.
    """

    source: str
    output: str
    rows: tuple[ExportRow, ...]
    methods: Mapping[str, str]
    records: int
    notes: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether all answers agree within their tolerances."""
        return all(row.equal for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {"equal": self.equal, **dataclasses.asdict(self)}

    def __str__(self) -> str:
        return summary(self)


def summary(done: MigratedExport) -> str:
    """Return a table of all outputs, and what was done."""
    table = [("signature", "output", "is", "difference", "tolerance")]
    for row in done.rows:
        far = "none" if row.equal and not row.absolute else f"{row.absolute:.2g}"
        table.append((row.signature, row.output, row.meaning, far if row.equal else f"{far}  <-", row.tolerance))
    widths = [max(len(row[column]) for row in table) for column in range(5)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    lines += ["", *(f"note: {note}" for note in done.notes)]
    lines += [row.message for row in done.rows if not row.equal]
    verdict = "the same answers" if done.equal else "other answers"
    lines.append(f"{verdict} to {done.records} records: {done.source} and {done.output or 'the model (not written)'}")
    return "\n".join(lines)
