"""Unnecessary waits of sessions and workers are shortened; see `compat/internals/sessions.py`.

Also, a worker of a parameter-server cluster sleeps for 5 s times (index + 1), up to a minute, before it trains, so that
workers join one by one. This is not needed here. A value of `RunConfig.experimental_max_worker_delay_secs` still
applies.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from estimator_pipeline.compat.internals import estimator_wrapping as around
from estimator_pipeline.compat.internals import sessions

NAME = "short-waits"
WHAT = (
    "a worker polls every 0.5 s (not 30 s) until the model is ready, starts without a delay of 5 s x (index + 1), and "
    "closes its session immediately (not after up to 60 s)"
)


def apply() -> None:
    from tensorflow_estimator.python.estimator import training

    around.training(_short)
    training._DELAY_SECS_PER_WORKER = 0


@contextlib.contextmanager
def _short(estimator: Any, hooks: list[Any]) -> Iterator[None]:
    del estimator, hooks
    with sessions.short_waits():
        yield
