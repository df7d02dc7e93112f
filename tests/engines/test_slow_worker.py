"""Two workers, one of which is slow: by its input, or in its own part of the step."""

from __future__ import annotations

import json

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]

OWN = """
import json, os, time
import numpy as np
import tensorflow as tf

slow = json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1
how = os.environ["HOW"]

def records():
    random = np.random.RandomState(1)
    while True:
        if slow and how == "input":
            time.sleep(0.1)
        yield random.rand(32, 64).astype("float32"), random.randint(0, 10, 32)

def train(input_context=None):
    signature = (tf.TensorSpec((32, 64)), tf.TensorSpec((32,), tf.int64))
    return tf.data.Dataset.from_generator(records, output_signature=signature).prefetch(2)

def evaluation(input_context=None):
    return train().take(2)

def nap(values):
    time.sleep(0.1)
    return values

def model_fn(features, labels, mode):
    if slow and how == "machine" and mode == "train":
        shape = features.shape
        features = tf.numpy_function(nap, [features], tf.float32)
        features.set_shape(shape)
    logits = tf.compat.v1.layers.dense(features, 10)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    step = tf.compat.v1.train.get_global_step()
    return tf.estimator.EstimatorSpec(
        mode, loss=loss, predictions=logits,
        train_op=tf.compat.v1.train.GradientDescentOptimizer(0.01).minimize(loss, global_step=step),
    )
"""
JOB = """
model: {function: "FOLDER/own.py:model_fn"}
input: {source: function, train: "FOLDER/own.py:train", eval: "FOLDER/own.py:evaluation", global_batch_size: 64}
train: {max_steps: 300}
run: {model_dir: FOLDER/model, seed: 1, train_distribute: multi_worker_mirrored, save_checkpoints_steps: 1000}
cluster: {workers: 2}
"""


@pytest.mark.parametrize("how", ["input", "machine"])
def test_it_is_named(run_python, tmp_path, how):
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "job.yaml").write_text(JOB.replace("FOLDER", str(tmp_path)))
    command = ["-m", "estimator_pipeline", "launch", tmp_path / "job.yaml", "--json"]
    done = run_python(command, env={"HOW": how}, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    (told,) = [note for note in json.loads(done.stdout)["notes"] if "is slow" in note]
    assert told.startswith("worker:1 is slow: the others wait ")
    assert ("ms for its input)" in told) == (how == "input")
