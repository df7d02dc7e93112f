"""Synchronous training with parameter servers ends with its last step.

The chief of a SyncReplicasOptimizer has a thread that waits for gradients, enqueues tokens and waits again. After
training there are no more gradients, so only closing the session ends that wait. But the session is closed only when
the thread has ended, or after two minutes ("Coordinator stopped with threads still running: sync_token_q_EnqueueMany").
All other tasks wait for the chief's result meanwhile. Here the coordinator does not join that thread, and its error at
the end of the session is ignored. The thread that closes the token queue, which releases workers in their last step, is
still joined.

Libraries have copies of the optimizer and of its hook. So the thread is identified by its queue, whose name all copies
use, when a QueueRunner starts it.

Private use: the suffix of the name of the closing thread, which `QueueRunner` sets (unchanged from 2.15 to 2.21).
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
            coord = _UnjoinedCoordinator(coord)
        return original(self, sess, coord, *args, **options)

    runner.create_threads = create_threads


class _UnjoinedCoordinator:
    """The coordinator for the thread that enqueues tokens, which is not joined."""

    def __init__(self, coord: Any) -> None:
        self._coord = coord

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coord, name)

    def register_thread(self, thread: threading.Thread) -> None:
        if thread.name.endswith(_CLOSES):
            self._coord.register_thread(thread)

    def request_stop(self, error: Any = None) -> None:
        # After training the error comes from closing the session.
        if not self._coord.should_stop():
            self._coord.request_stop(error)
