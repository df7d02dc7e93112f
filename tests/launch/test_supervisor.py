"""Restarts: the decision without a process, and small programs that crash, hang, stop and diverge."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from estimator_pipeline.launch import (
    LaunchOutcome,
    LaunchShape,
    RestartLimits,
    TaskTimeouts,
    new_run_id,
    run_local,
    supervise_local,
)
from estimator_pipeline.launch.history import History
from estimator_pipeline.launch.local.orphan_guard import survivors
from estimator_pipeline.launch.local.task import Heartbeats
from estimator_pipeline.launch.local.timeouts import TaskMonitor
from estimator_pipeline.launch.supervisor.restart_policy import AttemptEnd, Policy
from estimator_pipeline.launch.supervisor.supervisor import attempt_run_id, plan_command, supervise_command
from estimator_pipeline.progress.progress_file import (
    HEARTBEAT_VARIABLE,
    PROGRESS_VARIABLE,
    heartbeat_path,
    start_heartbeat,
)

# The decision ---------------------------------------------------------------------------------------------------


def _decisions(ends, **limits):
    policy = Policy(RestartLimits(**{"max_restarts": 3, "backoff": 1.0, **limits}))
    return [policy.decide(end) for end in ends]


def _crash(step=None, checkpoint=None, *, reason="failed", exit_code=-9, task="worker:1", began=True):
    return AttemptEnd(reason, task, exit_code, step, checkpoint, began)


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (AttemptEnd("done"), "the job is done"),
        (AttemptEnd("interrupted"), "interrupted"),
        (AttemptEnd("timeout"), "time has run out"),
        (_crash(exit_code=2), "bad input (exit code 2) would fail again"),
        (_crash(exit_code=126), "the program cannot be run (exit code 126)"),
        (_crash(exit_code=127), "the program cannot be run (exit code 127)"),
    ],
)
def test_what_would_come_again_is_not_tried_again(end, why):
    (decision,) = _decisions([end])
    assert not decision.restart
    assert decision.why == why


def test_the_pause_doubles_and_the_bound_holds_without_progress():
    decisions = _decisions([_crash(150, 100)] * 5)
    # The first failure came with a checkpoint: that was progress. The others stand at the same one.
    assert [one.restart for one in decisions] == [True, True, True, False, False]
    assert [one.after for one in decisions[:3]] == [1.0, 2.0, 4.0]
    assert decisions[3].why == "3 restarts in a row without a later checkpoint"


def test_a_later_step_before_the_same_checkpoint_is_no_progress():
    decisions = _decisions([_crash(150 + i, 100) for i in range(5)])
    assert [one.restart for one in decisions] == [True, True, True, False, False]


def test_a_later_checkpoint_starts_the_count_anew():
    decisions = _decisions([_crash(100 * i + 50, 100 * i) for i in range(1, 30)])
    assert all(one.restart and one.after == 1.0 and one.counted == 1 for one in decisions)


def test_an_earlier_checkpoint_is_no_progress():
    decisions = _decisions([_crash(250, 200), _crash(150, 100), _crash(250, 200), _crash(250, 200)])
    assert [one.restart for one in decisions] == [True, True, True, False]


def test_what_others_save_does_not_help_a_task_that_never_makes_a_step():
    ends = [AttemptEnd("failed", "worker:1", 1, 50 * i, 50 * i, True, worked=False) for i in range(1, 5)]
    decisions = _decisions(ends)
    assert [decision.restart for decision in decisions] == [True, True, False, False]
    assert decisions[2].why == "the same failure of worker:1 before its first step 3 times"
    between = [*ends[:2], _crash(200, 200), *ends[2:]]
    assert all(decision.restart for decision in _decisions(between))


def test_where_nobody_tells_of_checkpoints_a_later_step_is_progress():
    decisions = _decisions([_crash(10 * i) for i in range(1, 10)])
    assert all(one.counted == 1 for one in decisions)
    assert [one.restart for one in _decisions([_crash(10)] * 4)] == [True, True, True, False]


def test_no_pause_is_longer_than_the_longest():
    decisions = _decisions([_crash(5, 5)] * 2000, max_restarts=5000, backoff=7.0, longest_pause=60.0)
    assert max(one.after for one in decisions) == 60.0
    assert RestartLimits(backoff=100.0, longest_pause=60.0).pause(5) == 100.0


def test_a_preemption_is_not_counted_while_there_is_progress():
    preempted = [_crash(10 * i, 10 * i, reason="preempted", exit_code=75) for i in range(1, 100)]
    decisions = _decisions(preempted, max_restarts=1)
    assert all(one.restart and one.after == 0.0 and one.counted == 0 for one in decisions)


def test_preemptions_without_progress_are_bounded_and_slow_down():
    preempted = [_crash(10, 10, reason="preempted", exit_code=75)] * 25
    decisions = _decisions(preempted, max_restarts=1)
    assert [one.restart for one in decisions[:21]] == [True] * 20 + [False]
    assert [one.after for one in decisions[:4]] == [0.0, 1.0, 2.0, 4.0]
    assert decisions[20].why == "preempted 21 times without progress"


def test_a_divergence_is_tried_once_more_and_not_again():
    diverged = _crash(25, 20, reason="diverged", exit_code=3)
    decisions = _decisions([diverged, diverged])
    assert [one.restart for one in decisions] == [True, False]
    assert decisions[1].why == "training diverged again at step 25: a restart would repeat the same steps"


def test_a_divergence_that_is_noticed_later_is_the_same_one():
    """A Keras loss is read once a second: the same NaN may be noticed some steps later."""
    first = _crash(25, 20, reason="diverged", exit_code=3)
    late = _crash(38, 20, reason="diverged", exit_code=3)
    assert [one.restart for one in _decisions([first, late])] == [True, False]
    other = _crash(138, 120, reason="diverged", exit_code=3)
    assert [one.restart for one in _decisions([first, other, other])] == [True, True, False]


def test_a_checkpoint_that_was_told_late_is_no_progress_of_the_second_divergence():
    """What the first wrote just before its end shows in the start of the second. Its own step is told a bit later."""
    first = AttemptEnd("diverged", "worker:0", 3, step=3, checkpoint=None, began=True, from_step=0)
    second = AttemptEnd("diverged", "worker:0", 3, step=5, checkpoint=None, began=True, from_step=4)
    assert [one.restart for one in _decisions([first, second])] == [True, False]


def test_a_checkpoint_that_was_told_late_is_progress_of_the_attempt_before():
    ends = [AttemptEnd("failed", "worker:0", 1, step=100 * i, began=True, from_step=100 * i - 1) for i in range(1, 9)]
    assert all(one.counted == 1 for one in _decisions(ends, max_restarts=1))


def test_a_divergence_of_unknown_step_is_tried_once():
    unknown = _crash(reason="diverged", exit_code=1)
    assert [one.restart for one in _decisions([unknown, unknown])] == [True, False]


def test_what_fails_before_its_first_step_each_time_is_given_up_early():
    early = _crash(exit_code=1, began=False)
    decisions = _decisions([early] * 3, max_restarts=100)
    assert [one.restart for one in decisions] == [True, True, False]
    assert decisions[2].why == "the same failure of worker:1 before its first step 3 times"


def test_other_failures_and_steps_in_between_are_not_the_same_failure():
    early, hung = _crash(exit_code=1, began=False), _crash(reason="hung", exit_code=None, began=False)
    assert all(one.restart for one in _decisions([early, hung, early, hung], max_restarts=100))
    # It has trained: the machine that it needs may be away for a while.
    assert all(one.restart for one in _decisions([_crash(100, 100), *[early] * 6], max_restarts=100))
    # It tells nothing: nobody knows whether it made a step.
    assert all(one.restart for one in _decisions([_crash(exit_code=1, began=None)] * 6, max_restarts=100))


def test_nothing_is_tried_again_where_nobody_asked_for_it():
    assert not _decisions([_crash()], max_restarts=0)[0].restart
    assert not _decisions([_crash(reason="preempted", exit_code=75)], max_restarts=0)[0].restart


def test_each_attempt_has_a_run_id_of_its_own():
    assert [attempt_run_id("r", number) for number in (1, 2, 3)] == ["r", "r-r1", "r-r2"]


# Silence --------------------------------------------------------------------------------------------------------

_ALL = TaskTimeouts(step=10.0, start=100.0, heartbeat=20.0)


def _monitor(*, trains=True, foreign=False, said=()):
    """A task started at 0; `said` are (time, what)."""
    monitor = TaskMonitor(trains=trains, foreign=foreign, now=0.0)
    for when, what in said:
        monitor.grew(when) if what == "log" else monitor.event(what, when)
    return monitor


@pytest.mark.parametrize(
    ("said", "now", "silent"),
    [
        # A task of ours: from its start to its first step the one deadline, then the other.
        ([], 100.0, None),
        ([], 101.0, "first step"),
        ([(5.0, "start")], 99.0, None),
        ([(5.0, "start"), (60.0, "export")], 101.0, "first step"),
        ([(5.0, "start"), (90.0, "step")], 100.0, None),
        ([(5.0, "start"), (90.0, "step")], 101.0, "step"),
        ([(5.0, "step"), (14.0, "evaluation"), (23.0, "checkpoint"), (32.0, "export")], 42.0, None),
        ([(5.0, "step"), (14.0, "log")], 16.0, "step"),
        # Its training has ended: it waits for the others, or for the evaluator.
        ([(5.0, "step"), (6.0, "trained")], 10000.0, None),
        ([(5.0, "step"), (6.0, "trained"), (7.0, "start")], 18.0, "step"),
        ([(5.0, "step"), (6.0, "trained"), (7.0, "evaluating")], 18.0, "evaluation"),
        ([(5.0, "step"), (6.0, "trained"), (7.0, "evaluating"), (9.0, "evaluation")], 10000.0, None),
        # Heartbeats are asked for of those that send them, until they say their last word.
        ([(5.0, "step"), (5.0, "heartbeat"), (24.0, "step")], 25.0, None),
        ([(5.0, "step"), (5.0, "heartbeat"), (24.0, "step")], 26.0, "heartbeat"),
        ([(5.0, "heartbeat"), (6.0, "trained")], 26.0, "heartbeat"),
        # Then a minute at least to end in.
        ([(5.0, "heartbeat"), (6.0, "result")], 65.0, None),
        ([(5.0, "heartbeat"), (6.0, "result")], 66.0, "end"),
        ([(6.0, "result")], 10000.0, None),
    ],
)
def test_the_silence_of_a_training_task(said, now, silent):
    found = _monitor(said=said).timed_out(now, _ALL)
    assert (found.kind if found else None) == silent


def test_only_heartbeats_and_evaluations_of_the_other_tasks_count():
    evaluates = [(5.0, "start"), (7.0, "evaluating"), (16.0, "evaluating"), (20.0, "warning")]
    assert _monitor(trains=False, said=evaluates).timed_out(26.0, _ALL) is None
    assert _monitor(trains=False, said=evaluates).timed_out(27.0, _ALL).text() == "evaluated no batch for 11.0 s"
    assert _monitor(trains=False, said=[*evaluates, (26.0, "evaluation")]).timed_out(10000.0, _ALL) is None
    assert _monitor(trains=False, said=[(5.0, "start")]).timed_out(10000.0, _ALL) is None
    assert _monitor(trains=False, said=[(5.0, "heartbeat")]).timed_out(26.0, _ALL).kind == "heartbeat"


@pytest.mark.parametrize("trains", [True, False])
def test_one_that_stops_before_its_first_heartbeat_is_noticed(trains):
    """As while it imports: an evaluator or a parameter server as well, and without a deadline for the first step."""
    beats = TaskTimeouts(heartbeat=20.0)
    silent = _monitor(trains=trains)
    assert silent.timed_out(600.0, beats) is None
    found = silent.timed_out(601.0, beats)
    assert found.text() == "reported nothing and sent no heartbeat in 601.0 s since it was started"
    assert _monitor(trains=trains, said=[(5.0, "log")]).timed_out(601.0, beats).kind == "first heartbeat"
    # A longer deadline for heartbeats is one for the first as well; a foreign program need not send any.
    assert silent.timed_out(900.0, TaskTimeouts(heartbeat=1000.0)) is None
    assert _monitor(trains=trains, foreign=True).timed_out(10000.0, beats) is None
    assert silent.timed_out(10000.0, TaskTimeouts(step=20000.0)) is None


def test_a_foreign_program_is_judged_by_what_it_tells():
    mute = _monitor(foreign=True)
    assert mute.timed_out(10000.0, _ALL) is None
    assert mute.is_untracked(10000.0, _ALL) and not mute.is_untracked(99.0, _ALL)
    # Its log does not say whether it has begun: the longer deadline.
    logs = _monitor(foreign=True, said=[(5.0, "log")])
    assert logs.timed_out(105.0, _ALL) is None
    assert logs.timed_out(106.0, _ALL).kind == "step"
    assert logs.timed_out(16.0, TaskTimeouts(step=10.0)).kind == "step"
    assert not logs.is_untracked(10000.0, _ALL)
    steps = _monitor(foreign=True, said=[(5.0, "log"), (6.0, "step")])
    assert steps.timed_out(17.0, _ALL).kind == "step"


def test_no_deadline_no_silence():
    assert not TaskTimeouts()
    assert _monitor(said=[(1.0, "step"), (1.0, "heartbeat")]).timed_out(1e9, TaskTimeouts()) is None


def test_a_time_in_which_nobody_listened_is_no_silence():
    one = _monitor(said=[(5.0, "step"), (5.0, "heartbeat")])
    assert one.timed_out(30.0, _ALL)
    one.discount(20.0, now=30.0)
    assert one.timed_out(30.0, _ALL) is None and one.timed_out(36.5, _ALL)
    # What it has told since then is no older for it, and no younger.
    one.beat(40.0)
    one.discount(20.0, now=41.0)
    assert one.since_heartbeat(45.0) == 4.0


def test_an_event_that_was_cut_off_leaves_the_next_one_whole(tmp_path, monkeypatch):
    """As by a disk that was full, and has room again."""
    history, write = History(tmp_path), os.write
    history.append("attempt_started", attempt=1)
    monkeypatch.setattr(os, "write", lambda target, line: write(target, line[:9]))
    history.append("failed", attempt=1)
    monkeypatch.setattr(os, "write", write)
    for event in ("restart_in", "done"):
        history.append(event, attempt=1)
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert len(lines) == 4 and lines[1] == '{"time": '
    assert [json.loads(lines[number])["event"] for number in (0, 2, 3)] == ["attempt_started", "restart_in", "done"]


def test_a_silence_in_words():
    words = [_monitor(said=said).timed_out(200.0, _ALL).text() for said in ([], [(5.0, "step")], [(5.0, "heartbeat")])]
    assert words == [
        "did not reach its first step in 200.0 s",
        "made no step for 195.0 s",
        "sent no heartbeat for 195.0 s",
    ]


# Heartbeats -----------------------------------------------------------------------------------------------------


def test_a_heartbeat_touches_one_small_file(tmp_path):
    progress = tmp_path / "worker-0.progress.jsonl"
    path = tmp_path / "worker-0.heartbeat"
    assert heartbeat_path(progress) == path
    beats = (
        "import time; from estimator_pipeline.progress.progress_file import start_heartbeat\n"
        f"environ = {{ {PROGRESS_VARIABLE!r}: {str(progress)!r}, {HEARTBEAT_VARIABLE!r}: '0.01' }}\n"
        "assert start_heartbeat(environ) and start_heartbeat(environ), 'a second call is no harm'\n"
        "time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", beats])
    try:
        _until(path.exists)
        first = path.stat().st_mtime_ns
        _until(lambda: path.stat().st_mtime_ns > first)
    finally:
        process.kill()
        process.wait()
    assert path.stat().st_size == 0 and not progress.exists()


@pytest.mark.parametrize("seconds", [None, "", "0", "-1", "nan", "often"])
def test_without_a_wish_there_are_no_heartbeats(tmp_path, seconds):
    environ = {PROGRESS_VARIABLE: str(tmp_path / "p.progress.jsonl")}
    assert not start_heartbeat({**environ, **({} if seconds is None else {HEARTBEAT_VARIABLE: seconds})})
    assert not start_heartbeat({HEARTBEAT_VARIABLE: "1"})


def test_of_several_tasks_the_one_that_is_silent_longest_counts(tmp_path):
    def touch(name, at):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, ns=(at, at))

    touch("a-1", 1)  # of an attempt before
    hearts = Heartbeats(tmp_path)
    assert hearts.poll(10.0) == {}
    touch("a-2", 1)
    touch("node-7-3", 1)
    assert hearts.poll(20.0) == {"a-2": 20.0, "node-7-3": 20.0}
    touch("a-2", 2)
    assert hearts.poll(30.0) == {"a-2": 30.0, "node-7-3": 20.0}
    monitor = _monitor(foreign=True)
    monitor.record_heartbeats(hearts.poll(50.0))
    found = monitor.timed_out(50.0, TaskTimeouts(heartbeat=25.0))
    assert (found.kind, found.seconds, found.process) == ("heartbeat", 30.0, "node-7-3")
    assert found.text() == "sent no heartbeat for 30.0 s: process 3 on node-7"
    # The whole machine stood still.
    hearts.discount(15.0, 50.0)
    monitor.record_heartbeats(hearts.poll(50.0))
    assert monitor.timed_out(50.0, TaskTimeouts(heartbeat=25.0)) is None
    # It ended, and took its file away; what is left is heard.
    (tmp_path / "node-7-3").unlink()
    assert hearts.poll(60.0) == {"a-2": 45.0}
    # One of this machine that was killed cannot take it away, and is no task that stands still.
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    touch(f"{socket.gethostname()}-{gone.pid}", 1)
    touch(f"{socket.gethostname()}-{os.getpid()}", 1)
    assert f"{socket.gethostname()}-{os.getpid()}" in (found := hearts.poll(70.0)) and len(found) == 2
    monitor.record_heartbeats({})
    assert monitor.timed_out(1e9, TaskTimeouts(heartbeat=25.0)) is None, "all have ended"


# Programs -------------------------------------------------------------------------------------------------------

_BEGIN = """
import json, os, pathlib, signal, subprocess, sys, time
attempt = int(os.environ["ESTIMATOR_PIPELINE_ATTEMPT"])
config = json.loads(os.environ.get("TF_CONFIG", '{"task": {"type": "worker", "index": 0}}'))
me = "%(type)s:%(index)d" % config["task"]
def emit(event, **fields):
    with open(os.environ["ESTIMATOR_PIPELINE_PROGRESS"], "a") as file:
        print(json.dumps({"time": time.time(), "event": event, **fields}), file=file)
