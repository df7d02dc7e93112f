"""Pods of an Indexed Job, a StatefulSet and a JobSet, with the variables that Kubernetes and the manifest give them."""

from __future__ import annotations

import pytest

from estimator_pipeline.cluster import Task, detect
from estimator_pipeline.cluster.roles import hosts_of, roles, task_of
from estimator_pipeline.errors import ClusterError
from estimator_pipeline.launch import LaunchShape

KUBERNETES = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
SHAPE = LaunchShape(workers=2, chief=True, ps=1, evaluator=True)


def test_indexed_job_with_a_service():
    environ = {
        **KUBERNETES,
        "JOB_COMPLETION_INDEX": "2",
        "HOSTNAME": "example-job-2",
        "ESTIMATOR_PIPELINE_SERVICE": "headless-svc",
    }
    found = detect(environ, hostname="example-job-2")
    # Its host name ends in a number as a StatefulSet's would.
    assert found.environment.name == "kubernetes_job" and found.others == ("kubernetes_statefulset",)
    assert found.allocation.job_id == "example-job" and found.allocation.size is None
    assert hosts_of(found.allocation, SHAPE) == tuple(f"example-job-{i}.headless-svc" for i in range(5))
    assert task_of(found.allocation, SHAPE) == Task("worker", 1)
    config = roles(found.allocation, SHAPE)
    assert config.cluster.jobs["chief"][0].startswith("example-job-0.headless-svc:")
    assert config.cluster.evaluator.startswith("example-job-4.headless-svc:")


def test_indexed_job_without_a_service_tells_its_address_to_the_others():
    environ = {**KUBERNETES, "JOB_COMPLETION_INDEX": "0", "HOSTNAME": "example-job-0", "POD_IP": "10.1.2.3"}
    found = detect(environ, hostname="x").allocation
    assert hosts_of(found, SHAPE) is None and found.own_host == "10.1.2.3"


@pytest.mark.parametrize(("role", "index"), [("chief", 0), ("worker", 1), ("ps", 0), ("evaluator", 0)])
def test_an_indexed_job_for_each_role(role, index):
    environ = {
        **KUBERNETES,
        "JOB_COMPLETION_INDEX": str(index),
        "HOSTNAME": f"big-model-{role}-{index}",
        "ESTIMATOR_PIPELINE_SERVICE": "svc",
        "ESTIMATOR_PIPELINE_ROLE": role,
    }
    found = detect(environ, hostname="x").allocation
    assert (found.job_id, found.role, found.own_host) == ("big-model", role, f"big-model-{role}-{index}.svc")
    config = roles(found, SHAPE)
    assert config.task == Task(role, index)
    hosts = {job: [a.split(":")[0] for a in own] for job, own in config.cluster.as_dict(with_evaluator=True).items()}
    assert hosts == {
        "chief": ["big-model-chief-0.svc"],
        "worker": ["big-model-worker-0.svc", "big-model-worker-1.svc"],
        "ps": ["big-model-ps-0.svc"],
        "evaluator": ["big-model-evaluator-0.svc"],
    }


@pytest.mark.parametrize(
    ("role", "says"),
    [
        ("ps", r"the Job is called 'example-worker', and ESTIMATOR_PIPELINE_ROLE is 'ps'"),
        ("leader", r"ESTIMATOR_PIPELINE_ROLE='leader' is not a task type"),
    ],
)
def test_an_indexed_job_of_another_role(role, says):
    environ = {"JOB_COMPLETION_INDEX": "0", "HOSTNAME": "example-worker-0", "ESTIMATOR_PIPELINE_ROLE": role}
    with pytest.raises(ClusterError, match=says):
        detect(environ, hostname="x")


def test_more_pods_than_the_job_has_tasks():
    environ = {**KUBERNETES, "JOB_COMPLETION_INDEX": "5", "HOSTNAME": "example-job-5"}
    with pytest.raises(ClusterError) as caught:
        task_of(detect(environ, hostname="x").allocation, SHAPE)
    assert caught.value.what == "kubernetes_job: this process has rank 5, but the job has 5 tasks."


@pytest.mark.parametrize("hostname", ["example-job-1", "custom", "2"])
def test_a_host_name_that_does_not_fit_the_index(hostname):
    with pytest.raises(ClusterError, match=r"does not end in JOB_COMPLETION_INDEX=2"):
        detect({**KUBERNETES, "JOB_COMPLETION_INDEX": "2", "HOSTNAME": hostname}, hostname="x")


def test_stateful_set():
    environ = {**KUBERNETES, "HOSTNAME": "train-1", "ESTIMATOR_PIPELINE_SERVICE": "train"}
    found = detect(environ, hostname="train-1")
    assert found.environment.name == "kubernetes_statefulset"
    assert found.allocation.rank == 1 and found.allocation.job_id == "train"
    assert hosts_of(found.allocation, SHAPE)[4] == "train-4.train"
    # A pod that somebody has called train-1, a pod of a Deployment, and a process outside of Kubernetes.
    assert detect({**KUBERNETES, "HOSTNAME": "train-1"}, hostname="train-1") is None
    assert detect({**environ, "HOSTNAME": "train-7d4b9c-x7x2z"}, hostname="x") is None
    assert detect({"HOSTNAME": "train-1", "ESTIMATOR_PIPELINE_SERVICE": "train"}, hostname="train-1") is None


@pytest.mark.parametrize(
    ("role", "index", "host"),
    [
        ("chief", 0, "js-chief-0-0.js"),
        ("worker", 1, "js-worker-0-1.js"),
        ("ps", 0, "js-ps-0-0.js"),
        ("evaluator", 0, "js-evaluator-0-0.js"),
    ],
)
def test_job_set_replicated_jobs_are_roles(role, index, host):
    environ = {
        **KUBERNETES,
        "JOB_COMPLETION_INDEX": str(index),
        "HOSTNAME": f"js-{role}-0-{index}",
        "ESTIMATOR_PIPELINE_JOBSET": "js",
        "ESTIMATOR_PIPELINE_ROLE": role,
        "ESTIMATOR_PIPELINE_RESTART": "3",
    }
    found = detect(environ, hostname="x")
    assert found.environment.name == "jobset" and found.others == ("kubernetes_job",)
    assert found.allocation.restart == 3
    assert task_of(found.allocation, SHAPE) == Task(role, index)
    config = roles(found.allocation, SHAPE)
    assert config.task == Task(role, index)
    jobs = {**config.cluster.as_dict(with_evaluator=True)}
    assert jobs[role][index].startswith(f"{host}:")
    assert sum(map(len, jobs.values())) == 5
    # The same on every pod.
    assert jobs["worker"][1].startswith("js-worker-0-1.js:") and len({a.split(":")[1] for a in jobs["worker"]}) == 1


def test_job_set_errors():
    environ = {**KUBERNETES, "JOB_COMPLETION_INDEX": "2", "ESTIMATOR_PIPELINE_JOBSET": "js"}
    with pytest.raises(ClusterError, match="this process is worker:2, and the job has no such task"):
        task_of(detect({**environ, "ESTIMATOR_PIPELINE_ROLE": "worker"}, hostname="x").allocation, SHAPE)
    with pytest.raises(ClusterError, match="ESTIMATOR_PIPELINE_ROLE='leader' is not a task type"):
        detect({**environ, "ESTIMATOR_PIPELINE_ROLE": "leader"}, hostname="x")
