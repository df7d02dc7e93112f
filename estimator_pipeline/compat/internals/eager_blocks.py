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

__all__ = ["eager_block", "eagerly", "no_eager_iterators"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


@contextlib.contextmanager
def eager_block() -> Iterator[None]:
    """Execute eagerly in the block; no effect if eager execution is already on."""
    from tensorflow.python.eager import context

    if context.executing_eagerly():
        yield
        return
    with context.eager_mode():
        yield


@contextlib.contextmanager
def no_eager_iterators() -> Iterator[None]:
    """Reject TensorFlow 1 iterators in eager execution within the block, which would read a batch in vain.

    Private use: `_make_one_shot_iterator` of `tf.compat.v1.data.Dataset`, which all ways to create one use.
    """
    import tensorflow as tf

    kind = tf.compat.v1.data.Dataset
    make = kind._make_one_shot_iterator

    def only_in_graphs(data: Any) -> Any:
        if tf.executing_eagerly():
            raise RuntimeError("tensors of an iterator belong to a graph, and this is eager execution")
        return make(data)

    kind._make_one_shot_iterator = only_in_graphs
    try:
        yield
    finally:
        kind._make_one_shot_iterator = make


def eagerly(function: _Function) -> _Function:
    """Wrap a function to execute eagerly. Not for generators, whose caller would execute eagerly too."""

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        with eager_block():
            return function(*arguments, **options)

    return call  # type: ignore[return-value]
