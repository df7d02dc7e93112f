"""Which of two evaluations is the better one, where a metric may be NaN or an evaluation has no metrics at all.

A program compares two results by a function of its own, `compare(best_eval_result=, current_eval_result=)`. Nothing is
greater or smaller than NaN: with one as the best so far such a function says no to whatever comes after it. Here a
result is never the best one for a NaN: :func:`is_better` and :func:`is_number` ask the function itself whether it looks
at that value, so that a NaN in any other metric changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Result = Mapping[str, Any]
Compare = Callable[..., bool]


def is_better(compare: Compare, best: Result, current: Result) -> bool:
    """Whether the current result takes the place of the best one.

    Args:
        compare: the program's function.
        best: the best result so far: metric -> value.
        current: the one in hand.

    Raises:
        Exception: what `compare` raises for these two.
    """
    forth = bool(compare(best_eval_result=best, current_eval_result=current))
    if not nan_metrics(best) and not nan_metrics(current):
        return forth
    if forth != bool(compare(best_eval_result=current, current_eval_result=best)):
        return forth  # it can tell them apart
    return not is_number(compare, best) and is_number(compare, current)


def is_number(compare: Compare, result: Result) -> bool:
    """Whether the function can compare a result: no NaN stands in what it looks at.

    Args:
        compare: the program's function. It is asked about two results in which infinities stand for the NaN: where it
            looks at them, one of the two is the better.
        result: metric -> value.
    """
    if not nan_metrics(result):
        return True
    low, high = _with(result, float("-inf")), _with(result, float("inf"))
    try:
        up = compare(best_eval_result=low, current_eval_result=high)
        down = compare(best_eval_result=high, current_eval_result=low)
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError):
        return True  # no function for such values: it is left to say what it says of the result itself
    return bool(up) == bool(down)


def nan_metrics(result: Result) -> list[str]:
    """The names of the metrics that are NaN, or have one among their values."""
    import numpy as np

    return sorted(name for name, value in result.items() if _is_float(value) and np.isnan(value).any())


def _with(result: Result, instead: float) -> dict[str, Any]:
    """The result with another value for each NaN, of the same type and shape."""
    import numpy as np

    found = dict(result)
    for name in nan_metrics(result):
        value = np.asarray(result[name])
        found[name] = np.where(np.isnan(value), value.dtype.type(instead), value)[()]
    return found


def _is_float(value: Any) -> bool:
    import numpy as np

    return np.asarray(value).dtype.kind == "f"
