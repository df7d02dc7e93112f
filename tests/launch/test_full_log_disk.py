"""A log folder on a full disk: tasks that go on are no hung tasks, and what they told is not lost for ever."""

from __future__ import annotations

import errno
import functools
import json
import os
import pickle
import random
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from estimator_pipeline.launch import LaunchShape, RestartLimits, TaskTimeouts, new_run_id, supervise_local
from estimator_pipeline.launch.local import task as running
from estimator_pipeline.launch.local.task import WriteProbe
from estimator_pipeline.launch.local.timeouts import TaskMonitor
from estimator_pipeline.progress.progress_file import (
    HEARTBEAT_VARIABLE,
    PROGRESS_VARIABLE,
    ProgressReader,
    ProgressWriter,
    _outbox_of,
    start_heartbeat,
    stop_heartbeat,
)
from tests.support.processes import ROOT


def _full(*_: object):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _told(path):
    return [(event["event"], event.get("step")) for event in ProgressReader(path).read()]


# What a task tells ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["nothing", "half"])
def test_what_found_no_room_is_written_when_there_is_some(tmp_path, monkeypatch, how):
    path, write = tmp_path / "worker-0.progress.jsonl", os.write
    writer = ProgressWriter(path)
    writer.emit("start")
    with monkeypatch.context() as disk:
        disk.setattr(os, "write", _full if how == "nothing" else lambda target, line: write(target, line[:7]))
        for step in range(1, 2000):
            writer.emit("step", step=step)
        writer.emit("checkpoint", step=1999)
        writer.emit("step", step=2000)
    assert _told(path) == [("start", None)]
    writer.emit("trained")
    # Of steps in a row the last one is enough.
    assert _told(path) == [("start", None), ("step", 1999), ("checkpoint", 1999), ("step", 2000), ("trained", None)]


def test_a_task_that_tells_nothing_more_is_heard_by_its_heartbeat(tmp_path, monkeypatch):
    """As a chief that has trained and waits: its last word was lost, and must not be."""
    path = tmp_path / "worker-0.progress.jsonl"
    writer = ProgressWriter(path)
    with monkeypatch.context() as disk:
        disk.setattr(os, "write", _full)
        writer.emit("trained")
    assert _told(path) == []
    assert start_heartbeat({PROGRESS_VARIABLE: str(path), HEARTBEAT_VARIABLE: "0.01"})
    try:
        deadline = time.monotonic() + 240.0
        while not _told(path):
            assert time.monotonic() < deadline, "it did not come"
            time.sleep(0.01)
    finally:
        stop_heartbeat()
    assert _told(path) == [("trained", None)]


def test_a_child_does_not_write_what_its_parent_could_not(tmp_path, monkeypatch):
    path = tmp_path / "events"
    writer = ProgressWriter(path)
    with monkeypatch.context() as disk:
        disk.setattr(os, "write", _full)
        writer.emit("start")
    child = os.fork()
    if child == 0:
        pickle.loads(pickle.dumps(writer)).emit("step", step=1)
        os._exit(0)
    os.waitpid(child, 0)
    assert _told(path) == [("step", 1)]
    writer.emit("step", step=2)
    assert _told(path) == [("step", 1), ("start", None), ("step", 2)]


@pytest.fixture
def switching():
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def _within(seconds, *bodies):
    """Runs each in a thread of its own, and fails where one does not end in time."""
    threads = [threading.Thread(target=body, daemon=True) for body in bodies]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    assert not any(thread.is_alive() for thread in threads), f"not done within {seconds:g} s"


@pytest.mark.parametrize("seed", range(5))
def test_threads_that_write_at_once_lose_no_line_and_double_none(tmp_path, monkeypatch, switching, seed):
    """Training and whoever hears a signal tell, and the heartbeat sends what is kept, while the disk has room at times:
    a line finds none, or room for a part of it."""
    path, write, chance, count = tmp_path / "worker-0.progress.jsonl", os.write, random.Random(seed), 300
    writer = ProgressWriter(path)

    def short(target, line):
        found = chance.random()
        if found < 0.3:
            _full()
        return write(target, line[: chance.randrange(len(line))] if found < 0.6 else line)

    def tell(name):
        for number in range(count):
            writer.emit("export", path=f"{name} {number}")

    over = threading.Event()

    def beat():
        while not over.is_set():
            _outbox_of(path).send()

    heart = threading.Thread(target=beat, daemon=True)
    with monkeypatch.context() as disk:
        disk.setattr(os, "write", short)
        heart.start()
        try:
            _within(240.0, *(functools.partial(tell, name) for name in ("training", "preemption")))
        finally:
            over.set()
            heart.join(240.0)
    _within(60.0, _outbox_of(path).send)
    told = [event["path"].split() for event in ProgressReader(path).read()]
    for name in ("training", "preemption"):
        # Once each, and in the order in which they were told.
        assert [int(number) for whose, number in told if whose == name] == list(range(count))