def beat():
    pathlib.Path(os.environ["ESTIMATOR_PIPELINE_PROGRESS"].replace(".progress.jsonl", ".heartbeat")).touch()
def for_ever():
    while True:
        time.sleep(3600)
"""


def _until(condition, *, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def _no_test_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For the day that a test fails: it ends, and what it left behind goes too. Who waits looks more often."""
    monkeypatch.setattr("estimator_pipeline.launch.local.run._POLL", 0.02)
    monkeypatch.setattr("estimator_pipeline.launch.supervisor.supervisor._POLL", 0.02)

    def fail(*_: object) -> None:
        raise AssertionError("the test did not end within 240 s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(240)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    for process in psutil.process_iter():
        try:
            if process.environ().get("ESTIMATOR_PIPELINE_PROGRESS", "").startswith(f"{tmp_path}/"):
                process.kill()
        except psutil.Error:
            continue


def _program(tmp_path: Path, body: str) -> list[str]:
    path = tmp_path / "program.py"
    path.write_text(_BEGIN + textwrap.dedent(body))
    return [sys.executable, str(path)]


def _supervised(tmp_path, body, *, workers=1, limits=None, evaluator=False, foreign=False, **options) -> LaunchOutcome:
    run_id = new_run_id()
    outcome = supervise_local(
        # One of ours that comes to its end tells its result.
        _program(tmp_path, textwrap.dedent(body) + ("" if foreign else "\nemit('result')\n")),
        shape=LaunchShape(workers=workers, evaluator=evaluator),
        log_dir=tmp_path / "logs",
        run_id=run_id,
        limits=limits or RestartLimits(max_restarts=2, backoff=0.01),
        foreign=foreign,
        timeout=50.0,
        **options,
    )
    for attempt in outcome.attempts:
        assert survivors(attempt.run_id, []) == []
    return outcome


def _events(tmp_path):
    return [json.loads(line) for line in (tmp_path / "logs" / "events.jsonl").read_text().splitlines()]


def test_a_task_that_is_killed_is_started_again_with_all_others(tmp_path):
    outcome = _supervised(
        tmp_path,
        """
        emit("start")
        emit("step", step=10 * attempt, steps=10)
        emit("checkpoint", step=10 * attempt)
        if attempt < 3 and me == "worker:1":
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGKILL)
        if attempt < 3:
            for_ever()
        print(json.dumps([os.environ["ESTIMATOR_PIPELINE_RUN_ID"], config["cluster"]["worker"]]))
        """,
        workers=2,
        limits=RestartLimits(max_restarts=1, backoff=0.01),
    )
    assert (outcome.reason, outcome.exit_code, outcome.gave_up) == ("done", 0, "")
    assert [one.reason for one in outcome.attempts] == ["failed", "failed", "done"]
    assert [one.from_step for one in outcome.attempts] == [0, 10, 20]
    assert [one.checkpoint for one in outcome.attempts] == [10, 20, 30]
    assert outcome.attempts[0].why == "worker:1 failed with signal SIGKILL"
    assert outcome.attempts[0].lost is None and all(one.lost > 0 for one in outcome.attempts[1:])
    logs = tmp_path / "logs"
    assert sorted(path.name for path in logs.iterdir()) == [
        "attempt-1", "attempt-2", "attempt-3", "events.jsonl", "summary.json",
    ]  # fmt: skip
    run_id, _ = json.loads((logs / "attempt-3" / "worker-0.log").read_text())
    assert run_id == f"{outcome.attempts[0].run_id}-r2"
    events = _events(tmp_path)
    assert [one["event"] for one in events if one["attempt"] == 2] == [
        "attempt_started", "first_step", "failed", "attempt_ended", "restart_in",
    ]  # fmt: skip
    failed = next(one for one in events if one["event"] == "failed")
    assert (failed["task"], failed["exit_code"], failed["checkpoint"]) == ("worker:1", -9, 10)
    assert (events[-1]["event"], events[-1]["attempts"]) == ("done", 3)
    summary = json.loads((logs / "summary.json").read_text())
    assert (summary["reason"], summary["restarts"]) == ("done", 2)
    assert summary["seconds_lost"] == pytest.approx(sum(one.lost for one in outcome.attempts[1:]), abs=0.01)
    assert [one["number"] for one in outcome.document()["attempts"]] == [1, 2, 3]


def test_a_refusal_counts_whatever_code_its_command_ends_with(tmp_path):
    """srun ends with that of a task which it has ended because of the one that refused."""
    body = """
    refusal = {"what": "no such data", "found": None, "hint": None}
    emit("end", status="failed", task="worker:1", error="no such data", refusal=refusal)
    sys.exit(143)
    """
    outcome = supervise_command(
        _program(tmp_path, body),
        log_dir=tmp_path / "logs",
        run_id=new_run_id(),
        limits=RestartLimits(max_restarts=2, backoff=0.01),
        timeout=50.0,
    )
    assert (outcome.exit_code, outcome.gave_up) == (2, "bad input (exit code 2) would fail again")
    assert len(outcome.attempts) == 1


def test_where_an_attempt_goes_on_from_is_a_checkpoint_even_if_nobody_told_of_it(tmp_path):
    body = """
    emit("step", step=100 * attempt + 7, steps=107)
    if attempt < 4:
        os.kill(os.getpid(), signal.SIGKILL)
    """
    outcome = _supervised(tmp_path, body, limits=RestartLimits(max_restarts=1, backoff=0.01))
    assert outcome.ok, "each went on from a later place than the one before"
    assert [one.from_step for one in outcome.attempts] == [0, 100, 200, 300]
    restarts = [one for one in _events(tmp_path) if one["event"] == "restart_in"]
    assert [one["checkpoint"] for one in restarts] == [None, 100, 200]


@pytest.mark.parametrize("change", ["path.unlink()", "path.write_text('seed: 2')"])
def test_every_attempt_reads_the_same_files(tmp_path, change):
    path = tmp_path / "logs" / "job.yaml"
    outcome = _supervised(
        tmp_path,
        f"""
        path = pathlib.Path({str(path)!r})
        print(path.read_text())
        if attempt == 1:
            {change}
            sys.exit(1)
        """,
        files={path: "seed: 1"},
    )
    assert [attempt.reason for attempt in outcome.attempts] == ["failed", "done"]
    for number in (1, 2):
        assert (tmp_path / "logs" / f"attempt-{number}" / "worker-0.log").read_text() == "seed: 1\n"


def test_bad_input_is_not_tried_again(tmp_path):
    outcome = _supervised(tmp_path, "sys.exit(2)")
    assert (len(outcome.attempts), outcome.exit_code) == (1, 2)
    assert "bad input" in outcome.gave_up
    assert _events(tmp_path)[-1]["event"] == "gave_up"


def test_a_program_that_is_not_there_is_not_tried_again(tmp_path):
    outcome = supervise_local(
        ["no-such-program"],
        shape=LaunchShape(workers=1),
        log_dir=tmp_path / "logs",
        run_id=new_run_id(),
        limits=RestartLimits(max_restarts=5, backoff=0.01),
    )
    assert len(outcome.attempts) == 1
    assert outcome.gave_up == "the program cannot be run (exit code 127)"


def test_failures_before_the_first_step_are_given_up_early(tmp_path):
    outcome = _supervised(tmp_path, "emit('start'); sys.exit(7)", limits=RestartLimits(max_restarts=50, backoff=0.01))
    assert len(outcome.attempts) == 3
    assert outcome.gave_up.startswith("the same failure of worker:0 before its first step")
    assert outcome.failure.exit_code == 7


def test_a_stopped_task_is_noticed_named_and_ended(tmp_path):
    """The other one waits for it, as in synchronous training, and its heart beats on."""
    outcome = _supervised(
        tmp_path,
        """
        if attempt == 2:
            emit("result")
            sys.exit(0)
        emit("start"); emit("step", step=1); beat()
        if me == "worker:1":
            os.kill(os.getpid(), signal.SIGSTOP)
        while True:
            beat(); time.sleep(0.1)
        """,
        workers=2,
        timeouts=TaskTimeouts(heartbeat=1.5),
        grace=300.0,  # were it needed, the test would not end in time
    )
    first, second = outcome.attempts
    assert (first.reason, second.reason) == ("hung", "done")
    assert first.why.startswith("worker:1 sent no heartbeat for ")
    hung = next(one for one in _events(tmp_path) if one["event"] == "hung")
    assert (hung["task"], hung["exit_code"]) == ("worker:1", None)


def test_a_task_that_hangs_tells_where_it_stood(tmp_path):
    outcome = _supervised(
        tmp_path,
        """
        def waits_for_godot():
            emit("step", step=5)
            for_ever()
        emit("start")
        if me == "worker:1":
            emit("step", step=5)
            time.sleep(3600)
        waits_for_godot()
        """,
        workers=2,
        limits=RestartLimits(max_restarts=0),
        timeouts=TaskTimeouts(step=1.0),
    )
    assert (outcome.reason, outcome.exit_code) == ("hung", 1)
    text = outcome.failure.text()
    named, other = outcome.failure.task, {"worker:0": "worker:1", "worker:1": "worker:0"}[outcome.failure.task]
    functions = {"worker:0": "for_ever", "worker:1": "<module>"}
    lines = text.splitlines()
    assert re.fullmatch(rf"{named} made no step for \d+\.\d s\.", lines[0])
    # Both made no step, and which one of them holds up the other is for who reads it.
    for line, task in zip(lines[1:3], (named, other), strict=True):
        assert re.fullmatch(rf"{task} is at .*program\.py, line \d+, in {functions[task]}\.", line), text
    assert lines[3].startswith("The last lines of ")
    assert f"; {named} is at " in outcome.attempts[0].why
    stacks = (tmp_path / "logs" / "attempt-1" / "worker-0.log").read_text()
    assert "in waits_for_godot" in stacks, "the stacks of a hung Python are in its log"


def test_a_hung_task_that_ignores_all_signals_is_killed_after_the_grace(tmp_path):
    outcome = _supervised(
        tmp_path,
        """
        for number in (signal.SIGTERM, signal.SIGABRT):
            signal.signal(number, signal.SIG_IGN)
        if attempt == 1:
            emit("step", step=5)
            for_ever()
        """,
        timeouts=TaskTimeouts(step=1.0),
        grace=0.3,
    )
    assert [one.reason for one in outcome.attempts] == ["hung", "done"]


@pytest.mark.nightly
def test_a_task_without_a_first_step_hangs(tmp_path):
    outcome = _supervised(
        tmp_path, "emit('start')\nif attempt == 1: for_ever()", timeouts=TaskTimeouts(start=1.0, step=0.5)
    )
    assert outcome.attempts[0].why.startswith("worker:0 did not reach its first step in ")
    assert outcome.ok


@pytest.mark.nightly
def test_a_silent_evaluator_is_no_hung_task(tmp_path):
    outcome = _supervised(
        tmp_path,
        """
        emit("start")
        if me.startswith("evaluator"):
            time.sleep(1.0)
        else:
            emit("step", step=1)
            emit("trained")
            time.sleep(0.8)
        """,
        evaluator=True,
        timeouts=TaskTimeouts(step=0.5, start=30.0),
    )
    assert [one.reason for one in outcome.attempts] == ["done"]


def test_a_foreign_program_that_tells_nothing_has_no_deadline_and_that_is_said_once(tmp_path):
    outcome = _supervised(tmp_path, "time.sleep(0.5)", foreign=True, timeouts=TaskTimeouts(step=0.2))
    assert outcome.ok
    assert [note for note in outcome.notes if "no timeout" in note] == [
        "worker:0 reports no steps, and its log does not grow: no timeout for it"
    ]


def test_a_foreign_program_whose_log_stands_still_hangs(tmp_path):
    outcome = _supervised(
        tmp_path,
        """
        if attempt == 1:
            print("INFO:tensorflow:loss = 0.5, step = 7", flush=True)
            for_ever()
        """,
        foreign=True,
        timeouts=TaskTimeouts(step=1.0),
    )
    assert [one.reason for one in outcome.attempts] == ["hung", "done"]
    assert outcome.attempts[0].step == 7


@pytest.mark.parametrize("how", ["emit('end', status='diverged'); sys.exit(3)", "sys.exit(3)"])
def test_a_divergence_at_the_same_step_is_tried_once_more(tmp_path, how):
    outcome = _supervised(tmp_path, f"emit('step', step=25); {how}", limits=RestartLimits(max_restarts=9, backoff=0.01))
    assert [one.reason for one in outcome.attempts] == ["diverged", "diverged"]
    assert outcome.exit_code == 3
    assert "diverged again at step 25" in outcome.gave_up


def test_the_nan_of_a_foreign_program_is_found_in_its_log(tmp_path):
    body = """
    print("INFO:tensorflow:loss = nan, step = 25")
    print("tensorflow...NanLossDuringTrainingError: NaN loss during training.")
    sys.exit(1)
    """
    outcome = _supervised(tmp_path, body, foreign=True)
    assert (outcome.reason, outcome.exit_code, len(outcome.attempts)) == ("diverged", 3, 2)
    plain = tmp_path / "plain"
    plain.mkdir()
    assert _supervised(plain, "sys.exit(3)", foreign=True).reason == "failed", "3 may mean anything there"


def test_a_preempted_task_is_started_again_and_the_others_may_finish_their_checkpoint(tmp_path):
    outcome = _supervised(
        tmp_path,
        """
        emit("step", step=attempt)
        emit("checkpoint", step=attempt)
        if attempt < 3:
            time.sleep(0.4 if me == "worker:0" else 0)
            print("saved", flush=True)
            sys.exit(75)
        """,
        workers=2,
        limits=RestartLimits(max_restarts=1, backoff=30.0),  # a pause would not end in time
    )
    assert [one.reason for one in outcome.attempts] == ["preempted"] * 2 + ["done"]
    for number in (1, 2):
        assert (tmp_path / "logs" / f"attempt-{number}" / "worker-0.log").read_text() == "saved\n", "not disturbed"


def test_time_that_runs_out_counts_for_all_attempts(tmp_path):
    outcome = supervise_local(
        _program(tmp_path, "sys.exit(1)"),
        shape=LaunchShape(workers=1),
        log_dir=tmp_path / "logs",
        run_id=new_run_id(),
        limits=RestartLimits(max_restarts=9, backoff=600.0),
        timeout=0.5,
    )
    assert (outcome.reason, outcome.exit_code, len(outcome.attempts)) == ("timeout", 1, 1)


# The commands -----------------------------------------------------------------------------------------------------


def _cli(*arguments, **options) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "estimator_pipeline", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )


def test_a_supervised_launch_in_plain_lines(tmp_path):
    body = "emit('step', step=attempt)\nemit('checkpoint', step=attempt)\nsys.exit(1 if attempt < 2 else 0)"
    launch = _cli(
        *("launch", "--max-restarts", 1, "--backoff", 0.1, "--workers", 1, "--log-dir", tmp_path / "logs", "--"),
        *_program(tmp_path, body),
    )
    out, err = launch.communicate(timeout=50)
    assert launch.returncode == 0, out + err
    assert (
        "attempt 1: worker:0 failed with exit code 1; restart 1 of 1 without a later checkpoint: again in 0.1 s, "
        in out
    )
    assert "from the checkpoint of step 1" in out
    assert "attempt 2: done, reached step 2, checkpoint 2" in out


def test_a_signal_in_the_pause_ends_a_supervised_launch(tmp_path):
    launch = _cli(
        *("launch", "--json", "--max-restarts", 1, "--backoff", 600, "--workers", 1, "--log-dir", tmp_path / "logs"),
        *("--", *_program(tmp_path, "sys.exit(1)")),
    )
    _until(lambda: (tmp_path / "logs" / "events.jsonl").exists() and "restart_in" in _last(tmp_path))
    launch.send_signal(signal.SIGTERM)
    out, err = launch.communicate(timeout=50)
    assert launch.returncode == 143, err
    assert json.loads(out)["reason"] == "interrupted"
    assert "no further attempt: stopped by SIGTERM" in err


