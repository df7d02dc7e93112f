"""What tasks tell the launcher, how it is read, and what a person sees of it."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import threading
from pathlib import Path

import numpy as np
import pytest

from estimator_pipeline.cluster.spec import Task
from estimator_pipeline.launch import LaunchOutcome, LaunchShape, LineView, TaskEnd, plan_local
from estimator_pipeline.launch.local.outcome import Failure, combined_result, last_lines
from estimator_pipeline.launch.local.plan import TaskPlan
from estimator_pipeline.launch.local.task import RunningTask
from estimator_pipeline.launch.local.view import summary
from estimator_pipeline.progress.log_reader import log_event
from estimator_pipeline.progress.progress_file import (
    PREEMPTED_FILE_VARIABLE,
    ProgressReader,
    ProgressWriter,
    TaskState,
    cause_of,
    code_of_preemption,
    forget_preemption,
    from_environ,
)


def _plain(events):
    return [{key: value for key, value in event.items() if key != "time"} for event in events]


def test_events_come_back_in_order_and_only_once(tmp_path):
    path = tmp_path / "worker-0.progress.jsonl"
    writer = from_environ({"ESTIMATOR_PIPELINE_PROGRESS": str(path)})
    reader = ProgressReader(path)
    assert writer.enabled
    assert reader.read() == []
    writer.emit("start")
    writer.emit("step", step=100, loss=0.5, steps_per_sec=12.5)
    first = reader.read()
    assert all(isinstance(event["time"], float) for event in first)
    assert _plain(first) == [
        {"event": "start"},
        {"event": "step", "step": 100, "loss": 0.5, "steps_per_sec": 12.5},
    ]
    writer.emit("evaluation", step=100, metrics={"accuracy": 0.9})
    assert _plain(reader.read()) == [{"event": "evaluation", "step": 100, "metrics": {"accuracy": 0.9}}]
    assert reader.read() == []


def test_without_the_variable_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    writer = from_environ({})
    assert not writer.enabled
    writer.emit("step", step=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("key", ["caused_by", "because"])
def test_the_cause_of_an_end_by_its_new_and_its_old_name(key):
    state = TaskState("worker:0")
    state.apply({"event": "end", "status": "failed", key: "worker:1"})
    assert state.caused_by == "worker:1"
    assert cause_of({"event": "end", "caused_by": "worker:1", "because": "worker:2"}) == "worker:1"


def test_an_unknown_event_is_refused():
    with pytest.raises(ValueError, match="event is 'stepp'; allowed are start, step"):
        ProgressWriter(None).emit("stepp")


def test_numpy_values_paths_and_not_a_number_survive_as_json(tmp_path):
    path = tmp_path / "events"
    ProgressWriter(path).emit(
        "result",
        global_step=np.int64(7),
        metrics={"loss": np.float32("nan"), "accuracy": np.float32(0.5), "best": float("inf")},
        exports=[tmp_path / "export"],
        vector=np.arange(3),
    )
    (line,) = path.read_text().splitlines()
    event = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert event["global_step"] == 7
    assert event["metrics"]["accuracy"] == 0.5
    assert math.isnan(float(event["metrics"]["loss"]))
    assert float(event["metrics"]["best"]) == math.inf
    assert event["exports"] == [str(tmp_path / "export")]
    assert event["vector"] == [0, 1, 2]


@pytest.mark.parametrize("path", ["/dev/full", "/proc/no/such/folder/events"])
def test_a_full_disk_or_a_lost_folder_does_not_fail_the_training(path):
    ProgressWriter(path).emit("step", step=1)


def test_a_line_after_a_torn_one_is_whole_again(tmp_path):
    path = tmp_path / "gone" / "events"
    writer = ProgressWriter(path)
    writer.emit("step", step=1)  # lost: there is no folder yet
    path.parent.mkdir()
    path.write_bytes(b'{"event": "st')  # what a full disk leaves
    writer.emit("step", step=2)
    assert [event["step"] for event in ProgressReader(path).read()] == [2]


def test_a_half_written_line_is_read_once_it_is_whole(tmp_path):
    path = tmp_path / "events"
    reader = ProgressReader(path)
    text = '{"event": "step", "step": 1, "note": "größer"}\n{"event": "step", "step": 2}\n'.encode()
    seen = []
    for size in range(1, len(text) + 1):  # every possible place to stop, also inside a character
        path.write_bytes(text[:size])
        seen += [event["step"] for event in reader.read()]
    assert seen == [1, 2]


def test_what_is_no_event_is_left_out(tmp_path):
    path = tmp_path / "events"
    path.write_bytes(b'\n[]\nnull\n{"event": "other"}\n{"step": 1}\n\xff\xfe\n{"event": "step", "step": 3}\n')
    assert [event["step"] for event in ProgressReader(path).read()] == [3]


def test_a_reader_starts_over_when_the_file_was_emptied_and_begins_where_it_is_told(tmp_path):
    path = tmp_path / "events"
    path.write_text('{"event": "step", "step": 1}\n{"event": "step", "step": 2}\n')
    late = ProgressReader(path, offset=path.stat().st_size)
    assert late.read() == []
    path.write_text('{"event": "step", "step": 3}\n')
    assert [event["step"] for event in late.read()] == [3]


def test_lines_of_several_threads_do_not_mix(tmp_path):
    writer = ProgressWriter(tmp_path / "events")

    def emit(thread: int) -> None:
        for step in range(200):
            writer.emit("step", step=thread * 1000 + step, note="x" * 500)

    threads = [threading.Thread(target=emit, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    steps = {event["step"] for event in ProgressReader(tmp_path / "events").read()}
    assert steps == {thread * 1000 + step for thread in range(4) for step in range(200)}


_LOGGED = [
    ("INFO:tensorflow:loss = 0.31, step = 100 (0.8 sec)", {"event": "step", "step": 100, "loss": 0.31}),
    ("INFO:tensorflow:loss = 2.302, step = 0", {"event": "step", "step": 0, "loss": 2.302}),
    ("I1121 10:00:00 basic_session_run_hooks.py:260] loss = 1e-05, step = 20 (0.1 sec)",
     {"event": "step", "step": 20, "loss": 1e-05}),
    ("INFO:tensorflow:global_step/sec: 120.3", {"event": "step", "steps_per_sec": 120.3}),
    ("INFO:tensorflow:Saving dict for global step 200: accuracy = 0.97, global_step = 200, loss = 0.1",
     {"event": "evaluation", "step": 200, "metrics": {"accuracy": 0.97, "loss": 0.1}}),
    ("INFO:tensorflow:Saving dict for global step 5: accuracy/baseline = 0.5, global_step = 5, h = [1 2]",
     {"event": "evaluation", "step": 5, "metrics": {"accuracy/baseline": 0.5}}),
    ("INFO:tensorflow:Saving checkpoints for 200 into /tmp/m/model.ckpt.",
     {"event": "checkpoint", "step": 200, "path": "/tmp/m/model.ckpt"}),
    ("INFO:tensorflow:Calling checkpoint listeners before saving checkpoint 200...", None),
    ("INFO:tensorflow:Loss for final step: 0.1.", None),
    ("", None),
]  # fmt: skip


@pytest.mark.parametrize(("line", "event"), _LOGGED)
def test_the_lines_that_estimators_log_become_events(line, event):
    assert log_event(line) == event


def test_a_loss_that_is_no_number_is_read_from_a_log():
    event = log_event("INFO:tensorflow:loss = nan, step = 3 (0.8 sec)")
    assert math.isnan(event["loss"])


def test_a_state_takes_over_what_events_tell_and_passes_by_what_is_wrong():
    state = TaskState("worker:0")
    for event in [
        {"event": "step", "step": 100, "steps": 50, "loss": 0.5},
        {"event": "step", "step": "many", "loss": None, "steps_per_sec": 12.5},
        {"event": "evaluation", "step": 100, "metrics": {"accuracy": 0.9}},
        {"event": "evaluation", "step": 100, "metrics": "none"},
        {"event": "checkpoint", "step": 110, "path": "/m/model.ckpt-110"},
        {"event": "export", "path": "/m/export/1"},
        {"event": "result", "time": 1.0, "status": "done", "global_step": 120, "steps": 60},
    ]:
        state.apply(event)
    assert (state.step, state.steps, state.loss, state.steps_per_sec) == (120, 60, 0.5, 12.5)
    assert state.evaluation == {"step": 100, "metrics": {"accuracy": 0.9}}
    assert state.checkpoint == 110
    assert state.exports == ["/m/export/1"]
    assert state.result == {"status": "done", "global_step": 120, "steps": 60}


def test_a_training_that_has_begun_has_an_end():
    state = TaskState("command")
    for events, begun in [
        (["start"], ["worker:0"]),
        (["step", "trained", "result"], []),  # several tasks may tell in one file: the result is one for all
        (["start", "start", "result", "result"], []),
        (["start", "raised"], []),  # who called it may catch that
        (["start", "end"], []),
        (["result", "start"], ["worker:0"]),
    ]:
        for event in events:
            state.apply({"event": event, **({"task": "worker:0"} if event == "start" else {})})
        assert state.begun == begun, events
    state.apply({"event": "trained"})
    assert state.trained
    state.apply({"event": "start"})  # of a version that does not tell the task
    assert (state.begun, state.trained) == (["worker:0", ""], False)


@pytest.mark.parametrize(
    ("told", "foreign", "left"),
    [
        ([], False, "before the end of training"),
        (["start", "step"], False, "at step 3 before the end of training"),
        (["start", "step", "trained"], False, "at step 3 before the result"),
        (["start", "raised"], False, "before the end of training"),
        (["start", "step", "result"], False, ""),
        # It may be no training, train several times, and catch what training raises.
        ([], True, ""),
        (["step", "checkpoint"], True, ""),
        (["start", "result", "start", "raised"], True, ""),
        (["start", "result", "start", "step"], True, "at step 3 before the end of training"),
    ],
)
def test_what_an_exit_code_of_0_is_worth(told, foreign, left):
    task = Task("worker", 0)
    plan = TaskPlan(task, ("true",), {}, (), Path("/nowhere/worker-0.log"), Path("/nowhere/worker-0.progress.jsonl"))
    one = RunningTask(plan, foreign=foreign)
    for event in told:
        one.state.apply({"event": event, **({"step": 3} if event == "step" else {})})
    one.state.exit_code = 0
    assert one.early_exit == (left and f"left with exit code 0 {left}")
    one.state.exit_code = 1
    assert one.early_exit == ""


def test_the_result_is_the_chiefs_with_the_steps_of_each_worker():
    states = [TaskState("worker:0"), TaskState("worker:1"), TaskState("evaluator:0")]
    states[0].apply({"event": "result", "global_step": 200, "metrics": {"accuracy": 0.9}, "steps": 101})
    states[1].apply({"event": "result", "global_step": 200, "metrics": {"accuracy": 0.1}, "steps": 99})
    states[2].apply({"event": "export", "path": "/m/export/1"})
    assert combined_result(states) == {
        "global_step": 200,
        "metrics": {"accuracy": 0.9},
        "steps": {"worker:0": 101, "worker:1": 99},
        "exports": ["/m/export/1"],
        "source": "result",
    }


def test_the_steps_of_a_result_are_not_those_seen_last():
    states = [TaskState("worker:0"), TaskState("worker:1")]
    states[1].apply({"event": "step", "step": 1})
    states[0].apply({"event": "step", "step": 1})
    reports = {"worker:0": {"steps": 6, "records": 60}, "worker:1": {"steps": 5}}
    states[0].apply({"event": "result", "global_step": 6, "tasks": reports})
    assert combined_result(states)["steps"] == {"worker:0": 6, "worker:1": 5}


def test_the_result_of_a_chief_comes_before_that_of_a_worker():
    states = [TaskState("worker:1"), TaskState("chief:0")]
    states[0].apply({"event": "result", "global_step": 1})
    states[1].apply({"event": "result", "global_step": 2})
    assert combined_result(states)["global_step"] == 2


def test_without_a_result_event_the_latest_evaluation_counts():
    states = [TaskState("worker:0"), TaskState("evaluator:0")]
    states[0].apply({"event": "step", "step": 190, "loss": 0.3})
    states[1].apply({"event": "evaluation", "step": 100, "metrics": {"accuracy": 0.8}})
    states[1].apply({"event": "evaluation", "step": 200, "metrics": {"accuracy": 0.9}})
    assert combined_result(states) == {
        "global_step": 200,
        "metrics": {"accuracy": 0.9},
        "exports": [],
        "steps": {"worker:0": 190},
        "source": "log",
    }
    assert combined_result([TaskState("worker:0")]) is None


def test_the_last_lines_of_a_long_log_are_those_of_this_launch(tmp_path):
    log = tmp_path / "worker-0.log"
    log.write_text("before\n")
    offset = log.stat().st_size
    assert last_lines(log, offset=offset) == ()
    with log.open("a") as more:
        more.writelines(f"line {number}\n" for number in range(100_000))
    assert last_lines(log, offset=offset) == tuple(f"line {number}" for number in range(99_980, 100_000))
    assert last_lines(log, count=3, offset=log.stat().st_size - 11) == ("line 99999",)
    assert last_lines(tmp_path / "none.log") == ()


class _Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_plain_lines_are_calm_about_steps_and_prompt_about_evaluations():
    clock, stream = _Clock(), io.StringIO()
    view = LineView(stream, every=5.0, clock=clock)
    plan = plan_local(
        ["train"], shape=LaunchShape(workers=1), ports=[1], log_dir="/logs", run_id="r1", environ={}, available=[0]
    )
    state = TaskState("worker:0", pid=17, state="running")
    view.start(plan, [state])

    def tell(seconds: float, **event: object) -> None:
        clock.now = 100.0 + seconds
        state.apply(event)
        view.event(state, event)

    tell(1.0, event="step", step=10, loss=0.5)
    tell(2.0, event="step", step=20, loss=0.4, steps_per_sec=10)  # too soon
    tell(3.0, event="evaluation", step=20, metrics={"loss": 0.3, "accuracy": 0.91234567, "global_step": 20})
    tell(6.0, event="step", step=60, loss=0.25)
    tell(20.0, event="step", steps_per_sec=11)  # no new step
    tell(21.0, event="export", path="/m/export/1")
    view.note("SIGTERM: stopping every task")
    state.state, state.exit_code = "stopped", -15
    view.ended(state)
    assert stream.getvalue().splitlines() == [
        "    0.0s  run r1: 1 task, logs in /logs",
        "    0.0s  worker:0 started, pid 17",
        "    1.0s  worker:0 step 10, loss 0.5",
        "    3.0s  worker:0 evaluated step 20: accuracy 0.9123, loss 0.3",
        "    6.0s  worker:0 step 60, 10 steps/s, loss 0.25",
        "   21.0s  worker:0 exported /m/export/1",
        "   21.0s  SIGTERM: stopping every task",
        "   21.0s  worker:0 stopped (signal SIGTERM)",
    ]


def test_evaluations_that_come_in_one_look_are_told_each_with_its_own_step(tmp_path):
    """As those of an evaluator that did not wait for the launcher's next look; one without metrics tells nothing."""
    plan = plan_local(
        ["train"], shape=LaunchShape(workers=1), ports=[1], log_dir=tmp_path, run_id="r1", environ={}, available=[0]
    )
    one, stream = RunningTask(plan.tasks[0]), io.StringIO()
    view = LineView(stream, clock=_Clock())
    writer = ProgressWriter(plan.tasks[0].progress)
    writer.emit("evaluation", step=200, metrics={"accuracy": 0.5})
    writer.emit("evaluation", step=300, metrics="none")
    writer.emit("evaluation", step=400, metrics={"accuracy": 0.75})
    for event in one.poll_events():
        view.event(one.state, event)
    assert stream.getvalue().splitlines() == [
        "    0.0s  worker:0 evaluated step 200: accuracy 0.5",
        "    0.0s  worker:0 evaluated step 400: accuracy 0.75",
    ]
    assert one.state.evaluation == {"step": 400, "metrics": {"accuracy": 0.75}}


