"""The verdict of a scan on each file: what `migrate convert` makes of it, and at which line it stops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["COPIED", "ESTIMATOR", "KEEPS_MODEL_FN", "KERAS", "NO_TENSORFLOW", "RENAMED", "UNCHANGED", "UNREADABLE",
           "VERDICTS", "FileVerdict"]  # fmt: skip

KERAS, KEEPS_MODEL_FN, ESTIMATOR, RENAMED = "keras", "keras, model_fn stays", "estimator", "renamed"
UNCHANGED, COPIED, UNREADABLE, NO_TENSORFLOW = "unchanged", "copied", "unreadable", "no tensorflow"
VERDICTS: Mapping[str, str] = {
    KERAS: "becomes Keras",
    KEEPS_MODEL_FN: "becomes Keras; keeps its model_fn as a function that a Keras model calls",
    ESTIMATOR: "remains an Estimator program",
    RENAMED: "has no Estimator; is renamed to TensorFlow 2 names",
    UNCHANGED: "uses TensorFlow; nothing to change",
    COPIED: "is copied unchanged",
    UNREADABLE: "cannot be read; is copied unchanged",
    NO_TENSORFLOW: "does not use TensorFlow",
}
"""Verdict -> what a conversion does with such a file."""


@dataclass(frozen=True)
class FileVerdict:
    """What becomes of a file.

    Attributes:
        path: relative to what was scanned, with slashes.
        verdict: one of `VERDICTS`.
        why: why it is not more, in a sentence with its place; "" where there is nothing to say.
        reason: the same without the place.
        at, cell, line: the construct that it stops at: the user's file, its cell, its line; line 0: no place.
        source: that line.
        manual: how many of its constructs do not run as they stand.
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
        """`file.py:3`, or `book.ipynb:cell 2:3`; "" where there is no place."""
        cell = "" if self.cell is None else f"cell {self.cell}:"
        return f"{self.at}:{cell}{self.line}" if self.line else ""

    def told(self) -> str:
        """Return the verdict, in a sentence."""
        said = VERDICTS[self.verdict] + (f": {self.why}" if self.why else "")
        return f"{said}; {self.manual} manual" if self.manual else said

    def document(self) -> dict[str, Any]:
        place = {"path": self.at, "cell": self.cell, "line": self.line, "source": self.source} if self.line else None
        return {
            "path": self.path, "notebook": self.notebook or None, "verdict": self.verdict, "why": self.why or None,
            "reason": self.reason or None, "stops_at": place, "manual": self.manual,
        }  # fmt: skip
