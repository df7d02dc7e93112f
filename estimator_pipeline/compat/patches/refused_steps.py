"""A step that a TensorFlow server refuses by chance is run again.

A server keeps the numbers of its last 100,000 requests, and refuses one whose number is among them: "The same RunGraph
(Worker) request was received twice". The number is drawn at random in a thread that is made for the step, from a
generator of its own that is seeded with 32 bits. So there are four billion numbers, and of 43,000 steps the server
takes one for a request that came before. (Measured: 7 of 400,000 steps of an addition on 2.21, 3 of 200,000 on 2.15.)

tf.estimator takes the error for a preemption: it makes a new session, and under MultiWorkerMirroredStrategy waits in it
for ever. The request was refused before anything of it was run, so it is run again. With parameter servers a step has a
request for each server, and what the others had begun is cancelled by then: at most the batch is lost.

Private use: `BaseSession`, whose `run` all sessions have (the same from 2.15 to 2.21).
"""

from __future__ import annotations

import functools
from typing import Any

from estimator_pipeline.utils.logger import logger

NAME = "refused-steps"
WHAT = (
    'a step that a server refuses as "received twice", one of 43,000 by chance, is run again; it ended training, or '
    "let it wait for ever"
)

_REFUSED = "request was received twice"
# In a row. Somebody who does send everything twice shall see the error.
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
            logger.info("A TensorFlow server has taken a step for one that it had run before: it is run again")
        return run(self, *args, **options)

    session.BaseSession.run = run_again
