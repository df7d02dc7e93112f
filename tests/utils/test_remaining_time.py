"""How much of a training is done, and how long the rest takes."""

import io
import math
from dataclasses import replace

import pytest

from estimator_pipeline.launch.job_status import JobStatus, job_table
from estimator_pipeline.launch.local.view import LineView, LiveView
from estimator_pipeline.progress.progress_file import TaskState
from estimator_pipeline.utils.remaining_time import percent, seconds_left, step_text, time_text


@pytest.mark.parametrize(
    ("step", "last", "share", "text"),
    [
        (0, 100, 0, "step 0 of 100 (0 %)"),
        (999, 1000, 99, "step 999 of 1000 (99 %)"),
        (1000, 1000, 100, "step 1000"),
        (1200, 1000, 100, "step 1200"),
        (7, None, None, "step 7"),
        (7, 0, None, "step 7"),
    ],
)
def test_the_share_of_the_steps(step, last, share, text):
    assert percent(step, last) == share and step_text(step, last) == text


def test_the_time_that_is_left():
    assert seconds_left(40, 100, 2.0) == 30.0 and seconds_left(120, 100, 2.0) == 0.0
    assert seconds_left(40, 100, None) is seconds_left(None, 100, 1.0) is seconds_left(4, None, 1.0) is None
    assert seconds_left(40, 100, math.nan) is seconds_left(40, 100, 0.0) is None
    assert [time_text(s) for s in (0.9, 59, 60, 3700, 90000)] == ["0 s", "59 s", "1 min", "1 h 1 min", "1 d 1 h"]


def test_a_job_that_stopped_as_asked_has_not_failed():
    asked = JobStatus("7", "FAILED", "stopped as asked", name="x")
    assert [line.split()[2] for line in job_table([asked.row(), replace(asked, failed=True).row()])[1:]] == [
        "STOPPED",
        "FAILED",
    ]


def test_views_show_it():
    state = TaskState("worker:0")
    state.apply({"event": "start", "task": "worker:0", "max_steps": 1200})
    state.apply({"event": "step", "step": 300, "steps_per_sec": 10.0, "loss": 0.5})
    lines = io.StringIO()
    LineView(lines).event(state, {"event": "step"})
    assert lines.getvalue().endswith("worker:0 step 300 of 1200 (25 %), 10 steps/s, 1 min left, loss 0.5\n")
    live = LiveView(io.StringIO())
    live._states = [state]
    columns = {str(column.header): [str(cell) for cell in column.cells] for column in live._table().columns}
    assert (columns["%"], columns["left"]) == (["25"], ["1 min"])
    state.apply({"event": "start", "task": "worker:0"})
    assert state.max_steps is None, "another training of the program, without an end"
