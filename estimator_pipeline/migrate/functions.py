"""Functions that a person names: on the command line by "file.py:function", in Python by themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["named_function"]


def named_function(reference: str | Callable[..., Any], *, option: str) -> Callable[..., Any]:
    """Return the function that was named.

    Args:
        reference: "file.py:function", "module:function", or the function.
        option: which option named it, for messages.

    Raises:
        ConfigError: no such file, module or function.
    """
    from estimator_pipeline.job.user_code import load_function

    return reference if callable(reference) else load_function(reference, field=option)
