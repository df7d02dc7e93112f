"""Tasks that talk to each other directly, behind a proxy."""

from __future__ import annotations

import json

import pytest

from estimator_pipeline.cluster import proxies
from estimator_pipeline.launch.local.plan import LaunchShape, plan_local

ADDRESSES = ["n1.cluster:2222", "10.0.0.1:2222", "[fd00::1]:2223"]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, {}),
        ({"no_proxy": "localhost"}, {}),
        ({"HTTP_PROXY": "p:3128"}, {}),
        ({"http_proxy": ""}, {}),
        ({"http_proxy": "p:3128"}, {"no_proxy": "n1.cluster,10.0.0.1,fd00::1"}),
        ({"https_proxy": "p:3128", "no_proxy": "a, .cluster,"}, {"no_proxy": "a, .cluster,10.0.0.1,fd00::1"}),
        ({"grpc_proxy": "p:3128", "no_proxy": "cluster,fd00::/8", "no_grpc_proxy": "10.0.0.0/8"},
         {"no_grpc_proxy": "10.0.0.0/8,n1.cluster,fd00::1"}),
        ({"http_proxy": "p:3128", "no_proxy": "cluster,fd00::/8,10.0.0.1"}, {}),
    ],
)  # fmt: skip
def test_what_is_exempted(environ, expected):
    assert proxies.exempted(environ, ADDRESSES) == expected


def test_a_process_exempts_the_hosts_of_its_tf_config():
    document = {"cluster": {"chief": ["n0:1"], "ps": ["n1:1", "n1:2"]}, "task": {"type": "ps", "index": 1}}
    environ = {"http_proxy": "p:3128", "TF_CONFIG": json.dumps(document)}
    proxies.bypass(environ)
    assert environ["no_proxy"] == "n0,n1"
    for text in ("{", "", '{"task": {"type": "worker", "index": 0}}'):
        environ = {"http_proxy": "p:3128", "TF_CONFIG": text}
        proxies.bypass(environ)
        assert "no_proxy" not in environ


def test_launched_tasks_of_any_program(tmp_path):
    given = {"shape": LaunchShape(workers=2), "ports": [1, 2], "log_dir": tmp_path, "run_id": "r"}
    plan = plan_local(["python", "train.py"], environ={"http_proxy": "p:3128", "no_proxy": "a"}, **given)
    (host,) = {
        address.rpartition(":")[0] for address in json.loads(plan.tasks[0].environ["TF_CONFIG"])["cluster"]["worker"]
    }
    assert [task.environ["no_proxy"] for task in plan.tasks] == [f"a,{host}"] * 2
    assert "no_proxy" not in plan_local(["python", "train.py"], environ={}, **given).tasks[0].environ
