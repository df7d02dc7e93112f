"""What TensorFlow's documents say of several workers beside what they show."""

from __future__ import annotations

import re

import pytest

from tests.support.tasks_by_hand import EXEC, Tasks

pytestmark = [pytest.mark.nightly, pytest.mark.cluster]


def test_a_worker_that_starts_first_waits_and_all_end_with_equal_models(programs, tmp_path):
    """Only the chief writes summaries and checkpoints."""
    model_dir, go = tmp_path / "model", tmp_path / "go"
    with Tasks({"worker": 3}, [*EXEC, programs / "worker_that_waits.py", model_dir, go], tmp_path) as running:
        running.wait_for(
            lambda: all("begun" in running.log(name) for name in running.processes), "the programs to begin"
        )
        assert all(process.poll() is None for process in running.processes.values()), running.tails()
        go.touch()
        assert set(running.wait().values()) == {0}, running.tails()
        told = [re.findall(r"^variables (\d+) (\w+)$", running.log(name), re.M) for name in running.processes]
    # The kernel and the bias, a slot of each, the global step.
    assert told == [told[0]] * 3 and [count for count, _ in told[0]] == ["5"], told
    events = list(model_dir.rglob("events.out.tfevents.*"))
    assert sorted(path.parent.name for path in events) == ["eval", "model"]
    assert not list(model_dir.glob("tmp_worker_*"))
