"""The board: whose files count, how a wait ends, how a peer's death is noticed."""

from __future__ import annotations

import json
import re
import socket
import time

import pytest

from estimator_pipeline.cluster import Task, parse_tf_config
from estimator_pipeline.cluster.peers import PeerWatch
from estimator_pipeline.engines.board import Board
from estimator_pipeline.errors import TaskFailedError, WaitError

DOCUMENT = {"cluster": {"chief": ["a:1"], "worker": ["b:2"]}, "task": {"type": "worker", "index": 0}}
OTHER = {"cluster": {"chief": ["a:9"], "worker": ["b:8"]}, "task": {"type": "worker", "index": 0}}


def board(path, document=DOCUMENT, run_id=None):
    environ = {"ESTIMATOR_PIPELINE_RUN_ID": run_id} if run_id else {}
    return Board(str(path), tf_config=parse_tf_config(document), environ=environ)


def test_files_of_another_run_do_not_count(tmp_path):
    board(tmp_path, run_id="one").write("training.json", {"state": "finished"})
    assert board(tmp_path, run_id="one").training()["state"] == "finished"
    assert board(tmp_path, run_id="two").training() is None
    assert board(tmp_path).training() is None


def test_without_a_run_id_the_cluster_tells_runs_apart(tmp_path):
    board(tmp_path).write("training.json", {"state": "finished"})
    assert board(tmp_path).training() is not None
    assert board(tmp_path, OTHER).training() is None


def test_clear_removes_what_an_earlier_run_left(tmp_path):
    mine = board(tmp_path)
    mine.write("training.json", {"state": "finished"})
    mine.write_task(Task("worker"), state="done", steps=1, records=None)
    mine.clear()
    assert mine.training() is None and mine.task_report(Task("worker")) is None
    # With a run id nothing is removed: another task of this run may have written it already.
    named = board(tmp_path, run_id="x")
    named.write("evaluator.json", {})
    named.clear()
    assert named.read("evaluator.json") is not None


def test_an_end_from_before_is_doubted_until_it_stands(tmp_path, monkeypatch):
    mine = board(tmp_path)
    mine.write("training.json", {"state": "finished"})
    late = board(tmp_path)
    late.doubt_what_is_there(seconds=600)
    assert late.training() is None
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 601)
    assert late.training()["state"] == "finished"


def test_news_end_the_doubt_at_once(tmp_path):
    mine = board(tmp_path)
    mine.write("training.json", {"state": "finished", "global_step": 1})
    late = board(tmp_path)
    late.doubt_what_is_there(seconds=3600)
    mine.write("training.json", {"state": "finished", "global_step": 2})
    assert late.training()["global_step"] == 2


def test_a_file_is_never_seen_in_part(tmp_path):
    mine = board(tmp_path)
    (tmp_path / "estimator_pipeline").mkdir()
    (tmp_path / "estimator_pipeline" / "training.json").write_text('{"state": "fini')
    assert mine.training() is None
    mine.write("training.json", {"state": "running"})
    assert [p.name for p in (tmp_path / "estimator_pipeline").iterdir()] == ["training.json"]


def test_a_wait_says_what_it_waited_for(tmp_path):
    with pytest.raises(WaitError) as error:
        board(tmp_path).wait("the result of the final evaluation", lambda: None, timeout=0.2)
    assert re.search(r"worker:0 waited 0 s for the result of the final evaluation", str(error.value))
    assert str(tmp_path) in str(error.value)


def test_a_wait_ends_when_training_failed(tmp_path):
    mine = board(tmp_path)
    mine.write("training.json", {"state": "failed", "task": "chief:0", "error": "ValueError: planted"})
    with pytest.raises(TaskFailedError, match=r"training failed on chief:0: ValueError: planted"):
        mine.wait("anything", lambda: None, timeout=3600)


def test_a_peer_that_goes_away_is_noticed(monkeypatch):
    monkeypatch.setattr(PeerWatch, "INTERVAL_SECS", 0.05)
    server = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{server.getsockname()[1]}"
    watch = PeerWatch(Task("chief"), address, grace=0.2)
    watch.check("a checkpoint")
    server.close()
    with pytest.raises(WaitError, match=f"chief:0 at {address} is gone.*waited on for a checkpoint"):
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            watch.check("a checkpoint")
            time.sleep(0.02)


def test_a_peer_that_was_never_there_proves_nothing(monkeypatch):
    monkeypatch.setattr(PeerWatch, "INTERVAL_SECS", 0.0)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        watch = PeerWatch(Task("chief"), address, grace=0.0)
        for _ in range(3):
            watch.check("a checkpoint")
        never = PeerWatch(Task("chief"), address, startup=0.0)
        time.sleep(0.01)
        with pytest.raises(WaitError, match=f"chief:0 did not start its server at {address}"):
            never.check("the end of training")


def test_documents_are_plain_json(tmp_path):
    mine = board(tmp_path, run_id="r")
    mine.write("result.json", {"result": {"metrics": {"loss": float("nan")}}})
    text = (tmp_path / "estimator_pipeline" / "result.json").read_text()
    assert json.loads(text)["run_id"] == "r"
