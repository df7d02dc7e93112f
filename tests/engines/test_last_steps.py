"""With parameter servers the chief's last checkpoint has the steps that the others make after its own last one."""

from __future__ import annotations

import threading
import time
import types

import pytest

from estimator_pipeline import compat
from estimator_pipeline.cluster import parse_tf_config
from estimator_pipeline.engines.core.options import TrainOptions
from estimator_pipeline.engines.core.rendezvous.rendezvous import Rendezvous
from estimator_pipeline.engines.core.stopping.shutdown import last_steps_hook
from tests.support.contexts import task_context
from tests.support.processes import free_ports

tf = compat.install()
v1 = tf.compat.v1


@pytest.fixture
def rendezvous_pair(tmp_path):
    """The chief's, which attends, and that of a worker which trains."""
    jobs = {job: [f"localhost:{port}"] for job, port in zip(("chief", "worker", "ps"), free_ports(3), strict=True)}
    chief, worker = (
        Rendezvous(
            str(tmp_path), tf_config=parse_tf_config({"cluster": jobs, "task": {"type": job, "index": 0}}), environ={}
        )
        for job in ("chief", "worker")
    )
    with chief.attending():
        chief.publish_status("running")
        worker.report("here")
        yield chief, worker


def last_checkpoint(
    chief, folder, *, waits, batches=2, stop_at=None, asked=lambda: False, stop_others=None, timeout=60.0
):
    """The name of the checkpoint of a chief that trains two steps.

    Args:
        chief: its rendezvous.
        folder: for checkpoints.
        waits: called with a function that makes steps of the others, when the chief waits for them.
        batches: how many data the chief has.
        stop_at: its `max_steps`.
        asked: gives whether it was asked to end.
        stop_others: called then, until the others have stopped.
        timeout: its `result_timeout`.
    """
    held = {}

    class Held(v1.train.SessionRunHook):
        def after_create_session(self, session, coord):
            held["session"] = session

    def step_by(count):
        held["session"].run(held["others"], {held["count"]: count})

    class Asked:
        asked = property(lambda self: asked())

    context = task_context(
        folder,
        environ={"TF_CONFIG": chief.tf_config.to_json()},
        options=TrainOptions(result_timeout=timeout),
        rendezvous=chief,
        preemption=Asked(),
        progress=types.SimpleNamespace(emit=lambda event: waits(step_by)),
    )
    hook = last_steps_hook(context, types.SimpleNamespace(after_step=lambda steps: stop_others()))
    with tf.Graph().as_default():
        step = v1.train.create_global_step()
        data = v1.data.make_one_shot_iterator(tf.data.Dataset.range(1, 1 + batches)).get_next()
        with tf.control_dependencies([data]):
            train_op = step.assign_add(1)
        held["count"] = v1.placeholder(tf.int64, [])
        held["others"] = step.assign_add(held["count"])
        hooks = [Held(), hook, *([v1.train.StopAtStepHook(last_step=stop_at)] if stop_at else [])]
        with v1.train.MonitoredTrainingSession(
            checkpoint_dir=str(folder), hooks=hooks, save_checkpoint_steps=100, save_checkpoint_secs=None
        ) as session:
            while not session.should_stop():
                session.run(train_op)
    return [path.rpartition("-")[2] for path in tf.train.get_checkpoint_state(str(folder)).all_model_checkpoint_paths]


@pytest.mark.parametrize("case", [{}, {"stop_at": 2, "batches": 5}], ids=["data ended", "max_steps"])
def test_the_last_checkpoint_has_the_steps_of_all(rendezvous_pair, tmp_path, case):
    chief, worker = rendezvous_pair

    def waits(step_by):
        def train():
            step_by(3)
            worker.report("done", steps=3, records=None)

        threading.Timer(0.1, train).start()

    assert last_checkpoint(chief, tmp_path, waits=waits, **case)[-1] == "5"


def test_checkpoints_are_written_meanwhile(rendezvous_pair, tmp_path):
    """An evaluator waits for them, and a job that fails goes on from them."""
    chief, worker = rendezvous_pair

    def waits(step_by):
        def train():
            step_by(200)
            # Written: the chief waits for this task.
            while not list(tmp_path.glob("model.ckpt-202.index")):
                time.sleep(0.05)
            step_by(1)
            worker.report("done", steps=201, records=None)

        threading.Thread(target=train).start()

    assert last_checkpoint(chief, tmp_path, waits=waits)[-2:] == ["202", "203"]


def test_a_worker_that_makes_no_step_any_more_is_not_waited_for(rendezvous_pair, tmp_path, logged):
    chief, _ = rendezvous_pair
    assert last_checkpoint(chief, tmp_path, waits=lambda step_by: None, timeout=0.5)[-1] == "2"
    assert "not all workers have left training" in logged.text


@pytest.mark.parametrize("during", [True, False])
def test_a_job_that_is_asked_to_end_is_not_waited_for(rendezvous_pair, tmp_path, during):
    """But until the others stand still, whose steps are in its checkpoint."""
    chief, _ = rendezvous_pair
    asked, still = threading.Event(), []
    if not during:
        asked.set()
    found = last_checkpoint(
        chief,
        tmp_path,
        waits=lambda step_by: asked.set(),
        asked=asked.is_set,
        stop_others=lambda: still.append("still"),
    )
    assert found[-1] == "2" and still == ["still"]
