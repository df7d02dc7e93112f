"""Lines of TensorFlow's logger: each once on the console, and none that the user of tf.estimator does not follow.

TensorFlow's logger has its own handler unless the root logger has one when TensorFlow is imported. A later handler of
the root logger writes the line again: absl calls `logging.basicConfig()` with its first message, as in tfds, and adds
its own handler in `app.run`, as in `tf.compat.v1.app.run`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterable

__all__ = ["LIBRARIES", "folders", "hide_deprecations", "show_once"]

LIBRARIES = ("absl", "keras", "tensorflow", "tensorflow_estimator", "tf_keras")
_OURS = ("estimator_pipeline", "model_fns")
# TensorFlow logs the calling line: "From FILE:LINE: NAME (from MODULE) is deprecated and ...".
_DEPRECATION = re.compile(r"From (.+?):\d+: .* is deprecated", re.DOTALL)
# Of tf.estimator; of tf.feature_column, which canned Estimators need.
_ADVICE = ("Use tf.keras instead.", "Use Keras preprocessing layers instead")


def folders(packages: Iterable[str]) -> tuple[str, ...]:
    """Return the folders of packages, each with a closing separator."""
    places: list[str] = []
    for name in packages:
        with contextlib.suppress(ValueError):  # a module that the program has made has no spec
            spec = importlib.util.find_spec(name)
            places += (spec.submodule_search_locations or ()) if spec is not None else ()
    return tuple(os.path.join(folder, "") for folder in places)


def hide_deprecations() -> None:
    """Hide TensorFlow's deprecation warnings that the user of tf.estimator does not follow.

    They are about calls in this package and in libraries, or advise to leave tf.estimator, tf.feature_column or
    tf.layers. Other warnings about the program's calls are shown, and filters of the program for Python warnings have
    precedence. The filters are active for the rest of the process.
    """
    hidden = folders((*LIBRARIES, *_OURS))

    def is_kept(record: logging.LogRecord) -> bool:
        message = record.getMessage() if record.levelno == logging.WARNING else ""
        match = _DEPRECATION.match(message)
        return match is None or not (match[1].startswith(hidden) or any(advice in message for advice in _ADVICE))

    logging.getLogger("tensorflow").addFilter(is_kept)
    # From inside TensorFlow, in graph mode.
    warnings.filterwarnings("ignore", message="To make it possible to preserve tf.data options", append=True)
    warnings.filterwarnings("ignore", message=r"`tf\.(layers|nn\.rnn_cell)\.\w+` is deprecated", append=True)


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
