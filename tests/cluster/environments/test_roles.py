"""The rule from ranks to roles, and derived ports."""

from __future__ import annotations

import itertools
import json
import socket

import pytest

from estimator_pipeline.cluster import Allocation, Task, own_port, parse_tf_config, resolve
from estimator_pipeline.cluster.roles import (
    FIRST_PORT,
    LAST_PORT,
    derived_addresses,
    port_base,
    roles,
    task_of,
    tasks_of,
)
from estimator_pipeline.errors import ClusterError, ConfigError, PortError
from estimator_pipeline.job import make_job
from estimator_pipeline.launch import LaunchShape, hold_ports

STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "3,2",
}


def allocation(rank=0, hosts=("n1", "n1", "n1", "n2", "n2"), **more):
    return Allocation("slurm", job_id="7.0", rank=rank, size=len(hosts), hosts=tuple(hosts), **more)


@pytest.mark.parametrize(
    ("shape", "order"),
    [
        (LaunchShape(workers=2, chief=True, ps=1, evaluator=True), "chief:0 worker:0 worker:1 ps:0 evaluator:0"),
        (LaunchShape(workers=3, ps=2), "worker:0 worker:1 worker:2 ps:0 ps:1"),
        (LaunchShape(workers=0, chief=True), "chief:0"),
        (LaunchShape(workers=1, evaluator=True), "worker:0 evaluator:0"),
    ],
)
def test_ranks_are_chief_workers_ps_evaluator(shape, order):
    assert [str(task) for task in tasks_of(shape)] == order.split()
    hosts = ["h"] * len(order.split())
    for rank, task in enumerate(order.split()):
        assert str(task_of(allocation(rank, hosts), shape)) == task
        config = roles(allocation(rank, hosts), shape)
        assert str(config.task) == task
        assert (config.cluster is None) == (len(hosts) == 1)


def test_a_job_files_cluster_is_a_shape():
    base = {"model": {"name": "linear"}, "input": {"source": "tfds", "name": "digits", "global_batch_size": 64}}
    job = make_job({**base, "run": {"model_dir": "x"}, "cluster": {"workers": 1, "evaluator": True}}, source="test")
    assert [str(task) for task in tasks_of(job.cluster)] == ["worker:0", "evaluator:0"]
    assert job.cluster.ports == "auto"


def test_every_task_works_out_the_same_cluster():
    shape = LaunchShape(workers=2, chief=True, ps=1, evaluator=True)
    configs = [roles(allocation(rank), shape) for rank in range(5)]
    assert len({json.dumps(config.cluster.as_dict(with_evaluator=True)) for config in configs}) == 1
    jobs = configs[0].cluster.as_dict(with_evaluator=True)
    base = port_base("7.0", most=3)
    assert jobs == {
        "chief": [f"n1:{base}"],
        "worker": [f"n1:{base + 1}", f"n1:{base + 2}"],
        "ps": [f"n2:{base}"],
        "evaluator": [f"n2:{base + 1}"],
    }


@pytest.mark.parametrize(("started", "workers"), [(1, 2), (5, 2), (3, 5)])
def test_as_many_tasks_as_the_job_has(started, workers):
    with pytest.raises(ClusterError) as caught:
        task_of(allocation(0, ["h"] * started), LaunchShape(workers=workers))
    tasks = "1 task" if started == 1 else f"{started} tasks"
    assert caught.value.what == f"slurm: {tasks} started, but the job has {workers} tasks."
    assert caught.value.found == f"the job's tasks: worker:0 to worker:{workers - 1}"
    assert "--set cluster.workers=N" in caught.value.hint and "--environment none" in caught.value.hint
    assert ("estimator-pipeline launch" in caught.value.hint) == (started == 1)


# Derived ports ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("job", ["1", "7.0", "123456.3", "ƒ3ETxsR9H", "example-job", "6c15c0ab-8e3f"])
@pytest.mark.parametrize(("most", "restart"), [(1, 0), (16, 1), (64, 0), (5000, 3)])
def test_ports_stay_in_their_range(job, most, restart):
    base = port_base(job, most=most, restart=restart)
    assert FIRST_PORT <= base and base + most - 1 <= LAST_PORT


def test_jobs_of_near_numbers_never_meet():
    for most in (1, 16):
        taken = {}
        for job in range(1_000_000, 1_000_000 + 1250):
            base = port_base(f"{job}.0", most=most)
            for port in range(base, base + most):
                assert taken.setdefault(port, job) == job


def test_a_step_and_a_restart_have_other_ports():
    bases = {port_base(job, most=16, restart=n) for job in ("7.0", "7.1", "8.0") for n in (0, 1, 2)}
    assert len(bases) == 9
    ordered = sorted(bases)
    assert all(b - a >= 16 for a, b in itertools.pairwise(ordered))


def test_ids_without_a_number_are_spread():
    bases = {port_base(f"job-{i}", most=1) for i in range(1250)}
    assert len(bases) > 700  # As many as chance gives: 1250 * (1 - 1/e).


def test_ipv6_hosts_stand_in_brackets():
    addresses = derived_addresses(allocation(0, ["fd00::1", "fd00::2"]), LaunchShape(workers=2))
    assert addresses[0].startswith("[fd00::1]:")


def test_unknown_hosts_have_no_derived_ports():
    unknown = Allocation("open_mpi", job_id="1", rank=0, size=2)
    with pytest.raises(ClusterError, match="ports cannot be derived") as caught:
        derived_addresses(unknown, LaunchShape(workers=2))
    assert "cluster.ports: agreed" in caught.value.hint


