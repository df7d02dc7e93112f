"""Iteration in a thread: the items in order, errors after them, and no thread that remains."""

from __future__ import annotations

import itertools
import threading

import pytest

from estimator_pipeline.utils.ahead import ahead


def threads():
    return [thread.name for thread in threading.enumerate() if thread.name == "estimator_pipeline-ahead"]


def test_the_items_are_those_of_the_iterator():
    assert list(ahead(iter(range(100)), depth=3)) == list(range(100)) and list(ahead(iter(()), depth=1)) == []
    assert not threads()


def test_an_error_comes_after_the_items_before_it():
    def items():
        yield 1
        raise KeyError("x")

    read = ahead(items(), depth=2)
    assert next(read) == 1
    with pytest.raises(KeyError, match="x"):
        next(read)
    assert not threads()


def test_a_consumer_that_stops_ends_the_thread():
    closed = []

    def items():
        try:
            yield from itertools.count()
        finally:
            closed.append(True)

    source = items()
    read = ahead(source, depth=2)
    assert [next(read), next(read)] == [0, 1] and threads()
    read.close()
    assert not threads()
    source.close()
    assert closed
