"""The reader and writer of TF_CONFIG: every dialect, round trips, helpers, errors with their full text."""

from __future__ import annotations

import copy
import json
import pathlib
import pickle
import subprocess
import sys

import pytest

from estimator_pipeline.cluster import (
    ClusterSpec,
    Task,
    TFConfig,
    build_tf_config,
    from_environ,
    local_cluster,
    num_workers,
    own_index,
    parse_tf_config,
)
from estimator_pipeline.errors import ClusterError

DOCUMENTS = pathlib.Path(__file__).parents[2] / "legacy_configs" / "tf_config"

# file, dialect, task, is chief, training tasks, rank (None: has none), ps, environment
DOCUMENT_CASES = [
    # Workers alone: worker 0 is the chief.
    ("tutorial_two_workers", "workers", "worker:0", True, 2, 0, 0, None),
    ("tutorial_second_worker", "workers", "worker:1", False, 2, 1, 0, None),
    ("keras_cluster_helper", "workers", "worker:1", False, 3, 1, 0, None),
    ("workers_only", "workers", "worker:2", False, 3, 2, 0, None),
    ("sagemaker_workers", "workers", "worker:1", False, 2, 1, 0, "cloud"),
    # The index as text, and addresses by index.
    ("index_as_text", "workers", "worker:1", False, 2, 1, 0, None),
    ("addresses_by_index", "workers", "worker:0", True, 2, 0, 0, None),
    # A chief job: worker 0 is not the chief, and its rank is 1.
    ("kubeflow", "chief", "worker:0", False, 3, 1, 1, "cloud"),
    ("chief_worker_ps", "chief", "ps:1", False, 3, None, 2, None),
    # The evaluator outside the cluster, and inside.
    ("chief_worker_ps_evaluator_outside", "chief", "evaluator:0", False, 3, None, 2, None),
    ("evaluator_inside", "workers", "worker:1", False, 2, 1, 0, None),
    ("evaluator_inside_own_process", "chief", "evaluator:0", False, 2, None, 0, None),
    # The master is the chief.
    ("tf1_master", "master", "chief:0", True, 3, 0, 1, None),
    ("sagemaker_parameter_server", "master", "chief:0", True, 2, 0, 2, "cloud"),
    ("environment_cloud", "master", "worker:1", False, 3, 2, 1, "cloud"),
    # One process: with a cluster of one task, with an empty cluster, with nothing.
    ("environment_cloud_one_machine", "chief", "chief:0", True, 1, 0, 0, "cloud"),
    ("environment_cloud_no_cluster", "none", "worker:0", True, 1, 0, 0, "cloud"),
    ("single_process", "none", "worker:0", True, 1, 0, 0, None),
]


def _document(name: str) -> str:
    return (DOCUMENTS / f"{name}.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("case", DOCUMENT_CASES, ids=lambda case: case[0])
def test_e3_every_dialect(case):
    name, dialect, task, is_chief, training_tasks, rank, ps, environment = case
    config = parse_tf_config(_document(name))
    assert config.dialect == dialect
    assert str(config.task) == task
    assert config.is_chief is is_chief
    assert config.num_training_tasks == training_tasks
    assert (config.cluster.num_ps if config.cluster else 0) == ps
    assert config.environment == environment
    assert config.is_training_task is (rank is not None)
    assert config.is_evaluator is task.startswith("evaluator")
    assert config.is_ps is task.startswith("ps")
    assert config.is_single_process is (training_tasks == 1)
    if rank is None:
        with pytest.raises(ClusterError, match=f"{task} has no rank"):
            _ = config.rank
    else:
        assert config.rank == rank


def test_every_document_has_a_case():
    assert {path.stem for path in DOCUMENTS.glob("*.json")} == {case[0] for case in DOCUMENT_CASES}


@pytest.mark.parametrize("case", DOCUMENT_CASES, ids=lambda case: case[0])
def test_canonical_round_trip(case):
    """What is written is read as the same; only the dialect and an evaluator's address are gone."""
    config = parse_tf_config(_document(case[0]))
    written = json.loads(config.to_json())
    assert "master" not in written.get("cluster", {})
    assert "evaluator" not in written.get("cluster", {})
    assert ("environment" in written) is (config.environment is not None)
    again = parse_tf_config(written)
    assert again.task == config.task
    assert again.to_dict() == written
    assert (again.extra, again.task_extra) == (config.extra, config.task_extra)
    if config.cluster is not None:
        assert again.cluster.jobs == config.cluster.jobs
        assert again.cluster.fingerprint() == config.cluster.fingerprint()


@pytest.mark.parametrize(
    ("name", "dialect"),
    [
        ("tf1_master", "master"),
        ("environment_cloud", "master"),
        ("sagemaker_parameter_server", "master"),
        ("evaluator_inside", "evaluator_in_cluster"),
        ("evaluator_inside_own_process", "evaluator_in_cluster"),
        ("kubeflow", "canonical"),
        ("chief_worker_ps_evaluator_outside", "canonical"),
        ("single_process", "canonical"),
    ],
)
def test_written_in_its_own_dialect_it_is_the_document(name, dialect):
    document = json.loads(_document(name))
    assert parse_tf_config(document).to_dict(dialect) == document


def test_unknown_keys_are_kept():
    config = parse_tf_config(_document("environment_cloud"))
    assert config.extra["job"]["scale_tier"] == "CUSTOM"
    assert config.task_extra == {"cloud": "w93a1503672d4dd09-ml", "trial": "3"}
    assert config.to_dict()["task"]["trial"] == "3"


def test_rpc_layer_is_kept():
    document = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}
    config = parse_tf_config({**document, "rpc_layer": "grpc+verbs"})
    assert config.rpc_layer == "grpc+verbs"
    assert config.to_dict()["rpc_layer"] == "grpc+verbs"
    assert parse_tf_config("{}").rpc_layer == "grpc"


