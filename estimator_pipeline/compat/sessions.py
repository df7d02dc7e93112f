"""Waits inside TensorFlow's session code that are far too long for a cluster on today's networks.

A worker of a parameter-server job that finds the model not ready yet looks again after 30 s: the default of
`SessionManager(recovery_wait_secs=…)`, which no public argument reaches. :func:`short_waits` lowers it for the sessions
made inside the block. Private use: `tensorflow.python.training.session_manager` (2.15 to 2.21).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

RECOVERY_WAIT_SECS = 0.5


@contextlib.contextmanager
def short_waits(seconds: float = RECOVERY_WAIT_SECS) -> Iterator[None]:
    """Session managers made in the block look for the model every `seconds` unless told otherwise."""
    from tensorflow.python.training import session_manager

    original = session_manager.SessionManager.__init__

    @functools.wraps(original)
    def init(self, *args, **kwargs):
        if "recovery_wait_secs" not in kwargs and len(args) < _POSITION:
            kwargs["recovery_wait_secs"] = seconds
        return original(self, *args, **kwargs)

    session_manager.SessionManager.__init__ = init
    try:
        yield
    finally:
        session_manager.SessionManager.__init__ = original


# Arguments before `recovery_wait_secs`: local_init_op, ready_op, ready_for_local_init_op, graph.
_POSITION = 5
