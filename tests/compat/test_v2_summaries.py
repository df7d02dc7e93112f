"""Summaries of TensorFlow 2 in a model_fn are in the event file of the Estimator."""

from __future__ import annotations

import pytest

from tests.support import one_weight
from tests.support.processes import tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()
v1 = tf.compat.v1


def written(folder, summarize, **config):
    """The events of a training of four steps, saved at every second one: [(step, tag, value)]."""

    def model_fn(features, labels, mode):
        weight = v1.get_variable("weight", initializer=0.0)
        loss = tf.reduce_mean(tf.square(weight * features - labels))
        train_op = one_weight.train_op(tf, loss)
        summarize(loss)
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    config = tf.estimator.RunConfig(str(folder), save_summary_steps=2, **config)
    tf.estimator.Estimator(model_fn, config=config).train(one_weight.input_fn(tf), max_steps=4)
    return [
        (event.step, value.tag, tf.make_ndarray(value.tensor) if value.HasField("tensor") else value.simple_value)
        for path in sorted(folder.glob("events*"))
        for event in v1.train.summary_iterator(str(path))
        for value in event.summary.value
    ]


def test_they_are_those_of_version_1(tmp_path):
    def summarize(loss):
        # The step is that of the Estimator, also where it is missing.
        tf.summary.scalar("second", loss, step=7)
        with tf.name_scope("inner"):
            tf.summary.scalar("scoped", loss)
        tf.summary.histogram("histogram", tf.stack([loss, loss]))
        tf.summary.text("text", "words")
        v1.summary.scalar("first", loss)

    events = written(tmp_path, summarize)
    values = {(step, tag): value for step, tag, value in events}
    for step in (1, 3):
        assert values[step, "second"] == values[step, "inner/scoped"] == values[step, "first"]
        assert values[step, "histogram"].shape[-1] == 3
        assert values[step, "text"] == b"words"
    assert values[1, "second"] != values[3, "second"]
    assert len(values) == len(events)


def test_on_several_replicas_the_first_writes(tmp_path):
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    events = written(tmp_path, lambda loss: tf.summary.scalar("second", loss), train_distribute=strategy)
    assert [tag for step, tag, _ in events if "second" in tag and step == 1] == ["second"]


def test_only_what_is_to_be_recorded(tmp_path):
    def summarize(loss):
        for name, condition in {
            "static": False,
            "tensor": v1.train.get_global_step() > 1,
            "function": lambda: tf.constant(True),
        }.items():
            with tf.summary.record_if(condition):
                tf.summary.scalar(name, loss)

    events = written(tmp_path, summarize)
    assert {(step, tag) for step, tag, _ in events if tag in ("static", "tensor", "function")} == {
        (1, "function"),
        (3, "function"),
        (3, "tensor"),
    }


def test_a_summary_within_a_function_is_reported(tmp_path, warnings):
    def summarize(loss):
        tf.function(lambda: tf.summary.scalar("inside", loss))()

    events = written(tmp_path, summarize)
    assert not [tag for _, tag, _ in events if "inside" in tag]
    (warning,) = warnings
    assert "inside is not written" in warning


@pytest.mark.parametrize("is_run", [False, True])
def test_a_file_writer_that_nothing_runs_is_reported(tmp_path, warnings, is_run):
    def model_fn(features, labels, mode):
        weight = v1.get_variable("weight", initializer=0.0)
        loss = tf.reduce_mean(tf.square(weight * features - labels))
        train_op = one_weight.train_op(tf, loss)
        writer = tf.summary.create_file_writer(str(tmp_path / "own"))
        with writer.as_default():
            tf.summary.scalar("second", loss, step=v1.train.get_global_step())
        v1.add_to_collection(v1.GraphKeys.LOCAL_INIT_OP, tf.group(writer.init(), v1.local_variables_initializer()))
        if is_run:
            train_op = tf.group(train_op, *v1.summary.all_v2_summary_ops())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    tf.estimator.Estimator(model_fn, str(tmp_path)).train(one_weight.input_fn(tf), max_steps=2)
    reports = [message for message in warnings if "summaries of a file writer (second)" in message]
    assert len(reports) == (not is_run)
