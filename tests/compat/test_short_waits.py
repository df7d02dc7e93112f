"""The waits of sessions and workers that serve nothing are short while an Estimator trains, and as ever afterwards."""

from __future__ import annotations

from estimator_pipeline import compat
from tests.support import one_weight

tf = compat.install()


def recovery_wait_secs():
    """How long a session made now, whose model is not ready, waits before it looks again."""
    with tf.Graph().as_default():
        return tf.compat.v1.train.SessionManager()._recovery_wait_secs


def test_a_session_of_training_looks_again_soon(tmp_path):
    seen = []

    class Hook(tf.estimator.SessionRunHook):
        def begin(self):
            seen.append(recovery_wait_secs())

    estimator = tf.estimator.Estimator(one_weight.model_fn(tf), str(tmp_path))
    estimator.train(one_weight.input_fn(tf), steps=1, hooks=[Hook()])
    assert seen == [0.5]
    assert recovery_wait_secs() == 30


def test_workers_begin_without_a_delay_for_each_one_before_them():
    from tensorflow_estimator.python.estimator import training

    assert training._DELAY_SECS_PER_WORKER == 0
