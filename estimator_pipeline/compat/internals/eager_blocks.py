"""Eager execution within a block, in a process that uses graphs by default.

A TensorFlow 1 program calls `tf.compat.v1.disable_v2_behavior()` and builds graphs. A Keras model in the same process
can still train eagerly, under `tensorflow.python.eager.context.eager_mode`, to which `tf.init_scope` returns in the
same way as to eager execution of the whole process.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

__all__ = ["eagerly"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


@contextlib.contextmanager
def _eager_block() -> Iterator[None]:
    """Execute eagerly in the block; no effect if eager execution is already on."""
    from tensorflow.python.eager import context

    if context.executing_eagerly():
        yield
        return
    with context.eager_mode():
        yield


def eagerly(function: _Function) -> _Function:
    """Wrap a function to execute eagerly. Not for generators, whose caller would execute eagerly too."""

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        with _eager_block():
            return function(*arguments, **options)

    return call  # type: ignore[return-value]