def test_a_step_takes_the_place_of_a_step_only(tmp_path, monkeypatch, switching):
    """Where the last line that is kept is a step when one thread looks, another may have told something by then."""
    path = tmp_path / "worker-0.progress.jsonl"
    writer = ProgressWriter(path)

    def steps():
        for step in range(1, 5001):
            writer.emit("step", step=step)

    def exports():
        for number in range(400):
            writer.emit("export", path=str(number))

    with monkeypatch.context() as disk:
        disk.setattr(os, "write", _full)
        _within(240.0, steps, exports)
    _within(60.0, _outbox_of(path).send)
    told = ProgressReader(path).read()
    assert [event["path"] for event in told if event["event"] == "export"] == [str(number) for number in range(400)]
    kept = [event["step"] for event in told if event["event"] == "step"]
    assert kept == sorted(set(kept)) and kept[-1] == 5000


def test_a_line_that_lacked_its_end_only_is_not_written_twice(tmp_path, monkeypatch):
    path, write = tmp_path / "worker-0.progress.jsonl", os.write
    writer = ProgressWriter(path)
    with monkeypatch.context() as disk:
        disk.setattr(os, "write", lambda target, line: write(target, line[:-1]))
        writer.emit("export", path="/m/1")
    reader = ProgressReader(path)
    assert reader.read() == [], "a line without its end may be a part of one"
    _outbox_of(path).send()
    assert [event["path"] for event in reader.read()] == ["/m/1"]
    writer.emit("trained")
    assert [event["event"] for event in reader.read()] == ["trained"]


def test_what_a_signals_handler_tells_amid_a_line_comes_after_it(tmp_path, monkeypatch):
    """It runs in the thread that writes, whose lock must not stand in its way."""
    path, write = tmp_path / "worker-0.progress.jsonl", os.write
    writer, handlers = ProgressWriter(path), [lambda: writer.emit("heartbeat", preempting="SIGTERM")]

    def interrupted(target, line):
        if handlers:
            handlers.pop()()
        return write(target, line)

    monkeypatch.setattr(os, "write", interrupted)
    _within(60.0, functools.partial(writer.emit, "step", step=1))
    assert _told(path) == [("step", 1), ("heartbeat", None)]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_line_amid_which_training_is_interrupted_is_not_lost(tmp_path, monkeypatch, when):
    """A signal's handler raises wherever the main thread is. Whether the line was written nobody knows then."""
    path, write = tmp_path / "worker-0.progress.jsonl", os.write
    writer = ProgressWriter(path)

    def interrupted(target, line):
        if when == "after":
            write(target, line)
        raise KeyboardInterrupt

    with monkeypatch.context() as signals, pytest.raises(KeyboardInterrupt):
        signals.setattr(os, "write", interrupted)
        writer.emit("step", step=1)
    _within(60.0, functools.partial(writer.emit, "trained"))
    steps = [("step", 1)] * (2 if when == "after" else 1)
    assert _told(path) == [*steps, ("trained", None)]


# What the launcher makes of it ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["nothing", "half"])
def test_a_folder_without_room(tmp_path, monkeypatch, how):
    room, write = WriteProbe(tmp_path), os.write
    assert room.check(0.0) is None
    monkeypatch.setattr(os, "write", _full if how == "nothing" else lambda target, data: write(target, data[:9]))
    assert room.check(0.5) is None, "once a second is enough"
    found = room.check(1.5)
    assert found is not None and found.errno == errno.ENOSPC
    monkeypatch.setattr(os, "write", write)
    assert room.check(2.0) is found and room.check(2.5) is None
    assert list(tmp_path.iterdir()) == [], "nothing is left of the looks"


def test_a_folder_that_is_gone(tmp_path):
    found = WriteProbe(tmp_path / "gone").check(0.0)
    assert found is not None and found.errno == errno.ENOENT


_ALL = TaskTimeouts(step=10.0, heartbeat=20.0)


def _monitor(*said, foreign=False):
    monitor = TaskMonitor(trains=True, foreign=foreign, now=0.0)
    for when, what in said:
        monitor.grew(when) if what == "log" else monitor.event(what, when)
    return monitor


