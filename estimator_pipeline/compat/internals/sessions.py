"""Excessive waits in TensorFlow without a public setting, which `short_waits` shortens.

* A worker of a parameter-server job that finds the model not ready polls again after 30 s: the default of
  `SessionManager(recovery_wait_secs=…)`.
* Closing the session of a distributed job, or leaving `Model.fit`, takes up to a minute. The iterator that sends
  batches to the devices has a tf.data autotune thread, which sleeps for increasing times (up to 60 s) and is joined at
  the end; often it does not notice that it should stop. (On 2.21, 5 s after a job of 5 s.) The thread tunes a single
  prefetch of fixed size, so it is turned off, on machines without a GPU: the option has not been tested with a GPU.

Private use: `tensorflow.python.training.session_manager`, `tensorflow.python.data.ops.multi_device_iterator_ops` (both
unchanged from 2.15 to 2.21).
"""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
from collections.abc import Callable, Iterator

from estimator_pipeline.utils.process_state import STATE

RECOVERY_WAIT_SECS = 0.5


_lock = threading.Lock()


@contextlib.contextmanager
def short_waits() -> Iterator[None]:
    """Let sessions poll for the model every 0.5 s in the block, and close without waiting for autotune threads.

    Blocks may be nested, also in several threads: the last one to exit undoes it.
    """
    with _lock:
        if STATE.short_waits == 0:
            STATE.undo_short_waits = _shorten()
        STATE.short_waits += 1
    try:
        yield
    finally:
        with _lock:
            STATE.short_waits -= 1
            if STATE.short_waits == 0 and STATE.undo_short_waits is not None:
                STATE.undo_short_waits()


def _shorten() -> Callable[[], None]:
    import tensorflow as tf
    from tensorflow.python.data.ops import multi_device_iterator_ops
    from tensorflow.python.training import session_manager

    original = session_manager.SessionManager.__init__
    device_dataset = multi_device_iterator_ops._create_device_dataset

    @functools.wraps(original)
    def init(self, *args, **kwargs):
        if "recovery_wait_secs" not in kwargs and len(args) < _POSITION:
            kwargs["recovery_wait_secs"] = RECOVERY_WAIT_SECS
        return original(self, *args, **kwargs)

    @functools.wraps(device_dataset)
    def untuned(*args, **kwargs):
        options = tf.data.Options()
        options.autotune.enabled = False
        return device_dataset(*args, **kwargs).with_options(options)

    session_manager.SessionManager.__init__ = init
    if not tf.config.list_physical_devices("GPU"):
        multi_device_iterator_ops._create_device_dataset = untuned

    def undo() -> None:
        session_manager.SessionManager.__init__ = original
        multi_device_iterator_ops._create_device_dataset = device_dataset

    return undo


# Arguments before `recovery_wait_secs`: local_init_op, ready_op, ready_for_local_init_op, graph.
_POSITION = 5


def let_sigterm_end_this_process() -> None:
    """Remove TensorFlow's SIGTERM handler, which the server of MultiWorkerMirroredStrategy sets.

    That handler records the signal for a preemption checkpoint of Keras, and ignores it otherwise: an Estimator's
    worker would train until it is killed. A handler of the program is not changed.
    """
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