@pytest.mark.parametrize(
    "text", ["", "  \n", "{}", " {} \n", '{"cluster": {}}', '{"task": {"type": "worker", "index": 0}}']
)
def test_single_process(text):
    config = from_environ({"TF_CONFIG": text})
    assert config == TFConfig(cluster=None, task=Task("worker"))
    assert config.is_chief and config.is_single_process and config.rank == 0
    assert config.to_dict() == {}


def test_no_variable_is_a_single_process():
    assert from_environ({}) == TFConfig(cluster=None, task=Task("worker"))


def test_cluster_of_one_needs_no_task_and_is_kept():
    config = parse_tf_config('{"cluster": {"worker": ["a:1"]}}')
    assert config.is_chief and config.is_single_process
    assert config.to_dict() == {"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}


def test_side_car_evaluator_without_a_cluster():
    config = parse_tf_config('{"task": {"type": "evaluator", "index": 0}}')
    assert config.is_evaluator and not config.is_chief
    assert config.to_dict() == {"task": {"type": "evaluator", "index": 0}}
    with pytest.raises(ClusterError, match="evaluator:0 has no rank"):
        _ = config.rank


def test_whitespace_around_document_and_addresses():
    config = parse_tf_config(
        '\n {"cluster": {"worker": [" a:1", "b:1 "]}, "task": {"type": "worker", "index": " 1 "}} \n'
    )
    assert config.cluster.jobs == {"worker": ("a:1", "b:1")}
    assert config.task == Task("worker", 1)


@pytest.mark.parametrize("address", ["[::1]:2222", "[fe80::1%eth0]:80", "10.0.0.1:65535", "a_b-c.d.svc:1"])
def test_addresses_that_work(address):
    assert ClusterSpec({"worker": (address,)}).address(Task("worker")) == address


def test_cluster_spec():
    cluster = ClusterSpec({"ps": ["p:1"], "worker": ["w0:1", "w1:1"], "chief": ["c:1"]}, "e:1")
    assert cluster.chief == Task("chief")
    assert cluster.training_tasks == (Task("chief"), Task("worker", 0), Task("worker", 1))
    assert [cluster.rank(task) for task in cluster.training_tasks] == [0, 1, 2]
    assert [str(task) for task in cluster.tasks] == ["chief:0", "worker:0", "worker:1", "ps:0"]
    assert [cluster.address(task) for task in cluster.tasks] == ["c:1", "w0:1", "w1:1", "p:1"]
    assert cluster.address(Task("evaluator")) == "e:1"
    assert list(cluster.as_dict()) == ["chief", "worker", "ps"]
    assert cluster.as_dict(with_evaluator=True)["evaluator"] == ["e:1"]


def test_cluster_spec_cannot_be_changed_and_can_be_copied():
    config = parse_tf_config(_document("evaluator_inside"))
    with pytest.raises(TypeError):
        config.cluster.jobs["worker"] = ()
    for other in (copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
        assert other == config
        assert hash(other) == hash(config)


def test_fingerprint_is_one_for_a_cluster_and_differs_between_clusters():
    inside = {case: parse_tf_config(_document(case)).cluster for case in ("evaluator_inside", "tutorial_two_workers")}
    assert (
        inside["evaluator_inside"].fingerprint()
        == ClusterSpec({"worker": ["localhost:2222", "localhost:2223"]}).fingerprint()
    )
    assert inside["evaluator_inside"].fingerprint() != inside["tutorial_two_workers"].fingerprint()
    swapped = ClusterSpec({"worker": ["localhost:23456", "localhost:12345"]})
    assert swapped.fingerprint() != inside["tutorial_two_workers"].fingerprint()
    # Written down, so that another process or release gives the same.
    assert inside["tutorial_two_workers"].fingerprint() == "24a703d7e2f2"


@pytest.mark.parametrize(
    ("index", "chief_index", "task", "is_chief", "rank"),
    [
        # The default: worker 0 is the chief, and no chief job is needed.
        (0, 0, "worker:0", True, 0),
        (1, 0, "worker:1", False, 1),
        (2, 0, "worker:2", False, 2),
        # Machine 1 is the chief: it becomes the chief job, the others are workers 0 and 1.
        (0, 1, "worker:0", False, 1),
        (1, 1, "chief:0", True, 0),
        (2, 1, "worker:1", False, 2),
    ],
)
def test_d1_build_tf_config(index, chief_index, task, is_chief, rank):
    document = build_tf_config(index, 3, chief_index=chief_index, hosts=["n0", "n1:9000", "n2"], port=5000)
    config = parse_tf_config(json.dumps(document))
    assert (str(config.task), config.is_chief, config.rank) == (task, is_chief, rank)
    assert config.cluster.address(config.task) == ["n0:5000", "n1:9000", "n2:5000"][index]
    ranks = {parse_tf_config(build_tf_config(i, 3, chief_index=chief_index)).rank for i in range(3)}
    assert ranks == {0, 1, 2}


def test_d1_the_pages_own_example():
    assert build_tf_config(task_index=1, num_workers=3) == json.loads(_document("keras_cluster_helper"))


def test_d1_evaluator():
    document = build_tf_config(0, 2, hosts=["a", "b"], task_type="evaluator")
    assert document == {
        "cluster": {"worker": ["a:2222", "b:2222"]},
        "task": {"type": "evaluator", "index": 0},
    }


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        ({"task_index": 2, "num_workers": 2}, "found: 2; allowed: 0 to 1"),
        ({"task_index": -1, "num_workers": 2}, "task_index is -1"),
        ({"task_index": 0, "num_workers": 0}, "num_workers is 0"),
        ({"task_index": 0, "num_workers": 2, "chief_index": 2}, "chief_index is 2"),
        ({"task_index": True, "num_workers": 2}, "task_index is True"),
        ({"task_index": 0, "num_workers": 2, "hosts": ["a"]}, "1 of 2 hosts"),
        ({"task_index": 0, "num_workers": 2, "hosts": "ab"}, "1 of 2 hosts"),
        ({"task_index": 0, "num_workers": 2, "hosts": ["a", "a"]}, "same address 'a:2222'"),
        ({"task_index": 0, "num_workers": 1, "port": 70000}, "port '70000' cannot be one"),
        ({"task_index": 0, "num_workers": 1, "task_type": "ps"}, "task_type is 'ps'"),
        ({"task_index": 1, "num_workers": 2, "task_type": "evaluator"}, "found: 1; allowed: 0\n"),
    ],
)
def test_d1_refusals(arguments, fragment):
    with pytest.raises(ClusterError) as caught:
        build_tf_config(**arguments)
    assert str(caught.value).startswith("build_tf_config: ")
    assert fragment in str(caught.value)


