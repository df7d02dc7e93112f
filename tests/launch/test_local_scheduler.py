"""Launches under `status`, `logs`, `cancel`: from their records, and a few that really run."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.launch.local import plan as plans
from estimator_pipeline.launch.local import record as records
from estimator_pipeline.launch.local.scheduler import LocalScheduler
from estimator_pipeline.launch.scheduler import ListRequest, LogRequest, SubmitRequest
from estimator_pipeline.launch.schedulers import find_scheduler, list_jobs, reference_of
from tests.launch.test_schedulers import NOTHING
from tests.launch.test_schedulers import local as stub
from tests.support.command_line import call

JOB = """
name: small
model: {{name: linear}}
input: {{source: tfds, name: digits, global_batch_size: 32}}
train: {{max_steps: 10}}
run: {{model_dir: {model_dir}}}
{more}
"""
HOST, PID = socket.gethostname(), os.getpid()
START = records._process_start(PID)
END = {"time": 2000.0, "exit_code": 1, "signal": None, "seconds": 1000.0, "why": "", "failure": None}
FAILURE = {"task": "worker:1", "what": "worker:1 failed with exit code 1", "error": "KeyError: 'price'"}
FAILURE |= {"reason": "failed", "exit_code": 1, "attempt": 1, "run": "", "log": "worker-1.log", "time": 2000.0}


def write(folder: Path, **fields) -> Path:
    """A record of a launch of this process, with changes."""
    folder.mkdir(parents=True)
    fields = {
        "run_id": "x", "name": "small", "model_dir": str(folder.parents[1]), "tasks": ["worker:0", "worker:1"],
        "command": ["true"], "host": HOST, "pid": PID, "process_start": START, "started": 1000.0, "grace": 5.0,
        "end": None, "a field of a later version": 1,
    } | fields  # fmt: skip
    (folder / "launch.json").write_text(json.dumps(fields))
    return folder


def beat(folder: Path, *, seconds_ago: float = 0.0) -> None:
    (folder / "worker-0.progress.jsonl").touch()
    (folder / "worker-0.heartbeat").touch()
    os.utime(folder / "worker-0.heartbeat", (time.time() - seconds_ago,) * 2)


def job_file(folder: Path, more: str = "") -> Path:
    path = folder / "job.yaml"
    path.write_text(JOB.format(model_dir=folder / "m", more=more))
    return path


@pytest.mark.parametrize(
    ("fields", "beats", "state", "text", "code"),
    [
        ({}, None, "RUNNING", "running", 0),
        # A different process has the launcher's process id.
        ({"process_start": START + 1}, 0, "KILLED", "killed: process PID is gone and has recorded no end", 1),
        ({"host": "n1"}, 0, "RUNNING", "running", 0),
        ({"host": "n1"}, 900, "UNKNOWN", "unknown: no heartbeat of a task on n1, and no record of an end", 1),
        ({"end": END | {"reason": "done", "exit_code": 0}}, 0, "DONE", "done", 0),
        ({"end": END | {"reason": "failed", "failure": FAILURE}}, 0, "FAILED",
         "failed: worker:1: KeyError: 'price' (worker-1.log)", 1),
        ({"end": END | {"reason": "failed", "why": "ConfigError: no ports"}}, 0, "FAILED",
         "failed: ConfigError: no ports", 1),
        ({"end": END | {"reason": "timeout"}}, 0, "TIMEOUT", "ended by its --timeout", 1),
        ({"end": END | {"reason": "interrupted", "exit_code": 130, "signal": 2}}, 0, "INTERRUPTED",
         "stopped by SIGINT (exit code 130)", 0),
        ({"end": END | {"reason": "preempted", "exit_code": 75, "signal": 15}}, 0, "PREEMPTED",
         "stopped by SIGTERM; the next launch resumes from the last checkpoint (exit code 75)", 0),
        # A signal that was only forwarded.
        ({"end": END | {"reason": "failed", "signal": 10, "why": "x"}}, 0, "FAILED", "failed: x", 1),
        # A task that somebody else has stopped.
        ({"end": END | {"reason": "preempted", "exit_code": 75, "failure": FAILURE}}, 0, "PREEMPTED",
         "failed: worker:1: KeyError: 'price' (worker-1.log)", 1),
    ],
)  # fmt: skip
def test_the_state_of_a_launch(tmp_path, fields, beats, state, text, code):
    text = text.replace("PID", str(PID))
    folder = write(tmp_path / "m" / "logs" / "1", **fields)
    if beats is not None:
        beat(folder, seconds_ago=beats)
    done = call("status", "m/logs/1", cwd=tmp_path)
    assert done.returncode == code and done.stdout.startswith(f"m/logs/1 (small): {text}"), done
    done = call("status", job_file(tmp_path), "--json", cwd=tmp_path)
    (status,) = json.loads(done.stdout)["jobs"]
    assert (status["state"], status["text"], status["failed"]) == (state, text, bool(code))


@pytest.mark.parametrize(
    ("event", "seconds", "text"),
    [(None, 0, "running"), (None, 900, "unknown: no heartbeat"), ('{"event": "result"}\n', 900, "done")],
)
def test_a_log_folder_without_a_record(tmp_path, event, seconds, text):
    """Of an earlier version, or of `supervise`: its heartbeats count, and nothing can be cancelled."""
    beat(tmp_path, seconds_ago=seconds)
    (tmp_path / "worker-0.progress.jsonl").write_text('{"event": "step", "step": 3}\n' + (event or ""))
    done = call("status", tmp_path)
    assert done.stdout.startswith(f"{tmp_path}: {text}") and "step 3" in done.stdout, done
    done = call("cancel", tmp_path)
    if text == "running":
        assert done.returncode == 2 and "no record of its process" in done.stderr
    else:
        assert done.returncode == 0 and "has ended already" in done.stdout
    (tmp_path / "worker-0.log").write_text("one\n")
    assert call("logs", tmp_path, "--task", "worker:0").stdout == "one\n"


def test_the_launch_of_a_job_in_a_bucket(tmp_path, monkeypatch):
    """Its logs are in a temporary folder of this user and the model directory."""
    monkeypatch.setattr(plans, "_TEMPORARY", str(tmp_path / "temporary-"))
    folder = plans.launches_folder("gs://b/m") / "1"
    plans.make_log_folder(folder)
    assert [path.stat().st_mode & 0o777 for path in (folder, folder.parent)] == [0o700, 0o700]
    folder.rmdir()
    write(folder, model_dir="gs://b/m", end=END | {"reason": "done", "exit_code": 0})
    file = tmp_path / "job.yaml"
    file.write_text(JOB.format(model_dir="gs://b/m", more=""))
    for name in (file, "gs://b/m"):
        assert call("status", name).stdout.startswith(f"{folder} (small): done"), name
    assert call("status", file, "--set", "run.model_dir=gs://b/other").returncode == 2


def test_of_several_launches_the_one_that_runs_and_then_the_newest(tmp_path):
    logs, file = tmp_path / "m" / "logs", job_file(tmp_path)
    done = {"reason": "done", "exit_code": 0}
    write(logs / "1", started=1.0, end=END | done | {"time": 10.0})
    write(logs / "2", started=2.0, end=END | done | {"time": 20.0})
    assert call("status", file, cwd=tmp_path).stdout.startswith("m/logs/2 ")
    write(logs / "3", started=1.5)
    for name in (file, tmp_path / "m"):
        assert call("status", name, cwd=tmp_path).stdout.startswith("m/logs/3 ")
    # In the list: the newest of each model directory, and others that run.
    write(tmp_path / "other" / "logs" / "1", started=3.0, end=END | {"reason": "timeout", "time": time.time()})
    nothing = {"PATH": str(tmp_path)}
    listed = call("status", cwd=tmp_path, env=nothing)
    assert listed.returncode == 1 and [line.split()[0] for line in listed.stdout.splitlines()[1:3]] == [
        "other/logs/1",
        "m/logs/3",
    ]
    assert "1 job that ended more than a week ago: --all" in listed.stdout
    assert "m/logs/2 " in call("status", "--all", cwd=tmp_path, env=nothing).stdout


def test_a_job_file_that_was_also_submitted(tmp_path):
    """The run that was last active is meant, by all commands."""
    file, launch = job_file(tmp_path), write(tmp_path / "m" / "logs" / "1", end=END | {"reason": "done"})
    submission = tmp_path / "m" / "slurm" / "20260101-000000"
    (submission / "run-0" / "attempt-1" / "heartbeats").mkdir(parents=True)
    fields = {"job_id": "7", "name": "small", "tasks": ["worker:0"], "model_dirs": [], "array": None}
    (submission / "submission.json").write_text(json.dumps(fields | {"submitted": 1.0, "stop_seconds": 1.0}))
    os.utime(submission / "submission.json", (1000.0, 1000.0))

    def scheduler() -> str:
        return find_scheduler(reference_of(str(file))).name

    assert scheduler() == "local"  # submitted at 1000, and the launch ended at 2000
    heart = submission / "run-0" / "attempt-1" / "heartbeats" / "n1-5"
    heart.touch()
    os.utime(heart, (3000.0, 3000.0))
    assert scheduler() == "slurm"
    (launch / "launch.json").unlink()
    write(tmp_path / "m" / "logs" / "2")
    assert scheduler() == "local"  # it runs


def test_a_launch_that_has_ended_does_not_hide_a_job_in_kubernetes(tmp_path):
    file = job_file(tmp_path, "kubernetes: {image: example.org/image}")
    write(tmp_path / "m" / "logs" / "1", end=END | {"reason": "done"})
    assert find_scheduler(reference_of(str(file))).name == "kubernetes"
    write(tmp_path / "m" / "logs" / "2")
    assert find_scheduler(reference_of(str(file))).name == "local"
    assert find_scheduler(reference_of(str(file), namespace="x")).name == "kubernetes"


def test_a_launch_of_a_different_machine_is_cancelled_there(tmp_path):
    beat(write(tmp_path / "1", host="n1", model_dir=""))
    done = call("cancel", tmp_path / "1")
    assert done.returncode == 2 and "it was launched on n1" in done.stderr
    done = call("cancel", tmp_path / "1", "--now")
    assert done.returncode == 2 and "kill -KILL PID" in done.stderr


_FAILS = """
import os, sys
print("attempt", os.environ["ESTIMATOR_PIPELINE_ATTEMPT"], flush=True)
raise KeyError("price")
"""


def test_a_launch_that_was_restarted(tmp_path):
    """A real one: its attempts, its failure, its logs."""
    (tmp_path / "program.py").write_text(_FAILS)
    options = ("--workers", 1, "--max-restarts", 1, "--backoff", 0, "--log-dir", "runs/x")
    assert call("launch", *options, "--", sys.executable, "program.py", cwd=tmp_path).returncode == 1
    done = call("status", "runs/x", cwd=tmp_path)
    assert done.returncode == 1 and done.stdout.startswith("runs/x ("), done
    assert "): failed: worker:0: KeyError: 'price' (attempt-2/worker-0.log), " in done.stdout
    assert ", restarted 1 time" in done.stdout.splitlines()[0]
    head, *log = call("logs", "runs/x", "--failed", cwd=tmp_path).stdout.splitlines()
    assert head == "worker:0: KeyError: 'price' (attempt-2/worker-0.log)" and log[0] == "attempt 2"
    assert call("logs", "runs/x", "--task", "worker:0", cwd=tmp_path).stdout.startswith("attempt 2\n")
    whole = call("logs", "runs/x", "--lines", 0, cwd=tmp_path).stdout.splitlines()
    assert [line for line in whole if "attempt" in line] == ["worker:0 | attempt 1", "worker:0 | attempt 2"]
    listed = call("status", "--folder", tmp_path, cwd=tmp_path, env={"PATH": NOTHING}).stdout.splitlines()
    assert listed[1].split()[:2] == ["runs/x", Path(sys.executable).name] or "python" in listed[1]


def test_a_launch_that_ends_while_it_is_looked_at(tmp_path, monkeypatch):
    """The end is recorded before the process is gone: it is not taken for killed."""
    folder = write(tmp_path / "m" / "logs" / "1")

    def ends(pid):
        record = json.loads((folder / "launch.json").read_text())
        (folder / "launch.json").write_text(json.dumps(record | {"end": END | {"reason": "done", "exit_code": 0}}))

    monkeypatch.setattr(records, "_process_start", ends)
    assert LocalScheduler().status(records.Launch(folder), environ={}).jobs[0].state == "DONE"


def test_an_error_of_the_launcher_is_its_end(tmp_path):
    def fail():
        raise ConfigError("no ports", code="launch/cannot-start")

    with pytest.raises(ConfigError):
        records.record_launch(records.Launch(tmp_path / "x", name="small"), fail)
    launch = records.read_launch(tmp_path / "x")
    assert launch.end["reason"] == "failed" and launch.end["exit_code"] == 2 and "no ports" in launch.end["why"]
    assert launch.pid == PID and launch.process_start == START and not launch.is_running


def test_a_launch_that_is_cancelled_before_it_has_tasks(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        records.record_launch(records.Launch(tmp_path / "x"), lambda: os.kill(PID, signal.SIGTERM) or time.sleep(60))
    assert records.read_launch(tmp_path / "x").end["reason"] == "interrupted"
    assert call("status", tmp_path / "x").returncode == 0


@pytest.fixture
def background(tmp_path, monkeypatch):
    """A launch of `submit local`, of a task that logs "one" and waits."""
    monkeypatch.chdir(tmp_path)
    jobs = stub(tmp_path)
    scheduler = LocalScheduler()
    scheduler.submit(scheduler.plan(SubmitRequest(jobs.file, jobs.settings)), environ=jobs.environ)
    jobs.runs()
    yield scheduler.find(reference_of("m", None), environ=jobs.environ)
    jobs.close()


def test_a_launcher_that_is_killed(background):
    folder = str(background.folder)
    assert call("status", folder).returncode == 0
    os.kill(background.pid, signal.SIGKILL)
    deadline = time.monotonic() + 60.0
    while (done := call("status", folder)).returncode == 0:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert f"killed: process {background.pid} is gone" in done.stdout
    assert "has ended already" in call("cancel", folder).stdout
    assert (
        list_jobs(ListRequest(since=time.time() - 60), environ={"PATH": NOTHING}).entries[0].jobs[0].state == "KILLED"
    )


def test_logs_are_followed_to_the_end(background, monkeypatch):
    monkeypatch.setattr("estimator_pipeline.launch.logs.readers._POLL_SECS", 0.05)
    lines: list[str] = []
    request = LogRequest(None, failed=False, follow=True, lines=20, write=lines.append)
    follower = threading.Thread(
        target=LocalScheduler().logs, args=(background, reference_of("m"), request), kwargs={"environ": {}}
    )
    follower.start()
    done = call("cancel", background.folder)
    assert "stopped by SIGTERM; the next launch resumes from the last checkpoint (exit code 75)" in done.stdout
    follower.join(60.0)
    assert not follower.is_alive() and "worker:0 | one" in lines
    assert any(line.startswith("launch") and "preempted after" in line for line in lines)


def test_a_launch_that_does_not_start_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    jobs = stub(tmp_path)
    with (tmp_path / "startup" / "sitecustomize.py").open("a") as startup:
        startup.write('\nif "launch" in sys.orig_argv:\n    print("error: no memory", flush=True)\n    os._exit(2)\n')
    scheduler = LocalScheduler()
    with pytest.raises(ConfigError) as caught:
        scheduler.submit(scheduler.plan(SubmitRequest(jobs.file, jobs.settings)), environ=jobs.environ)
    assert caught.value.code == "launch/cannot-start" and caught.value.found == "error: no memory"
    with contextlib.suppress(FileNotFoundError):
        assert not os.listdir(tmp_path / "m" / "logs")
