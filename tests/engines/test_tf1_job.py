"""`run.tf1` of a job file: the job's own functions are written for TensorFlow 1."""

from __future__ import annotations

import json
import textwrap

import pytest

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job import load_job

_MODEL = """
    import tensorflow as tf
    from tensorflow.contrib.opt import AdamWOptimizer


    def model_fn(features, labels, mode, params):
        net = tf.reshape(features, [-1, 64])
        assert net.shape[1].value == 64 and not tf.executing_eagerly()
        net = tf.layers.dense(net, params["units"], activation=tf.nn.relu)
        logits = tf.layers.dense(net, 10)
        loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
        train_op = None
        if mode == tf.estimator.ModeKeys.TRAIN:
            train_op = AdamWOptimizer(1e-4, 0.005).minimize(loss, tf.train.get_global_step())
        metrics = {"accuracy": tf.metrics.accuracy(labels, tf.argmax(logits, 1))}
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op, eval_metric_ops=metrics)
"""
_JOB = {
    "model": {"function": "old_model.py:model_fn", "params": {"units": 32}},
    "input": {"source": "tfds", "name": "digits", "scale": "1/16", "global_batch_size": 64, "seed": 1},
    "train": {"max_steps": 100},
    "run": {"model_dir": "run", "seed": 1, "tf1": True, "train_distribute": "multi_worker_mirrored"},
}


def test_functions_written_for_tensorflow_1(run_warm, tmp_path):
    (tmp_path / "old_model.py").write_text(textwrap.dedent(_MODEL))
    (tmp_path / "job.yaml").write_text(json.dumps(_JOB))
    done = run_warm(["-m", "estimator_pipeline", "train", "job.yaml"], cwd=tmp_path)
    assert done.returncode == 0 and "step 100 (max_steps reached): accuracy 0.9" in done.stdout, done.stderr[-3000:]


@pytest.mark.parametrize("engine", ["keras", "keras3"])
def test_with_another_engine_it_is_refused(engine, tmp_path):
    (tmp_path / "job.yaml").write_text(json.dumps({**_JOB, "run": {**_JOB["run"], "engine": engine}}))
    with pytest.raises(ConfigError) as error:
        load_job(tmp_path / "job.yaml")
    assert error.value.code == "job/conflict" and "run.tf1" in str(error.value)
