"""Comparison of evaluation results whose metrics may be NaN or missing.

The user's function `compare(best_eval_result=, current_eval_result=)` compares two results. Comparisons with NaN are
false: if the best result so far is NaN, such a function rejects all later results. Here a NaN result is never the best.
`is_better` and `is_number` find out by calls of the function whether it uses the NaN metric, so that a NaN
in other metrics has no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Result = Mapping[str, Any]
Compare = Callable[..., bool]


def is_better(compare: Compare, best: Result, current: Result) -> bool:
    """Return whether the current result replaces the best one.

    Args:
        compare: The user's function.
        best: The best result so far: metric -> value.
        current: The current result.

    Raises:
        Exception: The error of `compare` for these two.
    """
    forth = bool(compare(best_eval_result=best, current_eval_result=current))
    if not nan_metrics(best) and not nan_metrics(current):
        return forth
    if forth != bool(compare(best_eval_result=current, current_eval_result=best)):
        return forth  # the function distinguishes them
    return not is_number(compare, best) and is_number(compare, current)


def is_number(compare: Compare, result: Result) -> bool:
    """Return whether the function uses no NaN metric of a result.

    Args:
        compare: The user's function. It is called with two results in which infinities replace the NaN: if it uses
            these values, one of the two results is better.
        result: Metric -> value.
    """
    if not nan_metrics(result):
        return True
    low, high = _with(result, float("-inf")), _with(result, float("inf"))
    try:
        up = compare(best_eval_result=low, current_eval_result=high)
        down = compare(best_eval_result=high, current_eval_result=low)
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError):
        return True  # the function rejects infinities: use its answer for the result with the NaN
    return bool(up) == bool(down)


def nan_metrics(result: Result) -> list[str]:
    """Return the names of the metrics that are or contain NaN."""
    import numpy as np

    return sorted(name for name, value in result.items() if _is_float(value) and np.isnan(value).any())


def _with(result: Result, instead: float) -> dict[str, Any]:
    """Replace each NaN of a result by a value of the same type and shape."""
    import numpy as np

    replaced = dict(result)
    for name in nan_metrics(result):
        value = np.asarray(result[name])
        replaced[name] = np.where(np.isnan(value), value.dtype.type(instead), value)[()]
    return replaced


def _is_float(value: Any) -> bool:
    import numpy as np

    return np.asarray(value).dtype.kind == "f"