def _last(tmp_path):
    return (tmp_path / "logs" / "events.jsonl").read_text()


def test_a_supervisor_that_is_killed_leaves_nothing(tmp_path):
    body = (
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)'], start_new_session=True)\nfor_ever()"
    )
    supervisor = _cli("supervise", "--log-dir", tmp_path / "logs", "--", *_program(tmp_path, body))
    _until(lambda: len(psutil.Process(supervisor.pid).children(recursive=True)) >= 3)
    family = psutil.Process(supervisor.pid).children(recursive=True)
    supervisor.kill()
    supervisor.communicate()
    _until(lambda: not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in family))


def test_a_supervised_command_is_run_again_and_its_output_passed_on(tmp_path):
    body = "print('line of', attempt, flush=True)\nemit('step', step=attempt)\nsys.exit(0 if attempt == 3 else 9)"
    supervisor = _cli(
        *("supervise", "--max-restarts", 5, "--backoff", 0.01, "--log-dir", tmp_path / "logs", "--"),
        *_program(tmp_path, body),
    )
    out, err = supervisor.communicate(timeout=50)
    assert supervisor.returncode == 0, err
    assert out == "line of 1\nline of 2\nline of 3\n"
    assert "estimator-pipeline: attempt 1: command failed with exit code 9; restart 1 of 5" in err
    assert "estimator-pipeline: attempt 3: done" in err


