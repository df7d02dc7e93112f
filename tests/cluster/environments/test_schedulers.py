"""PBS, Grid Engine, OAR, LSF, Flux, AWS Batch, SageMaker, Vertex AI: variable sets as documented."""

from __future__ import annotations

import json

import pytest

from estimator_pipeline.cluster import detect
from estimator_pipeline.errors import ClusterError


def allocation(environ, hostname="node2", name=None):
    found = detect(environ, hostname=hostname)
    if name is not None:
        assert found is not None and found.environment.name == name
    return None if found is None else found.allocation


# Lists of hosts: PBS, Grid Engine, OAR ---------------------------------------------------------------------------


@pytest.fixture
def nodefile(tmp_path):
    path = tmp_path / "nodes"

    def write(text):
        path.write_text(text)
        return str(path)

    return write


def test_pbs_one_task_a_host_in_the_order_of_the_file(nodefile):
    environ = {
        "PBS_ENVIRONMENT": "PBS_BATCH",
        "PBS_JOBID": "4321.pbs01",
        "PBS_NODEFILE": nodefile("node10\nnode10\nnode2\nnode2\nnode1\nnode1\n"),
        "PBS_NODENUM": "0",
        "PBS_TASKNUM": "1",
    }
    found = allocation(environ, "node2", "pbs")
    assert found.hosts == ("node10", "node2", "node1") and (found.rank, found.size) == (1, 3)
    assert found.job_id == "4321" and found.inferred
    assert allocation({**environ, "PBS_JOBID": "4321[7].pbs01"}).job_id == "4321.7"
    assert allocation({**environ, "PBS_ENVIRONMENT": "PBS_INTERACTIVE"}) is None
    forced = detect({**environ, "PBS_ENVIRONMENT": "PBS_INTERACTIVE"}, name="pbs", hostname="node1")
    assert forced.allocation.rank == 2


def test_tasks_of_submit_pbs_have_a_rank_and_may_share_a_host(nodefile):
    environ = {
        "PBS_JOBID": "4321.pbs01",
        "PBS_NODEFILE": nodefile("node10\nnode10\nnode2\n"),
        "ESTIMATOR_PIPELINE_RANK": "1",
        "ESTIMATOR_PIPELINE_ATTEMPT": "3",
        "ESTIMATOR_PIPELINE_SUPERVISOR": "x-r2",
    }
    second = allocation(environ, "a different name", "pbs")
    assert second.hosts == ("node10", "node10", "node2") and (second.rank, second.size, second.inferred) == (
        1,
        3,
        False,
    )
    assert (second.own_host, second.restart, second.start_id) == ("node10", 2, "x-r2")


@pytest.mark.parametrize(
    ("hostname", "rank"),
    [("node2", 1), ("node2.site.org", 1), ("NODE10", 0), ("node1.site.org", 2)],
)
def test_a_host_is_found_with_and_without_its_domain(nodefile, hostname, rank):
    environ = {"PBS_JOBID": "1.s", "PBS_NODEFILE": nodefile("node10\nnode2\nnode1.site.org\n")}
    assert allocation(environ, hostname).rank == rank


@pytest.mark.parametrize(
    ("hostname", "hosts", "says"),
    [
        ("node3", "node1\nnode2\n", "this host 'node3' is not in PBS_NODEFILE"),
        ("node1.b.org", "node1.a.org\nnode2\n", "this host 'node1.b.org' is not in PBS_NODEFILE"),
        ("node1", "node1.a.org\nnode1.b.org\n", "this host 'node1' is more than once in PBS_NODEFILE"),
    ],
)
def test_a_host_that_is_not_clear_is_not_guessed(nodefile, hostname, hosts, says):
    with pytest.raises(ClusterError) as caught:
        allocation({"PBS_JOBID": "1.s", "PBS_NODEFILE": nodefile(hosts)}, hostname)
    assert says in caught.value.what and "--environment none" in caught.value.hint


def test_grid_engine(nodefile):
    environ = {
        "JOB_ID": "77",
        "NHOSTS": "2",
        "NSLOTS": "6",
        "PE_HOSTFILE": nodefile("node1.site.org 4 all.q@node1.site.org UNDEFINED\nnode2 2 all.q@node2 UNDEFINED\n"),
        "RESTARTED": "0",
        "SGE_TASK_ID": "undefined",
    }
    found = allocation(environ, "node2", "grid_engine")
    assert found.hosts == ("node1.site.org", "node2") and found.rank == 1
    assert (found.job_id, found.restart) == ("77", 0)
    again = allocation({**environ, "SGE_TASK_ID": "3", "RESTARTED": "1"}, "node1")
    assert (again.job_id, again.restart, again.rank) == ("77.3", 1, 0)
    assert allocation({"JOB_ID": "77", "SGE_TASK_ID": "undefined"}) is None


