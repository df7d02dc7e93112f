"""Numbers that come from a command line or a caller's keywords, checked in the words of whoever gave them.

A job file has its schema. What stands beside it (`--timeout`, `run_parity(steps=...)`) is looked at here, before
anything is started: NaN passes every comparison, and would be a deadline that never comes.
"""

from __future__ import annotations

import math
import numbers
from typing import Any

from estimator_pipeline.errors import ConfigError

__all__ = ["check_count", "check_seconds"]


def check_seconds(value: Any, name: str, *, zero: bool = False) -> float | None:
    """A length of time.

    Args:
        value: what was given; None for no limit.
        name: what it is called where it was given, such as `--timeout`.
        zero: whether 0 is a length as well.

    Returns:
        The seconds, or None.

    Raises:
        ConfigError: it is no number, not finite, below 0, or 0.
    """
    if value is None:
        return None
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if real and math.isfinite(value) and (value > 0 or (zero and value == 0)):
        return float(value)
    raise ConfigError(
        f"{name} is {value!r}, which is no number of seconds",
        code="argument/bad-value",
        found=f"allowed: {'0 or more' if zero else 'more than 0'}, and finite",
        hint=f"give seconds, such as {name}{' ' if name.startswith('-') else '='}600"
        + ("" if zero else ", or leave it out for no limit"),
    )


def check_count(value: Any, name: str) -> int | None:
    """A number of things, from 1 on.

    Args:
        value: what was given; None where nothing was.
        name: what it is called where it was given, such as `steps`.

    Returns:
        The number, or None.

    Raises:
        ConfigError: it is no whole number, or below 1.
    """
    if value is None:
        return None
    if isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= 1:
        return int(value)
    raise ConfigError(
        f"{name} is {value!r}",
        code="argument/bad-value",
        found="allowed: whole numbers from 1 on",
        hint=f"give {name} such a number, or leave it out",
    )
