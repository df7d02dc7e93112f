"""The slow one of several workers: told by who waits, and said where people look."""

from __future__ import annotations

import json

import pytest

from estimator_pipeline.launch.batch.runs import progress_of
from estimator_pipeline.launch.job_status import progress_text
from estimator_pipeline.launch.pace import Pace, Paces, straggler

FAST, SLOW = Pace(100, 100, 105.0, 95.0, 1.0), Pace(100, 100, 106.0, 2.0, 101.0)
BUSY = Pace(100, 100, 106.0, 2.0, 1.0)


def test_the_one_for_which_the_others_wait():
    found = straggler({"worker:0": FAST, "worker:1": SLOW})
    assert found.document() == {"task": "worker:1", "wait_ms": 93, "step_ms": 106, "input_ms": 101, "share": 0.877}
    assert found.text() == (
        "worker:1 is slow: the others wait 93 ms of each step's 106 ms for it (it waits 101 ms for its input)"
    )
    # Its own machine is slow, and not its input.
    found = straggler({"chief:0": BUSY, "worker:0": FAST, "worker:1": FAST})
    assert found.text() == "chief:0 is slow: the others wait 93 ms of each step's 106 ms for it"


@pytest.mark.parametrize(
    "waits",
    [
        {},
        {"worker:0": (100.0, 90.0)},  # of the others nothing is known yet
        {"worker:0": (100.0, 40.0), "worker:1": (100.0, 50.0)},  # what the network takes
        {"worker:0": (1.0, 0.9), "worker:1": (1.0, 0.1)},  # too little for a word
    ],
)
def test_nobody_is_slow(waits):
    assert straggler({task: Pace(100, 100, step, wait, 0.0) for task, (step, wait) in waits.items()}) is None


def _event(task, step, wait, **more):
    return {
        "event": "pace",
        "task": task,
        "step": step,
        "steps": 100,
        "step_ms": 105,
        "wait_ms": wait,
        "input_ms": 0,
        **more,
    }


def test_it_is_named_once_and_for_the_same_steps():
    paces = Paces()
    told = [
        _event("worker:0", 100, 95), _event("worker:1", 101, 2),
        _event("worker:0", 200, 3),  # held against what worker:1 told of other steps it would be the slow one
        _event("worker:1", 201, 4),
        *(_event(f"worker:{i}", step, wait) for step in (300, 400, 500) for i, wait in ((0, 95), (1, 2))),
    ]  # fmt: skip
    found = [paces.update(event) for event in told]
    assert [one.task for one in found if one] == ["worker:1"] and found[7], "shown by two rounds in a row"
    assert paces.slow.task == "worker:1"
    assert [paces.update(_event("worker:1", 600, wait)) for wait in (None, "x")] == [None, None]
    assert [paces.update(_event(f"worker:{i}", step, 50)) for step in (600, 700) for i in (0, 1)] == [None] * 4
    assert paces.slow is None


def test_the_status_of_a_slurm_job_names_it(tmp_path):
    folder = tmp_path / "run-0" / "attempt-1"
    folder.mkdir(parents=True)
    # All tasks of a line of srun tell in one file.
    events = [_event(f"worker:{i}", step, wait) for step in (100, 200) for i, wait in ((0, 95), (1, 2))]
    events.append({"event": "step", "step": 209})
    (folder / "command.progress.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    told = progress_of(tmp_path)
    assert told["straggler"]["task"] == "worker:1"
    assert progress_text(told) == "step 209, worker:1 is slow: the others wait 93 ms of each step's 105 ms for it"
