"""Completed share and remaining time of a training."""

from __future__ import annotations

import math

__all__ = ["percent", "seconds_left", "step_text", "time_text"]


def percent(step: int | None, max_steps: int | None) -> int | None:
    """Return the share of completed steps in percent, rounded down; None if unknown."""
    if step is None or not max_steps or max_steps < 0:
        return None
    return max(0, min(100, step * 100 // max_steps))


def seconds_left(step: int | None, max_steps: int | None, steps_per_sec: float | None) -> float | None:
    """Return the seconds that the remaining steps take at this rate; None if unknown."""
    if step is None or not max_steps or not steps_per_sec or not 0 < steps_per_sec < math.inf:
        return None
    return max(0, max_steps - step) / steps_per_sec


def step_text(step: int, max_steps: int | None) -> str:
    """Format a step: "step 300 of 1200 (25 %)", or without the last step "step 300"."""
    share = percent(step, max_steps)
    return f"step {step}" if share is None or step >= (max_steps or 0) else f"step {step} of {max_steps} ({share} %)"


def time_text(seconds: float) -> str:
    """Format a duration: "45 s", "12 min", "3 h 5 min", "2 d 4 h"."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"
