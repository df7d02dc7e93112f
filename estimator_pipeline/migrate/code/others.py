"""Facts that the programs of a code base share, although each program is read separately.

A few questions concern all programs, such as whether any was written for TensorFlow 1. Each program reports its facts
and asks for those of the others. If an answer that it used differs from the final one, the program is read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["Others", "holds", "merged"]


class Others:
    """The facts of the other programs.

    Attributes:
        reported: the facts that this program reports.
        asked: question -> the answer that this program used.
    """

    def __init__(self, known: Mapping[str, Any] | None = None) -> None:
        self.known = known or {}
        self.reported: dict[str, Any] = {}
        self.asked: dict[str, Any] = {}

    def any(self, question: str, here: bool, *, counts: bool = True) -> bool:
        """Return whether a fact holds for any program; of the others only if `counts`."""
        if here:
            self.reported[question] = True
        elif counts:
            self.asked[question] = here = bool(self.known.get(question))
        return here

    def last(self, question: str, here: list[str] | None) -> list[str] | None:
        """Return the [path, answer] of the last file that has an answer."""
        answer = max((answer for answer in (here, self.known.get(question)) if answer), default=None)
        self.asked[question] = answer
        return answer


def holds(asked: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    """Return whether the answers that a program used are still valid."""
    return all((known.get(question) or None) == (answer or None) for question, answer in asked.items())


def merged(answers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the merged facts of all programs."""
    merged_answers: dict[str, Any] = {}
    for program in answers:
        for question, answer in program.items():
            merged_answers[question] = max(merged_answers.get(question, answer), answer)
    return merged_answers
