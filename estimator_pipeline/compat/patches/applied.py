"""The patches that are applied in this process."""

from __future__ import annotations

__all__ = ["is_on"]

_applied: set[str] = set()


def is_on(name: str) -> bool:
    """Whether the patch with this name is applied in this process."""
    return name in _applied
