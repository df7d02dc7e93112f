"""`stacks JOB`: where each task of a running job stands, asked for without ending it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from estimator_pipeline.launch.stacks import requests as stack_requests
from estimator_pipeline.progress.progress_file import (
    HEARTBEAT_FOLDER_VARIABLE,
    HEARTBEAT_VARIABLE,
    PROGRESS_VARIABLE,
    ProgressWriter,
    start_heartbeat,
    stop_heartbeat,
)
from estimator_pipeline.progress.stack_dumps import FOLDER, REQUEST, StackDumps
from tests.support.command_line import call

ROOT = Path(__file__).resolve().parents[2]
HOST, PID = socket.gethostname(), os.getpid()
JOB = """
name: small
model: {{name: linear}}
input: {{source: tfds, name: digits, global_batch_size: 32}}
train: {{max_steps: 10}}
run: {{model_dir: {model_dir}}}
"""


def _until(condition):
    deadline = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.01)


@pytest.fixture
def beating():
    """Makes this process a task, with a folder of heartbeats one of several of a command."""

    def start(progress: Path, folder: Path | None = None) -> None:
        progress.parent.mkdir(parents=True, exist_ok=True)
        environ = {PROGRESS_VARIABLE: str(progress), HEARTBEAT_VARIABLE: "0.02"}
        assert start_heartbeat(environ | ({} if folder is None else {HEARTBEAT_FOLDER_VARIABLE: str(folder)}))
        _until(lambda: any(progress.parent.glob("*.heartbeat")) or any(progress.parent.glob("heartbeats/*")))

    yield start
    stop_heartbeat()


@pytest.fixture
def waiting():
    """A thread of this process that waits in a function of a name of its own."""
    over = threading.Event()

    def waits_for_godot():
        over.wait()

    thread = threading.Thread(target=waits_for_godot)
    thread.start()
    yield
    over.set()
    thread.join()


def test_each_request_is_answered_once(tmp_path):
    dumps, answer = StackDumps(tmp_path, "worker-0"), tmp_path / FOLDER / "worker-0"
    dumps.poll()
    assert not list(tmp_path.iterdir()), "nobody has asked"
    for _ in range(2):
        (tmp_path / "new").touch()
        (tmp_path / "new").replace(tmp_path / REQUEST)
        # As the thread of the heartbeats does, which leaves itself out.
        looks = threading.Thread(target=dumps.poll)
        looks.start()
        looks.join()
        head, text = answer.read_text().split("\n", 1)
        assert head == f"{HOST}-{PID}" and "in test_each_request_is_answered_once" in text
        answer.unlink()
        dumps.poll()
        assert not answer.exists()
    assert not list((tmp_path / FOLDER).iterdir()), "nothing half-written is left"


def test_what_cannot_be_written_is_no_harm_and_is_tried_again(tmp_path):
    (tmp_path / REQUEST).touch()
    (tmp_path / FOLDER).touch()
    dumps = StackDumps(tmp_path, "worker-0")
    dumps.poll()
    StackDumps(tmp_path / "nowhere", "worker-0").poll()
    (tmp_path / FOLDER).unlink()
    dumps.poll()
    assert (tmp_path / FOLDER / "worker-0").exists()


def test_the_tasks_of_a_launch(tmp_path, beating, waiting):
    progress = tmp_path / "logs" / "attempt-2" / "worker-0.progress.jsonl"
    beating(progress)
    (tmp_path / "logs" / "attempt-1").mkdir()
    done = call("stacks", tmp_path / "logs")
    assert done.returncode == 0, done.stderr
    first, _, head, _, *stacks = done.stdout.splitlines()
    own = ROOT / "tests" / "support" / "command_line.py"
    assert first.startswith(f"worker:0 (process {PID} on {HOST}) is at {own}, line "), first
    assert head == f"==> worker:0 (process {PID} on {HOST})"
    assert any(" in waits_for_godot" in line for line in stacks)
    assert not any("progress/stack_dumps.py" in line for line in stacks), "the thread that answers is left out"
    done = call("stacks", tmp_path / "logs", "--brief", "--task", "worker:0")
    assert done.stdout.startswith("worker:0 (") and "Thread" not in done.stdout
    done = call("stacks", tmp_path / "logs", "--task", "worker:1")
    assert done.returncode == 2 and "running tasks: worker:0" in done.stderr


def test_the_tasks_of_srun_are_named_by_rank_until_they_tell_their_names(tmp_path, beating):
    folder = tmp_path / "model" / "slurm" / "20260101-000000"
    attempt = folder / "run-1" / "attempt-1"
    beating(attempt / "command.progress.jsonl", attempt / "heartbeats")
    (folder / "run-0").mkdir()
    record = {"job_id": "7", "name": "small", "tasks": ["chief:0", "worker:0"], "model_dirs": [], "array": None}
    (folder / "submission.json").write_text(json.dumps(record | {"submitted": 1.0, "stop_seconds": 1.0}))
    job = tmp_path / "job.yaml"
    job.write_text(JOB.format(model_dir=tmp_path / "model"))
    for target in (folder, job):
        done = call("stacks", target, "--brief", env={"SLURM_PROCID": "1"})
        assert done.returncode == 0 and done.stdout.startswith(f"worker:0 (process {PID} on {HOST}) is at "), done


NAMES = ("worker:0", "worker:1")
_TASK = """
import os, sys, time
from estimator_pipeline.progress.progress_file import from_environ, heartbeat_of, start_heartbeat
assert start_heartbeat(os.environ)
from_environ(os.environ).emit("start", task=sys.argv[1], process=heartbeat_of("").name)
time.sleep(600)
"""


def test_one_that_is_stopped_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(stack_requests, "_MISSED_SECS", 0.5)
    (tmp_path / "task.py").write_text(_TASK)
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        PROGRESS_VARIABLE: str(tmp_path / "command.progress.jsonl"),
        HEARTBEAT_VARIABLE: "0.02",
        HEARTBEAT_FOLDER_VARIABLE: str(tmp_path / "heartbeats"),
    }
    tasks = [subprocess.Popen([sys.executable, tmp_path / "task.py", name], env=environ) for name in NAMES]
    try:
        _until(lambda: (tmp_path / "command.progress.jsonl").exists())
        _until(lambda: (tmp_path / "command.progress.jsonl").read_text().count('"start"') == 2)
        heads = [f"{name} (process {one.pid} on {HOST})" for name, one in zip(NAMES, tasks, strict=True)]
        lines = [f"{head} is at {tmp_path / 'task.py'}, line 6, in <module>" for head in heads]
        done = call("stacks", tmp_path, "--brief")
        assert (done.returncode, done.stdout.splitlines()) == (0, lines)
        os.kill(tasks[1].pid, signal.SIGSTOP)
        done = call("stacks", tmp_path, "--timeout", 0.6)
        assert done.returncode == 1
        first, second, _, head = done.stdout.splitlines()[:4]
        assert (first, head) == (lines[0], f"==> {heads[0]}")
        assert second.startswith(f"{heads[1]} did not answer within 0.6 s, nor send heartbeats: it is suspended")
        assert f"==> {heads[1]}" not in done.stdout, "what it has answered before is of then"
        # One that was killed leaves its file behind.
        tasks[1].kill()
        tasks[1].wait()
        assert call("stacks", tmp_path, "--brief").stdout.splitlines() == lines[:1]
    finally:
        for one in tasks:
            one.kill()
            one.wait()


def test_a_job_of_which_no_task_runs(tmp_path):
    progress, heart = tmp_path / "worker-0.progress.jsonl", tmp_path / "worker-0.heartbeat"
    progress.touch()
    done = call("stacks", tmp_path)
    assert done.returncode == 2 and "none has started its training yet, or they do not run this package" in done.stderr
    heart.touch()
    os.utime(heart, (1.0, 1.0))
    done = call("stacks", tmp_path)
    assert done.returncode == 2 and "s old: the tasks were killed, or are suspended" in done.stderr
    ProgressWriter(progress).emit("start", task="worker:0", process=f"{HOST}-{PID}")
    ProgressWriter(progress).emit("result")
    done = call("stacks", tmp_path)
    assert done.returncode == 2 and "found: all of them have ended" in done.stderr
    assert not (tmp_path / REQUEST).exists()


def test_one_that_ends_meanwhile_is_not_waited_for(tmp_path):
    (tmp_path / "command.progress.jsonl").touch()
    (tmp_path / "heartbeats").mkdir()
    heart = tmp_path / "heartbeats" / "elsewhere-17"
    heart.touch()

    def end():
        _until(lambda: (tmp_path / REQUEST).exists())
        time.sleep(0.1)  # it has been seen
        heart.unlink()

    task = threading.Thread(target=end)
    task.start()
    done = call("stacks", tmp_path, "--timeout", 300)
    task.join()
    assert done.returncode == 2 and "found: all of them have ended" in done.stderr


def test_a_job_file_by_which_nothing_runs_here(tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text(JOB.format(model_dir=tmp_path / "model"))
    done = call("stacks", job)
    assert done.returncode == 2 and "nothing was launched or submitted with this job file" in done.stderr
    job.write_text(job.read_text() + "kubernetes: {image: example.org/image}\n")
    done = call("stacks", job)
    assert done.returncode == 2 and "kubectl exec POD -- sh -c 'estimator-pipeline stacks " in done.stderr


def test_every_launch_asks_for_heartbeats_unless_a_supervisor_listens_to_them_already(tmp_path):
    for environ, asked in (({}, "2"), ({HEARTBEAT_FOLDER_VARIABLE: str(tmp_path)}, None)):
        done = call("launch", "--dry-run", "--json", "--", "true", env=environ)
        tasks = json.loads(done.stdout)["tasks"]
        assert [one["environ"].get(HEARTBEAT_VARIABLE) for one in tasks] == [asked] * 2


_PROGRAM = """
import os, sys, time
import estimator_pipeline as ep
import model_fns
tf = ep.compat.install()

