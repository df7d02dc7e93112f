"""Synchronous training with parameter servers ends when its last step is done.

The chief of a SyncReplicasOptimizer has a thread that waits for gradients, hands out tokens and waits again. When
training is over nobody brings gradients any more, and nothing but the end of the session ends that wait; but the
session is only closed once the thread has ended, or after two minutes ("Coordinator stopped with threads still running:
sync_token_q_EnqueueMany"). All other tasks wait for the chief's result meanwhile. So that thread is not waited for, and
what it hears of the session's end is no error; the thread that closes the queue of tokens, by which a worker in its
last step is let go, is waited for as ever.

Libraries bring copies of the optimizer and of its hook. So the thread is told by its queue, whose name every copy
keeps, where a QueueRunner starts it.

Private use: the end of the name of the closing thread, which `QueueRunner` gives it (the same from 2.15 to 2.21).
"""

from __future__ import annotations

import functools
import threading
from typing import Any

NAME = "sync-replicas"
WHAT = "training with a SyncReplicasOptimizer ends with its last step, not two minutes after it"

_CLOSES = "close_on_stop"
_QUEUE = "sync_token_q"


def apply() -> None:
    from tensorflow.python.training import queue_runner_impl

    runner = queue_runner_impl.QueueRunner
    original = runner.create_threads

    @functools.wraps(original)
    def create_threads(self: Any, sess: Any, coord: Any = None, *args: Any, **options: Any) -> Any:
        if coord is not None and _QUEUE in self.name:
            coord = _NotWaitedFor(coord)
        return original(self, sess, coord, *args, **options)

    runner.create_threads = create_threads


class _NotWaitedFor:
    """The coordinator, as the thread that hands out tokens sees it."""

    def __init__(self, coord: Any) -> None:
        self._coord = coord

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coord, name)

    def register_thread(self, thread: threading.Thread) -> None:
        if thread.name.endswith(_CLOSES):
            self._coord.register_thread(thread)

    def request_stop(self, error: Any = None) -> None:
        # Once training is over the error is that of the session's end.
        if not self._coord.should_stop():
            self._coord.request_stop(error)
