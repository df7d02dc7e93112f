"""What a start does before its first step, and how far it is: in the launcher, and in `status`."""

from __future__ import annotations

import io

import pytest

from estimator_pipeline.inputs.sources.csv import from_csv
from estimator_pipeline.launch.job_status import progress_text, read_progress
from estimator_pipeline.launch.local.view import LineView
from estimator_pipeline.progress.progress_file import ProgressReader, ProgressWriter, TaskState
from estimator_pipeline.progress.stages import LongStep, reporter_of


def test_a_long_step_has_its_share_and_the_time_left():
    lines, now = [], [0.0]
    step = LongStep("reading a.csv", 2000, lines.append, clock=lambda: now[0])
    for seconds, amount in ((1, 10), (5, 500), (9, 900), (10, 1000), (20, 2000)):
        now[0] = seconds
        step.done(amount, noun="records")
    assert lines == [
        "reading a.csv",
        "reading a.csv: 500 of 2,000 records, 25%, about 15 s left",
        "reading a.csv: 1,000 of 2,000 records, 50%, about 10 s left",
    ]


def test_the_stages_are_shown_until_the_first_step(tmp_path):
    file = tmp_path / "worker-0.progress.jsonl"
    progress = ProgressWriter(file)
    reporter_of(progress)("building the graph")
    (event,) = ProgressReader(file).read()
    shown = io.StringIO()
    LineView(shown, clock=lambda: 0.0).event(TaskState("worker:0"), event)
    assert shown.getvalue() == "    0.0s  building the graph\n"
    reporter_of(progress)("initializing the variables")
    assert progress_text(read_progress([[file]])) == "initializing the variables"
    progress.emit("step", step=3, loss=0.5)
    assert progress_text(read_progress([[file]]), now=event["time"]) == "step 3, loss 0.5"


def test_a_loss_is_shown_with_its_step_only(tmp_path):
    file = tmp_path / "worker-0.progress.jsonl"
    progress = ProgressWriter(file)
    progress.emit("step", step=3, loss=0.5)
    progress.emit("checkpoint", step=5)
    text = progress_text(read_progress([[file]]), now=0.0)
    assert text == "step 5, checkpoint 5"


@pytest.mark.tf
def test_a_table_is_read_once_and_the_launcher_shows_it(tmp_path, monkeypatch):
    file, table = tmp_path / "worker-0.progress.jsonl", tmp_path / "a.csv"
    table.write_text("x,label\n" + "1,0\n" * 20)
    monkeypatch.setenv("ESTIMATOR_PIPELINE_PROGRESS", str(file))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for _ in range(2):
        from_csv(
            table, columns={"x": "float32", "label": "int64"}, label_key="label", global_batch_size=4, memory_limit=0
        )
    texts = [event["text"] for event in ProgressReader(file).read()]
    assert len(texts) == 1 and texts[0].startswith("reading ") and texts[0].endswith(", once")
