"""The ledger of real trainings in one process: what was consumed stands in it, what was fetched ahead does not."""

from __future__ import annotations

import functools
import json

import numpy as np
import pytest

import estimator_pipeline as ep
from estimator_pipeline.engines.recording import graph_hashing
from estimator_pipeline.engines.recording.ledger import TaskLedger
from estimator_pipeline.inputs import ledger
from estimator_pipeline.inputs.ledger.hashing import Sparse, fingerprints
from estimator_pipeline.inputs.sharding import ShardOptions
from estimator_pipeline.job import load_job
from tests.support.processes import KERAS3_PROCESS, ROOT, tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()

SINGLE = ROOT / "legacy_configs" / "single.yaml"
# The steps of a block that is fetched at once are 64: both ends lie within one.
SMALL = ["train.max_steps=23", "run.save_checkpoints_steps=10", "model.name=linear", "run.ledger=true"]
N = 100
X = np.random.default_rng(0).standard_normal((N, 4)).astype(np.float32)
Y = np.arange(N, dtype=np.int64)
PRINTS = {int(value): n for n, value in enumerate(fingerprints([X, Y]))}


def check_plan(folder, steps, *, replicas=1):
    found = ledger.read(folder)
    assert found.last_step == steps and found.kind == "records"
    report = ledger.check(found)
    assert report.well, str(report)
    (generation,) = {id(g): g for run in found.runs for s in run.segments.values() for g in s.generations}.values()
    assert generation.steps > steps, "more was fetched than trained on"
    plan = ledger_plan(replicas)
    for step in range(1, steps + 1):
        (ids,) = found.ids(step).values()
        assert ids.tolist() == plan.ids(step - 1).ravel().tolist()
    return found


def ledger_plan(replicas):
    data = ep.inputs.from_tfds("digits", global_batch_size=64, scale=1 / 16, seed=1)
    return data.train_shards(ShardOptions(num_replicas=replicas))


@pytest.mark.gate("keras-mirrored-auto")
@pytest.mark.parametrize(
    ("engine", "distribute", "policy"),
    [
        ("estimator", "none", "auto"),
        ("estimator", "mirrored", "auto"),
        ("keras", "none", "auto"),
        ("keras", "mirrored", "auto"),
        ("keras", "mirrored", "hint"),
    ],
)
def test_what_was_consumed(tmp_path, digits_dir, engine, distribute, policy):
    """A stop in the middle of a block, one device and two."""
    from estimator_pipeline.engines.jobs.run import run_job

    replicas = 2 if distribute == "mirrored" else 1
    settings = [*SMALL, f"run.model_dir={tmp_path}", f"run.engine={engine}", f"input.data_dir={digits_dir}"]
    settings += [f"run.train_distribute={distribute}", f"input.shard_policy={policy}"]
    settings += ["run.devices=['CPU:0', 'CPU:1']"] if replicas == 2 else []
    tf.keras.backend.clear_session()
    result = run_job(load_job(SINGLE, overrides=settings), environ={})
    assert result.global_step == 23
    check_plan(tmp_path / "ledger", 23, replicas=replicas)
    # It goes on: the same ledger, a second attempt.
    tf.keras.backend.clear_session()
    run_job(load_job(SINGLE, overrides=[*settings, "train.max_steps=41"]), environ={})
    report = ledger.check(tmp_path / "ledger")
    assert report.well and [share.steps for share in report.shares] == [41], str(report)
    assert [(run.start, run.end) for run in ledger.read(tmp_path / "ledger").runs] == [(0, 23), (23, 41)]