def test_oar(nodefile):
    for variable in ("OAR_NODEFILE", "OAR_FILE_NODES"):
        environ = {"OAR_JOB_ID": "5", variable: nodefile("node2\nnode2\nnode1\n")}
        found = allocation(environ, "node1", "oar")
        assert found.hosts == ("node2", "node1") and found.rank == 1 and found.job_id == "5"


@pytest.mark.parametrize("text", [None, "", "\n\n"])
def test_a_host_file_that_is_missing_or_empty(nodefile, tmp_path, text):
    path = str(tmp_path / "gone") if text is None else nodefile(text)
    with pytest.raises(ClusterError, match="cannot be read" if text is None else "is empty") as caught:
        allocation({"OAR_JOB_ID": "5", "OAR_NODEFILE": path})
    assert f"OAR_NODEFILE={path}" in caught.value.what


# LSF -------------------------------------------------------------------------------------------------------------

LSF = {"LSB_JOBID": "900", "LSB_JOBINDEX": "0", "LSB_MCPU_HOSTS": "node1 2 node2 1", "LSB_HOSTS": "node1 node1 node2"}


@pytest.mark.parametrize(("task", "hostname", "rank"), [("1", "node1", 0), ("2", "node1", 1), ("3", "node2", 2)])
def test_lsf_blaunch_numbers_slots_from_one(task, hostname, rank):
    found = allocation({**LSF, "LSF_PM_TASKID": task}, hostname, "lsf")
    assert (found.rank, found.size, found.hosts) == (rank, 3, ("node1", "node1", "node2"))
    assert found.job_id == "900" and found.restart == 0 and not found.inferred


