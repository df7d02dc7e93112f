"""Waits that poll until a time limit."""

from __future__ import annotations

import time

import pytest

from estimator_pipeline.utils.deadline import Deadline


@pytest.fixture
def pauses(monkeypatch):
    """The pauses of a wait; each takes no real time."""
    clock, slept = [100.0], []

    def sleep(seconds):
        slept.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", sleep)
    return slept


def test_a_wait_polls_until_its_time_limit(pauses):
    assert list(Deadline(1.0).polls(0.4)) == pytest.approx([0.0, 0.4, 0.8, 1.01])
    assert list(Deadline(0.0).polls(0.4)) == pytest.approx([0.0, 0.01])
    assert pauses == pytest.approx([0.4, 0.4, 0.21, 0.01])


def test_pauses_grow(pauses):
    polls = Deadline(float("inf")).polls(1.0, longest=2.0)
    assert [next(polls) for _ in range(5)] == pytest.approx([0.0, 1.0, 2.3, 3.99, 5.99])


def test_a_time_limit_that_moves(pauses):
    deadline = Deadline(1.0)
    for waited in deadline.polls(0.5):
        if waited == pytest.approx(0.5):
            deadline.extend(2.0)
            deadline.extend(1.0)
    assert sum(pauses) == pytest.approx(2.51)
