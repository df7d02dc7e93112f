"""Placeholders for missing values: `???` in a job file, as `migrate config` writes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from estimator_pipeline.job.base import Problem

__all__ = ["PLACEHOLDER", "placeholders_in"]

PLACEHOLDER = "???"
"""The text in place of a value that is still open. A job that contains it is not run."""


def placeholders_in(data: Any) -> list[Problem]:
    """Return a problem for each field that holds `PLACEHOLDER`, in a job of plain values."""
    return [
        Problem(
            path,
            "the value is missing.",
            PLACEHOLDER,
            f"write it there, or set it: --set {'.'.join(map(str, path))}=VALUE.",
            code="job/missing-field",
        )
        for path in _paths(data, ())
    ]


def _paths(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _paths(item, (*path, key))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _paths(item, (*path, i))
    elif value == PLACEHOLDER:
        yield path
