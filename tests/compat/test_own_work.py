"""When a worker's own part of a step is done is told without a collective, and in the steps that ask for it alone."""

from __future__ import annotations

import time

from estimator_pipeline.compat.internals.data_end import own_work
from tests.support.processes import tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()
v1 = tf.compat.v1


def _reduced(value, key):
    one = [tf.constant(1), tf.constant(1), tf.constant(key)]
    return tf.raw_ops.CollectiveReduceV2(
        input=value, group_size=one[0], group_key=one[1], instance_key=one[2], ordering_token=[], merge_op="Add",
        final_op="Id",
    )  # fmt: skip


def _needed(op):
    seen, left = set(), [op]
    while left:
        one = left.pop()
        if one not in seen:
            seen.add(one)
            left += [*(tensor.op for tensor in one.inputs), *one.control_inputs]
    return {one.name for one in seen}


def test_it_is_told_without_a_collective():
    with tf.Graph().as_default() as graph:
        batch = v1.data.make_one_shot_iterator(tf.data.Dataset.from_tensors([1.0, 2.0])).get_next()
        gradient = tf.multiply(batch, 2.0, name="gradient")
        first = _reduced(gradient, 1)
        _reduced(tf.multiply(first, 3.0, name="of_another"), 2)  # as that of a normalization over all workers
        _reduced(tf.constant([1.0], name="no_data"), 3)  # as the first values of variables
        tf.cond(batch[0] > 0, lambda: _reduced(tf.multiply(batch, 5.0), 4), lambda: batch)
        marks = own_work.marks(graph)
    needed = _needed(marks["ready"].op)
    assert "gradient" in needed and not any("Collective" in name for name in needed)
    assert not {"of_another", "no_data"} & needed
    assert "gradient" not in _needed(marks["input"].op) and any("Iterator" in x for x in _needed(marks["input"].op))
    with v1.Session(graph=graph) as session:
        told = session.run(marks)
    # Neither waits for the other.
    assert all(abs(seconds - time.time()) < 3600 for seconds in told.values()), told


def test_a_training_that_gives_nothing_to_others_has_no_marks():
    with tf.Graph().as_default() as graph:
        v1.data.make_one_shot_iterator(tf.data.Dataset.from_tensors([1.0])).get_next()
        before = len(graph.get_operations())
        assert own_work.marks(graph) == {}
        assert len(graph.get_operations()) == before
