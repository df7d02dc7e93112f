"""Checks of numbers from the command line or keyword arguments, with messages that name the option.

The schema checks the job file. These functions check other arguments (`--timeout`, `run_parity(steps=...)`) before
anything starts. NaN, for example, passes every comparison and would be a timeout that never expires.
"""

from __future__ import annotations

import math
import numbers
from typing import Any

from estimator_pipeline.errors import ConfigError

__all__ = ["check_count", "check_seconds"]


def check_seconds(value: Any, name: str, *, zero: bool = False) -> float | None:
    """Check a number of seconds.

    Args:
        value: The value; None for no limit.
        name: Name of the option or argument, such as `--timeout`.
        zero: Whether 0 is allowed.

    Returns:
        The seconds, or None.

    Raises:
        ConfigError: The value is not a finite number in the allowed range.
    """
    if value is None:
        return None
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if real and math.isfinite(value) and (value > 0 or (zero and value == 0)):
        return float(value)
    raise ConfigError(
        f"{name} is {value!r}, which is not a number of seconds",
        code="argument/bad-value",
        found=f"allowed: {'0 or more' if zero else 'more than 0'}, and finite",
        hint=f"give seconds, such as {name}{' ' if name.startswith('-') else '='}600"
        + ("" if zero else ", or leave it out for no limit"),
    )


def check_count(value: Any, name: str) -> int | None:
    """Check a whole number that is at least 1.

    Args:
        value: The value; None if it is not set.
        name: Name of the option or argument, such as `steps`.

    Returns:
        The number, or None.

    Raises:
        ConfigError: The value is not a whole number, or below 1.
    """
    if value is None:
        return None
    if isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= 1:
        return int(value)
    raise ConfigError(
        f"{name} is {value!r}",
        code="argument/bad-value",
        found="allowed: whole numbers from 1 on",
        hint=f"set {name} to such a number, or leave it out",
    )
