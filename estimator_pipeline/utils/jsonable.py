"""Values as JSON can hold them."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

__all__ = ["finite", "plain"]


def finite(value: Any) -> Any:
    """The value with NaN and infinities as the texts "NaN", "Infinity" and "-Infinity", which JSON can hold.

    `float()` reads them back.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return value


def plain(value: Any) -> Any:
    """NumPy scalars and arrays as Python numbers, paths and all else as text."""
    if hasattr(value, "tolist"):
        return finite(value.tolist())
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)
