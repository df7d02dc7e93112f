"""Input functions that can be addressed by step, and wrappers that keep this.

Engines read these attributes of an input function, all of which are optional:

* `at(step)`: the same data, read from a global step on; `with_ledger(writer)`: with its records in a ledger;
  `with_policy(policy)`: with the shard policy under which a run began;
* `identity(num_pipelines)`, `files`, `is_in_memory`, `is_unchanged(path)`: what a run resumes with;
* `global_batch_size`, `rebatched`, `as_many_for_all`: how batches are distributed.
* `source`, `names`: the records, and the names of features and labels in them, to explain errors of training.

`estimator_pipeline.inputs.InputFn` has all of them. A wrapper has those of the function that it wraps. No engine sets
an attribute of an input function.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

__all__ = ["at_step", "is_addressable", "with_policy", "wrap_input_fn"]

# Methods that return an input function: a wrapper wraps their result.
_METHODS = ("at", "with_ledger", "with_policy")


def is_addressable(input_fn: Any) -> bool:
    """Return whether an input function can start at any step; those of `estimator_pipeline.inputs` can."""
    return hasattr(input_fn, "at") and hasattr(input_fn, "identity")


def at_step(input_fn: Any, step: int) -> Any:
    """Return an input function that starts at a global step, if it can; otherwise the input function."""
    return input_fn.at(step) if is_addressable(input_fn) else input_fn


def with_policy(input_fn: Any, policy: str | None) -> Any:
    """Return an input function with the shard policy under which a run began; the same object if nothing changes."""
    return input_fn.with_policy(policy) if policy is not None and hasattr(input_fn, "with_policy") else input_fn


def wrap_input_fn(
    input_fn: Callable[..., Any], call: Callable[..., Any], *, signature: inspect.Signature | None = None
) -> Any:
    """Return an input function that is `input_fn` in all but its call.

    Args:
        input_fn: The input function.
        call: `call(input_fn, *args, **kwargs)`, with the arguments of `signature`. After `at` or `with_ledger` the
            first argument is their result.
        signature: Parameters of the returned function; those of `input_fn` by default. TensorFlow passes
            `input_context`, `mode`, `params` and `config` to an input function that has parameters of these names.
    """
    signature = inspect.signature(input_fn) if signature is None else signature

    def call_method(self: _Wrapped, *args: Any, **kwargs: Any) -> Any:
        return call(self._inner, *args, **kwargs)

    # TensorFlow inspects the method `__call__` of an object's class; `inspect.signature` inspects the object.
    first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    parameters = [first, *signature.parameters.values()]
    call_method.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return type("WrappedInputFn", (_Wrapped,), {"__call__": call_method})(input_fn, signature)


class _Wrapped:
    def __init__(self, inner: Any, signature: inspect.Signature) -> None:
        self._inner, self.__signature__ = inner, signature

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":  # copy and pickle create an object without it
            raise AttributeError(name)
        value = getattr(self._inner, name)
        if name not in _METHODS:
            return value

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            inner = value(*args, **kwargs)
            return self if inner is self._inner else type(self)(inner, self.__signature__)

        return wrapped
