"""Edits of a text by position, and the check that nothing else changed."""

from __future__ import annotations

import contextlib
import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

__all__ = ["Edit", "Lines", "Step", "apply", "comments_of", "damaging_rule"]


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

    def end(self, line: int) -> int:
        """Return the offset behind a line and its line ending."""
        return self.starts[line] if line < len(self.starts) else len(self.text)

    def is_blank(self, line: int) -> bool:
        return not self.text[self.starts[line - 1] : self.end(line)].strip()

    def deletion(self, first: int, last: int) -> Edit:
        """Return the edit that deletes whole lines, and the blank lines before them if others follow."""
        if last >= len(self.starts) or self.is_blank(last + 1):
            while first > 1 and self.is_blank(first - 1):
                first -= 1
        return Edit(self.starts[first - 1], self.end(last), "")


def apply(text: str, edits: Iterable[Edit]) -> str:
    """Return the text with all edits applied; insertions at the same place keep their order.

    Raises:
        ValueError: two edits overlap.
    """
    parts, at = [], 0
    for start, end, new in _sorted(edits):
        if start < at:
            raise ValueError(f"two edits overlap at {start}")
        parts += [text[at:start], new]
        at = end
    return "".join([*parts, text[at:]])


class Step(NamedTuple):
    """One rule's edits of a text.

    Attributes:
        rule: the name of the rule.
        before: the text.
        edits: the edits.
        after: the new text.
    """

    rule: str
    before: str
    edits: Sequence[Edit]
    after: str

    @classmethod
    def of(cls, rule: str, before: str, edits: Iterable[Edit]) -> Step:
        """Return the step that applies edits to a text."""
        edits = list(edits)
        return cls(rule, before, edits, apply(before, edits))


def damaging_rule(before: str, after: str, steps: Sequence[Step]) -> str:
    """Return the rule that changed a text outside of its edits; "" if none did.

    A user's comments, strings and blank lines count like the code: outside of the edits, each step must keep every
    token. A text that no step explains is the damage of the rule after which it appears.

    Args:
        before: the user's text.
        after: the converted text.
        steps: all steps from one to the other.
    """
    text, rule = before, "conversion"
    for step in steps:
        if step.before != text:
            return rule
        rule, text = step.rule, step.after
        kept = [(edit.start, edit.end) for edit in _sorted(step.edits)]
        new, moved = [], 0
        for edit in _sorted(step.edits):
            new.append((edit.start + moved, edit.start + moved + len(edit.new)))
            moved += len(edit.new) - (edit.end - edit.start)
        if list(_tokens(step.before, kept)) != list(_tokens(step.after, new)):
            return rule
    return "" if text == after else rule


def comments_of(text: str) -> list[tuple[int, str]]:
    """Return the offset and text of each comment."""
    comments, lines = [], Lines(text)
    with contextlib.suppress(tokenize.TokenError, IndentationError):  # a text of Python 2: those up to there
        for token in tokenize.generate_tokens(io.StringIO(text, newline="").readline):
            if token.type == tokenize.COMMENT:
                comments.append((lines.offset(token.start[0], token.start[1] + 1), token.string))
    return comments


def _sorted(edits: Iterable[Edit]) -> list[Edit]:
    return sorted(edits, key=lambda edit: (edit.start, edit.end))


def _tokens(text: str, spans: Sequence[tuple[int, int]]) -> Iterator[str]:
    """Yield the text of each token that no span covers."""
    lines, waiting = Lines(text), list(reversed(spans))
    try:
        for token in tokenize.generate_tokens(io.StringIO(text, newline="").readline):
            if token.start[0] > len(lines.starts):
                return  # the end of the text
            start = lines.offset(token.start[0], token.start[1] + 1)
            while waiting and waiting[-1][1] <= start:
                waiting.pop()
            end = start + len(token.string)
            is_covered = bool(waiting) and waiting[-1][0] < end
            if token.string and not is_covered and token.type != tokenize.INDENT:
                yield token.string
    except (tokenize.TokenError, IndentationError):  # as for a text of Python 2: compared up to there
        return