@pytest.mark.parametrize(
    ("monitor", "allowed", "what"),
    [
        (_monitor((5.0, "start"), (6.0, "step")), _ALL, "step"),
        (_monitor((5.0, "start")), _ALL, "first step"),
        (_monitor((5.0, "start")), TaskTimeouts(start=10.0), "first step"),
        (_monitor((5.0, "log"), foreign=True), TaskTimeouts(step=10.0), "step"),
    ],
)
def test_a_silence_counts_from_when_there_is_room_again(monitor, allowed, what):
    assert monitor.timed_out(5000.0, allowed).kind == what
    monitor.unwritable(5000.0, heartbeats=False)
    assert monitor.timed_out(5000.0, allowed) is None and monitor.timed_out(5005.0, allowed.early) is None
    found = monitor.timed_out(9000.0, allowed)
    assert (found.kind, found.seconds) == (what, 4000.0)


def test_heartbeats_take_no_room():
    """A full disk leaves them, and a stopped process is noticed. A folder that is gone does not."""
    monitor = _monitor((5.0, "step"), (5.0, "heartbeat"))
    monitor.unwritable(100.0, heartbeats=False)
    assert monitor.timed_out(101.0, _ALL).kind == "heartbeat"
    monitor.unwritable(100.0, heartbeats=True)
    assert monitor.timed_out(101.0, _ALL) is None
    monitor.event("result", 101.0)
    assert monitor.timed_out(160.0, _ALL) is None and monitor.timed_out(161.0, _ALL).kind == "end"


def test_half_of_each_deadline_is_when_to_look():
    assert TaskTimeouts(10.0, 100.0, 20.0).early == TaskTimeouts(5.0, 50.0, 10.0)
    assert TaskTimeouts(step=10.0, start=0.0).early == TaskTimeouts(step=5.0, start=0.0)
    assert not TaskTimeouts().early


# From its second step on the task finds no room in its log folder, as the launcher finds none, until the file "room".
_PROGRAM = """
import errno, os, sys, time
from pathlib import Path
here = Path(sys.argv[1])
from estimator_pipeline.progress import progress_file as progress
writer = progress.from_environ(os.environ)
assert progress.start_heartbeat(os.environ)
writer.emit("start")
writer.emit("step", step=1, steps=1)
write = os.write
def full(target, data):
    if (here / "room").exists():
        return write(target, data)
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
os.write = full
(here / "full").touch()
step = 1
until = None
while until is None or time.monotonic() < until:
    step += 1
    writer.emit("step", step=step, steps=step)
    time.sleep(0.02)
    if until is None and (here / "told").exists():
        (here / "room").touch()
        until = time.monotonic() + 0.4
(here / "last").write_text(str(step))
writer.emit("trained")
writer.emit("result", global_step=step)
"""


def test_a_healthy_task_on_a_full_disk_is_not_hung(tmp_path, monkeypatch):
    """It makes steps for some deadlines long, and nobody can read them. The launcher says so, once."""
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(_PROGRAM))
    try_it, looks = WriteProbe._try, []

    def tried(room):
        if not (tmp_path / "full").exists() or (tmp_path / "room").exists():
            return try_it(room)
        looks.append(time.monotonic())
        if looks[-1] - looks[0] > 1.1:
            (tmp_path / "told").touch()  # more than two deadlines long
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(WriteProbe, "_try", tried)
    monkeypatch.setattr(running, "_PROBE_SECS", 0.2)
    outcome = supervise_local(
        [sys.executable, str(program), str(tmp_path)],
        shape=LaunchShape(workers=1),
        log_dir=tmp_path / "logs",
        run_id=new_run_id(),
        limits=RestartLimits(max_restarts=1, backoff=0.01),
        foreign=False,
        timeouts=TaskTimeouts(step=0.5, heartbeat=120.0),
        timeout=240.0,
    )
    assert [(one.reason, one.why) for one in outcome.attempts] == [("done", "done")]
    assert looks
    (note,) = [note for note in outcome.notes if "cannot be written" in note]
    assert note == (
        f"warning: {tmp_path / 'logs' / 'attempt-1'} cannot be written to (No space left on device), so that tasks "
        "cannot report progress: no timeout for steps until it can"
    )
    assert outcome.tasks[0].step == int((tmp_path / "last").read_text())
    assert json.loads((tmp_path / "logs" / "summary.json").read_text())["reason"] == "done"


def test_a_training_that_has_ended_has_not_failed_for_want_of_room():
    """Its output, which a launcher writes to the same disk as its steps, is lost, and nothing else."""
    code = "from estimator_pipeline.cli.train import _print_result\n_print_result('12 steps')\n_print_result('again')\n"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, cwd=ROOT
        )
    assert done.returncode == 0, done.stderr
    assert "Training is complete, but its result cannot be written to standard output: No space" in done.stderr
