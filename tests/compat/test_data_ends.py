"""Data without an end, of an evaluation (the patch `endless-evaluation`), and data that end, of a training."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

import estimator_pipeline as ep
from estimator_pipeline import compat
from estimator_pipeline.compat.patches import endless_evaluation
from estimator_pipeline.errors import InputError

tf = compat.install()
v1 = tf.compat.v1


def model_fn(features, labels, mode):
    weight = v1.get_variable("weight", [], initializer=v1.zeros_initializer())
    with tf.control_dependencies([features]):
        train_op = tf.group(v1.assign_add(weight, 1.0), v1.assign_add(v1.train.get_or_create_global_step(), 1))
    metrics = {"count": v1.metrics.mean(features)}
    loss = weight + 0 * tf.reduce_sum(features)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op, eval_metric_ops=metrics)


def numbers():
    return tf.data.Dataset.from_tensor_slices(([1.0, 2.0, 3.0], [0.0] * 3)).batch(1)


def endless():
    return numbers().repeat()


class Stops(tf.estimator.SessionRunHook):
    """A hook that nobody knows, and ends an evaluation."""

    def before_run(self, run_context):
        run_context.request_stop()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    estimator = tf.estimator.Estimator(model_fn, str(tmp_path_factory.mktemp("model")))
    return estimator.train(endless, max_steps=1)


def test_data_without_an_end_are_refused(trained, warnings):
    with pytest.raises(InputError, match="reads its data to the end"):
        trained.evaluate(endless)
    assert trained.evaluate(endless, steps=2)["count"] == 1.5
    assert trained.evaluate(endless, hooks=[Stops()])["count"] == 1.0
    assert trained.evaluate(numbers)["count"] == 2.0
    assert not warnings


def test_a_training_ends_with_the_refusal(tmp_path):
    """Where one graph is kept for all evaluations, too."""
    estimator = tf.estimator.Estimator(model_fn, str(tmp_path))
    specs = tf.estimator.TrainSpec(endless, max_steps=1), tf.estimator.EvalSpec(endless, steps=None)
    with pytest.raises(InputError, match="remove repeat"):
        ep.train_and_evaluate(estimator, *specs, environ={})


def test_an_evaluation_that_takes_long_says_how_far_it_is(trained, warnings, monkeypatch):
    clock = itertools.count(0, endless_evaluation.FIRST_WARNING_SECS)
    monkeypatch.setattr(endless_evaluation, "time", SimpleNamespace(monotonic=clock.__next__))
    assert trained.evaluate(numbers)["count"] == 2.0
    first = "the evaluation has read 1 batches in 60 s"
    assert [line.partition(", and")[0] for line in warnings] == [first, "the evaluation has read 2 batches in 120 s"]
    assert warnings[0].endswith("and continues to the end of its data (steps=None)")


OWN = """
import tensorflow as tf


def data(input_context=None, repeat=True):
    made = tf.data.Dataset.from_tensor_slices((tf.ones([8, 4]), tf.ones([8], tf.int64))).batch(4)
    return made.repeat() if repeat else made
"""


def test_the_doctor_finds_it(run_warm, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "job.yaml").write_text(
        "model: {name: linear, params: {classes: 2, input_shape: [4]}}\n"
        "input: {source: function, train: 'own.py:data', eval: 'own.py:data', global_batch_size: 4}\n"
        "run: {model_dir: model}\n"
    )
    doctor = ["-m", "estimator_pipeline", "doctor", "job.yaml", "--deep", "--only", "data"]
    done = run_warm(doctor, cwd=tmp_path)
    assert done.returncode != 0 and "data without an end" in " ".join(done.stdout.split())
    assert run_warm([*doctor, "--set", "eval.steps=2"], cwd=tmp_path).returncode == 0


def test_a_training_whose_data_end_before_max_steps_says_so(tmp_path, warnings):
    estimator = tf.estimator.Estimator(model_fn, str(tmp_path))
    specs = tf.estimator.TrainSpec(numbers, max_steps=9), tf.estimator.EvalSpec(numbers)
    metrics, _ = tf.estimator.train_and_evaluate(estimator, *specs)
    assert metrics["global_step"] == 3
    assert "training ended at step 3, before max_steps=9: its data have no more batches" in warnings
