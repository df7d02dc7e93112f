"""Changes of a text by its positions: what no edit names stays as it is, to the byte."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["Edit", "Lines", "apply"]


class Edit(NamedTuple):
    """`text[start:end]` becomes `new`; an insertion where the two are one."""

    start: int
    end: int
    new: str


class Lines:
    """Where the lines of a text begin, counted as Python's and libcst's parsers do: at LF, CR LF and CR alone."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.starts = [0, *(found.end() for found in re.finditer(r"\r\n|\n|\r", text))]

    def offset(self, line: int, column: int) -> int:
        """Of a line and a column, both counted from 1."""
        return self.starts[line - 1] + column - 1

    def newline(self, line: int) -> str:
        """How a line ends; how the first one does, where this is the last and has no end."""
        for one in (line, 1):
            if one < len(self.starts):
                ended = self.text[: self.starts[one]]
                return "\r\n" if ended.endswith("\r\n") else ended[-1]
        return "\n"

    def indent(self, line: int) -> str:
        """Return the white space before a line's first letter."""
        found = re.compile(r"[ \t\f]*").match(self.text, self.starts[line - 1])
        return found[0] if found else ""


def apply(text: str, edits: Iterable[Edit]) -> str:
    """Return the text with all edits made; insertions at one place in the order in which they are given.

    Raises:
        ValueError: two edits overlap.
    """
    parts, at = [], 0
    for start, end, new in sorted(edits, key=lambda edit: (edit.start, edit.end)):
        if start < at:
            raise ValueError(f"two edits overlap at {start}")
        parts += [text[at:start], new]
        at = end
    return "".join([*parts, text[at:]])
