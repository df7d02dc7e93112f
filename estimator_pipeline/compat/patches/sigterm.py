"""SIGTERM ends a worker again; see
:func:`estimator_pipeline.compat.internals.sessions.let_sigterm_end_this_process`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from estimator_pipeline.compat.internals import estimator_wrapping as around
from estimator_pipeline.compat.internals import sessions

NAME = "sigterm"
WHAT = "SIGTERM ends a worker of MultiWorkerMirroredStrategy: TensorFlow's own handler notes it and trains on"


def apply() -> None:
    around.training(_mortal)


@contextlib.contextmanager
def _mortal(estimator: Any, hooks: list[Any]) -> Iterator[None]:
    del hooks
    if estimator._config.cluster_spec:
        sessions.let_sigterm_end_this_process()
    yield
