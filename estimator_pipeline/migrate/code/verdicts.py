"""The verdict of a scan on each file: the result of `migrate convert`, and the line that blocks the conversion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["COPIED", "ESTIMATOR", "KERAS", "NO_TENSORFLOW", "RENAMED", "UNCHANGED", "UNREADABLE",
           "VERDICTS", "FileVerdict"]  # fmt: skip

KERAS, ESTIMATOR, RENAMED = "keras", "estimator", "renamed"
UNCHANGED, COPIED, UNREADABLE, NO_TENSORFLOW = "unchanged", "copied", "unreadable", "no tensorflow"
VERDICTS: Mapping[str, str] = {
    KERAS: "becomes Keras",
    ESTIMATOR: "remains an Estimator program",
    RENAMED: "has no Estimator; is renamed to TensorFlow 2 names",
    UNCHANGED: "uses TensorFlow; nothing to change",
    COPIED: "is copied unchanged",
    UNREADABLE: "cannot be read; is copied unchanged",
    NO_TENSORFLOW: "does not use TensorFlow",
}
"""Verdict -> the result of a conversion."""


@dataclass(frozen=True)
class FileVerdict:
    """The verdict on a file.

    Attributes:
        path: relative to the scanned root, with slashes.
        verdict: one of `VERDICTS`.
        why: why the file is not fully converted, with the place; "" without a reason.
        reason: `why` without the place.
        at, cell, line: the construct that blocks the conversion: the user's file, its cell, its line; line 0: no place.
        source: the text of that line.
        manual: the number of constructs that do not run unchanged.
        notebook: the notebook whose cells write the file.
    """

    path: str
    verdict: str
    why: str = ""
    reason: str = ""
    at: str = ""
    cell: int | None = None
    line: int = 0
    source: str = ""
    manual: int = 0
    notebook: str = ""

    @property
    def stops_at(self) -> str:
        """The place that blocks the conversion: `file.py:3` or `book.ipynb:cell 2:3`; "" without a place."""
        cell = "" if self.cell is None else f"cell {self.cell}:"
        return f"{self.at}:{cell}{self.line}" if self.line else ""

    def describe(self) -> str:
        """Return the verdict as a sentence."""
        text = VERDICTS[self.verdict] + (f": {self.why}" if self.why else "")
        return f"{text}; {self.manual} manual" if self.manual else text

    def document(self) -> dict[str, Any]:
        place = {"path": self.at, "cell": self.cell, "line": self.line, "source": self.source} if self.line else None
        return {
            "path": self.path, "notebook": self.notebook or None, "verdict": self.verdict, "why": self.why or None,
            "reason": self.reason or None, "stops_at": place, "manual": self.manual,
        }  # fmt: skip
