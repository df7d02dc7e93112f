"""Logger of this package, a child of TensorFlow's.

So its lines have the same destination as the Estimator's, and follow `tf.compat.v1.logging.set_verbosity`. It is not
absl's logger, which adds a handler to the root logger with its first message, so that every line of TensorFlow would
appear twice.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

__all__ = ["forward_warnings", "logger"]

logger = logging.getLogger("tensorflow.estimator_pipeline")


class _Forwarding(logging.Handler):
    def __init__(self, report: Callable[[str], object]) -> None:
        super().__init__(logging.WARNING)
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        self._report(record.getMessage())


@contextlib.contextmanager
def forward_warnings(report: Callable[[str], object]) -> Iterator[None]:
    """Call `report(text)` for each warning that is logged in the block, unless an outer block reports them."""
    if any(isinstance(handler, _Forwarding) for handler in logger.handlers):
        yield
        return
    handler = _Forwarding(report)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
