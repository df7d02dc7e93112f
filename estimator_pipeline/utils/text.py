"""Helpers for messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["counted", "few", "nearest"]


def counted(number: int, thing: str) -> str:
    """Format a number with its noun: "1 task", "2 tasks", "2 processes"."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}{'es' if thing.endswith('s') else 's'}"


def few(things: Iterable[object], most: int = 4, *, separator: str = ", ") -> str:
    """Join the first of some names or sentences, with the number of the others: "a, b and 3 more"."""
    texts = list(map(str, things))
    if len(texts) <= most:
        return separator.join(texts)
    gap = " " if separator == ", " else separator
    return f"{separator.join(texts[:most])}{gap}and {len(texts) - most} more"


def nearest(word: object, choices: Iterable[str]) -> str | None:
    """Return the choice closest to a misspelt word, or None if none is close."""
    by_lower = {choice.lower(): choice for choice in choices}
    close = difflib.get_close_matches(str(word).lower(), list(by_lower), n=1, cutoff=0.6)
    return by_lower[close[0]] if close else None