def test_a_view_whose_reader_went_away_keeps_quiet():
    class Gone(io.StringIO):
        def flush(self) -> None:
            raise BrokenPipeError

    stream = Gone()
    view = LineView(stream)
    view.note("nobody reads this")
    view.finish(_outcome())
    assert "nobody reads this" in stream.getvalue()


def _outcome() -> LaunchOutcome:
    return LaunchOutcome(
        reason="failed",
        exit_code=1,
        seconds=12.34,
        run_id="r1",
        log_dir=Path("/logs"),
        tasks=(
            TaskEnd("worker:0", 17, "stopped", -9, 12.0, 200, Path("/logs/worker-0.log")),
            TaskEnd("worker:1", 18, "failed", 3, 11.5, None, Path("/logs/worker-1.log")),
        ),
        failure=Failure("worker:1", 3, Path("/logs/worker-1.log"), ("one", "two")),
        result={
            "global_step": 200,
            "metrics": {"accuracy": 0.97224, "loss": float("nan")},
            "exports": ["/m/export/1"],
            "steps": {"worker:0": 101, "worker:1": 99},
        },
    )


def test_a_summary_says_that_the_data_ended():
    outcome = _outcome()
    outcome.result["status"] = "data ended"
    assert "\nresult at step 200 (data ended): accuracy" in summary(outcome)


