"""The history of a supervised job: whole lines, and a last word whatever ends the supervisor."""

from __future__ import annotations

import builtins
import errno
import json
import os

import pytest

from estimator_pipeline.errors import ClusterError, ConfigError
from estimator_pipeline.launch import LaunchOutcome, RestartLimits, View, read_events
from estimator_pipeline.launch.history import History
from estimator_pipeline.launch.local.outcome import Failure
from estimator_pipeline.launch.supervisor.supervisor import supervise
from estimator_pipeline.progress.progress_file import TaskState
from estimator_pipeline.utils import durable_files


class _Notes(View):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


def _ended(reason, number, folder, *, exit_code):
    failure = Failure("worker:0", exit_code, folder / "worker-0.log", ()) if reason == "failed" else None
    return LaunchOutcome(reason, exit_code, 1.5, f"r{number}", folder, (), failure)


def _supervised(folder, run, view=None):
    return supervise(run, run_id="r", log_dir=folder, limits=RestartLimits(max_restarts=3, backoff=0.01), view=view)


def _told(folder):
    return [event["event"] for event in read_events(folder)]


# Lines ----------------------------------------------------------------------------------------------------------


def test_a_line_that_a_kill_has_torn_ends_where_the_next_supervisor_begins(tmp_path):
    torn = '{"time": 1, "attempt": 1, "event": "attempt_st'
    (tmp_path / "events.jsonl").write_text(torn)
    history = History(tmp_path)
    for event in ("attempt_started", "done"):
        history.append(event, attempt=1)
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert lines[0] == torn and len(lines) == 3
    assert _told(tmp_path) == ["attempt_started", "done"]


@pytest.mark.parametrize("before", [None, "", '{"event": "done"}\n'])
def test_nothing_is_put_between_whole_lines(tmp_path, before):
    if before is not None:
        (tmp_path / "events.jsonl").write_text(before)
    History(tmp_path).append("attempt_started", attempt=1)
    text = (tmp_path / "events.jsonl").read_text()
    assert text.startswith(before or "") and text.count("\n") == 1 + bool(before) and "\n\n" not in text


def test_a_reader_leaves_out_what_is_no_event(tmp_path):
    assert read_events(tmp_path) == []
    (tmp_path / "events.jsonl").write_bytes(b'{"event": "a"}\n\n{"eve\n[1]\n\xff\n{"event": "b"}\n{"event": "c"')
    assert _told(tmp_path) == ["a", "b"]


# The last word --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "event", "exit_code", "why"),
    [
        (ClusterError("2 free ports were asked for.", found="0"), "gave_up", 2,
         "ClusterError: 2 free ports were asked for. found: 0"),
        (OSError(errno.EIO, "Input/output error"), "gave_up", 1, "OSError: [Errno 5] Input/output error"),
        (KeyboardInterrupt(), "interrupted", 130, "stopped by SIGINT"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("failures", [0, 1])
def test_an_attempt_that_cannot_be_made_is_told(tmp_path, error, event, exit_code, why, failures):
    def run(number, own, folder, left, view, told):
        if number > failures:
            raise error
        return _ended("failed", number, folder, exit_code=1)

    with pytest.raises(type(error)) as raised:
        _supervised(tmp_path, run)
    assert raised.value is error, "as it was"
    before = ["attempt_started", "attempt_ended", "restart_in"] * failures
    assert _told(tmp_path) == [*before, "attempt_started", "attempt_ended", event]
    last = read_events(tmp_path)[-1]
    assert (last["attempt"], last["attempts"]) == (failures + 1, failures + 1)
    summary = json.loads((tmp_path / "summary.json").read_text())
    reason = "interrupted" if event == "interrupted" else "failed"
    assert (summary["reason"], summary["exit_code"], summary["why"]) == (reason, exit_code, why)
    attempt = summary["attempts"][-1]
    assert (attempt["number"], attempt["reason"], attempt["why"]) == (failures + 1, reason, why)
    assert attempt["run_id"] == ("r-r1" if failures else "r")
    assert attempt["log_dir"] == str(tmp_path / f"attempt-{failures + 1}")


def test_an_attempt_is_told_of_the_newest_checkpoint_of_those_before(tmp_path):
    seen = []

    def run(number, own, folder, left, view, told):
        seen.append(told)
        if number == 1:
            for step in (100, 200):
                view.event(TaskState("worker:0"), {"event": "checkpoint", "step": step, "path": f"m/ckpt-{step}"})
        return _ended("failed", number, folder, exit_code=1)

    _supervised(tmp_path, run)
    assert seen[0] == {"ESTIMATOR_PIPELINE_ATTEMPT": "1"}
    last = {"ESTIMATOR_PIPELINE_CHECKPOINT": "m/ckpt-200"}
    assert seen[1:] == [{"ESTIMATOR_PIPELINE_ATTEMPT": str(n), **last} for n in range(2, len(seen) + 1)]
    assert len(seen) > 2


def test_a_log_folder_that_cannot_be_made_is_told_where_it_can(tmp_path):
    """As `run_local` does when the folder of the second attempt finds no room."""

    def run(number, own, folder, left, view, told):
        raise ConfigError(f"The logs cannot be written to {folder}.", found="no space")

    view = _Notes()
    with pytest.raises(ConfigError):
        _supervised(tmp_path, run, view)
    assert json.loads((tmp_path / "summary.json").read_text())["exit_code"] == 2
    assert view.notes == []


@pytest.mark.parametrize("call", ["open", "replace"])
def test_a_summary_that_cannot_be_written_is_told_and_leaves_nothing(tmp_path, monkeypatch, call):
    def full(*_: object, **__: object):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    original = open

    def half(path, *arguments, **options):
        if str(path).endswith(durable_files.UNFINISHED):
            original(path, "wb").close()
            full()
        return original(path, *arguments, **options)

    if call == "open":
        monkeypatch.setattr(builtins, call, half)
    else:
        monkeypatch.setattr(os, call, full)
    view = _Notes()
    outcome = _supervised(
        tmp_path, lambda number, own, folder, left, _, told: _ended("done", 1, folder, exit_code=0), view
    )
    assert outcome.ok
    assert view.notes == [f"warning: {tmp_path / 'summary.json'} could not be written (No space left on device)"]
    assert [path.name for path in tmp_path.iterdir()] == ["events.jsonl"]
