"""Edits of a text by position; the rest of the text is unchanged."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["Edit", "Lines", "apply"]


class Edit(NamedTuple):
    """The replacement of `text[start:end]` by `new`; an insertion if `start` equals `end`."""

    start: int
    end: int
    new: str


class Lines:
    """The offsets of a text's lines, which end with LF, CR LF or CR, as for Python's parser and libcst."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.starts = [0, *(match.end() for match in re.finditer(r"\r\n|\n|\r", text))]

    def offset(self, line: int, column: int) -> int:
        """Return the offset of a line and a column, both counted from 1."""
        return self.starts[line - 1] + column - 1

    def newline(self, line: int) -> str:
        """Return the line ending of a line; that of the first line if the line has none."""
        for candidate in (line, 1):
            if candidate < len(self.starts):
                ended = self.text[: self.starts[candidate]]
                return "\r\n" if ended.endswith("\r\n") else ended[-1]
        return "\n"

    def indent(self, line: int) -> str:
        """Return the leading whitespace of a line."""
        match = re.compile(r"[ \t\f]*").match(self.text, self.starts[line - 1])
        return match[0] if match else ""


def apply(text: str, edits: Iterable[Edit]) -> str:
    """Return the text with all edits applied; insertions at the same place keep their order.

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