def test_the_summary_of_a_launch():
    assert summary(_outcome()).splitlines() == [
        "task      end                      time    step  log",
        "worker:0  stopped, signal SIGKILL  12.0 s  200   /logs/worker-0.log",
        "worker:1  failed, exit code 3      11.5 s        /logs/worker-1.log",
        "",
        "result at step 200: accuracy 0.9722, loss nan",
        "worker:0 trained 101 steps; worker:1 trained 99 steps",
        "export: /m/export/1",
        "",
        "failed after 12.3 s",
    ]


def test_the_summary_of_bad_input_is_its_end():
    """The error follows, and names the log."""
    refusal = {"code": "data/not-finite", "what": "x is NaN", "found": None, "hint": None}
    failure = Failure("worker:1", 2, Path("/logs/worker-1.log"), (), refusal=refusal)
    outcome = dataclasses.replace(_outcome(), failure=failure, exit_code=2)
    assert summary(outcome) == "failed after 12.3 s"
    assert len(summary(dataclasses.replace(outcome, exit_code=3)).splitlines()) > 1


def test_an_outcome_as_json_has_no_number_that_json_lacks():
    document = json.loads(json.dumps(_outcome().document(), allow_nan=False))
    assert document["result"]["metrics"]["loss"] == "NaN"
    assert document["failure"] == {
        "task": "worker:1",
        "exit_code": 3,
        "log": "/logs/worker-1.log",
        "tail": ["one", "two"],
    }
    assert document["tasks"][0]["exit_code"] == -9


