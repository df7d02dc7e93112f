"""Prints, as JSON, what a RunConfig holds for each task of many clusters, with many strategies.

    python run_config_fields.py > FILE

Each case is "STRATEGY | CLUSTER, TASK". Its value is what came out, or the name of an earlier case that came out so.

A plain tf.estimator program: tests/records/run_config_fields.json is its output on TensorFlow 2.15.
"""

import collections
import json
import os

import tensorflow as tf

DistributeConfig = collections.namedtuple(
    "DistributeConfig", ["train_distribute", "eval_distribute", "remote_cluster"], defaults=[None, None, None]
)

W2 = {"worker": ["a:1", "b:2"]}
CHIEF = {"chief": ["c:1"], "worker": ["a:1", "b:2"]}
PS = {"chief": ["c:1"], "worker": ["a:1"], "ps": ["p:1", "p:2"]}
MASTER = {"master": ["m:1"], "worker": ["a:1"], "ps": ["p:1"]}
EVALUATOR = {"chief": ["c:1"], "worker": ["a:1"], "evaluator": ["e:1"]}


def task(cluster, kind, index, **more):
    return dict(more, cluster=cluster, task={"type": kind, "index": index})


TF_CONFIGS = {
    "none": None,
    "empty": {},
    "one worker": task({"worker": ["a:1"]}, "worker", 0),
    "one chief": task({"chief": ["c:1"]}, "chief", 0),
    "two workers, first": task(W2, "worker", 0),
    "two workers, second": task(W2, "worker", 1),
    "two workers, evaluator outside": task(W2, "evaluator", 0),
    "chief": task(CHIEF, "chief", 0),
    "chief, worker": task(CHIEF, "worker", 1),
    "chief, evaluator outside": task(CHIEF, "evaluator", 0),
    "ps, chief": task(PS, "chief", 0),
    "ps, worker": task(PS, "worker", 0),
    "ps, ps": task(PS, "ps", 1),
    "ps, evaluator": task(PS, "evaluator", 0),
    "master": task(MASTER, "master", 0),
    "master, worker": task(MASTER, "worker", 0),
    "master, ps": task(MASTER, "ps", 0),
    "master, cloud": task(MASTER, "master", 0, environment="cloud"),
    "evaluator inside, chief": task(EVALUATOR, "chief", 0),
    "evaluator inside, worker": task(EVALUATOR, "worker", 0),
    "evaluator inside, evaluator": task(EVALUATOR, "evaluator", 0),
    "index as text": task(CHIEF, "worker", "1"),
    "model_dir": task(CHIEF, "worker", 0, model_dir="/given"),
    "session_master": task(CHIEF, "worker", 0, session_master="grpc://x:9", eval_session_master="grpc://y:9"),
    "service": task(CHIEF, "worker", 0, service={"key": 1}),
    "task alone, worker": {"task": {"type": "worker", "index": 0}},
    "task alone, evaluator": {"task": {"type": "evaluator", "index": 0}},
    # What cannot be.
    "no task type": {"cluster": CHIEF, "task": {"index": 0}},
    "no index": {"cluster": CHIEF, "task": {"type": "worker"}},
    "no task": {"cluster": CHIEF},
    "index too large": task(CHIEF, "worker", 2),
    "index negative": task(CHIEF, "worker", -1),
    "unknown job": task(CHIEF, "trainer", 0),
    "two chiefs": task({"chief": ["c:1", "c:2"], "worker": ["a:1"]}, "worker", 0),
    "two masters": task({"master": ["m:1", "m:2"]}, "master", 0),
    "no workers": task({"ps": ["p:1"]}, "ps", 0),
    "task alone, index 1": {"task": {"type": "worker", "index": 1}},
    "service of a local task": {"service": {"key": 1}},
    "service no mapping": task(CHIEF, "worker", 0, service="text"),
    "model_dir differs": task(CHIEF, "chief", 0, model_dir="/another"),
}

MODEL_DIR = "/given"

FIELDS = [
    "_task_type",
    "_task_id",
    "_master",
    "_evaluation_master",
    "_is_chief",
    "_num_ps_replicas",
    "_num_worker_replicas",
    "_global_id_in_cluster",
    "_distribute_coordinator_mode",
    "_service",
    "_model_dir",
]


def strategies():
    # Made before TF_CONFIG is set, so that none of them waits for a cluster that is not there.
    mirrored = tf.distribute.MirroredStrategy(["/cpu:0"])
    one = tf.distribute.OneDeviceStrategy("/cpu:0")
    workers = tf.distribute.MultiWorkerMirroredStrategy()
    ps = tf.compat.v1.distribute.experimental.ParameterServerStrategy()
    given = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=3)
    return {
        "none": {},
        "session_config": {"session_config": given},
        "train mirrored": {"train_distribute": mirrored},
        "train one_device": {"train_distribute": one},
        "train multi_worker": {"train_distribute": workers},
        "train multi_worker, session_config": {"train_distribute": workers, "session_config": given},
        "train ps": {"train_distribute": ps},
        "eval mirrored": {"eval_distribute": mirrored},
        "train multi_worker, eval mirrored": {"train_distribute": workers, "eval_distribute": mirrored},
        "experimental train": {"experimental_distribute": DistributeConfig(train_distribute=workers)},
        "experimental eval": {"experimental_distribute": DistributeConfig(eval_distribute=mirrored)},
        "experimental remote": {
            "experimental_distribute": DistributeConfig(
                train_distribute=workers,
                eval_distribute=mirrored,
                remote_cluster=tf.train.ClusterSpec({"chief": ["r:1"], "worker": ["r:2", "r:3"]}),
            )
        },
        "train twice": {
            "train_distribute": mirrored,
            "experimental_distribute": DistributeConfig(train_distribute=workers),
        },
        "eval twice": {
            "eval_distribute": mirrored,
            "experimental_distribute": DistributeConfig(eval_distribute=mirrored),
        },
    }


def fields(config):
    found = {name: getattr(config, name, "absent") for name in FIELDS}
    spec = config.cluster_spec
    found["cluster_spec"] = spec.as_dict() if isinstance(spec, tf.train.ClusterSpec) else repr(spec)
    found["session_config"] = None if config.session_config is None else str(config.session_config)
    for name in ("train_distribute", "eval_distribute"):
        found[name] = getattr(config, name) and type(getattr(config, name)).__name__
    return found


def outcome(arguments):
    try:
        config = tf.estimator.RunConfig(model_dir=MODEL_DIR, **arguments)
        found = fields(config)
        replaced = fields(config.replace(save_summary_steps=7))
    except Exception as error:
        return {"error": type(error).__name__, "message": str(error)}
    # replace() makes a copy that must stand for the same task.
    found["same after replace"] = replaced == found
    return found


def main():
    os.environ.pop("TF_CONFIG", None)
    results, first = {}, {}
    for strategy, arguments in strategies().items():
        for name, tf_config in TF_CONFIGS.items():
            os.environ.pop("TF_CONFIG", None)
            if tf_config is not None:
                os.environ["TF_CONFIG"] = json.dumps(tf_config)
            case, found = "%s | %s" % (strategy, name), outcome(arguments)
            # Most cases come out like another one: the name of the first such case says it all.
            results[case] = first.setdefault(json.dumps(found, sort_keys=True), case)
            if results[case] == case:
                results[case] = found
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
