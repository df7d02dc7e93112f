"""A step that a TensorFlow server rejects by chance is run again.

A server stores the ids of its last 100,000 requests, and rejects a request with a known id: "The same RunGraph (Worker)
request was received twice". The id is drawn in a new thread per step, from a generator with a 32-bit seed. So there are
only four billion ids, and one of 43,000 steps gets an id that was used before. (Measured: 7 of 400,000 steps of an
addition on 2.21, 3 of 200,000 on 2.15.)

tf.estimator treats the error as a preemption: it creates a new session, which hangs under MultiWorkerMirroredStrategy.
The request was rejected before any of it ran, so it is run again. With parameter servers a step has a request for each
server; the other requests are cancelled by then, so at most the batch is lost.

Private use: `BaseSession`, whose `run` all sessions use (unchanged from 2.15 to 2.21).
"""

from __future__ import annotations

import functools
from typing import Any

from estimator_pipeline.utils.logger import logger

NAME = "refused-steps"
WHAT = (
    'a step that a server rejects as "received twice", by chance one of 43,000, is run again; before, training failed '
    "or hung"
)

_REFUSED = "request was received twice"
# In a row. A real duplicate must still raise the error.
_TRIES = 3


def apply() -> None:
    from tensorflow.python.client import session
    from tensorflow.python.framework import errors

    run = session.BaseSession.run

    @functools.wraps(run)
    def run_again(self: Any, *args: Any, **options: Any) -> Any:
        for _ in range(_TRIES - 1):
            try:
                return run(self, *args, **options)
            except errors.AbortedError as error:
                if _REFUSED not in error.message:
                    raise
            logger.info("A TensorFlow server rejected a step as a duplicate by mistake: it is run again")
        return run(self, *args, **options)

    session.BaseSession.run = run_again