def test_a_failure_names_the_task_its_end_and_its_log():
    assert _outcome().failure.text().splitlines() == [
        "worker:1 failed with exit code 3. The last lines of /logs/worker-1.log:",
        "  worker:1 | one",
        "  worker:1 | two",
    ]
    unread = Failure("ps:0", -7, Path("/logs/ps-0.log"), ())
    assert unread.head == (
        "ps:0 failed with signal SIGBUS: a file could not be read (disk error), or was truncated meanwhile"
    )
    silent = Failure("ps:0", -11, Path("/logs/ps-0.log"), ())
    assert silent.text() == "ps:0 failed with signal SIGSEGV. Its log is empty: /logs/ps-0.log"


def test_a_failure_with_a_reported_error_shows_it_instead_of_the_log():
    refusal = {"code": "data/not-finite", "what": "x is NaN", "found": "record 3", "hint": "remove it"}
    failure = Failure("worker:1", 2, Path("/logs/worker-1.log"), ("one", "two"), refusal=refusal)
    assert failure.text().splitlines() == [
        "worker:1 failed with exit code 2: x is NaN [data/not-finite]",
        "  found: record 3",
        "  hint: remove it",
        "  log: /logs/worker-1.log",
    ]


def test_a_task_that_was_asked_to_end_says_so_by_a_file(tmp_path):
    path = tmp_path / "preempted"
    environ = {PREEMPTED_FILE_VARIABLE: str(path)}
    assert code_of_preemption({}, 75) == 75 and code_of_preemption(environ, 75) == 0 and path.exists()
    forget_preemption(environ)
    forget_preemption(environ)
    forget_preemption({})
    assert not path.exists()
    # What cannot be said by a file is said by the code.
    assert code_of_preemption({PREEMPTED_FILE_VARIABLE: str(tmp_path / "no" / "folder")}, 75) == 75


@pytest.mark.parametrize(("by_file", "reason"), [(None, "preempted"), ("said", "failed")])
def test_where_a_file_says_it_another_code_is_a_failure(run_python, tmp_path, by_file, reason):
    """A task fails, and those that are ended because of it say that they were asked to."""
    script = """echo '{"event": "end", "status": "preempted"}' >> "$ESTIMATOR_PIPELINE_PROGRESS"; exit 1"""
    words = ["supervise", "--max-restarts", "0", "--json", "--log-dir", tmp_path, "--", "sh", "-c", script]
    done = run_python(["-m", "estimator_pipeline", *words], env={PREEMPTED_FILE_VARIABLE: by_file})
    assert (done.returncode, json.loads(done.stdout)["reason"]) == (1, reason)
