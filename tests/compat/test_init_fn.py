"""Workers of a parameter-server cluster begin when the chief's init_fn has filled the variables, and not before."""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from estimator_pipeline import compat
from estimator_pipeline.compat.internals import sessions
from estimator_pipeline.compat.patches.init_fn import _PREPARING, _PreparationStatus
from estimator_pipeline.launch import hold_ports

tf = compat.install()
v1 = tf.compat.v1
DEADLINE_SECS = 60.0


@pytest.fixture(scope="module")
def targets():
    """The tasks of a cluster, all in this process: name -> target of its sessions."""
    jobs = {"chief": 1, "worker": 1, "ps": 1}
    with hold_ports(len(jobs)) as held:
        cluster = {job: [f"localhost:{port}"] for job, port in zip(jobs, held.ports, strict=True)}
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TF_GRPC_REUSE_PORT", "1")
            servers = {job: tf.distribute.Server(cluster, job_name=job, task_index=0) for job in jobs}
        yield {job: server.target for job, server in servers.items()}


@pytest.fixture
def task(targets, request):
    """`task(job, kind, init_fn)`: the value of the weight that a task finds when its session stands.

    The chief calls `init_fn()` before it fills the weight. The session is a MonitoredTrainingSession, or that of a
    Supervisor.
    """

    def run(job, kind, init_fn=None):
        chief = job == "chief"
        settings = v1.ConfigProto(device_filters=["/job:ps", f"/job:{job}"])
        with (
            tf.Graph().as_default() as graph,
            v1.device(v1.train.replica_device_setter(1, worker_device=f"/job:{job}")),
        ):
            # The server keeps the variables of one test for the next.
            weight = v1.get_variable(re.sub(r"\W", "_", request.node.name), initializer=0.0)
            twice = weight * 2
            if kind == "monitored":
                # A Supervisor initializes those whether the weight is there or not.
                twice = v1.Variable(twice, collections=[v1.GraphKeys.LOCAL_VARIABLES], name=job)
            step, fill = v1.train.create_global_step(), weight.assign(7.0)

            def fills(session):
                init_fn()
                session.run(fill)

            given = fills if init_fn else None
            if kind == "supervisor":
                supervisor = v1.train.Supervisor(
                    graph, is_chief=chief, init_fn=given, global_step=step, summary_op=None, recovery_wait_secs=0.1
                )
                with supervisor.prepare_or_wait_for_session(
                    targets[job], settings, max_wait_secs=DEADLINE_SECS
                ) as session:
                    return session.run([weight, twice])
            scaffold = v1.train.Scaffold(init_fn=given and (lambda _, session: given(session)))
            with v1.train.MonitoredTrainingSession(
                targets[job], chief, scaffold=scaffold, config=settings, max_wait_secs=DEADLINE_SECS
            ) as session:
                return session.run([weight, twice])

    with sessions.short_waits():
        yield run


@pytest.mark.parametrize("kind", ["monitored", "supervisor"])
def test_a_worker_waits_for_the_chiefs_init_fn(task, kind, logged):
    """The worker's own Scaffold has none. What it initializes from the weight, it initializes from the filled one."""
    began = threading.Event()

    def init_fn():
        deadline = time.monotonic() + DEADLINE_SECS
        while not (began.wait(0.05) or "init_fn sets the variables" in logged.text):
            assert time.monotonic() < deadline

    def worker():
        try:
            return task("worker", kind)
        finally:
            began.set()

    with ThreadPoolExecutor(2) as pool:
        others, own = pool.submit(worker), pool.submit(task, "chief", kind, init_fn)
        assert own.result(DEADLINE_SECS) == [7.0, 14.0]
        assert others.result(DEADLINE_SECS) == [7.0, 14.0]
    # A worker that is started again finds the chief training.
    assert task("worker", kind) == [7.0, 14.0]


def test_without_an_init_fn_nothing_is_said(task, targets):
    word = _PreparationStatus(targets["worker"], v1.ConfigProto(device_filters=["/job:ps", "/job:worker"]))
    before = word.read()
    assert task("chief", "monitored") == task("worker", "monitored") == [0.0, 0.0]
    assert word.read() == before


def test_an_init_fn_that_takes_too_long(targets):
    config = v1.ConfigProto(device_filters=["/job:ps", "/job:worker"])
    word = _PreparationStatus(targets["worker"], config)
    word.set(_PREPARING)
    try:
        with pytest.raises(tf.errors.DeadlineExceededError, match="init_fn"):
            word.wait_until_prepared(_PREPARING, 0.0)
    finally:
        word.set(2)
