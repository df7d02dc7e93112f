"""Edits of a text by position, the comments of replaced statements, and the check that nothing else changed."""

from __future__ import annotations

import bisect
import contextlib
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

__all__ = ["PLACE", "Edit", "Lines", "Step", "apply", "comments_of", "damaging_rule", "keep_comments"]

PLACE = "#\x01{}"
"""A line of a new text above the code that replaces the user's statement at an offset, for `keep_comments`."""


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
        if list(_uncovered(step.before, kept)) != list(_uncovered(step.after, new)):
            return rule
    return "" if text == after else rule


def _tokens(text: str) -> Iterator[tuple[int, tokenize.TokenInfo]]:
    """Yield the offset of each token and the token; of a text of Python 2 those up to there."""
    lines = Lines(text)
    with contextlib.suppress(tokenize.TokenError, IndentationError):
        for token in tokenize.generate_tokens(io.StringIO(text, newline="").readline):
            if token.start[0] > len(lines.starts):
                return  # the end of the text
            yield lines.offset(token.start[0], token.start[1] + 1), token


def comments_of(text: str) -> list[tuple[int, str]]:
    """Return the offset and text of each comment."""
    return [(at, token.string) for at, token in _tokens(text) if token.type == tokenize.COMMENT]


def keep_comments(text: str, edits: Iterable[Edit]) -> list[Edit]:
    """Return the edits, with each comment that they would delete, and without the lines of `PLACE`.

    Such a comment becomes a line above what replaces its statement: at the `PLACE` of this or the next statement in the
    same edit, otherwise above the statement that the edit starts in.
    """
    edits, lines, statements, comments = _sorted(edits), Lines(text), _statements(text), comments_of(text)
    kept = Counter(comment for _, comment in comments_of(apply(text, edits)))
    kept.subtract(comment for at, comment in comments if _edit_at(edits, at) is None)
    places = sorted({int(match[1]) for edit in edits for match in _PLACE.finditer(edit.new)})
    moved: dict[int, list[str]] = {}  # place -> comments
    added = []
    for at, comment in comments:
        edit = _edit_at(edits, at)
        if edit is None:
            continue
        if kept[comment] > 0:
            kept[comment] -= 1
            continue
        start = _start(statements, at)
        place = next((place for place in places if start <= place <= edit.end), None)
        if place is not None:
            moved.setdefault(place, []).append(comment)
            continue
        line = bisect.bisect(lines.starts, _start(statements, edit.start))
        start = lines.starts[line - 1]
        while lines.is_blank(line):  # a deletion that starts with blank lines
            line += 1
        added.append(Edit(start, start, f"{lines.indent(line)}{comment}{lines.newline(line)}"))

    def write(match: re.Match[str]) -> str:
        return "".join(f"{comment}{match[2]}" for comment in moved.pop(int(match[1]), ()))

    return [*(edit._replace(new=_PLACE.sub(write, edit.new)) for edit in edits), *added]


_PLACE = re.compile(PLACE.format(r"(\d+)") + r"((?:\r\n|\n|\r)[ \t]*)")


def _edit_at(edits: Iterable[Edit], at: int) -> Edit | None:
    return next((edit for edit in edits if edit.start <= at < edit.end), None)


def _statements(text: str) -> list[tuple[int, int]]:
    """Return the offsets of the start and the end of each statement line, with the comment behind it."""
    statements, start = [], None
    for at, token in _tokens(text):
        if token.type == tokenize.NEWLINE and start is not None:
            statements.append((start, at))
            start = None
        elif start is None and token.type not in _BETWEEN:
            start = at
    return statements


_BETWEEN = (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def _start(statements: Sequence[tuple[int, int]], at: int) -> int:
    """Return the start of the statement at an offset, or the offset if it is between two statements."""
    return next((start for start, end in statements if start <= at < end), at)


def _sorted(edits: Iterable[Edit]) -> list[Edit]:
    return sorted(edits, key=lambda edit: (edit.start, edit.end))


def _uncovered(text: str, spans: Sequence[tuple[int, int]]) -> Iterator[str]:
    """Yield the text of each token that no span covers."""
    waiting = list(reversed(spans))
    for start, token in _tokens(text):
        while waiting and waiting[-1][1] <= start:
            waiting.pop()
        is_covered = bool(waiting) and waiting[-1][0] < start + len(token.string)
        if token.string and not is_covered and token.type != tokenize.INDENT:
            yield token.string
