"""The cluster of a converted program: what a RunConfig told of it, its strategy, and what is refused."""

from __future__ import annotations

import json

import pytest

from estimator_pipeline.errors import ClusterError
from estimator_pipeline.models.keras_runtime import distribution as keras_cluster
from estimator_pipeline.models.keras_runtime import evaluation as keras_evaluation
from tests.support.processes import tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()


def environ(task: str, index: int = 0, **jobs: list[str]) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": jobs, "task": {"type": task, "index": index}})}


@pytest.mark.parametrize(
    "document",
    [
        {},
        environ("chief", chief=["a:1"]),
        environ("worker", 1, chief=["a:1"], worker=["b:1", "c:1"]),
        environ("master", master=["a:1"], worker=["b:1"]),
    ],
)
def test_what_a_run_config_told(document, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    for name, value in document.items():
        monkeypatch.setenv(name, value)
    theirs, ours = tf.estimator.RunConfig(), keras_cluster.of_workers()
    told = ["num_worker_replicas", "num_ps_replicas", "global_id_in_cluster", "is_chief", "task_id"]
    assert [getattr(ours, name) for name in told] == [getattr(theirs, name) for name in told]
    assert ours.task_type == theirs.task_type.replace("master", "chief")


def test_workers_without_a_chief():
    """A RunConfig takes them with a strategy alone: the first one leads."""
    found = [keras_cluster.of_workers(environ=environ("worker", index, worker=["a:1", "b:1"])) for index in (0, 1)]
    assert [one.is_chief for one in found] == [True, False] and [one.task_id for one in found] == [0, 1]
    assert [(one.global_id_in_cluster, one.num_worker_replicas) for one in found] == [(0, 2), (1, 2)]


def test_one_process_has_the_default_strategy():
    for given in ({}, environ("worker", worker=["a:1"])):
        assert keras_cluster.of_workers(environ=given).strategy() is tf.distribute.get_strategy()


@pytest.mark.parametrize("task", ["chief", "worker", "ps", "evaluator"])
def test_parameter_servers_are_refused_on_each_task(task):
    given = environ(task, chief=["a:1"], worker=["b:1", "c:1"], ps=["d:1"])
    for begin in (keras_cluster.of_workers, lambda environ: keras_evaluation.Evaluation(
        data, every_steps=1, environ=environ)):  # fmt: skip
        with pytest.raises(ClusterError) as raised:
            begin(environ=given)
        assert "a cluster with parameter servers" in raised.value.what and "asynchronous" in raised.value.what
        assert raised.value.found.endswith(f"this task is {task}:0") and "1 ps" in raised.value.found
        for said in ("without the job ps", "synchronous", "processes 3 batches", "max_steps / 3", "learning rate"):
            assert said in raised.value.hint


def data():
    return tf.data.Dataset.from_tensor_slices([[1.0], [2.0]]).batch(1)


def test_such_a_cluster_is_told_whatever_else_is_wrong_with_it():
    with pytest.raises(ClusterError, match="a cluster with parameter servers"):
        keras_cluster.of_workers(environ=environ("worker", ps=[""], chief=["a"]))
    with pytest.raises(ClusterError, match="JSON"):
        keras_cluster.of_workers(environ={"TF_CONFIG": "{"})


def test_an_evaluator_is_refused():
    with pytest.raises(ClusterError, match="this task is evaluator:0") as raised:
        keras_cluster.of_workers(environ=environ("evaluator", worker=["a:1", "b:1"]))
    assert "they evaluate while they train" in raised.value.hint


def test_the_chief_keeps_the_weights(tmp_path):
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.build((None, 1))
    workers = {"worker": ["a:1", "b:1"]}
    keras_cluster.save_weights(model, str(tmp_path / "weights"), environ=environ("worker", 1, **workers))
    assert not list(tmp_path.iterdir())
    keras_cluster.save_weights(model, str(tmp_path / "weights"), environ=environ("worker", 0, **workers))
    assert (tmp_path / "weights.index").exists()


def test_workers_share_an_evaluation_out_by_records():
    """Files may be fewer than workers; what the program says otherwise is left."""
    policies = tf.data.experimental.AutoShardPolicy
    alone, several = ({}, environ("worker", worker=["a:1", "b:1"]))
    for given, expected in ((alone, policies.AUTO), (several, policies.DATA)):
        task = keras_cluster.of_workers(environ=given).tf_config
        made = keras_evaluation._by_records(data(), task)
        assert made.options().experimental_distribute.auto_shard_policy == expected
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policies.OFF
    made = keras_evaluation._by_records(data().with_options(options), task)
    assert made.options().experimental_distribute.auto_shard_policy == policies.OFF
