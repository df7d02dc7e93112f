"""The result of migrating an export."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

__all__ = ["ExportRow", "MigratedExport"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportRow:
    """The comparison of one output of one signature.

    Attributes:
        signature: Key of the signature.
        output: Name of the output.
        meaning: The function of the model's output.
        absolute: The largest absolute difference.
        relative: The largest relative difference.
        tolerance: Name of the tolerance.
        equal: Whether the difference is within the tolerance.
        message: The description of a difference.
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
    """The result of `migrate_export`.

    Attributes:
        source: The old export.
        output: The new export; "" if it was not written.
        rows: The comparison of every output of every signature.
        methods: Signature key -> method name.
        records: The number of examples compared.
        notes: Remarks for the user.
    """

    source: str
    output: str
    rows: tuple[ExportRow, ...]
    methods: Mapping[str, str]
    records: int
    notes: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether all outputs are within their tolerances."""
        return all(row.equal for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain values."""
        return {"equal": self.equal, **dataclasses.asdict(self)}

    def __str__(self) -> str:
        """Format a table of all outputs, followed by the notes."""
        table = [("signature", "output", "is", "difference", "tolerance")]
        for row in self.rows:
            far = "none" if row.equal and not row.absolute else f"{row.absolute:.2g}"
            table.append((row.signature, row.output, row.meaning, far if row.equal else f"{far}  <-", row.tolerance))
        widths = [max(len(row[column]) for row in table) for column in range(5)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table
        ]
        lines += ["", *(f"note: {note}" for note in self.notes)]
        lines += [row.message for row in self.rows if not row.equal]
        verdict = "the same outputs" if self.equal else "different outputs"
        lines.append(
            f"{verdict} for {self.records} records: {self.source} and {self.output or 'the model (not written)'}"
        )
        return "\n".join(lines)
