"""Training files that change while a run reads them: seen at the next checkpoint."""

from __future__ import annotations

import os

import pytest

import estimator_pipeline as ep
from estimator_pipeline import inputs
from estimator_pipeline.errors import ConfigError

tf = ep.compat.install()
v1 = tf.compat.v1
FEATURES = {"x": "float32[2]", "label": "int64"}


def write(path, value):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for _ in range(16):
            x = tf.train.Feature(float_list=tf.train.FloatList(value=[value, 1.0]))
            label = tf.train.Feature(int64_list=tf.train.Int64List(value=[1]))
            example = tf.train.Example(features=tf.train.Features(feature={"x": x, "label": label}))
            writer.write(example.SerializeToString())


def overwrite(path):
    """The same records with other values, in the same inode."""
    write(f"{path}.new", 2.0)
    with open(f"{path}.new", "rb") as new, open(path, "r+b") as file:
        file.write(new.read())


def model_fn(features, labels, mode):
    kernel = v1.get_variable("kernel", [2, 1])
    loss = tf.reduce_mean(((features["x"] @ kernel)[:, 0] - tf.cast(labels, tf.float32)) ** 2)
    train_op = v1.train.GradientDescentOptimizer(0.01).minimize(loss, v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


class Changes(v1.train.SessionRunHook):
    """Changes the files in a step between two checkpoints."""

    def __init__(self, change):
        self.change, self.steps = change, 0

    def after_run(self, run_context, run_values):
        self.steps += 1
        if self.steps == 6:
            self.change()


def train(folder, change, **options):
    for name in ("a", "b"):
        write(folder / f"{name}.tfrecord", 1.0)
    data = inputs.from_tfrecord(
        train=str(folder / "*.tfrecord"), eval=str(folder / "a.tfrecord"), features=FEATURES, label_key="label",
        features_key=None, global_batch_size=2, environ={"XDG_CACHE_HOME": str(folder / "cache")}, **options,
    )  # fmt: skip
    config = ep.build_run_config(str(folder / "model"), save_checkpoints_steps=4, seed=1)
    ep.train_and_evaluate(
        tf.estimator.Estimator(model_fn, config=config),
        tf.estimator.TrainSpec(data.train_input_fn, max_steps=12, hooks=[Changes(change)]),
        tf.estimator.EvalSpec(data.eval_input_fn, steps=1),
        environ={},
    )


def test_a_file_overwritten_in_place_ends_training_before_the_next_checkpoint(tmp_path, warnings):
    path = tmp_path / "b.tfrecord"
    with pytest.raises(ConfigError) as raised:
        train(tmp_path, lambda: overwrite(path), memory_limit=0)
    assert raised.value.code == "model-dir/other-run" and raised.value.exit_code == 2
    assert raised.value.found.startswith(f"{path} was modified at ") and "a.tfrecord" not in raised.value.found
    assert tf.train.latest_checkpoint(str(tmp_path / "model")).endswith("-4")


def test_the_same_content_and_new_files_are_no_change(tmp_path, warnings):
    def change():
        os.utime(tmp_path / "a.tfrecord", ns=(1, 1))
        write(tmp_path / "c.tfrecord", 1.0)

    train(tmp_path, change, memory_limit=0)
    assert not warnings


def test_records_in_memory_are_a_warning(tmp_path, warnings):
    def change():
        overwrite(tmp_path / "a.tfrecord")
        os.unlink(tmp_path / "b.tfrecord")

    train(tmp_path, change)
    (warning,) = [each for each in warnings if "Training files have changed" in each]
    assert "a.tfrecord was modified at " in warning and "b.tfrecord was removed" in warning and "step 8" in warning


def test_a_removed_file_is_a_warning_while_it_can_be_read(tmp_path, warnings):
    train(tmp_path, lambda: os.unlink(tmp_path / "b.tfrecord"), memory_limit=0)
    (warning,) = [each for each in warnings if "Training files have changed" in each]
    assert warning.endswith("and training continues: " + str(tmp_path / "b.tfrecord") + " was removed")
    assert tf.train.latest_checkpoint(str(tmp_path / "model")).endswith("-12")
