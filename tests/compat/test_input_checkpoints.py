"""tf.data.experimental.CheckpointInputPipelineHook, TensorFlow 2.15's own or the one written anew."""

from __future__ import annotations

import importlib

import pytest

from estimator_pipeline import compat
from estimator_pipeline.compat.internals.saving import input_checkpoints

tf = compat.install()
v1 = tf.compat.v1
Hook = tf.data.experimental.CheckpointInputPipelineHook


def model_fn(features, labels, mode):
    """Adds up the numbers that it read."""
    total = v1.get_variable("total", [], initializer=v1.zeros_initializer())
    added = v1.assign_add(total, tf.reduce_sum(features))
    train_op = tf.group(added, v1.assign_add(v1.train.get_or_create_global_step(), 1))
    return tf.estimator.EstimatorSpec(mode, loss=added, train_op=train_op)


def numbers():
    return tf.data.Dataset.range(1, 100).map(lambda i: (tf.cast(i, tf.float32), 0.0)).batch(1)


def train(folder, steps, **options):
    estimator = tf.estimator.Estimator(model_fn, str(folder), tf.estimator.RunConfig(save_checkpoints_steps=2))
    estimator.train(numbers, steps=steps, hooks=[Hook(estimator, **options)])
    return estimator.get_variable_value("total")


def test_training_goes_on_with_the_next_record(tmp_path):
    assert train(tmp_path, 4) == 1 + 2 + 3 + 4
    assert train(tmp_path, 3) == sum(range(1, 8)), "and not with the first one again"
    names = {path.name for path in tmp_path.iterdir()}
    assert {"checkpoint", "checkpoint_input", "input.ckpt-4.index", "model.ckpt-4.index"} <= names
    # The model's checkpoint is found by its own file, and holds no iterator.
    latest = tf.train.latest_checkpoint(str(tmp_path))
    assert latest.endswith("model.ckpt-7")
    assert {name for name, _ in tf.train.list_variables(latest)} == {"global_step", "total"}


def test_a_session_that_begins_anew_goes_on_from_the_last_save(tmp_path):
    """Killed between two checkpoints: model and input go back to the same step."""
    train(tmp_path, 4)
    for folder, prefix in ((tmp_path, "model"), (tmp_path, "input")):
        latest = "checkpoint" if prefix == "model" else "checkpoint_input"
        v1.train.update_checkpoint_state(str(folder), f"{prefix}.ckpt-2", latest_filename=latest)
    assert train(tmp_path, 3) == 1 + 2 + 3 + 4 + 5


def test_a_task_of_several_has_a_name_of_its_own(tmp_path):
    estimator = tf.estimator.Estimator(model_fn, str(tmp_path))
    config = estimator._config
    config._num_worker_replicas, config._task_type, config._task_id = 3, "worker", 1
    hook = Hook(estimator)
    assert hook._latest_filename == "checkpoint_input_worker_1"


def test_where_tensorflow_had_it(native):
    places = ["tensorflow.data.experimental", "tensorflow.compat.v1.data.experimental",
              "tensorflow.python.data.experimental.ops.iterator_ops"]  # fmt: skip
    assert {importlib.import_module(place).CheckpointInputPipelineHook for place in places} == {Hook}
    assert v1.data.experimental.CheckpointInputPipelineHook is Hook
    assert not input_checkpoints.bind(), "nothing is left to bind"
    assert Hook.__module__.startswith("tensorflow." if native else "estimator_pipeline.")
    assert Hook.__doc__


def test_a_policy_that_there_is_not(tmp_path):
    estimator = tf.estimator.Estimator(model_fn, str(tmp_path))
    with pytest.raises(ValueError, match="ExternalStatePolicy"):
        Hook(estimator, external_state_policy="ask")
