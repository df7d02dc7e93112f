"""Hooks and callbacks of the user in a job file: functions without arguments that return one, or a list of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job.user_code import call_function, load_function

__all__ = ["HOOKS", "user_hooks"]

HOOKS = "train.hooks"


def user_hooks(references: Iterable[str], *, field: str, base: type, name: str) -> list[Any]:
    """Call the functions of a field, and return their hooks or callbacks in order.

    Args:
        references: The references to the functions.
        field: The field of the job file.
        base: The class of a hook on the job's engine.
        name: Its name, for messages.

    Raises:
        ConfigError: A function does not exist, fails, or returns something else.
    """
    hooks: list[Any] = []
    for reference in references:
        result = call_function(load_function(reference, field=field), reference=reference, field=field)
        for hook in result if isinstance(result, list | tuple) else [result]:
            if not isinstance(hook, base):
                raise ConfigError(
                    f"{field}: {reference} did not return {'hooks' if field == HOOKS else 'callbacks'}",
                    code="model/bad-function",
                    found=_type_name(hook),
                    hint=f"return a {name}, or a list of them",
                )
            hooks.append(hook)
    return hooks


def _type_name(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}, and not an object of it"
    return "None" if value is None else f"{type(value).__module__}.{type(value).__name__}"
