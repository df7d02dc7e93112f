"""Whether the other tasks are there: ports, the first word of a server, and the roll call at the start."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import time

import pytest

from estimator_pipeline.cluster import peers
from estimator_pipeline.cluster.peers import PeerWatch, answers, probe, start_secs
from estimator_pipeline.cluster.start_wait import RollCall
from estimator_pipeline.errors import ConfigError, WaitError
from estimator_pipeline.launch import hold_ports

GRACE_SECS = 0.3

# It speaks to whoever connects, as a server of TensorFlow's does, after so many seconds.
SERVER = """
import socket, sys, time
with socket.create_server(("localhost", 0)) as server:
    print(server.getsockname()[1], flush=True)
    while True:
        connection, _ = server.accept()
        time.sleep(float(sys.argv[1]))
        try:
            connection.sendall(b"settings")
            connection.close()
        except OSError:
            pass  # whoever asked has gone
"""


@contextlib.contextmanager
def server(delay: float = 0.0):
    """A process that speaks, and its address."""
    process = subprocess.Popen([sys.executable, "-c", SERVER, str(delay)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, f"localhost:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(PeerWatch, "INTERVAL_SECS", 0.01)
    monkeypatch.setattr(PeerWatch, "WORD_SECS", GRACE_SECS)
    monkeypatch.setattr(PeerWatch, "FIRST_WORD_SECS", 10.0)


def watched(watch: PeerWatch, seconds: float) -> None:
    """Looks at a peer for so long, or until it counts as gone."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        watch.check("the next step")
        time.sleep(0.02)


def test_a_stopped_process_is_told_from_one_that_is_there(quick):
    """The kernel takes connections for it: nobody ever noticed that it stood still."""
    with server() as (process, address):
        watch = PeerWatch("worker:1", address, grace=GRACE_SECS)
        watch.check("the next step")
        process.send_signal(signal.SIGSTOP)
        assert answers(address)
        with pytest.raises(
            WaitError, match=f"worker:1 at {address} hangs: its port accepts connections, but its process"
        ):
            watched(watch, 60)
        process.send_signal(signal.SIGCONT)
        watched(watch, 2 * GRACE_SECS)
        assert watch.silent_secs < GRACE_SECS


def test_a_process_that_is_slow_is_there(quick, monkeypatch):
    monkeypatch.setattr(PeerWatch, "WORD_SECS", 10.0)
    with server(delay=0.2) as (_, address):
        watched(PeerWatch("worker:1", address, grace=0.1), 0.8)


def test_one_word_that_is_missed_is_none_yet(monkeypatch):
    """On a machine that is busy; the grace may be short."""
    given = [(True, True), (True, False), (True, True)]
    monkeypatch.setattr(peers, "probe", lambda address, **options: given.pop(0) if given else (True, False))
    monkeypatch.setattr(PeerWatch, "INTERVAL_SECS", 0.0)
    watch = PeerWatch("worker:1", "host:1", grace=0.0)
    for _ in range(4):
        watch.check("the next step")
    with pytest.raises(WaitError, match="hangs"):
        watch.check("the next step")


def test_a_port_of_another_kind_is_taken_as_it_is(quick, monkeypatch):
    """It never says a word, as a proxy does not: then its connections count, and nobody waits for more."""
    monkeypatch.setattr(PeerWatch, "FIRST_WORD_SECS", 0.05)
    monkeypatch.setattr(PeerWatch, "INTERVAL_SECS", 0.1)
    with socket.create_server(("localhost", 0), backlog=128) as listening:
        address = f"localhost:{listening.getsockname()[1]}"
        watch = PeerWatch("ps:0", address, grace=GRACE_SECS)
        watched(watch, 3 * GRACE_SECS)
        assert watch.silent_secs < GRACE_SECS
        assert probe(address, word=0.05) == (True, False)


@pytest.mark.parametrize("given", ["0", "-1", "soon", "inf", "nan"])
def test_the_seconds_of_a_start_are_checked(given):
    with pytest.raises(ConfigError, match=f"ESTIMATOR_PIPELINE_START_SECS='{given}'"):
        start_secs({"ESTIMATOR_PIPELINE_START_SECS": given})


def test_the_seconds_of_a_start():
    assert start_secs({}) == 1800.0
    assert start_secs({"ESTIMATOR_PIPELINE_START_SECS": "90"}) == 90.0


def test_a_roll_call_names_who_is_missing():
    with hold_ports(2) as held, server() as (_, there):
        addresses = [f"localhost:{port}" for port in held.ports]
        calls = RollCall(
            "worker:2",
            {"worker:0": addresses[0], "worker:1": there, "worker:3": addresses[1]},
            leader="worker:0",
            seconds=1000.0,
        )
        assert not calls.due
        line = calls.poll()
        missing = f"nothing answers at the port of worker:0 ({addresses[0]}), worker:3 ({addresses[1]}); "
        assert line.startswith("worker:2 has waited 0 s for the other tasks to join: " + missing)
        assert "worker:0 leads the cluster, and no task can join without it" in line and "worker:1" not in line
        assert "timeout 1000 s, ESTIMATOR_PIPELINE_START_SECS" in line


def test_a_roll_call_ends():
    with hold_ports(1) as held:
        calls = RollCall("worker:0", {"worker:1": f"localhost:{held.ports[0]}"}, seconds=1e-9)
        assert calls.due
        with pytest.raises(WaitError) as error:
            calls.poll()
    assert f"worker:1 (localhost:{held.ports[0]}) did not" in str(error.value)
    assert "run.start_timeout_secs" in str(error.value) and "ESTIMATOR_PIPELINE_START_SECS" in str(error.value)
    assert error.value.caused_by == "worker:1" and error.value.exit_code == 1


def test_a_roll_call_tells_what_is_known_when_all_answer(monkeypatch):
    monkeypatch.setattr("estimator_pipeline.cluster.start_wait._WORD_SECS", 0.05)
    with server() as (_, there), socket.create_server(("localhost", 0)) as listening:
        calls = RollCall("worker:0", {"worker:1": there}, seconds=1000.0)
        assert "all tasks answer at their ports, but not all have joined" in calls.poll()
        calls = RollCall("worker:0", {"worker:1": f"localhost:{listening.getsockname()[1]}"}, seconds=1000.0)
        assert "accepts connections, but its process sends nothing" in calls.poll() and not calls.missing


def test_a_roll_call_is_due_once_a_minute(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("estimator_pipeline.cluster.start_wait.time.monotonic", lambda: now[0])
    with hold_ports(1) as held:
        calls = RollCall("worker:0", {"worker:1": f"localhost:{held.ports[0]}"}, seconds=1000.0)
        for _ in range(3):
            now[0] += 59.0
            assert not calls.due
            now[0] += 1.5
            assert calls.due
            calls.poll()
            now[0] -= 0.5