def slow():
    for n in range(40):
        while n == 8 and not os.path.exists(sys.argv[1]):
            time.sleep(0.05)  # here it stands
        yield [float(n)] * 4, n % 2

def input_fn():
    specs = (tf.TensorSpec([4], tf.float32), tf.TensorSpec([], tf.int64))
    return tf.data.Dataset.from_generator(slow, output_signature=specs).batch(2)

estimator = tf.estimator.DNNClassifier([4], [tf.feature_column.numeric_column("x", [4])], model_dir=sys.argv[2])
train = lambda: input_fn().map(lambda x, y: ({"x": x}, y))
ep.train_and_evaluate(estimator, tf.estimator.TrainSpec(train, max_steps=20), tf.estimator.EvalSpec(train, steps=1))
"""


@pytest.mark.nightly
def test_a_generator_that_stands_still_is_shown_and_the_job_goes_on(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    launcher = subprocess.Popen(
        [sys.executable, "-m", "estimator_pipeline", "launch", "--chief", "--workers", "0", "--timeout", "200",
         "--log-dir", tmp_path / "logs", "--", sys.executable, program, tmp_path / "go", tmp_path / "model"],
        env=environ, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        line = _PROGRAM.splitlines().index("            time.sleep(0.05)  # here it stands") + 1
        deadline = time.monotonic() + 120.0
        while True:
            done = call("stacks", tmp_path / "logs", "--brief")
            if f" is at {program}, line " in done.stdout and f"{line}, in slow" in done.stdout:
                break
            assert time.monotonic() < deadline and launcher.poll() is None, done
            time.sleep(0.2)
        (tmp_path / "go").touch()
        assert launcher.wait(120) == 0
    finally:
        launcher.kill()
        launcher.wait()
