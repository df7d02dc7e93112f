"""Which environment is taken where several match, and how one is forced."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from estimator_pipeline.cluster import ENVIRONMENTS, detect
from estimator_pipeline.errors import ClusterError, ConfigError

TF_CONFIG = {"TF_CONFIG": json.dumps({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}})}
VERTEX = {
    "CLUSTER_SPEC": json.dumps(
        {"cluster": {"workerpool0": ["a:1"], "workerpool1": ["b:1"]}, "task": {"type": "workerpool1", "index": 0}}
    )
}
JSRUN = {"LSB_JOBID": "9", "JSM_NAMESPACE_RANK": "1", "JSM_NAMESPACE_SIZE": "2"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "1", "MPI_LOCALRANKID": "0"}
FLUX = {"FLUX_JOB_ID": "f1", "FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "2", "FLUX_JOB_NNODES": "2"}
SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "1",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}
AWS_BATCH = {
    "AWS_BATCH_JOB_ID": "abc#1",
    "AWS_BATCH_JOB_NODE_INDEX": "1",
    "AWS_BATCH_JOB_NUM_NODES": "2",
    "AWS_BATCH_JOB_MAIN_NODE_INDEX": "0",
}
SAGEMAKER = {"SM_HOSTS": '["algo-1","algo-2"]', "SM_CURRENT_HOST": "algo-2"}
INDEXED_JOB = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "1", "HOSTNAME": "job-1"}
STATEFUL_SET = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "set-1", "ESTIMATOR_PIPELINE_SERVICE": "set"}
JOB_SET = {**INDEXED_JOB, "ESTIMATOR_PIPELINE_JOBSET": "js", "ESTIMATOR_PIPELINE_ROLE": "worker"}


@pytest.fixture
def listing(tmp_path):
    """Variables of the schedulers that only list hosts."""
    path = tmp_path / "nodes"
    path.write_text("n1\nn2\n")
    return {
        "pbs": {"PBS_JOBID": "1.s", "PBS_NODEFILE": str(path)},
        "grid_engine": {"JOB_ID": "1", "PE_HOSTFILE": str(path)},
        "oar": {"OAR_JOB_ID": "1", "OAR_NODEFILE": str(path)},
    }


@pytest.mark.parametrize(
    ("parts", "order"),
    [
        # Kubeflow's TFJob, Ray, and our own launcher within a step.
        ([INDEXED_JOB, TF_CONFIG], ["tf_config", "kubernetes_job"]),
        ([SLURM, TF_CONFIG], ["tf_config", "slurm"]),
        # SageMaker's parameter servers; the prebuilt containers of Vertex AI have both variables.
        ([SAGEMAKER, TF_CONFIG], ["tf_config", "sagemaker"]),
        ([VERTEX, TF_CONFIG], ["tf_config", "vertex"]),
        # mpirun numbers the processes, whatever it runs in.
        ([SLURM, OPEN_MPI], ["open_mpi", "slurm"]),
        ([SLURM, HYDRA], ["hydra", "slurm"]),
        ([SAGEMAKER, OPEN_MPI], ["open_mpi", "sagemaker"]),
        ([INDEXED_JOB, OPEN_MPI], ["open_mpi", "kubernetes_job"]),
        ([AWS_BATCH, OPEN_MPI], ["open_mpi", "aws_batch"]),
        ([JSRUN, OPEN_MPI], ["lsf", "open_mpi"]),
        # A Flux instance within a Slurm job.
        ([SLURM, FLUX], ["flux", "slurm"]),
        # A JobSet's pods are an Indexed Job's.
        ([JOB_SET], ["jobset", "kubernetes_job"]),
        ([INDEXED_JOB, STATEFUL_SET], ["kubernetes_job", "kubernetes_statefulset"]),
    ],
)
def test_the_first_that_matches_is_taken(parts, order):
    environ = {name: value for part in parts for name, value in part.items()}
    found = detect(environ, hostname="n2")
    assert [found.environment.name, *found.others] == order


@pytest.mark.parametrize("scheduler", ["pbs", "grid_engine", "oar"])
def test_a_list_of_hosts_is_the_weakest_sign(listing, scheduler):
    found = detect(listing[scheduler], hostname="n2")
    assert found.environment.name == scheduler and found.allocation.rank == 1
    for stronger, name in [(OPEN_MPI, "open_mpi"), (SLURM, "slurm"), (TF_CONFIG, "tf_config")]:
        found = detect({**listing[scheduler], **stronger}, hostname="n2")
        assert [found.environment.name, *found.others] == [name, scheduler]


def test_nothing():
    assert detect({}, hostname="x") is None
    assert detect({"TF_CONFIG": " ", "HOSTNAME": "job-1", "JOB_ID": "3"}, hostname="job-1") is None


def test_one_can_be_forced_or_none():
    both = {**SLURM, **TF_CONFIG}
    assert detect(both, name="slurm", hostname="x").environment.name == "slurm"
    assert detect(SLURM, name="none", hostname="x") is None
    # "none" leaves what was said in so many words.
    assert detect(both, name="none", hostname="x").environment.name == "tf_config"
    with pytest.raises(ClusterError, match="the variable OMPI_COMM_WORLD_RANK is not set"):
        detect(SLURM, name="open_mpi", hostname="x")
    with pytest.raises(ConfigError) as caught:
        detect({}, name="slrum", hostname="x")
    assert caught.value.hint == "did you mean 'slurm'?" and "kubernetes_job" in caught.value.found


def test_every_environment_has_a_name_of_its_own_and_says_what_it_reads():
    names = [environment.name for environment in ENVIRONMENTS]
    assert len(names) == len(set(names)) >= 15
    for environment in ENVIRONMENTS:
        assert environment.variables and sys.modules[type(environment).__module__].__doc__


def test_what_is_said_to_be_read_is_what_is_read():
    """Each recorded or documented set, cut to the variables that its environment names, gives the same."""
    sets = {
        "tf_config": TF_CONFIG,
        "vertex": VERTEX,
        "lsf": JSRUN,
        "open_mpi": OPEN_MPI,
        "hydra": HYDRA,
        "flux": FLUX,
        "slurm": SLURM,
        "aws_batch": AWS_BATCH,
        "sagemaker": SAGEMAKER,
        "jobset": JOB_SET,
        "kubernetes_job": INDEXED_JOB,
        "kubernetes_statefulset": STATEFUL_SET,
    }
    for environment in ENVIRONMENTS:
        if environment.name in sets:
            whole = sets[environment.name]
            cut = {name: value for name, value in whole.items() if name in environment.variables}
            assert environment.read(cut, hostname="x") == environment.read(whole, hostname="x")


def test_detection_reads_only_what_it_is_given():
    """The process's own variables, the network and TensorFlow have no part in it."""
    code = """
import os, socket, sys
os.environ.clear()
os.environ.update({"SLURM_JOB_ID": "1", "OMPI_COMM_WORLD_RANK": "0", "JOB_COMPLETION_INDEX": "0"})
def refuse(*args, **kwargs):
    raise AssertionError("the network was used")
socket.socket = socket.getaddrinfo = socket.create_connection = refuse
from estimator_pipeline.cluster import detect
assert detect({}) is None
assert detect({"SM_HOSTS": '["a","b"]', "SM_CURRENT_HOST": "b"}).allocation.rank == 1
assert "tensorflow" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
