"""Tasks whose model directory is not the chief's: found out, and all that is said goes through the chief's server.

The chief's TensorFlow server is a real one, in this process; each task has its own rendezvous.
"""

from __future__ import annotations

import json
import threading
import time
import types

import pytest

from estimator_pipeline import compat
from estimator_pipeline.cluster import parse_tf_config
from estimator_pipeline.engines.core import startup as beginning
from estimator_pipeline.engines.core.rendezvous import files as rendezvous_files
from estimator_pipeline.engines.core.rendezvous import rendezvous as rendezvous_module
from estimator_pipeline.engines.core.rendezvous.files import ChiefsServer
from estimator_pipeline.engines.core.rendezvous.rendezvous import Rendezvous
from estimator_pipeline.engines.core.rendezvous.result_exchange import ResultExchange
from estimator_pipeline.engines.core.stopping import shutdown as farewell
from estimator_pipeline.engines.core.stopping.synchronized_stop import RendezvousChannel
from estimator_pipeline.errors import TaskFailedError
from tests.support.contexts import task_context
from tests.support.processes import free_ports

tf = compat.install()


@pytest.fixture(scope="module")
def jobs():
    """A cluster whose chief has a server, and whose other tasks have none."""
    ports = free_ports(3)
    jobs = {"chief": [f"localhost:{ports[0]}"], "worker": [f"localhost:{ports[1]}"], "ps": [f"localhost:{ports[2]}"]}
    server = tf.distribute.Server(tf.train.ClusterSpec(jobs), job_name="chief", task_index=0)
    yield jobs
    del server


@pytest.fixture
def rendezvous_of(jobs, monkeypatch, tmp_path):
    """`rendezvous_of("worker", "folder")`: the rendezvous of a task in a folder."""
    monkeypatch.setattr(rendezvous_module, "_APART_SECS", 0.1)
    monkeypatch.setattr(rendezvous_module, "_LOOK_SECS", 0.05)

    def make(job, folder, **options):
        tf_config = parse_tf_config({"cluster": jobs, "task": {"type": job, "index": 0}})
        (tmp_path / folder).mkdir(exist_ok=True)
        return Rendezvous(
            str(tmp_path / folder), tf_config=tf_config, environ={}, server=ChiefsServer(tf_config), **options
        )

    return make


def never():
    return False


