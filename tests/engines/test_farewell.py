"""The end of a job: the chief waits for whoever is there, and for nobody who is not."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import textwrap
import threading

import pytest

from estimator_pipeline.cluster import Task, parse_tf_config
from estimator_pipeline.engines.core.rendezvous.rendezvous import Rendezvous
from estimator_pipeline.engines.core.stopping import shutdown as farewell
from tests.support.processes import environment

WORKERS = {"chief": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"]}
TASKS = (Task("chief"), Task("worker"))


@pytest.fixture
def chief(tmp_path):
    rendezvous = rendezvous_of(tmp_path, "chief")
    with rendezvous.attending():
        rendezvous.publish_status("running")
        rendezvous.report("done", steps=3, records=None)
        yield rendezvous


def rendezvous_of(folder, kind, cluster=None):
    document = {"cluster": cluster or WORKERS, "task": {"type": kind, "index": 0}}
    return Rendezvous(str(folder), tf_config=parse_tf_config(document), environ={})


def test_a_task_in_its_last_step_is_waited_for(chief, tmp_path, monkeypatch):
    """Longer than for one that never came: the limit of that has passed when it reports."""
    monkeypatch.setattr(farewell, "UNMET_SECS", 0.0)
    worker = rendezvous_of(tmp_path, "worker")
    worker.report("here")
    late = threading.Timer(1.0, worker.report, ["done"], {"steps": 2, "records": 64})
    late.start()
    reports = farewell.reports_of(chief, TASKS, timeout=600)
    late.join()
    assert {task: (report.steps, report.records) for task, report in reports.items()} == {
        "chief:0": (3, None),
        "worker:0": (2, 64),
    }


@pytest.mark.parametrize("state", ["never came", "failed"])
def test_whoever_brings_no_report_is_left_out(chief, tmp_path, monkeypatch, logged, state):
    monkeypatch.setattr(farewell, "UNMET_SECS", 0.0)
    if state == "failed":
        worker = rendezvous_of(tmp_path, "worker")
        worker.report("here")
        chief.attend()
        worker.training()
        worker.report_failed("planted", status="failed", echo=False)
    assert list(farewell.reports_of(chief, TASKS, timeout=600)) == ["chief:0"]
    assert ("worker:0 failed: planted" if state == "failed" else "worker:0 has not been seen") in logged.text


def test_a_task_that_has_gone_is_not_waited_for(chief, tmp_path, monkeypatch, logged):
    monkeypatch.setattr("estimator_pipeline.cluster.peers.grace_secs", lambda environ=None: 0.0)
    monkeypatch.setattr("estimator_pipeline.cluster.peers.PeerWatch.INTERVAL_SECS", 0.0)
    worker = rendezvous_of(tmp_path, "worker")
    worker.report("here")
    assert list(farewell.reports_of(chief, TASKS, timeout=600)) == ["chief:0"]
    assert "worker:0 at 127.0.0.1:2 is gone" in logged.text


def test_only_who_came_is_waited_for_to_leave(chief, tmp_path):
    farewell.wait_until_left(chief, TASKS[1:], timeout=0.0)
    worker = rendezvous_of(tmp_path, "worker")
    worker.report("done", steps=1, records=None)
    gone = threading.Event()

    def leave():
        gone.set()
        worker.leave()

    late = threading.Timer(0.5, leave)
    late.start()
    farewell.wait_until_left(chief, TASKS[1:], timeout=600)
    assert gone.is_set()
    late.join()
    assert json.loads((tmp_path / "estimator_pipeline/tasks/worker-0.json").read_text())["state"] == "done"


def test_a_chief_that_was_asked_to_end_waits_for_its_peers_as_well(chief, tmp_path):
    """Its own word ends the others' waits, and none of its own."""
    worker = rendezvous_of(tmp_path, "worker")
    worker.report("preempted")
    chief.publish_status("preempted", by="SIGTERM", checkpoint=None, global_step=0)
    late = threading.Timer(0.5, worker.leave)
    late.start()
    farewell.wait_until_left(chief, TASKS[1:], timeout=600)
    assert chief.task_report(TASKS[1])["left"]
    late.join()


def test_one_that_does_not_come_to_its_end_is_named(chief, tmp_path, logged):
    rendezvous_of(tmp_path, "worker").report("here")
    assert list(farewell.reports_of(chief, TASKS, timeout=0.0)) == ["chief:0"]
    assert "waited 0 s for the report of worker:0, and it did not come; the job ends without it" in logged.text


def test_the_chiefs_process_ends_after_the_last_of_its_peers():
    with socket.create_server(("127.0.0.1", 0)) as peer:
        program = f"""
            from estimator_pipeline.engines.core.stopping import shutdown as farewell
            farewell.end_last({{"worker:1": "127.0.0.1:{peer.getsockname()[1]}"}})
            print("the last line", flush=True)
        """
        chief = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program)], env=environment(), stdout=subprocess.PIPE, text=True
        )
        assert chief.stdout.readline() == "the last line\n"
        # It looks whether its peer is there again and again.
        for _ in range(3):
            peer.settimeout(120)
            with peer.accept()[0] as connection:
                connection.sendall(b"\0")  # as a server that runs
        assert chief.poll() is None
    assert chief.wait(120) == 0
