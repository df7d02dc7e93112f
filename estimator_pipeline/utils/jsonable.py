"""Conversion of values to JSON-compatible ones."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

__all__ = ["finite", "plain"]


def finite(value: Any) -> Any:
    """Replace NaN and infinities by the strings "NaN", "Infinity" and "-Infinity".

    `float()` converts them back.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def plain(value: Any) -> Any:
    """Convert NumPy values to Python numbers, and everything else to strings."""
    if hasattr(value, "tolist"):
        return finite(value.tolist())
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)