@pytest.mark.nightly
@pytest.mark.keras_3
def test_keras_3(run_python, tmp_path, digits_dir):
    settings = [*SMALL, f"run.model_dir={tmp_path}", "run.engine=keras3", f"input.data_dir={digits_dir}"]
    asked = json.dumps([[str(SINGLE), settings]])
    done = run_python(
        [KERAS3_PROCESS, "jobs"],
        stdin=asked,
        env={"PYTHONPATH": str(ROOT)},
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    check_plan(tmp_path / "ledger", 23)


def model_fn(features, labels, mode):
    x = features["x"] if isinstance(features, dict) else features
    weights = tf.compat.v1.get_variable("weights", [4, 1])
    logits = tf.matmul(tf.sparse.to_dense(x) if isinstance(x, tf.SparseTensor) else x, weights)
    loss = tf.reduce_mean(tf.square(logits[:, 0] - tf.cast(labels, tf.float32) / N))
    if mode == tf.estimator.ModeKeys.EVAL:
        return tf.estimator.EstimatorSpec(mode, loss=loss)
    step = tf.compat.v1.train.get_or_create_global_step()
    train_op = tf.compat.v1.train.GradientDescentOptimizer(0.01).minimize(loss, step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def own_input_fn(params=None, input_context=None):
    data = tf.data.Dataset.from_tensor_slices((X, Y))
    if input_context is not None:
        data = data.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    return data.shuffle(N, seed=3).repeat().batch(8).prefetch(5)


def estimator_of(folder, **options):
    config = ep.build_run_config(str(folder), save_checkpoints_steps=10, seed=1, environ={}, **options)
    return tf.estimator.Estimator(model_fn, config=config)


def train_and_evaluate(folder, input_fn, *, max_steps=23, hooks=(), **options):
    return ep.train_and_evaluate(
        estimator_of(folder / "model", **options),
        tf.estimator.TrainSpec(input_fn, max_steps=max_steps, hooks=hooks),
        tf.estimator.EvalSpec(lambda: own_input_fn().take(2), steps=None),
        ledger=folder / "ledger",
        environ={},
    )


class Seen(tf.estimator.SessionRunHook):
    """What the steps were made with, by the graph's own word."""

    def __init__(self, name):
        self.name, self.labels = name, []

    def before_run(self, run_context):
        return tf.estimator.SessionRunArgs(run_context.session.graph.get_tensor_by_name(self.name))

    def after_run(self, run_context, run_values):
        self.labels.append(run_values.results.tolist())


def test_an_own_input_fn_by_fingerprints(tmp_path):
    """Against what the training steps themselves were fed."""

    def told_model_fn(features, labels, mode):
        tf.identity(labels, "labels_of_the_step")
        return model_fn(features, labels, mode)

    seen = Seen("labels_of_the_step:0")
    config = ep.build_run_config(str(tmp_path / "model"), save_checkpoints_steps=10, environ={})
    ep.train_and_evaluate(
        tf.estimator.Estimator(told_model_fn, config=config),
        tf.estimator.TrainSpec(own_input_fn, max_steps=23, hooks=[seen]),
        tf.estimator.EvalSpec(own_input_fn, steps=2),
        ledger=tmp_path / "ledger",
        environ={},
    )
    found = ledger.read(tmp_path / "ledger")
    assert found.kind == "fingerprints" and found.last_step == 23
    (segment,) = found.runs[0].segments.values()
    assert segment.generations[0].steps > 23
    labels = [[PRINTS[int(value)] for value in found.ids(step)["worker:0"]] for step in range(1, 24)]
    assert labels == seen.labels
    report = ledger.check(found, counts=dict.fromkeys(PRINTS, 1))
    assert report.well, str(report)


def test_an_own_input_fn_on_two_replicas(tmp_path):
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice())
    train_and_evaluate(tmp_path, own_input_fn, train_distribute=strategy)
    found = ledger.read(tmp_path / "ledger")
    assert found.last_step == 23 and all(len(found.ids(step)["worker:0"]) == 16 for step in range(1, 24))
    expected = [batch.numpy().tolist() for _, batch in own_input_fn().take(46)]
    read = [PRINTS[int(v)] for step in range(1, 24) for v in found.ids(step)["worker:0"]]
    assert read == [label for batch in expected for label in batch]


@pytest.mark.nightly
def test_fingerprints_of_a_graph_are_those_of_numpy():
    """Types of every size, odd numbers of bytes, zeros, batches of one and of none."""
    rng = np.random.default_rng(1)
    kinds = [np.uint8, np.int8, np.bool_, np.float16, np.int16, np.int32, np.float32, np.int64, np.float64, np.uint64]
    for records in (0, 1, 7):
        for shape in ((), (3,), (8, 8, 1), (5, 3), (0,)):
            parts = [(rng.integers(0, 3, (records, *shape)) * 37 - 1).astype(kind) for kind in kinds]
            function = tf.function(lambda *given: graph_hashing.fingerprints(tf, given))
            found = function(*map(tf.constant, parts)).numpy()
            assert found.tolist() == fingerprints(parts).tolist(), (records, shape)
            one = function(tf.constant(parts[6]))
            assert one.numpy().tolist() == fingerprints([parts[6]]).tolist()
    # Other numbers of rows: the batch is one record.
    uneven = [np.ones((3, 2), np.float32), np.arange(4)]
    found = graph_hashing.fingerprints(tf, list(map(tf.constant, uneven)))
    assert found.numpy().tolist() == fingerprints(uneven).tolist()


def test_sparse_features_and_the_end_of_the_data(tmp_path):
    def sparse_input_fn():
        def sparse(x, y):
            return {"x": tf.sparse.from_dense(x)}, y

        return tf.data.Dataset.from_tensor_slices((X, Y)).batch(8, drop_remainder=True).map(sparse)

    result = train_and_evaluate(tmp_path, lambda: sparse_input_fn().map(_shaped), max_steps=None)
    assert result.global_step == 12 and result.ended == "data ended"
    found = ledger.read(tmp_path / "ledger")
    assert found.last_step == 12
    features, _ = next(iter(sparse_input_fn()))
    x = features["x"]
    alone = fingerprints([Sparse(x.indices.numpy(), x.values.numpy(), x.dense_shape.numpy()), Y[:8]])
    assert found.ids(1)["worker:0"].tolist() == alone.tolist()
    assert ledger.check(found).well


def _shaped(features, labels):
    features["x"].set_shape([8, 4])
    return features, labels


def test_tensors_of_a_queue(tmp_path):
    """An input function of TensorFlow 1, without a dataset."""

    def queue_input_fn():
        return tf.compat.v1.estimator.inputs.numpy_input_fn({"x": X}, Y, batch_size=8, shuffle=False, num_epochs=None)()

    train_and_evaluate(tmp_path, queue_input_fn)
    found = ledger.read(tmp_path / "ledger")
    prints = {int(value): n for n, value in enumerate(fingerprints([X, Y]))}
    read = [prints[int(v)] for step in range(1, 24) for v in found.ids(step)["worker:0"]]
    assert found.last_step == 23 and read == [n % N for n in range(23 * 8)]


def test_signatures_are_kept(tmp_path):
    """TensorFlow looks at the names of an input function's parameters, and gives what it finds there."""
    from estimator_pipeline.cluster import from_environ

    kept = TaskLedger(tmp_path, tf_config=from_environ({}))
    import inspect

    for function in (own_input_fn, functools.partial(own_input_fn, params=3), lambda: None):
        assert inspect.signature(kept.input_fn(function)) == inspect.signature(function)


@pytest.mark.nightly
def test_a_parity_record_beside_the_ledger(tmp_path, digits_dir, run_warm):
    settings = [*SMALL, f"run.model_dir={tmp_path}", f"input.data_dir={digits_dir}"]
    command = ["-m", "estimator_pipeline", "train", SINGLE, "--record", tmp_path / "record", "--quiet"]
    done = run_warm([*command, *(x for s in settings for x in ("--set", s))])
    assert done.returncode == 0, done.stderr[-3000:]
    check_plan(tmp_path / "ledger", 23)


def test_exec_keeps_a_ledger_of_a_program(run_warm, programs, tmp_path):
    command = ["-m", "estimator_pipeline", "exec", "--ledger", tmp_path / "ledger", programs / "legacy_cluster.py"]
    done = run_warm([*command, tmp_path / "model", "--strategy", "none"])
    assert done.returncode == 0, done.stderr[-3000:]
    found = ledger.read(tmp_path / "ledger")
    assert found.last_step == 40 and found.kind == "fingerprints"
    random = np.random.RandomState(0)
    x = random.uniform(-1, 1, [256, 4]).astype("float32")
    y = (x @ [[1.0], [-2.0], [3.0], [0.5]]).astype("float32")
    prints = {int(value): 1 for value in fingerprints([x, y])}
    report = ledger.check(found, counts=prints)
    assert report.well, str(report)
    assert "640 reads of 256 different records, each read 2 to 3 times" in str(report)