def test_a_command_whose_training_has_no_end_is_run_again(tmp_path):
    """As a line of srun: two tasks that tell in one file, and leave with exit code 0."""
    body = """
    emit("start", task="worker:0"); emit("start", task="worker:1"); emit("step", step=7)
    if attempt == 2:
        emit("result", global_step=9)
    """
    outcome = supervise_command(
        _program(tmp_path, body),
        log_dir=tmp_path / "logs",
        run_id=new_run_id(),
        limits=RestartLimits(max_restarts=1, backoff=0.01),
        timeout=50.0,
    )
    assert [one.reason for one in outcome.attempts] == ["failed", "done"] and outcome.exit_code == 0
    why = "command left with exit code 0 at step 7 before the end of training of worker:0, worker:1"
    assert outcome.attempts[0].why == why
    body = 'signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0)); emit("start", task="worker:0"); for_ever()'
    supervisor = _cli("supervise", "--log-dir", tmp_path / "again", "--", *_program(tmp_path, body))
    _until(lambda: list(tmp_path.glob("again/attempt-1/*.jsonl")))
    supervisor.send_signal(signal.SIGUSR1)
    assert supervisor.wait(timeout=50) == 0, "it was asked to end"


def test_the_exit_code_of_a_supervised_command_is_its_own(tmp_path):
    supervisor = _cli("supervise", "--max-restarts", 0, "--log-dir", tmp_path / "logs", "--", "sh", "-c", "exit 42")
    out, err = supervisor.communicate(timeout=50)
    assert (supervisor.returncode, out) == (42, ""), err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_is_passed_on_once_and_nothing_is_tried_again(tmp_path, number):
    body = """
    heard = []
    def hear(number, frame):
        heard.append(number)
        print("heard", signal.Signals(number).name, flush=True)
        time.sleep(0.1)
        sys.exit(75)
    signal.signal(signal.SIGTERM, hear); signal.signal(signal.SIGUSR1, hear)
    print("ready", flush=True)
    for_ever()
    """
    supervisor = _cli("supervise", "--log-dir", tmp_path / "logs", "--", *_program(tmp_path, body))
    assert supervisor.stdout.readline() == "ready\n"
    supervisor.send_signal(number)
    out, err = supervisor.communicate(timeout=50)
    assert out == f"heard {number.name}\n"
    assert supervisor.returncode == 75, err
    assert len([line for line in _last(tmp_path).splitlines() if "attempt_started" in line]) == 1


