"""Wrappers of input functions, for recording and checking their batches, that keep their attributes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

__all__ = ["wrap_input_fn"]


def wrap_input_fn(
    input_fn: Callable[..., Any], call: Callable[..., Any], *, signature: inspect.Signature | None = None
) -> Any:
    """Return an input function that is `input_fn` in all but its call.

    Engines read and set attributes of input functions, such as `start_step`, `ledger` and `identity`. Here both reach
    `input_fn`, whichever attributes it has.

    Args:
        input_fn: The input function.
        call: Called in its place, with the arguments of `signature`.
        signature: Parameters of the returned function; those of `input_fn` by default. TensorFlow passes
            `input_context`, `mode`, `params` and `config` to an input function that has parameters of these names.
    """
    signature = inspect.signature(input_fn) if signature is None else signature

    def call_method(_self: Any, *args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    # TensorFlow inspects the method `__call__` of an object's class; `inspect.signature` inspects the object.
    first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    parameters = [first, *signature.parameters.values()]
    call_method.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return type("WrappedInputFn", (_Wrapped,), {"__call__": call_method})(input_fn, signature)


class _Wrapped:
    def __init__(self, inner: Any, signature: inspect.Signature) -> None:
        self.__dict__.update(_inner=inner, __signature__=signature)

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":  # copy and pickle create an object without it
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._inner, name, value)