@pytest.mark.parametrize(
    ("name", "count", "index"),
    [
        ("tutorial_two_workers", 2, 0),
        ("tutorial_second_worker", 2, 1),
        ("kubeflow", 3, 1),
        ("environment_cloud", 3, 2),
    ],
)
def test_d2_number_of_workers_and_own_index(name, count, index):
    environ = {"TF_CONFIG": _document(name)}
    assert (num_workers(environ), own_index(environ)) == (count, index)


def test_d2_without_tf_config():
    assert (num_workers({}), own_index({})) == (1, 0)


def test_d2_an_evaluator_has_no_share():
    with pytest.raises(ClusterError) as caught:
        own_index({"TF_CONFIG": _document("chief_worker_ps_evaluator_outside")})
    assert caught.value.code == "cluster/unknown-task" and caught.value.what.startswith("evaluator:0 ")
    assert caught.value.found == "the training tasks chief:0, worker:0 to worker:1"


def test_local_cluster_canonical():
    documents = local_cluster(workers=1, chief=True, ps=1, evaluator=True, ports=[1001, 1002, 1003, 1004])
    assert [str(task) for task in documents] == ["chief:0", "worker:0", "ps:0", "evaluator:0"]
    jobs = {"chief": ["localhost:1001"], "worker": ["localhost:1002"], "ps": ["localhost:1003"]}
    for task, document in documents.items():
        assert document == {"cluster": jobs, "task": {"type": task.type, "index": task.index}}


