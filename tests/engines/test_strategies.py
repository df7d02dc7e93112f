"""Strategies and RunConfig by name, each in a process of its own: a strategy settles TensorFlow's devices for good."""

from __future__ import annotations

import json
import os

import pytest

import estimator_pipeline as ep
from estimator_pipeline.cluster import from_environ
from estimator_pipeline.distribute.run_config import tf_config_environ
from estimator_pipeline.errors import ConfigError
from tests.support.processes import free_ports

CLUSTER = {"chief": ["localhost:1"], "worker": ["localhost:2"], "ps": ["localhost:3"]}

CODE = """
import json, sys
import estimator_pipeline as ep
tf = ep.compat.install()

def told(call):
    try:
        config = ep.build_run_config("/nowhere", environ=call.pop("environ", {}), **call)
    except ep.errors.ConfigError as error:
        return {"error": str(error)}
    train, evaluation = config.train_distribute, config.eval_distribute
    session = config.session_config
    return {
        "train": type(train).__name__, "eval": type(evaluation).__name__,
        "replicas": train.num_replicas_in_sync if train else 1,
        "reduction": type(getattr(train.extended, "_cross_device_ops", None)).__name__ if train else None,
        "communication": communication(train),
        "cluster": config.cluster_spec.as_dict() if config.cluster_spec else None,
        "seed": config.tf_random_seed, "steps": config.save_checkpoints_steps,
        "keep": config.keep_checkpoint_max,
        "session": None if session is None else {
            "intra": session.intra_op_parallelism_threads, "inter": session.inter_op_parallelism_threads,
            "cpus": session.device_count.get("CPU", 1), "growth": session.gpu_options.allow_growth},
    }

def communication(strategy):
    # What TensorFlow itself has for its collectives.
    options = getattr(getattr(strategy, "extended", None), "_communication_options", None)
    if options is None:
        return None
    return [options.implementation.name, options.bytes_per_pack, options.timeout_seconds]

print(json.dumps([told(call) for call in json.loads(sys.argv[1])]))
"""


@pytest.fixture(scope="module")
def configs(run_python):
    """What comes of several calls in one process."""

    def make(calls):
        calls = [dict(call) for call in calls]
        for call in calls:
            task, cluster = call.pop("task", None), call.pop("cluster", CLUSTER)
            if task is not None:
                call["environ"] = {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}
        done = run_python(["-c", CODE, json.dumps(calls)])
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    return make


CASES = [
    pytest.param({}, {"train": "NoneType", "eval": "NoneType", "session": None}, id="none"),
    pytest.param({"train_distribute": "one_device"}, {"train": "OneDeviceStrategy", "replicas": 1}, id="one_device"),
    pytest.param(
        {"train_distribute": "mirrored", "eval_distribute": "mirrored", "num_devices": 3},
        {"train": "MirroredStrategy", "eval": "MirroredStrategy", "replicas": 3,
         "session": {"intra": 0, "inter": 0, "cpus": 3, "growth": False}},
        id="e5_mirrored",
    ),
    pytest.param(
        {"train_distribute": "mirrored", "devices": ["CPU:0", "/cpu:1"]},
        {"train": "MirroredStrategy", "replicas": 2, "reduction": "ReductionToOneDevice",
         "session": {"intra": 0, "inter": 0, "cpus": 2, "growth": False}},
        id="mirrored_over_named_cpus",
    ),
    pytest.param(
        {"train_distribute": "one_device", "devices": ["CPU:1"]},
        {"train": "OneDeviceStrategy", "session": {"intra": 0, "inter": 0, "cpus": 2, "growth": False}},
        id="one_named_cpu",
    ),
    pytest.param(
        {"train_distribute": "multi_worker_mirrored", "save_checkpoints_steps": 5,
         "communication": {"implementation": "ring", "bytes_per_pack": 1024, "timeout_secs": 30}},
        {"train": "CollectiveAllReduceStrategy", "replicas": 1, "steps": 5, "communication": ["RING", 1024, 30]},
        id="e8_multi_worker_in_one_process",
    ),
    pytest.param(
        {"train_distribute": "parameter_server", "task": {"type": "worker", "index": 0}},
        # RunConfig takes it from the environment that is given, whatever that of the process says.
        {"train": "ParameterServerStrategyV1", "cluster": CLUSTER},
        id="parameter_server",
    ),
    pytest.param(
        {"train_distribute": "parameter_server", "task": {"type": "ps", "index": 0}}, {"train": "NoneType"},
        id="a_ps_makes_no_strategy",
    ),
    pytest.param(
        {"train_distribute": "multi_worker_mirrored", "eval_distribute": "mirrored", "save_checkpoints_steps": 5,
         "num_devices": 2, "task": {"type": "evaluator", "index": 0}, "cluster": {"worker": ["a:1", "b:2"]}},
        {"train": "NoneType", "eval": "MirroredStrategy"},
        id="an_evaluator_makes_the_evaluation_strategy_alone",
    ),
    pytest.param(
        {"seed": 7, "keep_checkpoint_max": 2, "intra_op_threads": 1, "inter_op_threads": 2,
         "session_config": {"gpu_options": {"allow_growth": True}}},
        {"seed": 7, "keep": 2, "session": {"intra": 1, "inter": 2, "cpus": 1, "growth": True}},
        id="fields",
    ),
]  # fmt: skip


