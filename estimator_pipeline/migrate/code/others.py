"""What the programs of a code base have to know of each other, though they are read one by one.

A few questions are about all of them: whether any was written for TensorFlow 1, for one. A program tells its share, and
asks for that of the others; where what it was told differs from what all came to, it is read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["Others", "holds", "merged"]


class Others:
    """What is known of other programs.

    Attributes:
        told: what this program adds to it.
        asked: what it asked for, and the answer that it went on with.
    """

    def __init__(self, known: Mapping[str, Any] | None = None) -> None:
        self.known = known or {}
        self.told: dict[str, Any] = {}
        self.asked: dict[str, Any] = {}

    def any(self, question: str, here: bool, *, counts: bool = True) -> bool:
        """Whether something is so of any program, where that counts for this one."""
        if here:
            self.told[question] = True
        elif counts:
            self.asked[question] = here = bool(self.known.get(question))
        return here

    def last(self, question: str, here: list[str] | None) -> list[str] | None:
        """Return the [path, answer] of the last file that has one."""
        found = max((one for one in (here, self.known.get(question)) if one), default=None)
        self.asked[question] = found
        return found


def holds(asked: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    """Whether the answers that a program went on with are those of what is known by now."""
    return all((known.get(question) or None) == (answer or None) for question, answer in asked.items())


def merged(told: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what all programs told."""
    found: dict[str, Any] = {}
    for one in told:
        for question, answer in one.items():
            found[question] = max(found.get(question, answer), answer)
    return found
