"""Training with a SyncReplicasOptimizer ends with its last step. In a cluster: test_legacy_programs.py."""

from __future__ import annotations

import threading
import time

import pytest

from estimator_pipeline import compat
from estimator_pipeline.compat.patches.sync_replicas import _UnjoinedCoordinator

tf = compat.install()


def token_threads():
    return [thread for thread in threading.enumerate() if "sync_token_q" in thread.name]


def test_the_session_closes_at_once_and_its_threads_end(logged):
    with tf.Graph().as_default():
        weight = tf.compat.v1.get_variable("weight", initializer=1.0, use_resource=False)
        step = tf.compat.v1.train.get_or_create_global_step()
        optimizer = tf.compat.v1.train.SyncReplicasOptimizer(
            tf.compat.v1.train.GradientDescentOptimizer(0.25), replicas_to_aggregate=1, total_num_replicas=1
        )
        train_op = optimizer.minimize(tf.square(weight), step)
        ((accumulator, _),) = optimizer._accumulator_list
        accumulated, left = accumulator.num_accumulated(), optimizer._sync_token_queue.size()
        hooks = [optimizer.make_session_run_hook(is_chief=True)]
        # The default is two minutes; an unmended session comes to its end with this one, and says so.
        with tf.compat.v1.train.MonitoredTrainingSession(hooks=hooks, stop_grace_period_secs=2) as session:
            for _ in range(5):
                session.run(train_op)
            # A step takes a token, of which there was one before; an update gives one, and is made of a gradient that
            # is not out of date. Where all are accounted for, the thread waits for a gradient that never comes.
            deadline = time.monotonic() + 120
            while time.monotonic() < deadline:
                gradients, tokens, updates = session.run([accumulated, left, step])
                if gradients == 0 and tokens == 1 - 5 + updates:
                    break
            assert (gradients, tokens) == (0, updates - 4)
            assert len(token_threads()) == 2
    assert "threads still running" not in logged.text
    for thread in token_threads():
        thread.join(120)
    assert token_threads() == []


@pytest.mark.parametrize(("queue", "left_alone"), [("sync_token_q", False), ("fifo_queue", True)])
def test_a_copy_of_the_hook_is_reached_by_its_queue(queue, left_alone, logged):
    """As libraries bring one: its thread waits for what never comes. Other queues' threads are waited for as ever."""
    with tf.Graph().as_default():
        tokens = tf.queue.FIFOQueue(1, tf.int64, shapes=(), name=queue, shared_name=queue)
        runner = tf.compat.v1.train.QueueRunner(tokens, [tokens.enqueue(1)])

        class Hook(tf.compat.v1.train.SessionRunHook):
            def after_create_session(self, session, coord):
                self.threads = runner.create_threads(session, coord=coord, daemon=True, start=True)
                self.registered = set(coord._registered_threads)

        hook = Hook()
        with tf.compat.v1.train.MonitoredTrainingSession(hooks=[hook]):
            pass
        assert len(hook.registered) == (2 if left_alone else 1)
    for thread in hook.threads:
        thread.join(120)
        assert not thread.is_alive()


def test_an_error_of_the_thread_while_training_goes_on_is_told():
    coord = tf.train.Coordinator()
    seen = _UnjoinedCoordinator(coord)
    assert not seen.should_stop()
    try:
        raise ArithmeticError("planted")
    except ArithmeticError as error:
        seen.request_stop(error)
    assert seen.should_stop()
    with pytest.raises(ArithmeticError, match="planted"):
        coord.join()


def test_the_end_of_the_session_is_no_error():
    coord = tf.train.Coordinator()
    coord.request_stop()
    coord.join()
    _UnjoinedCoordinator(coord).request_stop(tf.errors.CancelledError(None, None, "Session::Close()"))


def test_only_the_thread_that_closes_the_queue_is_waited_for():
    coord = tf.train.Coordinator()
    runs, closes = threading.Event(), threading.Event()
    seen = _UnjoinedCoordinator(coord)
    threads = {
        "QueueRunnerThread-sync_token_q-sync_token_q_EnqueueMany": runs,
        "QueueRunnerThread-sync_token_q-close_on_stop": closes,
    }
    for name, event in threads.items():
        thread = threading.Thread(target=event.wait, args=(120,), name=name, daemon=True)
        seen.register_thread(thread)
        thread.start()
    coord.request_stop()
    with pytest.raises(RuntimeError, match=r"close_on_stop$"):
        coord.join(stop_grace_period_secs=0.01)
    closes.set()
    coord.join(stop_grace_period_secs=120)
    runs.set()