def test_local_cluster_master():
    documents = local_cluster(workers=1, chief=True, dialect="master", ports=[1001, 1002], host="127.0.0.1")
    jobs = {"master": ["127.0.0.1:1001"], "worker": ["127.0.0.1:1002"]}
    assert documents == {
        Task("chief"): {"cluster": jobs, "task": {"type": "master", "index": 0}},
        Task("worker"): {"cluster": jobs, "task": {"type": "worker", "index": 0}},
    }


def test_local_cluster_evaluator_inside():
    documents = local_cluster(workers=2, evaluator=True, dialect="evaluator_in_cluster", ports=range(1001, 1009))
    jobs = {"worker": ["localhost:1001", "localhost:1002"], "evaluator": ["localhost:1003"]}
    assert [document["cluster"] for document in documents.values()] == [jobs] * 3
    assert documents[Task("evaluator")]["task"] == {"type": "evaluator", "index": 0}
    assert all(parse_tf_config(document).evaluator_in_cluster for document in documents.values())


@pytest.mark.parametrize("dialect", ["canonical", "evaluator_in_cluster"])
@pytest.mark.parametrize("chief", [False, True])
@pytest.mark.parametrize("ps", [0, 2])
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_local_cluster_is_read_as_meant(workers, ps, chief, dialect):
    documents = local_cluster(
        workers=workers, chief=chief, ps=ps, evaluator=True, dialect=dialect, ports=range(2000, 2010)
    )
    configs = {task: parse_tf_config(json.dumps(document)) for task, document in documents.items()}
    assert len(configs) == workers + chief + ps + 1
    assert all(config.task == task for task, config in configs.items())
    assert sum(config.is_chief for config in configs.values()) == 1
    ranks = [config.rank for config in configs.values() if config.is_training_task]
    assert ranks == list(range(workers + chief))
    assert len({config.cluster.fingerprint() for config in configs.values()}) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "found"),
    [
        (
            {"workers": 2, "ports": [1001]},
            "argument/bad-value",
            "1 ports: [1001]",
        ),
        (
            {"workers": 1, "chief": True, "evaluator": True, "dialect": "master", "ports": range(1001, 1009)},
            "cluster/bad-tf-config",
            "evaluator=True",
        ),
        (
            {"workers": 2, "dialect": "master", "ports": range(1001, 1009)},
            "cluster/bad-tf-config",
            "the tasks worker:0 to worker:1",
        ),
        (
            {"workers": 2, "dialect": "cannonical", "ports": range(1001, 1009)},
            "argument/unknown-name",
            "'cannonical'; allowed: canonical, master, evaluator_in_cluster",
        ),
        (
            {"workers": 1, "ports": [0]},
            "cluster/bad-address",
            "'0'; allowed: a whole number from 1 to 65535",
        ),
    ],
)
def test_local_cluster_refusals(arguments, code, found):
    with pytest.raises(ClusterError) as caught:
        local_cluster(**arguments)
    assert (caught.value.code, caught.value.found) == (code, found) and caught.value.hint


def test_dialects_that_cannot_say_it():
    outside = parse_tf_config(_document("chief_worker_ps_evaluator_outside"))
    with pytest.raises(ClusterError, match="needs an evaluator's address"):
        outside.to_dict("evaluator_in_cluster")
    with pytest.raises(ClusterError, match="'master' has no evaluator task"):
        outside.to_dict("master")


def test_tasks():
    assert Task("master") == Task("chief", 0)
    for wrong in (("wroker", 0), ("worker", -1), ("worker", True), ("worker", "0")):
        with pytest.raises(ClusterError):
            Task(*wrong)


def test_address_of_a_task_that_is_not_there():
    with pytest.raises(ClusterError) as caught:
        ClusterSpec({"worker": ["a:1", "b:1"]}).address(Task("worker", 2))
    assert caught.value.code == "cluster/unknown-task" and "worker:2" in caught.value.what
    assert caught.value.found == "the tasks worker:0 to worker:1"


def test_messages_name_their_source():
    with pytest.raises(ClusterError) as caught:
        parse_tf_config('{"cluster": {"wroker": ["a:1"]}}', source="job.json")
    assert caught.value.what.startswith("job.json: ") and caught.value.code == "cluster/bad-tf-config"
    assert caught.value.found.startswith("'wroker'; allowed: chief (or master), ") and "'worker'" in caught.value.hint


def test_imports_no_tensorflow():
    code = "import sys, estimator_pipeline.cluster, estimator_pipeline.job; print('tensorflow' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


def test_the_environment_is_read_where_none_is_given(monkeypatch):
    monkeypatch.setenv(
        "TF_CONFIG", json.dumps({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}})
    )
    assert (num_workers(), own_index()) == (2, 1)
    monkeypatch.delenv("TF_CONFIG")
    assert (num_workers(), own_index()) == (1, 0)