# A line that starts several tasks, as srun does: one ends early, one stops in the first attempt, one goes on.
_SEVERAL = """
task = '''
import os, pathlib, signal, sys, time
from estimator_pipeline.progress.progress_file import heartbeat_of, start_heartbeat
number, attempt, here = int(sys.argv[1]), os.environ["ESTIMATOR_PIPELINE_ATTEMPT"], pathlib.Path(sys.argv[2])
assert start_heartbeat(os.environ)
mine = heartbeat_of(os.environ["ESTIMATOR_PIPELINE_HEARTBEAT_FOLDER"])
while not mine.exists():
    time.sleep(0.01)
(here / f"beats-{number}-{attempt}").touch()
if number == 1:
    sys.exit()
while not all((here / f"beats-{n}-{attempt}").exists() for n in range(3)):
    time.sleep(0.01)
time.sleep(2)  # the supervisor looks twice a second
if number == 2 and attempt == "1":
    (here / "stopped").write_text(str(os.getpid()))
    os.kill(os.getpid(), signal.SIGSTOP)
if number == 0 and attempt == "1":
    time.sleep(3600)
'''
tasks = [subprocess.Popen([sys.executable, "-c", task, str(n), sys.argv[1]]) for n in range(3)]
sys.exit(max(one.wait() for one in tasks))
"""


