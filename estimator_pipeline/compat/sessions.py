"""Waits inside TensorFlow that are far too long, and that no public argument reaches; :func:`short_waits` ends them.

* A worker of a parameter-server job that finds the model not ready yet looks again after 30 s: the default of
  `SessionManager(recovery_wait_secs=…)`.
* Closing the session of a distributed job takes up to a minute. The iterator that hands batches to the devices has a
  tf.data tuning thread, which sleeps for longer and longer (up to 60 s) and is joined at the end; often it does not
  hear that it should stop. (Seen on 2.21 as 5 s after a job of 5 s.) The thread tunes a single prefetch of fixed
  size, so it is switched off, on machines without a GPU: whether the GPU can take the option has not been tried.

Private use: `tensorflow.python.training.session_manager`, `tensorflow.python.data.ops.multi_device_iterator_ops`
(both the same from 2.15 to 2.21).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

RECOVERY_WAIT_SECS = 0.5


@contextlib.contextmanager
def short_waits(seconds: float = RECOVERY_WAIT_SECS) -> Iterator[None]:
    """In the block, sessions look for the model every `seconds`, and close without waiting for a tuning thread."""
    import tensorflow as tf
    from tensorflow.python.data.ops import multi_device_iterator_ops
    from tensorflow.python.training import session_manager

    original = session_manager.SessionManager.__init__
    device_dataset = multi_device_iterator_ops._create_device_dataset

    @functools.wraps(original)
    def init(self, *args, **kwargs):
        if "recovery_wait_secs" not in kwargs and len(args) < _POSITION:
            kwargs["recovery_wait_secs"] = seconds
        return original(self, *args, **kwargs)

    @functools.wraps(device_dataset)
    def untuned(*args, **kwargs):
        options = tf.data.Options()
        options.autotune.enabled = False
        return device_dataset(*args, **kwargs).with_options(options)

    session_manager.SessionManager.__init__ = init
    if not tf.config.list_physical_devices("GPU"):
        multi_device_iterator_ops._create_device_dataset = untuned
    try:
        yield
    finally:
        session_manager.SessionManager.__init__ = original
        multi_device_iterator_ops._create_device_dataset = device_dataset


# Arguments before `recovery_wait_secs`: local_init_op, ready_op, ready_for_local_init_op, graph.
_POSITION = 5
