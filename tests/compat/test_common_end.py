"""The patch `common-end`: a synchronous training ends after the last step for which every worker has a batch."""

from __future__ import annotations

import numpy as np
import pytest

from estimator_pipeline.compat.internals.data_end.common_end import CommonEnd, end_warning, with_following
from tests.support.processes import tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()


def elements():
    """Datasets of four elements, of each kind."""
    numbers = tf.data.Dataset.range(7)
    named = numbers.map(lambda n: ({"a": tf.fill([3], n), "s": tf.strings.as_string(n)}, tf.cast(n, tf.float32)))
    rows = numbers.map(lambda n: tf.RaggedTensor.from_row_lengths(tf.range(n), [n]))
    sparse = numbers.map(lambda n: (tf.SparseTensor([[0]], tf.reshape(n, [1]), [5]), n))
    return {
        "features and labels": named.batch(2),
        "of fixed size": named.repeat(2).batch(3, drop_remainder=True),
        "ragged": rows.batch(2),
        "sparse": sparse.batch(2),
    }


@pytest.mark.parametrize("kind", ["features and labels", "of fixed size", "ragged", "sparse"])
def test_each_element_tells_whether_others_follow(kind):
    data = elements()[kind]
    there = [tf.nest.flatten(one, expand_composites=True) for one in data]
    assert len(there) == 4
    for replicas in (1, 2):
        made = with_following(data, replicas)
        assert made.element_spec[0] == data.element_spec
        found = list(made)
        assert [bool(follows) for _, follows in found] == [True] * 4 + [False] * replicas
        for (element, _), wanted in zip(found[replicas:], there, strict=True):
            for one, other in zip(tf.nest.flatten(element, expand_composites=True), wanted, strict=True):
                np.testing.assert_array_equal(one, other)


class Steps(tf.compat.v1.train.SessionRunHook):
    made = 0

    def after_run(self, run_context, run_values):
        self.made += 1


def trained(data, *, most=6, alone=True, last=(), within=False):
    """Trains one worker of two replicas: (steps, times that it was told of the end, whether it looks at each step)."""
    v1, told = tf.compat.v1, []
    with tf.Graph().as_default():
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        # The other worker's part of the sum is never there.
        tasks = ["chief:0"] if alone else ["chief:0", "worker:0"]
        end = CommonEnd(strategy, tasks=tasks, on_end=lambda: told.append(1), last=lambda step: step in last,
                        starts_within=within)  # fmt: skip
        with strategy.scope():
            iterator = strategy.make_input_fn_iterator(lambda context: end.watched(data(), context))
            step = v1.train.get_or_create_global_step()
            element = end.next_of(iterator)

            def of_replica(numbers):
                with tf.control_dependencies([numbers]):
                    return tf.identity(numbers)

            replicas = strategy.extended.call_for_each_replica(of_replica, args=(element,))
            grouped = strategy.experimental_local_results(replicas)
            with tf.control_dependencies(grouped):
                train_op = v1.assign_add(step, 1)

        class Begins(v1.train.SessionRunHook):
            def begin(self):
                self.ready = iterator.initialize()

            def after_create_session(self, session, coord):
                session.run(self.ready)

        hook, steps = end.hook(), Steps()
        with v1.train.SingularMonitoredSession(hooks=[Begins(), hook, steps]) as session:
            while not session.should_stop() and steps.made < most:
                session.run(train_op)
        return steps.made, len(told), hook.watching


def numbers(count):
    return lambda: tf.data.Dataset.range(count)


def of_unknown_length(count):
    return lambda: tf.data.Dataset.range(count).filter(lambda n: True)


@pytest.mark.parametrize("data", [numbers, of_unknown_length])
def test_training_stops_after_the_last_whole_round(data, warnings):
    """No step fails for want of data: the session is asked to stop after the one before."""
    assert trained(data(5)) == (2, 1, True)
    assert trained(data(4)) == (2, 1, True)
    assert trained(data(5), within=True) == (2, 1, True)
    # All have ended: nothing is warned of.
    assert warnings == []


def test_without_a_batch_there_is_no_step():
    assert trained(numbers(1)) == (0, 1, True)
    # TensorFlow takes these for endless.
    assert trained(lambda: tf.data.Dataset.range(3).filter(lambda n: n > 5).repeat())[:2] == (0, 1)


def test_data_without_an_end_are_looked_at_once():
    assert trained(lambda: tf.data.Dataset.range(3).repeat()) == (6, 0, False)


def test_the_worker_without_data_is_named(warnings):
    assert trained(numbers(50), alone=False) == (0, 1, True)
    (said,) = warnings
    assert "the training data of worker:0 have no batch for the first step, and chief:0 had more" in said
    # Training ends there anyway.
    assert trained(numbers(50), alone=False, last=(0,)) == (0, 1, True)
    assert len(warnings) == 1


def test_the_warning_names_the_tasks_and_the_step():
    said = end_warning(["chief:0", "worker:0", "worker:1"], [False, True, False], 6)
    assert said.startswith("the training data of worker:0 ended after step 6, and chief:0, worker:1 had more")
