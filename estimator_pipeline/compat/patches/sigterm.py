"""SIGTERM terminates a worker; see `let_sigterm_end_this_process` in `compat/internals/sessions.py`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from estimator_pipeline.compat.internals import estimator_wrapping as around
from estimator_pipeline.compat.internals import sessions

NAME = "sigterm"
WHAT = "SIGTERM terminates a worker of MultiWorkerMirroredStrategy, whose TensorFlow handler ignores it"


def apply() -> None:
    around.training(_mortal)


@contextlib.contextmanager
def _mortal(estimator: Any, hooks: list[Any]) -> Iterator[None]:
    del hooks
    if estimator._config.cluster_spec:
        sessions.let_sigterm_end_this_process()
    yield
