"""Who brings the result, and that all tasks end with the same one: the lives of a chief and of an evaluator, whole.

Training and evaluation are stubs that end when a test lets them; the rendezvous, its files and the waits are real.
"""

from __future__ import annotations

import json
import threading
import time
import types

import pytest

from estimator_pipeline import compat
from estimator_pipeline.cluster.resolution import RUN_ID_VARIABLE
from estimator_pipeline.engines.core import roles
from estimator_pipeline.engines.core.backend import TrainingOutcome
from estimator_pipeline.engines.core.options import TrainOptions
from estimator_pipeline.engines.core.rendezvous import rendezvous
from estimator_pipeline.engines.core.roles import run_task
from estimator_pipeline.engines.model_dir import lock
from estimator_pipeline.errors import ConfigError, TaskFailedError
from estimator_pipeline.progress import progress_file as progress_protocol
from tests.support.contexts import task_context

tf = compat.install()

CHIEF = {"type": "worker", "index": 0}
EVALUATOR = {"type": "evaluator", "index": 0}
TOLD = {"ESTIMATOR_PIPELINE_EVALUATOR": "1"}


class Spec:
    throttle_secs = start_delay_secs = 0
    exporters = ()


class StubEngine:
    """An engine whose training writes one checkpoint, and whose evaluation gives what `metrics` does."""

    def __init__(self, metrics):
        self._metrics, self.evaluated = metrics, []

    def train(self, context, stop):
        checkpoint = tf.train.Checkpoint(v=tf.Variable(1.0))
        manager = tf.train.CheckpointManager(checkpoint, context.model_dir, max_to_keep=5, checkpoint_name="model.ckpt")
        manager.save(checkpoint_number=7)
        return TrainingOutcome(steps=7, data_ended=False)

    def server(self, context):
        raise AssertionError("no parameter server")

    def evaluator(self, context):
        self.exported = types.SimpleNamespace(model_dir=context.model_dir)
        return self

    def metrics_of(self, checkpoint):
        self.evaluated.append(checkpoint)
        return {"global_step": 7, **self._metrics()}

    def write_final(self, checkpoint):
        return []

    def close(self):
        pass


class Life:
    """A task with that engine."""

    def __init__(self, folder, task, *, metrics, environ=(), cluster=None, **options):
        document = {"task": task} if cluster is None else {"task": task, "cluster": cluster}
        environ = {"TF_CONFIG": json.dumps(document), **dict(environ)}
        self.engine = StubEngine(metrics)
        options = TrainOptions(**options)
        self.context = task_context(folder, environ=environ, options=options, max_steps=7, eval_spec=Spec)

    def live(self):
        return run_task(self.context, self.engine)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Those who have met look at each other's files more often."""
    monkeypatch.setattr(rendezvous, "_MET_SECS", 0.5)


@pytest.fixture
def start():
    """Starts a life in a thread: gives a call that waits for its result, or for the error that it ended with."""
    threads = []

    def begin(life):
        ended = {}

        def live():
            try:
                ended["result"] = life.live()
            except Exception as error:
                ended["error"] = error

        thread = threading.Thread(target=live, daemon=True)
        thread.start()
        threads.append(thread)

        def end():
            thread.join(300)
            assert not thread.is_alive(), "it does not come to its end"
            if "error" in ended:
                raise ended["error"]
            return ended["result"]

        return end

    yield begin
    for thread in threads:
        thread.join(20)


def word(folder):
    path = folder / "estimator_pipeline" / "training.json"
    return json.loads(path.read_text()) if path.exists() else {"state": None}


def wait_until(condition):
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.02)


def test_an_evaluator_that_comes_after_the_end_brings_the_result(tmp_path, start):
    chief = start(Life(tmp_path, CHIEF, environ=TOLD, metrics=lambda: {"loss": 1.0}))
    wait_until(lambda: word(tmp_path)["state"] == "finished")
    evaluator = start(Life(tmp_path, EVALUATOR, environ=TOLD, metrics=lambda: {"loss": 2.0}))
    assert chief() == evaluator()
    assert (chief().evaluated_by, chief().metrics["loss"]) == ("evaluator:0", 2.0)
    assert chief().tasks["worker:0"].steps == 7, "the chief has added what the tasks say"


def test_an_evaluator_that_sees_the_model_directory_elsewhere(tmp_path, start):
    (tmp_path / "there").mkdir()
    (tmp_path / "here").symlink_to(tmp_path / "there")
    chief = start(Life(tmp_path / "there", CHIEF, environ=TOLD, metrics=dict))
    life = Life(tmp_path / "here", EVALUATOR, environ=TOLD, metrics=lambda: {"loss": 2.0})
    evaluator = start(life)
    assert chief() == evaluator()
    assert life.engine.evaluated == [str(tmp_path / "here" / "model.ckpt-7")]