@pytest.mark.gate("parameter_server")
@pytest.mark.parametrize(("call", "expected"), CASES)
def test_by_name(configs, call, expected):
    (found,) = configs([call])
    assert {name: found.get(name) for name in expected} == expected


BAD = [
    ({"train_distribute": "mirored"}, ["'mirored' is not known", "allowed: none, one_device, mirrored"]),
    ({"eval_distribute": "multi_worker_mirrored"}, ["eval_distribute is 'multi_worker_mirrored'", "one process"]),
    ({"train_distribute": "parameter_server"}, ["without parameter servers", "launch --ps N"]),
    (
        {"train_distribute": "multi_worker_mirrored", "save_checkpoints_steps": 1,
         "task": {"type": "worker", "index": 0}},
        ["in a cluster with a `ps` job", "localhost:3", "use parameter_server"],
    ),
    ({"train_distribute": "multi_worker_mirrored"}, ["must be saved by steps", "give save_checkpoints_steps"]),
    ({"save_checkpoints_steps": 1, "save_checkpoints_secs": 1}, ["both given", "one of the two"]),
    ({"save_chekpoints_steps": 1}, ["no field save_chekpoints_steps", "save_checkpoints_steps"]),
    ({"session_config": {"gpu": 1}}, ["session_config cannot be read", "ConfigProto"]),
    ({"communication": {"implementation": "mpi"}}, ["'mpi'", "auto, ring, nccl"]),
    ({"communication": {"timeout_secs": 0}}, ["timeout_secs is 0", "seconds above 0"]),
]  # fmt: skip


@pytest.mark.parametrize("task", [None, {"type": "evaluator", "index": 0}, {"type": "worker", "index": 0}])
def test_the_variable_is_as_it_was_afterwards(task, monkeypatch):
    """Who reads it next is the same task, and an evaluator is no process by itself."""
    given = None if task is None else json.dumps({"cluster": CLUSTER, "task": task})
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if given is not None:
        monkeypatch.setenv("TF_CONFIG", given)
    config = from_environ(os.environ)
    with tf_config_environ(config):
        assert os.environ["TF_CONFIG"] == (config.to_json() if task and task["type"] == "worker" else "{}")
    assert os.environ.get("TF_CONFIG") == given


@pytest.fixture(scope="module")
def errors(configs):
    """They come before a strategy is made, so one process does for all."""
    return [found["error"] for found in configs([call for call, _ in BAD])]


@pytest.mark.parametrize("number", range(len(BAD)))
def test_bad_combinations(errors, number):
    for fragment in BAD[number][1]:
        assert fragment in errors[number]


