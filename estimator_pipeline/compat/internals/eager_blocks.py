"""Eager execution for a while, in a process whose default is graphs.

A program of TensorFlow 1 says `tf.compat.v1.disable_v2_behavior()`, and goes on building graphs. A Keras model beside
it trains eagerly all the same: under `tensorflow.python.eager.context.eager_mode`, which `tf.init_scope` goes back to
as it does to eager execution of a whole process.
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
    """A block that executes eagerly, whatever the process does; as it is where eager execution is on."""
    from tensorflow.python.eager import context

    if context.executing_eagerly():
        yield
        return
    with context.eager_mode():
        yield


@contextlib.contextmanager
def no_eager_iterators() -> Iterator[None]:
    """In the block eager execution makes no iterators of TensorFlow 1: a batch would be read for nothing.

    Private use: `_make_one_shot_iterator` of `tf.compat.v1.data.Dataset`, by which all ways to make one come.
    """
    import tensorflow as tf

    kind = tf.compat.v1.data.Dataset
    make = kind._make_one_shot_iterator

    def only_in_graphs(data: Any) -> Any:
        if tf.executing_eagerly():
            raise RuntimeError("tensors of an iterator are of a graph, and this is eager execution")
        return make(data)

    kind._make_one_shot_iterator = only_in_graphs
    try:
        yield
    finally:
        kind._make_one_shot_iterator = make


def eagerly(function: _Function) -> _Function:
    """A function that executes eagerly. Not for generators: between its values a program would do so as well."""

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        with eager_block():
            return function(*arguments, **options)

    return call  # type: ignore[return-value]