def test_nobody_told_of_an_evaluator_that_comes_too_late(tmp_path, start):
    """It takes the result of the chief, which had said that it would bring it itself."""
    go = threading.Event()

    def slow():
        go.wait(300)
        return {"loss": 1.0}

    chief = start(Life(tmp_path, CHIEF, metrics=slow))
    wait_until(lambda: word(tmp_path)["state"] == "finished")
    evaluator = start(Life(tmp_path, EVALUATOR, metrics=lambda: {"loss": 2.0}))
    wait_until(lambda: "evaluator:0" in word(tmp_path).get("answers", {}))
    go.set()
    assert chief() == evaluator()
    assert evaluator().evaluated_by == "worker:0"


def test_an_evaluator_out_of_the_chiefs_reach_waits_for_its_result(tmp_path, start, monkeypatch):
    """A chief that trains alone has no server at the address that TF_CONFIG gives it: its silence proves nothing."""
    monkeypatch.setattr("estimator_pipeline.cluster.peers.grace_secs", lambda environ=None: 0.0)
    monkeypatch.setattr("estimator_pipeline.cluster.peers.PeerWatch.INTERVAL_SECS", 0.0)
    monkeypatch.setattr("estimator_pipeline.cluster.peers.PeerWatch.FIRST_INTERVAL_SECS", 0.0)
    looked, go = [], threading.Event()

    def silent(address, **options):
        looked.append(address)
        return False, False

    monkeypatch.setattr("estimator_pipeline.cluster.peers.probe", silent)

    def slow():
        go.wait(300)
        return {"loss": 1.0}

    cluster = {"chief": ["127.0.0.1:1"]}
    no = {"ESTIMATOR_PIPELINE_EVALUATOR": "0"}
    chief = start(Life(tmp_path, {"type": "chief", "index": 0}, cluster=cluster, environ=no, metrics=slow))
    evaluator = start(Life(tmp_path, EVALUATOR, cluster=cluster, environ=no, metrics=lambda: {"loss": 2.0}))
    wait_until(lambda: word(tmp_path)["state"] == "finished" and "evaluator:0" in word(tmp_path)["answers"])
    looked.clear()
    wait_until(lambda: len(looked) > 5)
    go.set()
    assert chief() == evaluator()
    assert evaluator().evaluated_by == "chief:0"


def test_a_chief_that_has_waited_too_long_and_an_evaluator_that_still_comes(tmp_path, start):
    """Both evaluate; there is one result."""
    slow = threading.Event()

    def evaluate():
        slow.wait(300)
        return {"loss": 2.0}

    evaluator = start(Life(tmp_path, EVALUATOR, environ=TOLD, metrics=evaluate))
    chief = start(Life(tmp_path, CHIEF, environ=TOLD, metrics=lambda: {"loss": 1.0}, result_timeout=0.5))
    wait_until((tmp_path / "estimator_pipeline" / "result.json").exists)
    slow.set()
    assert chief() == evaluator()
    assert evaluator().evaluated_by == "worker:0" and evaluator().task == "evaluator:0"


def test_the_chief_evaluates_where_the_evaluator_failed(tmp_path, start, logged):
    def fails():
        raise ArithmeticError("planted")

    evaluator = start(Life(tmp_path, EVALUATOR, environ=TOLD, metrics=fails))
    chief = start(Life(tmp_path, CHIEF, environ=TOLD, metrics=lambda: {"loss": 1.0}))
    assert chief().evaluated_by == "worker:0"
    assert "evaluator:0 failed: ArithmeticError: planted; the chief evaluates" in logged.text
    with pytest.raises(ArithmeticError):
        evaluator()


def test_an_evaluator_that_failed_before_the_chief_started(tmp_path, start, logged):
    """A restarted job has nothing left to train, and its evaluator fails at once."""
    environ = {**TOLD, RUN_ID_VARIABLE: "second"}
    evaluator = Life(tmp_path, EVALUATOR, environ=environ, metrics=dict)
    evaluator.context.rendezvous.report_failed("ArithmeticError: planted", status="failed", echo=False)
    chief = start(Life(tmp_path, CHIEF, environ=environ, metrics=lambda: {"loss": 1.0}))
    assert chief().evaluated_by == "worker:0"
    assert "evaluator:0 failed: ArithmeticError: planted; the chief evaluates" in logged.text


def test_an_evaluator_that_the_launcher_does_not_start_again(tmp_path, start, logged):
    environ = {**TOLD, progress_protocol.PROGRESS_VARIABLE: str(tmp_path / "worker-0.progress.jsonl")}
    chief = start(Life(tmp_path, CHIEF, environ=environ, metrics=lambda: {"loss": 1.0}))
    wait_until(lambda: word(tmp_path)["state"] == "finished")
    progress_protocol.given_up_path(tmp_path / "worker-0.progress.jsonl", "evaluator:0").touch()
    assert chief().evaluated_by == "worker:0"
    (line,) = [line for line in logged.records if "the launcher does not start it again" in line.getMessage()]
    assert line.levelname == "INFO"  # the launcher has reported the failure