@pytest.mark.nightly
def test_one_of_several_tasks_of_a_command_that_stands_still(tmp_path):
    outcome = supervise_command(
        [*_program(tmp_path, _SEVERAL), str(tmp_path)],
        log_dir=tmp_path / "logs",
        run_id=new_run_id(),
        limits=RestartLimits(max_restarts=1, backoff=0.01),
        timeouts=TaskTimeouts(heartbeat=15.0),
        grace=1.0,
        timeout=300.0,
    )
    assert [one.reason for one in outcome.attempts] == ["hung", "done"], outcome
    assert f": process {(tmp_path / 'stopped').read_text()} on {socket.gethostname()}" in outcome.attempts[0].why
    assert not list((tmp_path / "logs" / "attempt-2" / "heartbeats").iterdir()), "each took its own away"


@pytest.mark.nightly
def test_a_machine_that_stood_still_is_no_hung_task(tmp_path):
    """The task and its supervisor; as a virtual machine does that is moved, or has no core for a while."""
    body = f"""
    pathlib.Path({str(tmp_path)!r}, "pid").write_text(str(os.getpid()))
    while not os.path.exists({str(tmp_path / "stop")!r}):
        print("a line", flush=True)
        time.sleep(0.1)
    """
    supervisor = _cli(
        "supervise", "--step-timeout", "6", "--log-dir", tmp_path / "logs", "--", *_program(tmp_path, body)
    )
    assert supervisor.stdout.readline() == "a line\n"
    _until(lambda: (tmp_path / "pid").read_text())
    pid = int((tmp_path / "pid").read_text())
    os.kill(pid, signal.SIGSTOP)
    time.sleep(1)  # the supervisor has seen all that was written
    os.kill(supervisor.pid, signal.SIGSTOP)
    time.sleep(8)
    os.kill(supervisor.pid, signal.SIGCONT)
    time.sleep(0.5)  # it looks: nothing new
    os.kill(pid, signal.SIGCONT)
    (tmp_path / "stop").touch()
    _, err = supervisor.communicate(timeout=50)
    assert supervisor.returncode == 0, err
    assert len([line for line in _last(tmp_path).splitlines() if "attempt_started" in line]) == 1


def test_the_run_id_of_a_job_on_several_machines_is_left_alone(tmp_path):
    given = {"log_dir": tmp_path, "run_id": "own"}
    variable = "ESTIMATOR_PIPELINE_RUN_ID"
    assert variable not in plan_command(["x"], number=1, environ={}, **given).tasks[0].environ
    plans = [plan_command(["x"], number=n, environ={variable: "job"}, **given) for n in (1, 2)]
    assert [plan.tasks[0].environ[variable] for plan in plans] == ["job", "job-r1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["supervise"], "supervise needs a command."),
        (["supervise", "--", "no-such-program"], "The command 'no-such-program' cannot be run."),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(arguments, message):
    done = _cli(*arguments)
    out, err = done.communicate(timeout=50)
    assert (done.returncode, out) == (2, "")
    assert message in err and "Traceback" not in err


def test_a_launch_without_restarts_has_todays_layout(tmp_path):
    plan = plan_command(["true"], log_dir=tmp_path / "logs", run_id="r", number=1, environ={})
    outcome = run_local(plan, environ=dict(os.environ))
    assert outcome.ok and outcome.attempts == ()
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["command.log"]
