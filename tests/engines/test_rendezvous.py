"""The rendezvous: whose files count, how a wait ends, how a peer's death is noticed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import time
from pathlib import Path

import pytest

from estimator_pipeline.cluster import Task, parse_tf_config
from estimator_pipeline.cluster.peers import PeerWatch
from estimator_pipeline.engines.core.rendezvous import rendezvous as rendezvous_module
from estimator_pipeline.engines.core.rendezvous.rendezvous import Rendezvous, raise_if_over
from estimator_pipeline.engines.core.stopping import shutdown
from estimator_pipeline.errors import TaskFailedError, WaitError
from tests.support.contexts import task_context

pytestmark = pytest.mark.tf  # the rendezvous writes with tf.io.gfile

DOCUMENT = {"cluster": {"chief": ["a:1"], "worker": ["b:2"]}, "task": {"type": "worker", "index": 0}}
OTHER = {"cluster": {"chief": ["a:9"], "worker": ["b:8"]}, "task": {"type": "worker", "index": 0}}


def rendezvous(path, document=DOCUMENT, run_id=None, max_steps=None):
    environ = {"ESTIMATOR_PIPELINE_RUN_ID": run_id} if run_id else {}
    return Rendezvous(str(path), tf_config=parse_tf_config(document), environ=environ, max_steps=max_steps)


CHIEF = {**DOCUMENT, "task": {"type": "chief", "index": 0}}
EVALUATOR = {**DOCUMENT, "task": {"type": "evaluator", "index": 0}}
WITH_PS = {"chief": ["a:1"], "worker": ["b:2"], "ps": ["c:3"]}


def ends(chief, step=10, by="chief:0"):
    chief.publish_status("finished", global_step=step, checkpoint=f"model.ckpt-{step}", result_by=by)


@contextlib.contextmanager
def late(monkeypatch, seconds):
    """In the block, it is so many seconds later."""
    now = time.monotonic
    with monkeypatch.context() as later:
        later.setattr(time, "monotonic", lambda: now() + seconds)
        yield


def test_files_of_another_run_do_not_count(tmp_path):
    worker, other = rendezvous(tmp_path, run_id="one"), rendezvous(tmp_path, run_id="two")
    for each in (worker, other):
        each.report("here")
    rendezvous(tmp_path, CHIEF, run_id="two").publish_status("running")
    assert worker.training() is None
    assert other.training()["state"] == "running"
    assert not worker.is_unanswered(), "it is known to be another run's"


def test_without_a_run_id_the_cluster_tells_runs_apart(tmp_path):
    worker, other = rendezvous(tmp_path), rendezvous(tmp_path, OTHER)
    rendezvous(tmp_path, CHIEF).publish_status("running")
    assert worker.is_unanswered() and not other.is_unanswered()


@pytest.mark.parametrize("run_id", [None, "the same"])
@pytest.mark.parametrize("greets_first", [True, False])
def test_only_the_chief_that_answers_is_this_runs(tmp_path, run_id, greets_first):
    """A run id may come twice: a manifest with a fixed one, two calls in one program."""
    old = rendezvous(tmp_path, CHIEF, run_id=run_id)
    rendezvous(tmp_path, run_id=run_id).report("here")
    with old.attending():
        ends(old, step=5)
        old.publish({"global_step": 5})
    worker = rendezvous(tmp_path, run_id=run_id)
    if greets_first:
        worker.report("here")
    assert worker.training() is None and worker.is_unanswered() and worker.result() is None
    chief = rendezvous(tmp_path, CHIEF, run_id=run_id)
    with chief.attending():
        chief.publish_status("running")
        if not greets_first:
            worker.report("here")
        chief.attend()
        assert worker.training()["state"] == "running"
        assert worker.result() is None, "the one that is there is of the run before"
        ends(chief, step=20)
        chief.publish({"global_step": 20})
    assert worker.finished()["global_step"] == 20 and worker.result() == {"global_step": 20}


def test_reports_of_an_earlier_run_are_none_of_this(tmp_path):
    old, chief = rendezvous(tmp_path, CHIEF), rendezvous(tmp_path, CHIEF)
    gone = rendezvous(tmp_path)
    with old.attending(), gone.attending():
        old.publish_status("running")
        gone.training()
        gone.report("done", steps=1, records=None)
        assert old.task_report(Task("worker"))["steps"] == 1
    with chief.attending():
        chief.publish_status("running")
        assert chief.task_report(Task("worker")) is None
        assert not chief.has_met(Task("worker"))
        # One that came before its chief is believed as soon as it has heard the answer.
        here = rendezvous(tmp_path)
        here.report("here")
        chief.attend()
        here.training()
        here.report("done", steps=2, records=None)
        assert chief.task_report(Task("worker"))["steps"] == 2


def test_a_task_answers_while_it_is_at_something_else(tmp_path):
    """Evaluators evaluate and workers train: neither looks at the rendezvous then."""
    chief, evaluator = rendezvous(tmp_path, CHIEF), rendezvous(tmp_path, EVALUATOR)
    with evaluator.attending(), chief.attending():
        chief.publish_status("running")
        deadline = time.monotonic() + 120
        while not chief.has_met(Task("evaluator")) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert chief.has_met(Task("evaluator"))


@pytest.mark.parametrize(
    ("own", "step", "stands"),
    [({"max_steps": 10}, 10, True), ({"max_steps": 20}, 10, False), ({"max_steps": 10}, 4, True), ({}, 10, False)],
)
def test_an_end_that_nobody_answers_for_stands_if_it_is_what_this_training_comes_to(
    tmp_path, monkeypatch, own, step, stands
):
    chief = rendezvous(tmp_path, CHIEF, max_steps=10)
    ends(chief, step=step)
    evaluator = rendezvous(tmp_path, EVALUATOR, **own)
    assert evaluator.training() is None and evaluator.is_unanswered()
    with late(monkeypatch, 59):
        assert evaluator.training() is None and evaluator.is_unanswered()
    with late(monkeypatch, 61):
        assert (evaluator.training() is not None) is stands
        assert not evaluator.answered and not evaluator.is_unanswered()


@pytest.mark.parametrize(("run_id", "max_steps", "leaves"), [("a", 10, True), ("a", 11, False), (None, 10, False)])
def test_a_parameter_server_that_comes_after_the_end(tmp_path, run_id, max_steps, leaves):
    """It serves no task; without a run ID the end may be that of an earlier run."""
    ends(rendezvous(tmp_path, {**CHIEF, "cluster": WITH_PS}, run_id=run_id), step=10)
    document = {"cluster": WITH_PS, "task": {"type": "ps", "index": 0}}
    server = rendezvous(tmp_path, document, run_id=run_id, max_steps=max_steps)
    assert (server.training() is not None) == leaves == (not server.is_unanswered())


@pytest.mark.parametrize("state", ["running", "failed", "preempted"])
def test_no_other_word_stands_unanswered(tmp_path, monkeypatch, state):
    rendezvous(tmp_path, CHIEF).publish_status(state, error="x", status="failed", echo=False)
    evaluator = rendezvous(tmp_path, EVALUATOR)
    evaluator.training()
    with late(monkeypatch, 3600):
        assert evaluator.training() is None
        raise_if_over(evaluator.training(), evaluator.tf_config.task)


def failed(chief):
    said = chief.read("training.json")
    return said["state"], said.get("task"), said.get("error")


def test_the_first_cause_of_a_failure_is_kept(tmp_path):
    """A worker that loses its connection to a chief without memory tells of it before the chief does."""
    chief, worker = rendezvous(tmp_path, CHIEF), rendezvous(tmp_path)
    with chief.attending(), worker.attending():
        chief.publish_status("running")
        worker.training()
        worker.report_failed("Socket closed", status="failed", echo=True)
        worker.report_failed("something after it", status="failed", echo=False)
        chief.attend()
        assert failed(chief) == ("failed", "worker:0", "Socket closed"), "a worker's failure is that of training"
        chief.publish_failure("out of memory", status="failed", echo=False)
        assert failed(chief) == ("failed", "chief:0", "out of memory")
        chief.publish_failure("another", status="failed", echo=False)
        assert failed(chief) == ("failed", "chief:0", "out of memory")


def test_what_another_task_told_goes_before_what_followed_from_it(tmp_path):
    chief, worker = rendezvous(tmp_path, CHIEF), rendezvous(tmp_path)
    with worker.attending():
        chief.publish_status("running")
        worker.training()
        worker.report_failed("ArithmeticError: planted", status="diverged", echo=False)
        chief.publish_failure("Collective ops is aborted", status="failed", echo=True)
    assert failed(chief) == ("failed", "worker:0", "ArithmeticError: planted")


def test_a_restarted_task_does_not_end_by_its_own_old_failure(tmp_path):
    chief, worker = rendezvous(tmp_path, CHIEF), rendezvous(tmp_path)
    with chief.attending(), worker.attending():
        chief.publish_status("running")
        worker.training()
        worker.report_failed("planted", status="failed", echo=False)
        chief.attend()
    with pytest.raises(TaskFailedError, match="planted"):
        raise_if_over(worker.training(), worker.tf_config.task)
    again, chief = rendezvous(tmp_path), rendezvous(tmp_path, CHIEF)
    with again.attending(), chief.attending():
        chief.publish_status("running")
        chief.attend()
        raise_if_over(again.training(), again.tf_config.task)
        assert again.training()["state"] == "running"


def test_asynchronous_training_goes_on_without_a_worker_that_failed(tmp_path):
    chief = rendezvous(tmp_path, {"cluster": WITH_PS, "task": CHIEF["task"]})
    worker = rendezvous(tmp_path, {"cluster": WITH_PS, "task": DOCUMENT["task"]})
    server = rendezvous(tmp_path, {"cluster": WITH_PS, "task": {"type": "ps", "index": 0}})
    with chief.attending(), worker.attending(), server.attending():
        chief.publish_status("running")
        worker.training()
        worker.report_failed("planted", status="failed", echo=False)
        chief.attend()
        raise_if_over(server.training(), server.tf_config.task)
        assert server.training()["state"] == "running"


def test_a_file_is_never_seen_in_part(tmp_path):
    mine = rendezvous(tmp_path)
    (tmp_path / "estimator_pipeline").mkdir()
    (tmp_path / "estimator_pipeline" / "training.json").write_text('{"state": "fini')
    assert mine.training() is None
    mine.write("training.json", {"state": "running"})
    assert [p.name for p in (tmp_path / "estimator_pipeline").iterdir()] == ["training.json"]


def test_a_look_reads_each_file_once(tmp_path, monkeypatch):
    """They may lie on a network file system, and every task looks several times a second."""
    chief, worker = rendezvous(tmp_path, CHIEF), rendezvous(tmp_path)
    with worker.attending():
        chief.publish_status("running")
        worker.attend()
    read = []
    for each in (chief, worker):
        monkeypatch.setattr(each, "read_any", lambda name, of=each: read.append(name) or Rendezvous.read_any(of, name))
    chief.attend()
    assert sorted(read) == ["tasks/evaluator-0.json", "tasks/worker-0.json"]
    read.clear()
    assert worker.wait("the chief's word", lambda said: said and said["state"], timeout=60) == "running"
    assert read == ["training.json"]


def test_what_killed_processes_left_of_their_files_is_removed(tmp_path):
    chief = rendezvous(tmp_path, CHIEF)
    chief.write("tasks/worker-0.json", {"state": "here"})
    old, young, own = (
        os.path.join(chief.directory, name)
        for name in ("tasks/worker-0.json.host.1.0.tmp", "training.json.host.2.7.tmp", "notes.txt")
    )
    for path in (old, young, own):
        Path(path).write_text("{")
    for path in (old, own):
        os.utime(path, (time.time() - 2 * 24 * 3600,) * 2)
    with rendezvous(tmp_path).attending():
        assert Path(old).exists(), "the chief does it"
    with chief.attending():
        assert [Path(path).exists() for path in (old, young, own)] == [False, True, True]


def word(path):
    return (path / "estimator_pipeline" / "training.json").read_text()


@pytest.mark.parametrize("run_ids", [("first", "second"), (None, None)])
def test_a_chief_that_may_not_train_here_tells_its_own_tasks_only(tmp_path, monkeypatch, run_ids):
    """Another job does: its word stands, and a task of it goes on, also where nothing tells the two jobs apart."""
    monkeypatch.setattr(rendezvous_module, "_MET_SECS", 0.5)  # the time that a refusal stands before it counts
    first, second = run_ids
    chief, worker = rendezvous(tmp_path, CHIEF, run_id=first), rendezvous(tmp_path, run_id=first)
    with chief.attending(), worker.attending():
        chief.publish_status("running")
        _until(lambda: worker.training() is not None)
        before = word(tmp_path)
        refused = rendezvous(tmp_path, CHIEF, run_id=second)
        if second is not None:
            waiting = rendezvous(tmp_path, run_id=second)
            waiting.report("here")
        refused.publish_refusal("another job trains here")
        assert word(tmp_path) == before
        with late(monkeypatch, 3600.0):
            assert worker.training()["state"] == "running"
    if second is not None:
        with pytest.raises(TaskFailedError, match="training failed on chief:0: another job trains here") as error:
            waiting.wait("the end", lambda said: None, timeout=60)
        assert error.value.caused_by == "chief:0"
        # Started again it is another one.
        again = rendezvous(tmp_path, run_id=second)
        again.report("here")
        assert again.training() is None
        with late(monkeypatch, 3600.0):
            assert again.training() is None


def test_a_chief_that_trains_has_the_time_to_answer_before_a_refusal_counts(tmp_path, monkeypatch):
    worker = rendezvous(tmp_path)
    worker.report("here")
    rendezvous(tmp_path, CHIEF).publish_refusal("another job trains here")
    assert worker.training() is None
    rendezvous(tmp_path, CHIEF).publish_status("running")
    assert worker.training()["state"] == "running"
    with late(monkeypatch, 3600.0):
        assert worker.training()["state"] == "running"


def _until(condition):
    deadline = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.02)


def test_a_wait_says_what_it_waited_for(tmp_path):
    with pytest.raises(WaitError) as error:
        rendezvous(tmp_path).wait("the result of the final evaluation", lambda said: None, timeout=0.2)
    assert re.search(r"worker:0 waited 0 s for the result of the final evaluation", str(error.value))
    assert str(tmp_path) in str(error.value)


def test_a_wait_ends_when_training_failed(tmp_path):
    chief, mine = rendezvous(tmp_path, CHIEF), rendezvous(tmp_path)
    mine.report("here")
    chief.publish_failure("ValueError: planted", status="failed", echo=False)
    with pytest.raises(TaskFailedError, match=r"training failed on chief:0: ValueError: planted") as error:
        mine.wait("anything", lambda said: None, timeout=3600)
    assert error.value.caused_by == "chief:0"


@pytest.mark.parametrize("strategy", [None, "a strategy"])
def test_a_worker_that_comes_after_the_chief_has_failed(tmp_path, monkeypatch, strategy):
    """The chief waits for the workers that a strategy has connected to it; without one they may never come."""
    chief, mine = rendezvous(tmp_path, CHIEF), rendezvous(tmp_path)
    chief.publish_failure("ValueError: planted", status="failed", echo=False)
    looks, errors = [], []
    attend = chief.attend

    def attended():
        looks.append(attend())
        if len(looks) == 2:
            mine.report("here")
        if len(looks) > 2 and not errors:
            with pytest.raises(TaskFailedError, match="planted") as error:
                mine.wait("anything", lambda status: None, timeout=60)
            errors.append(error.value)

    monkeypatch.setattr(chief, "attend", attended)
    context = task_context(tmp_path, environ={"TF_CONFIG": json.dumps(CHIEF)}, rendezvous=chief, strategy=strategy)
    shutdown.let_hear(context)
    assert (len(looks), len(errors)) == ((1, 0) if strategy is None else (3, 1))


def test_a_wait_counts_anew_with_each_word_of_the_chiefs(tmp_path, monkeypatch):
    """The chief has waited for the evaluator as long as the others for the result: it only begins to evaluate."""
    chief, mine = rendezvous(tmp_path, CHIEF), rendezvous(tmp_path)
    mine.report("here")
    ends(chief, by="evaluator:0")
    clock = [time.monotonic()]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    looks = []

    def look(said=None):
        looks.append(1)
        clock[0] += 50
        if len(looks) == 2:
            ends(chief, by="chief:0")
        return "there" if len(looks) == 4 else None

    assert mine.wait("the result", look, timeout=140, poll=0) == "there"
    with pytest.raises(WaitError):
        mine.wait("the result", lambda said: look() and None, timeout=140, poll=0)


def test_a_peer_that_goes_away_is_noticed(monkeypatch):
    monkeypatch.setattr(PeerWatch, "INTERVAL_SECS", 0.05)
    server = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{server.getsockname()[1]}"
    watch = PeerWatch(Task("chief"), address, grace=0.2)
    watch.check("a checkpoint")
    server.close()
    with pytest.raises(WaitError, match=f"chief:0 at {address} is gone.*waited for a checkpoint"):
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
    mine = rendezvous(tmp_path, run_id="r")
    mine.write("result.json", {"result": {"metrics": {"loss": float("nan")}}})
    text = (tmp_path / "estimator_pipeline" / "result.json").read_text()
    assert json.loads(text)["run_id"] == "r"