def test_a_final_evaluation_that_fails_is_told(tmp_path, start):
    """Nobody waits for a result that will not come."""
    go = threading.Event()

    def fails():
        go.wait(300)
        raise ArithmeticError("planted")

    chief = start(Life(tmp_path, CHIEF, environ={"ESTIMATOR_PIPELINE_EVALUATOR": "0"}, metrics=fails))
    evaluator = start(Life(tmp_path, EVALUATOR, metrics=lambda: {"loss": 2.0}))
    wait_until(lambda: "evaluator:0" in word(tmp_path).get("answers", {}))
    go.set()
    with pytest.raises(TaskFailedError, match="training failed on worker:0: ArithmeticError: planted"):
        evaluator()
    with pytest.raises(ArithmeticError):
        chief()


def test_the_evaluator_of_a_job_that_may_not_train_here_ends_with_it(tmp_path, start, monkeypatch):
    """It would wait for checkpoints otherwise, or evaluate those of the job that does."""
    monkeypatch.setattr(lock, "WAIT_SECS", 0.1)
    environ = {**TOLD, "ESTIMATOR_PIPELINE_RUN_ID": "second"}
    with lock.hold(str(tmp_path), owner="chief:0", run_id="first"):
        evaluator = start(Life(tmp_path, EVALUATOR, environ=environ, metrics=dict))
        wait_until((tmp_path / "estimator_pipeline" / "tasks" / "evaluator-0.json").exists)
        chief = start(Life(tmp_path, CHIEF, environ=environ, metrics=dict))
        with pytest.raises(ConfigError, match="another job trains in"):
            chief()
        with pytest.raises(TaskFailedError, match=r"training failed on worker:0: another job trains in"):
            evaluator()
    assert word(tmp_path) == {"state": None}, "which is the other job's to write"


def test_twice_in_one_place_with_one_run_id(tmp_path, start):
    environ = {**TOLD, RUN_ID_VARIABLE: "fixed"}
    for loss in (1.0, 2.0):
        evaluator = start(Life(tmp_path, EVALUATOR, environ=environ, metrics=lambda loss=loss: {"loss": loss}))
        chief = start(Life(tmp_path, CHIEF, environ=environ, metrics=dict))
        assert chief() == evaluator()
        assert evaluator().metrics["loss"] == loss


@pytest.mark.parametrize(
    ("environ", "cluster", "given", "told"),
    [
        ({}, None, None, None),
        (TOLD, None, None, True),
        ({"ESTIMATOR_PIPELINE_EVALUATOR": "0"}, None, None, False),
        ({"ESTIMATOR_PIPELINE_EVALUATOR": "0"}, None, True, True),
        ({}, {"worker": ["a:1"], "evaluator": ["b:2"]}, None, True),
        (TOLD, None, False, False),
    ],
)
def test_who_says_whether_there_is_an_evaluator(tmp_path, environ, cluster, given, told):
    """A chief that knows of one leaves the checkpoints of a run in progress to it as well."""
    life = Life(tmp_path, CHIEF, metrics=dict, environ=environ, cluster=cluster, evaluator=given)
    assert life.context.results.is_evaluators() is bool(told)
    assert life.context.evaluates_during_training is not bool(told)


def test_what_says_neither_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"ESTIMATOR_PIPELINE_EVALUATOR='yes'.*\n.*\n?.*\"1\" or \"0\""):
        Life(tmp_path, CHIEF, metrics=dict, environ={"ESTIMATOR_PIPELINE_EVALUATOR": "yes"})


def test_a_chief_that_gives_up_publishes_only_where_it_trains(tmp_path):
    """While it waits for the lock, the status is that of the job that holds it, whose tasks would end as well."""
    context = task_context(tmp_path, environ={"TF_CONFIG": json.dumps({"task": CHIEF})})
    last_word = roles._reactions(context).last_word
    last_word(context.preemption.error("it did not stop"))
    assert word(tmp_path)["state"] is None
    with lock.hold(str(tmp_path), owner="worker:0", run_id="r"):
        last_word(context.preemption.error("it did not stop"))
    assert word(tmp_path)["state"] == "preempted"


def test_a_task_with_nothing_left_to_train_no_longer_waits_for_the_others(tmp_path, monkeypatch):
    """No step has ended that wait; a stop request in its final evaluation has the usual time."""
    cluster = {"chief": ["localhost:1"], "ps": ["localhost:2"]}
    life = Life(tmp_path, {"type": "chief", "index": 0}, cluster=cluster, metrics=dict)
    preemption, reasons = life.context.preemption, []
    monkeypatch.setattr(preemption, "give_up", reasons.append)
    roles._train(life.context, life.engine)
    preemption.seconds = 0.0
    preemption._wait_for_end()
    assert reasons == ["it did not stop within 0 s"]