def wait_for(done, seconds=60):
    deadline = time.monotonic() + seconds
    while not (found := done()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def meet(worker, folder, input_fn=None):
    environ = {"TF_CONFIG": worker.tf_config.to_json()}
    return beginning.meet(task_context(folder, environ=environ, rendezvous=worker, input_fn=input_fn))


def checkpoint_at(folder, step):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("weights", [1000], initializer=tf.compat.v1.ones_initializer())
        session.run(variable.initializer)
        tf.compat.v1.train.Saver().save(session, str(folder / "model.ckpt"), global_step=step)


def test_files_are_read_written_and_copied_where_the_server_runs(jobs, tmp_path, monkeypatch):
    monkeypatch.setattr(rendezvous_files, "_PART_BYTES", 1000)
    server = ChiefsServer(parse_tf_config({"cluster": jobs, "task": {"type": "worker", "index": 0}}))
    server.write(str(tmp_path / "new" / "a [1]\\.json"), "text")
    assert (tmp_path / "new" / "a [1]\\.json").read_text() == "text"
    assert server.read(str(tmp_path / "new" / "a [1]\\.json")) == b"text"
    assert server.read(str(tmp_path / "none")) is None and server.read(str(tmp_path / "new" / "*")) is None
    for size in (0, 1, 999, 1000, 2500):
        (tmp_path / "from").write_bytes(bytes(i % 251 for i in range(size)))
        server.copy(str(tmp_path / "from"), str(tmp_path / "to"), size=size)
        assert (tmp_path / "to").read_bytes() == (tmp_path / "from").read_bytes()


def test_a_server_that_is_not_there_is_told_at_once(jobs):
    gone = {**jobs, "chief": jobs["worker"]}
    gone["worker"] = jobs["chief"]
    server = ChiefsServer(parse_tf_config({"cluster": gone, "task": {"type": "worker", "index": 0}}))
    with pytest.raises(OSError, match="does not answer"):
        server.announced()


def test_a_worker_with_a_folder_of_its_own_hears_and_is_heard(rendezvous_of, tmp_path):
    chief, worker, policies = rendezvous_of("chief", "c"), rendezvous_of("worker", "w"), []
    with chief.attending(), worker.attending():
        chief.publish_status("running", from_step=0, policy="file")
        input_fn = types.SimpleNamespace(with_policy=policies.append)
        assert meet(worker, tmp_path / "w", input_fn).model_dir == str(tmp_path / "w" / "tmp_worker_0")
        assert policies == ["file"], "the shard policy that the run began under"
        assert worker.apart and not chief.apart
        assert chief.apart_tasks() == [worker.tf_config.task]
        worker.report("done", steps=3, records=None)
        done = farewell.reports_of(chief, [worker.tf_config.task], timeout=60)
        assert done["worker:0"].steps == 3
        channel = RendezvousChannel(worker), RendezvousChannel(chief)
        channel[0].post("ask", "worker:0")
        channel[1].post("decision", "7")
        assert (channel[1].wait("ask", 60), channel[0].wait("decision", 60)) == ("worker:0", "7")
        chief.publish_status("finished", global_step=3, checkpoint=None, result_by="chief:0")
        chief.publish({"global_step": 3})
        assert wait_for(worker.result) == {"global_step": 3}
    assert json.loads((tmp_path / "c/estimator_pipeline/tasks/worker-0.json").read_text())["apart"] is True


def test_a_shared_folder_is_used_as_it_is(rendezvous_of, tmp_path):
    """Also where a file system is slow to show what the others write, and the chief has announced its folder."""
    chief, worker, other = rendezvous_of("chief", "c"), rendezvous_of("worker", "c"), rendezvous_of("worker", "w")
    chief.files.announce("a session")
    for each, elsewhere in ((worker, False), (other, True)):
        each.report("here")
        assert each.files.look_elsewhere("tasks/worker-0.json", each._nonce, ended=set()) is elsewhere
    with chief.attending(), worker.attending():
        chief.publish_status("running", from_step=0)
        assert meet(worker, tmp_path / "c").model_dir == str(tmp_path / "c")
        assert not worker.apart and chief.apart_tasks() == []


def test_what_an_earlier_training_has_announced_does_not_last(rendezvous_of, monkeypatch, tmp_path):
    monkeypatch.setattr(rendezvous_files, "_STALE_SECS", 0.2)
    rendezvous_of("chief", "old").files.announce("an earlier session")
    worker = rendezvous_of("worker", "w")
    with worker.attending():
        wait_for(lambda: worker.files.elsewhere == str(tmp_path / "old" / "estimator_pipeline"))
        assert not worker.apart
        chief = rendezvous_of("chief", "new")
        with chief.attending():
            chief.publish_status("running", from_step=0)
            meet(worker, tmp_path / "w")
            assert worker.files.elsewhere == str(tmp_path / "new" / "estimator_pipeline")


def test_the_failure_of_the_chief_is_heard(rendezvous_of, tmp_path):
    chief, worker = rendezvous_of("chief", "c"), rendezvous_of("worker", "w")
    with chief.attending(), worker.attending():
        chief.publish_status("running", from_step=0)
        meet(worker, tmp_path / "w")
        heard = []

        def work():
            with pytest.raises(TaskFailedError, match="the disk is full") as raised:
                worker.wait("something", lambda said: None, timeout=60)
            worker.report_failed(str(raised.value), status="failed", echo=True)
            heard.append(raised.value.caused_by)

        thread = threading.Thread(target=work)
        thread.start()
        chief.publish_failure("the disk is full", status="failed", echo=False)
        farewell.let_hear(task_context(tmp_path / "c", rendezvous=chief))
        thread.join(60)
        assert heard == ["chief:0"]


def test_the_checkpoint_that_training_goes_on_from_comes_from_the_chief(rendezvous_of, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    chief, worker = rendezvous_of("chief", "c"), rendezvous_of("worker", "w")
    checkpoint_at(tmp_path / "c", 40)
    checkpoint_at(tmp_path / "w", 90)  # a copy of another time, which nobody goes on from
    start = beginning.files_of_start(str(tmp_path / "c"))
    assert set(start) == {"model.ckpt-40.index", "model.ckpt-40.data-00000-of-00001"}
    with chief.attending(), worker.attending():
        chief.publish_status("running", from_step=40, start=start)
        context = meet(worker, "w")
        own = context.model_dir
        beginning.fetch_start(context)
        assert beginning.latest_step(own) == 40
        assert tf.train.load_checkpoint(own).get_tensor("weights").sum() == 1000
        # And where the chief has none, neither has the worker.
        chief.publish_status("running", from_step=0, start={})
        beginning.fetch_start(context)
        assert tf.train.latest_checkpoint(own) is None


def test_an_evaluator_with_a_folder_of_its_own_leaves_it_to_the_chief(rendezvous_of, tmp_path, logged):
    chief, evaluator = rendezvous_of("chief", "c", evaluator=True), rendezvous_of("evaluator", "e")
    with chief.attending(), evaluator.attending():
        chief.publish_status("running", from_step=0)
        wait_for(lambda: evaluator.apart)
        results = []
        standing_by = threading.Thread(
            target=lambda: results.append(
                ResultExchange(evaluator, explicit=True, timeout=60).stand_by(str(tmp_path / "e"))
            )
        )
        standing_by.start()
        result_exchange = ResultExchange(chief, explicit=True, timeout=60)
        wait_for(lambda: not result_exchange.is_evaluators())
        chief.publish_status("finished", global_step=3, checkpoint=None, result_by="chief:0")
        chief.publish(
            {"global_step": 3, "metrics": {}, "checkpoint": None, "exports": [], "evaluations": [], "tasks": {}}
        )
        standing_by.join(60)
        assert results[0].global_step == 3
        farewell.wait_until_left(chief, chief.apart_tasks(), timeout=0.0)
    assert "evaluator:0 evaluates nothing" in logged.text and "is not the model_dir of chief:0" in logged.text