def test_a_given_base():
    environ = {**STEP, "SLURM_PROCID": "0", "ESTIMATOR_PIPELINE_PORT_BASE": "12345"}
    resolved = resolve(environ, LaunchShape(workers=5), hostname="n1")
    assert resolved.tf_config.cluster.jobs["worker"] == ("n1:12345", "n1:12346", "n1:12347", "n2:12345", "n2:12346")
    for wrong in ("no", "0", "65535"):
        with pytest.raises(ClusterError, match="cannot be the first of a job's ports"):
            resolve({**environ, "ESTIMATOR_PIPELINE_PORT_BASE": wrong}, LaunchShape(workers=5), hostname="n1")


@pytest.mark.parametrize("based", [False, True])
def test_a_port_that_is_taken_is_told(based, monkeypatch):
    """Before TensorFlow is imported, and the same where the server starts: the user has written no TF_CONFIG."""
    monkeypatch.setattr(own_port, "_GRACE_SECS", 0.0)
    with hold_ports(1) as held:
        environ = {**STEP, "SLURM_PROCID": "0"}
        monkeypatch.setattr("estimator_pipeline.cluster.roles.port_base", lambda *args, **options: held.ports[0])
        if based:
            environ["ESTIMATOR_PIPELINE_PORT_BASE"] = str(held.ports[0])
        shape = LaunchShape(workers=5)
        with monkeypatch.context() as free:
            free.setattr(own_port, "problem_of", lambda port, **options: None)
            changes = resolve(environ, shape, hostname="n1").changes
        with pytest.raises(PortError) as first:
            resolve(environ, shape, hostname="n1")
        with pytest.raises(PortError) as second:
            own_port.require_free(f"n1:{held.ports[0]}", "worker:0", {**environ, **changes})
        assert str(first.value) == str(second.value)
        # The next start has a different port, unless the user has set it.
        assert first.value.exit_code == second.value.exit_code == (2 if based else 1)
        assert "cluster.ports: agreed" in first.value.hint and "TF_CONFIG" not in first.value.hint
        assert ("a different ESTIMATOR_PIPELINE_PORT_BASE" in first.value.hint) == based


def test_the_evaluator_needs_no_port():
    with hold_ports(1) as held:
        last = {**STEP, "SLURM_PROCID": "4", "ESTIMATOR_PIPELINE_PORT_BASE": str(held.ports[0] - 1)}
        assert resolve(last, LaunchShape(workers=4, evaluator=True), hostname="n2").tf_config.is_evaluator


# All together ----------------------------------------------------------------------------------------------------


def test_what_a_task_is_told():
    environ = {**STEP, "SLURM_PROCID": "3", "SLURM_RESTART_COUNT": "2"}
    before = dict(environ)
    resolved = resolve(environ, LaunchShape(workers=2, chief=True, ps=1, evaluator=True), hostname="n2")
    assert environ == before
    names = {"TF_CONFIG", "TF_GRPC_REUSE_PORT", "ESTIMATOR_PIPELINE_RUN_ID", "ESTIMATOR_PIPELINE_EVALUATOR"}
    assert set(resolved.changes) == names
    # It chose the port, and does not hold it.
    assert resolved.changes["TF_GRPC_REUSE_PORT"] == "0"
    assert resolved.changes["ESTIMATOR_PIPELINE_EVALUATOR"] == "1"
    assert resolved.changes["ESTIMATOR_PIPELINE_RUN_ID"] == "slurm-7.0-2"
    config = parse_tf_config(resolved.changes["TF_CONFIG"])
    assert config.task == Task("ps") and "evaluator" not in json.loads(resolved.changes["TF_CONFIG"])["cluster"]
    assert resolved.text == (
        "environment slurm; job 7.0, rank 3 of 5; ps:0 of 3 that train and 1 ps; ports derived; restart 2"
    )


@pytest.mark.parametrize("dialect", ["canonical", "master", "evaluator_in_cluster"])
def test_in_every_dialect(dialect):
    evaluator = dialect != "master"
    shape = LaunchShape(workers=3 if evaluator else 4, chief=True, evaluator=evaluator)
    resolved = resolve({**STEP, "SLURM_PROCID": "1"}, shape, hostname="n1", dialect=dialect)
    document = json.loads(resolved.changes["TF_CONFIG"])
    assert ("master" in document["cluster"]) == (dialect == "master")
    assert ("evaluator" in document["cluster"]) == (dialect == "evaluator_in_cluster")
    assert parse_tf_config(document).task == Task("worker")


def test_one_task_is_a_single_process():
    environ = {**STEP, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NODELIST": "n1"}
    environ["SLURM_STEP_TASKS_PER_NODE"] = "1"
    resolved = resolve(environ, LaunchShape(workers=1), hostname="n1")
    assert json.loads(resolved.changes["TF_CONFIG"]) == {}
    assert resolved.text == "environment slurm; job 7.0, rank 0 of 1; single process"


def test_tf_config_is_left_as_it_is():
    text = json.dumps({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}})
    resolved = resolve({**STEP, "SLURM_PROCID": "0", "TF_CONFIG": text}, LaunchShape(workers=9), hostname="n1")
    assert resolved.changes == {} and resolved.tf_config.num_training_tasks == 2
    assert resolve({}, LaunchShape(), hostname="n1") is None


def test_a_run_id_that_is_given_stays():
    environ = {**STEP, "SLURM_PROCID": "0", "ESTIMATOR_PIPELINE_RUN_ID": "mine"}
    assert "ESTIMATOR_PIPELINE_RUN_ID" not in resolve(environ, LaunchShape(workers=5), hostname="n1").changes


def test_ports_by_an_unknown_word():
    with pytest.raises(ConfigError, match="ports is 'random'"):
        resolve({}, LaunchShape(), ports="random", hostname=socket.gethostname())