def test_lsf_jsrun_arrays_restarts_and_scripts():
    jsrun = {**LSF, "JSM_NAMESPACE_RANK": "3", "JSM_NAMESPACE_SIZE": "4", "JSM_NAMESPACE_LOCAL_RANK": "1"}
    # Spectrum MPI sets Open MPI's variables beside its own.
    found = allocation({**jsrun, "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}, "x", "lsf")
    assert (found.rank, found.size, found.hosts) == (3, 4, None)
    found = allocation({**LSF, "LSB_JOBINDEX": "12", "LSB_RESTART": "Y", "LSF_PM_TASKID": "1"}, "node1")
    assert (found.job_id, found.restart) == ("900.12", 1)
    assert allocation(LSF, "node1") is None


@pytest.mark.parametrize(
    ("changes", "hostname", "says"),
    [
        ({"LSF_PM_TASKID": "4"}, "node1", "LSF_PM_TASKID=4 is not the number of a slot"),
        ({"LSF_PM_TASKID": "0"}, "node1", "LSF_PM_TASKID=0 is not the number of a slot"),
        ({"LSF_PM_TASKID": "2"}, "node2", "LSF_PM_TASKID=2 is a slot of 'node1', and this host is 'node2'"),
        ({"LSF_PM_TASKID": "1", "LSB_MCPU_HOSTS": "node1 2 node2"}, "node1", "is not made of hosts and numbers"),
        ({"LSF_PM_TASKID": "1", "LSB_MCPU_HOSTS": "node1 two"}, "node1", "is not made of hosts and numbers"),
    ],
)
def test_lsf_contradictions(changes, hostname, says):
    with pytest.raises(ClusterError) as caught:
        allocation({**LSF, **changes}, hostname)
    assert says in caught.value.what and caught.value.hint


# Flux, AWS Batch, SageMaker --------------------------------------------------------------------------------------


def test_flux():
    environ = {
        "FLUX_JOB_ID": "ƒ3ETxsR9H",
        "FLUX_TASK_RANK": "3",
        "FLUX_TASK_LOCAL_ID": "1",
        "FLUX_JOB_SIZE": "4",
        "FLUX_JOB_NNODES": "2",
    }
    found = allocation(environ, "x", "flux")
    assert (found.rank, found.size, found.hosts) == (3, 4, None)
    assert allocation({**environ, "FLUX_JOB_NNODES": "1"}).hosts == ("localhost",) * 4
    assert allocation({"FLUX_URI": "local:///run/flux/local", "FLUX_JOB_ID": "ƒ3"}) is None


def test_aws_batch_begins_with_the_main_node():
    def ranks(main):
        return [
            allocation(
                {
                    "AWS_BATCH_JOB_ID": f"6c15c0ab-8e3f-4a3e-9d3c-3a3a7e1a9f10#{index}",
                    "AWS_BATCH_JOB_NODE_INDEX": str(index),
                    "AWS_BATCH_JOB_NUM_NODES": "4",
                    "AWS_BATCH_JOB_MAIN_NODE_INDEX": str(main),
                    "AWS_BATCH_JOB_ATTEMPT": "2",
                },
                "ip-10-0-0-1",
                "aws_batch",
            )
            for index in range(4)
        ]

    assert [one.rank for one in ranks(0)] == [0, 1, 2, 3]
    assert [one.rank for one in ranks(2)] == [1, 2, 0, 3]
    assert {one.job_id for one in ranks(0)} == {"6c15c0ab-8e3f-4a3e-9d3c-3a3a7e1a9f10"}
    assert {(one.size, one.hosts, one.restart) for one in ranks(0)} == {(4, None, 1)}
    with pytest.raises(ClusterError, match="AWS_BATCH_JOB_MAIN_NODE_INDEX=4"):
        ranks(4)
    # A job of one node, or an array, has no node index.
    assert allocation({"AWS_BATCH_JOB_ID": "6c15c0ab:1", "AWS_BATCH_JOB_ARRAY_INDEX": "1"}) is None


def test_sagemaker():
    environ = {
        "SM_HOSTS": '["algo-1","algo-2","algo-10"]',
        "SM_CURRENT_HOST": "algo-10",
        "TRAINING_JOB_NAME": "my-job-2024-01-01-00-00-00-000",
    }
    found = allocation(environ, "x", "sagemaker")
    assert (found.rank, found.size, found.hosts) == (2, 3, ("algo-1", "algo-2", "algo-10"))
    assert found.job_id == environ["TRAINING_JOB_NAME"] and found.own_host == "algo-10"
    for changes, says in [
        ({"SM_CURRENT_HOST": "algo-3"}, "SM_CURRENT_HOST='algo-3' is not one of SM_HOSTS"),
        ({"SM_HOSTS": "algo-1,algo-2"}, "is not a JSON list of names"),
        ({"SM_HOSTS": "[]"}, "is not a JSON list of names"),
    ]:
        with pytest.raises(ClusterError, match=says):
            allocation({**environ, **changes})


# Vertex AI -------------------------------------------------------------------------------------------------------

POOLS = {
    "workerpool0": ["cmle-training-workerpool0-ab-0:2222"],
    "workerpool1": ["cmle-training-workerpool1-ab-0:2222", "cmle-training-workerpool1-ab-1:2222"],
    "workerpool2": ["cmle-training-workerpool2-ab-0:2222"],
    "workerpool3": ["cmle-training-workerpool3-ab-0:2222"],
}


def vertex(pools, pool, index=0):
    document = {"cluster": pools, "environment": "cloud", "task": {"type": pool, "index": index, "cloud": "x"}}
    return {"CLUSTER_SPEC": json.dumps(document)}


@pytest.mark.parametrize(
    ("pool", "index", "task"),
    [
        ("workerpool0", 0, "chief:0"),
        ("workerpool1", 1, "worker:1"),
        ("workerpool2", 0, "ps:0"),
        ("workerpool3", 0, "evaluator:0"),
    ],
)
def test_vertex_pools_are_roles(pool, index, task):
    config = allocation(vertex(POOLS, pool, index), "x", "vertex").tf_config
    assert str(config.task) == task and config.environment == "cloud"
    assert config.cluster.as_dict() == {
        "chief": POOLS["workerpool0"],
        "worker": POOLS["workerpool1"],
        "ps": POOLS["workerpool2"],
    }
    assert config.cluster.evaluator == POOLS["workerpool3"][0]


def test_vertex_with_one_replica_is_a_single_process():
    config = allocation(vertex({"workerpool0": POOLS["workerpool0"]}, "workerpool0"), "x", "vertex").tf_config
    assert config.cluster is None and config.is_chief


def test_vertex_contradictions_and_another_cluster_spec():
    with pytest.raises(ClusterError, match="has the pool 'workerpool4'"):
        allocation(vertex({**POOLS, "workerpool4": ["a:1"]}, "workerpool0"))
    with pytest.raises(ClusterError, match="lacks its cluster or its task"):
        allocation({"CLUSTER_SPEC": '{"cluster": {"workerpool0": ["a:1"]}}'})
    with pytest.raises(ClusterError, match="is not JSON"):
        allocation({"CLUSTER_SPEC": "{workerpool0"})
    with pytest.raises(ClusterError, match="the task index 5 is out of range"):
        allocation(vertex(POOLS, "workerpool1", 5))
    # TonY's variable of the same name.
    assert allocation({"CLUSTER_SPEC": '{"worker": ["a:1", "b:1"]}', "JOB_NAME": "worker", "TASK_INDEX": "0"}) is None
