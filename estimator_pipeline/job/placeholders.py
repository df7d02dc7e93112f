"""Values that are still to be given: `???` in a job file, as `migrate config` leaves them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from estimator_pipeline.job.base import Problem

__all__ = ["PLACEHOLDER", "placeholders_in"]

PLACEHOLDER = "???"
"""In the place of a value that nobody has decided yet: a job with one is never run."""


def placeholders_in(data: Any) -> list[Problem]:
    """The fields of a job, as plain values, that hold :data:`PLACEHOLDER`."""
    return [
        Problem(
            path,
            "the value is still to be given.",
            PLACEHOLDER,
            f"write it there, or give it: --set {'.'.join(map(str, path))}=VALUE.",
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
