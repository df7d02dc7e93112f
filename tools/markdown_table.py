"""Rows of Markdown tables, for the tools that write pages."""

from __future__ import annotations


def cell(text: str) -> str:
    """Return a text on one line, with escaped pipes."""
    return " ".join(text.split()).replace("|", "\\|")


def row(*cells: str) -> str:
    """Return a row of a table; the texts are escaped with `cell` where necessary."""
    return f"| {' | '.join(cells)} |"
