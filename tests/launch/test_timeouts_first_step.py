"""A task that hangs before its first step, where nobody has said how long a start may take."""

from __future__ import annotations

import shlex
import sys
import textwrap
from pathlib import Path

import pytest

from estimator_pipeline.cli.launch import timeouts_of
from estimator_pipeline.job import load_job
from estimator_pipeline.launch import LaunchShape, RestartLimits, TaskTimeouts, new_run_id, supervise_local
from estimator_pipeline.launch.kubernetes.pods import command_of
from estimator_pipeline.launch.local import timeouts as timeouts
from estimator_pipeline.launch.local.timeouts import TaskMonitor

HERE = Path(__file__).parent


def _monitor(*said, foreign=False, trains=True):
    """A task started at 0; `said` are (time, what)."""
    monitor = TaskMonitor(trains=trains, foreign=foreign, now=0.0)
    for when, what in said:
        monitor.grew(when) if what == "log" else monitor.event(what, when)
    return monitor


@pytest.mark.parametrize(
    ("allowed", "first"),
    [
        (TaskTimeouts(), None),
        (TaskTimeouts(heartbeat=60.0), None),
        (TaskTimeouts(step=10.0), 1800.0),
        (TaskTimeouts(step=900.0), 4500.0),
        # What is said counts, and 0 says that there is none.
        (TaskTimeouts(step=900.0, start=60.0), None),
        (TaskTimeouts(step=900.0, start=0.0), None),
    ],
)
def test_the_deadline_of_the_first_step_comes_from_that_of_the_others(allowed, first):
    assert allowed.first_step == first


@pytest.mark.parametrize("foreign", [True, False])
def test_a_task_that_has_begun_and_makes_no_step_hangs(foreign):
    """As Slurm's script and the pods ask for it: its heart beats, and it has told that it is there."""
    monitor = _monitor((5.0, "start"), foreign=foreign)
    allowed = TaskTimeouts(step=900.0, heartbeat=60.0)
    monitor.beat(4500.0)
    assert monitor.timed_out(4505.0, allowed) is None
    monitor.beat(1e6)
    found = monitor.timed_out(1e6, allowed)
    assert found is not None and found.text() == "did not reach its first step in 999995.0 s"


@pytest.mark.parametrize(
    ("monitor", "now", "silent"),
    [
        # Each word counts: it waits for others, or exports what it starts from.
        (_monitor((5.0, "start"), (4000.0, "export")), 8500.0, None),
        (_monitor((5.0, "start"), (4000.0, "export")), 8501.0, "first step"),
        (_monitor(), 4500.0, None),
        (_monitor(), 4501.0, "first step"),
        # From its first step on the other deadline counts, and none when it has trained.
        (_monitor((5.0, "start"), (6.0, "step")), 907.0, "step"),
        (_monitor((5.0, "start"), (6.0, "trained")), 1e6, None),
        # Who waits by nature, and who tells nothing.
        (_monitor((5.0, "start"), trains=False), 1e6, None),
        (_monitor(foreign=True), 1e6, None),
        # A log does not tell a start from a step: what was asked for is what counts.
        (_monitor((5.0, "log"), foreign=True), 906.0, "step"),
    ],
)
def test_whom_it_is_for(monitor, now, silent):
    found = monitor.timed_out(now, TaskTimeouts(step=900.0))
    assert (found.kind if found else None) == silent


def test_a_deadline_that_was_given_counts_instead():
    monitor = _monitor((5.0, "start"))
    assert monitor.timed_out(61.0, TaskTimeouts(step=900.0, start=60.0)).kind == "first step"
    assert monitor.timed_out(60.0, TaskTimeouts(step=900.0, start=60.0)) is None
    assert monitor.timed_out(9999.0, TaskTimeouts(step=900.0, start=10000.0)) is None
    assert monitor.timed_out(1e9, TaskTimeouts(step=900.0, start=0.0)) is None
    assert not TaskTimeouts(start=0.0)
    # For a program with nothing but a log the longer one counts, and none is no longer one.
    logs = _monitor((5.0, "log"), foreign=True)
    assert logs.timed_out(906.0, TaskTimeouts(step=900.0, start=0.0)).kind == "step"


def test_what_stands_on_the_command_line():
    assert timeouts_of(900.0, None, None, supervised=True) == TaskTimeouts(900.0, None, 60.0)
    assert timeouts_of(900.0, 0.0, 0.0, supervised=True) == TaskTimeouts(900.0, 0.0, None)
    assert timeouts_of(0.0, 60.0, None, supervised=False) == TaskTimeouts(None, 60.0, None)


def test_slurm_and_kubernetes_have_it():
    """Both give the deadline for steps alone, so that of the first step follows from it."""
    script = (HERE / "slurm" / "golden" / "full.sh").read_text()
    line = next(line for line in script.splitlines() if "--step-timeout" in line)
    job = load_job(HERE / "kubernetes" / "jobs" / "workers.yaml", overrides=["kubernetes.step_timeout=900"])
    for words in (shlex.split(line.removesuffix("\\")), command_of(job.kubernetes, "worker")):
        assert "--start-timeout" not in words
        step = float(words[words.index("--step-timeout") + 1])
        assert timeouts_of(step, None, None, supervised=True).first_step == 4500.0


def test_a_hang_in_the_start_of_a_launch(tmp_path, monkeypatch):
    monkeypatch.setattr(timeouts, "_FIRST_STEP_SECS", 1.0)
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
        import json, os, time
        def emit(event, **fields):
            with open(os.environ["ESTIMATOR_PIPELINE_PROGRESS"], "a") as file:
                print(json.dumps({"time": time.time(), "event": event, **fields}), file=file)
        emit("start")
        if os.environ["ESTIMATOR_PIPELINE_ATTEMPT"] == "1":
            time.sleep(3600)
        emit("step", step=1)
        emit("result")
        """)
    )
    outcome = supervise_local(
        [sys.executable, str(program)],
        shape=LaunchShape(workers=1),
        log_dir=tmp_path / "logs",
        run_id=new_run_id(),
        limits=RestartLimits(max_restarts=1, backoff=0.01),
        foreign=False,
        timeouts=TaskTimeouts(step=0.2),
        timeout=240.0,
    )
    assert [one.reason for one in outcome.attempts] == ["hung", "done"]
    assert outcome.attempts[0].why.startswith("worker:0 did not reach its first step in ")
