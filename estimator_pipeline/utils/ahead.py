"""Iteration in a thread, ahead of the consumer."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any, TypeVar

__all__ = ["ahead"]

T = TypeVar("T")
_POLL_SECS = 0.1
_END = object()


def ahead(items: Iterator[T], *, depth: int) -> Iterator[T]:
    """Yield the items of an iterator that a thread reads ahead.

    An error of the iterator is raised after the items before it. If the consumer stops, so does the thread.

    Args:
        items: The iterator; only the thread uses it.
        depth: The largest number of items that wait.
    """
    waiting: queue.Queue[Any] = queue.Queue(depth)
    is_over = threading.Event()

    def put(item: Any) -> bool:
        while not is_over.is_set():
            try:
                waiting.put(item, timeout=_POLL_SECS)
                return True
            except queue.Full:
                continue
        return False

    def read() -> None:
        try:
            for item in items:
                if not put((item, None)):
                    return
            put((_END, None))
        except BaseException as error:
            put((_END, error))

    thread = threading.Thread(target=read, name="estimator_pipeline-ahead", daemon=True)
    thread.start()
    try:
        while True:
            item, error = waiting.get()
            if error is not None:
                raise error
            if item is _END:
                return
            yield item
    finally:
        is_over.set()
        thread.join()