EVALUATED = """
import json, os, sys
import numpy as np
import estimator_pipeline as ep
from estimator_pipeline.distribute import strategies
tf = ep.compat.install()
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
folder, cluster, *asked = sys.argv[1:]
os.environ["TF_CONFIG"] = cluster
train = tf.distribute.MultiWorkerMirroredStrategy()
makes = {
    "none": lambda: None, "same": lambda: train, "mirrored": tf.distribute.MirroredStrategy,
    "mirrored of V1": tf.compat.v1.distribute.MirroredStrategy,
    "one_device": lambda: tf.distribute.OneDeviceStrategy("/cpu:1"),
}
kinds = {name: makes[name]() for name in ("none", *asked)}
os.environ["TF_CONFIG"] = "{}"
X = np.arange(20, dtype=np.float32)[:, None] / 20

def model_fn(features, labels, mode):
    weight = tf.compat.v1.get_variable("weight", [1, 1])
    loss = tf.reduce_mean(tf.square(features @ weight - labels))
    step = tf.compat.v1.train.get_or_create_global_step()
    train_op = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss, step) if mode == "train" else None
    metrics = {"mean": tf.compat.v1.metrics.mean(features @ weight)}
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op, eval_metric_ops=metrics)

def input_fn(repeat=None):
    return tf.data.Dataset.from_tensor_slices((X, X)).repeat(repeat).batch(4)

told = {}
for name, strategy in kinds.items():
    if not told:
        alone = tf.estimator.Estimator(model_fn, folder, tf.estimator.RunConfig(tf_random_seed=1))
        alone.train(input_fn, steps=3)
    config = tf.estimator.RunConfig(eval_distribute=strategy)
    own = strategies.of_this_process(strategy)
    result = ep.train_and_evaluate(
        tf.estimator.Estimator(model_fn, folder, config),
        tf.estimator.TrainSpec(input_fn, max_steps=3),
        tf.estimator.EvalSpec(lambda: input_fn(1), steps=None), environ={}, accept_changes=True)
    devices = [list(one.extended.worker_devices) if one else [] for one in (strategy, own)]
    told[name] = {"metrics": result.metrics, "as it is": own is strategy, "given": devices[0], "own": len(devices[1])}
print(json.dumps(told))
"""


@pytest.mark.gate("mirrored")
@pytest.mark.parametrize("kind", ["same", "mirrored", "mirrored of V1", "one_device"])
def test_a_worker_evaluates_on_its_own_devices(run_warm, tmp_path, kind):
    """In a process of a cluster, whose devices bear the cluster's names; each strategy comes to the same metrics."""
    cluster = {"worker": [f"localhost:{port}" for port in free_ports(1)]}
    task = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})
    done = run_warm(["-c", EVALUATED, tmp_path, task, kind])
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    numbers = {"same": [0], "one_device": [1]}.get(kind, [0, 1])
    assert told["none"]["as it is"] and not told[kind]["as it is"]
    assert told[kind]["given"] == [f"/job:worker/replica:0/task:0/device:CPU:{number}" for number in numbers]
    assert told[kind]["own"] == len(numbers)
    metrics, found = told["none"]["metrics"], told[kind]["metrics"]
    # The loss is the mean of the batches' means, and two replicas share the last batch.
    for name in ("mean",) if len(numbers) == 2 else metrics:
        assert found[name] == pytest.approx(metrics[name], rel=1e-6), name


@pytest.mark.tf
@pytest.mark.parametrize(
    ("options", "meant"),
    [
        ({"train_distribute": "MultiWorkerMirroredStrategy"}, "'multi_worker_mirrored'"),
        ({"train_distribute": "tf.distribute.MirroredStrategy"}, "'mirrored'"),
        ({"save_checkpoint_steps": 5}, "save_checkpoints_steps"),
    ],
)
def test_names_that_are_nearly_right(tmp_path, options, meant):
    with pytest.raises(ConfigError, match=f"did you mean {meant}\\?"):
        ep.build_run_config(str(tmp_path), environ={}, **options)
