"""Each line of TensorFlow's logger once on the console.

TensorFlow's logger has its own handler unless the root logger has one when TensorFlow is imported. A later handler of
the root logger writes the line again: absl calls `logging.basicConfig()` with its first message, as in tfds, and adds
its own handler in `app.run`, as in `tf.compat.v1.app.run`.
"""

from __future__ import annotations

import logging
import sys

__all__ = ["show_once"]


def show_once() -> None:
    """Let one handler write a line to the console; handlers that write elsewhere, as to a file, get every line.

    It is the root logger's, as with other loggers, whose format the program may have set. absl's handler leaves the
    lines to TensorFlow's, whose format ("INFO:tensorflow:loss = 0.3, step = 100") programs that read the log expect.
    """
    import absl.logging

    logger = logging.getLogger("tensorflow")
    absl_handler = absl.logging.get_absl_handler()

    def is_left_to_root(record: logging.LogRecord) -> bool:
        return logger.propagate and any(
            _is_console(handler) and handler.level <= record.levelno for handler in logging.root.handlers
        )

    def is_written_by_absl(record: logging.LogRecord) -> bool:
        is_written = record.name.partition(".")[0] == "tensorflow" and any(map(_is_console, logger.handlers))
        return not is_written or not _is_console(absl_handler.python_handler)

    for handler in logger.handlers:
        handler.addFilter(lambda record: not is_left_to_root(record))
    absl_handler.addFilter(is_written_by_absl)


def _is_console(handler: logging.Handler) -> bool:
    return getattr(handler, "stream", None) in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
