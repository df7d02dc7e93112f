"""The logger of what this package says beside an Estimator: a child of TensorFlow's.

So its lines come where the Estimator's come, and follow `tf.compat.v1.logging.set_verbosity`. absl's logger would not
do: with its first message it gives the root logger a handler, and from then on every line of TensorFlow comes twice.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

__all__ = ["logger", "warnings_told"]

logger = logging.getLogger("tensorflow.estimator_pipeline")


@contextlib.contextmanager
def warnings_told(tell: Callable[[str], object]) -> Iterator[None]:
    """In the block, `tell(text)` is called with each warning as well."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            tell(record.getMessage())

    handler = Handler(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
