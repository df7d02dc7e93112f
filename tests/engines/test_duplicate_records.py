"""Programs without `input_context` on two workers: the records that each trains on, and the warnings."""

from __future__ import annotations

import collections
import json
import sys

import numpy as np
import pytest

from estimator_pipeline import compat

tf = compat.install()

from estimator_pipeline.engines.core.rendezvous import duplicate_records  # noqa: E402
from estimator_pipeline.inputs.ledger.hashing import Sparse  # noqa: E402

pytestmark = pytest.mark.cluster

# Each worker appends the numbers of its records to a separate file.
PROGRAM = """
import json
import os
import sys

import numpy as np
import tensorflow as tf

model_dir, data, seed = sys.argv[1:]
v1 = tf.compat.v1
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]


def input_fn():
    numbers = tf.data.Dataset.range(96)
    if data == "shuffled":
        numbers = numbers.shuffle(96)
    elif data == "one batch":
        numbers = numbers.take(8).repeat(12)
    return numbers.batch(8).map(lambda n: ({"n": n}, tf.cast(n, tf.float32)[:, None] / 96))


def sharded(input_context=None):
    numbers = tf.data.Dataset.range(96).shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    return numbers.shuffle(96).batch(8).map(lambda n: ({"n": n}, tf.cast(n, tf.float32)[:, None] / 96))


def note(numbers):
    with open(f"{model_dir}-{index}", "a") as file:
        file.writelines(f"{number}\\n" for number in numbers)
    return np.int64(0)


def model_fn(features, labels, mode):
    training = mode == tf.estimator.ModeKeys.TRAIN
    with tf.control_dependencies([tf.numpy_function(note, [features["n"]], tf.int64)] if training else []):
        x = tf.cast(features["n"], tf.float32)[:, None] / 96
    loss = tf.reduce_mean((v1.layers.dense(x, 1) - labels) ** 2)
    step = v1.train.GradientDescentOptimizer(0.1).minimize(loss, v1.train.get_or_create_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=step)


config = tf.estimator.RunConfig(
    model_dir,
    tf_random_seed=1 if seed == "seeded" else None,
    train_distribute=tf.distribute.MultiWorkerMirroredStrategy(),
)
tf.estimator.train_and_evaluate(
    tf.estimator.Estimator(model_fn, config=config),
    tf.estimator.TrainSpec(sharded if data == "sharded" else input_fn, max_steps=100),
    tf.estimator.EvalSpec(lambda: sharded(tf.distribute.InputContext()), steps=1),
)
"""


def train(run_python, folder, data, seed, *options):
    program = folder / "program.py"
    program.write_text(PROGRAM)
    script = ["-m", "estimator_pipeline", "exec", *options, program, folder / "model", data, seed]
    done = run_python(
        ["-m", "estimator_pipeline", "launch", "--workers", "2", "--json", "--log-dir", folder / "logs", "--",
         sys.executable, *script], timeout=240)  # fmt: skip
    numbers = [file.read_text().split() for file in sorted(folder.glob("model-*"))]
    read = collections.Counter(collections.Counter(number for some in numbers for number in some).values())
    return done, json.loads(done.stdout)["warnings"], dict(read)


def test_the_same_order_is_reported(run_python, tmp_path):
    done, (warning,), read = train(run_python, tmp_path, "ordered", "")
    assert done.returncode == 0 and read == {2: 96}
    assert "worker:0 and worker:1 train on the same records in the same order" in warning
    assert "The input_fn (program.py, line 14) takes no input_context" in warning
    assert warning in done.stderr


@pytest.mark.nightly
def test_different_orders_are_reported(run_python, tmp_path):
    done, (warning,), read = train(run_python, tmp_path, "shuffled", "")
    assert done.returncode == 0 and read == {2: 96}
    assert "in different orders (96 of the first 96 of worker:1 were also read by another task)" in warning


@pytest.mark.nightly
@pytest.mark.parametrize("data", ["sharded", "one batch"])
def test_nothing_to_report(data, run_python, tmp_path):
    done, warnings, _ = train(run_python, tmp_path, data, "")
    assert done.returncode == 0 and warnings == []


def test_shard_input(run_python, tmp_path):
    done, (warning,), read = train(run_python, tmp_path, "shuffled", "seeded", "--shard-input")
    assert done.returncode == 0 and read == {1: 96}, done.stderr[-3000:]
    assert "a step trains on 2 batches, and an epoch has 1/2 of the steps" in warning


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("data", "why"),
    [("shuffled", "shuffle() or list_files() without a seed"), ("sharded", "it takes an input_context")],
)
def test_shard_input_is_refused(data, why, run_python, tmp_path):
    done, _, read = train(run_python, tmp_path, data, "", "--shard-input")
    assert done.returncode == 2 and not read
    log = (tmp_path / "logs" / "worker-0.log").read_text()
    assert "--shard-input cannot shard the data of this input_fn [data/cannot-shard]" in log and why in log
    assert "Traceback" not in log


def test_batches_of_a_graph():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        sparse = tf.sparse.from_dense([[1, 0], [0, 2], [3, 4]])
        data = tf.data.Dataset.from_tensor_slices(({"s": sparse, "text": ["a", "b", "c"]}, [1.0, 2.0, 3.0])).batch(2)
        features, _ = tf.compat.v1.data.make_one_shot_iterator(data).get_next()
        tf.sparse.to_dense(features["s"])
        (batch,) = session.run(list(duplicate_records._batches(session.graph)))
    kinds = {type(leaf) for leaf in batch}
    assert kinds == {Sparse, np.ndarray} and len(batch) == 3
