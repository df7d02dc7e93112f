"""A migrated export told to a person."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from estimator_pipeline.migrate.exports.api import MigratedExport

__all__ = ["summary"]


def summary(done: MigratedExport) -> str:
    """A table of all outputs, and what was done."""
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
