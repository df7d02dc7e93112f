"""Filters for log lines and warnings of libraries that the user of a command cannot act upon."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import re
import sys
import types
import warnings
from collections.abc import Iterable, Iterator

__all__ = ["hide_library_deprecations", "quiet_libraries"]

_LIBRARIES = ("absl", "keras", "tensorflow", "tensorflow_estimator", "tf_keras")
_OURS = ("estimator_pipeline", "model_fns")
# TensorFlow logs the calling line: "From FILE:LINE: NAME (from MODULE) is deprecated and ...".
_DEPRECATION = re.compile(r"From (.+?):\d+: .* is deprecated", re.DOTALL)
# Of tf.estimator; of tf.feature_column, which canned Estimators need.
_ADVICE = ("Use tf.keras instead.", "Use Keras preprocessing layers instead")


def _folders(packages: Iterable[str]) -> tuple[str, ...]:
    return tuple(
        os.path.join(folder, "")
        for name in packages
        if (spec := importlib.util.find_spec(name)) is not None
        for folder in spec.submodule_search_locations or ()
    )


def hide_library_deprecations() -> None:
    """Hide TensorFlow's deprecation warnings that the user of tf.estimator does not follow.

    They are about calls in this package and in libraries, or advise to leave tf.estimator, tf.feature_column or
    tf.layers. Other warnings about the program's calls are shown, and filters of the program for Python warnings have
    precedence. The filters are active for the rest of the process.
    """
    folders = _folders((*_LIBRARIES, *_OURS))

    def is_kept(record: logging.LogRecord) -> bool:
        message = record.getMessage() if record.levelno == logging.WARNING else ""
        match = _DEPRECATION.match(message)
        return match is None or not (match[1].startswith(folders) or any(advice in message for advice in _ADVICE))

    logging.getLogger("tensorflow").addFilter(is_kept)
    warnings.filterwarnings("ignore", message=r"`tf\.(layers|nn\.rnn_cell)\.\w+` is deprecated", append=True)


@contextlib.contextmanager
def quiet_libraries() -> Iterator[None]:
    """Hide log lines and warnings of TensorFlow, Keras and absl below errors within the block.

    Output of a program and of this package is unchanged, also through TensorFlow's logger. If TF_CPP_MIN_LOG_LEVEL is
    set, TensorFlow's kernels follow it: 0 logs everything. TensorFlow is imported at the start of the block.
    """
    # absl replaces the class of its logger during the import.
    import absl.logging

    from estimator_pipeline import compat
    from estimator_pipeline.compat.bootstrap import start_lines

    folders = _folders(_LIBRARIES)
    wrappers = (os.path.dirname(logging.__file__), os.path.dirname(absl.logging.__file__))

    def is_kept(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR or not _logging_file(wrappers).startswith(folders)

    loggers = [logging.getLogger(name) for name in ("absl", "tensorflow")]
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with start_lines.hidden():
        compat.install()
    for logger in loggers:
        logger.addFilter(is_kept)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=rf"({'|'.join(_LIBRARIES)})(\.|$)")
            # TensorFlow attributes these to the calling line.
            warnings.filterwarnings("ignore", message=r"`(tf|[lL]ayer|[mM]odel)\.[\w.]+` is deprecated")
            yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_kept)


def _logging_file(wrappers: tuple[str, ...]) -> str:
    """Return the file whose code is logging now.

    The record's own path is one frame too far out for `tf.get_logger().info()` (2.15 to 2.21).
    """
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file != __file__ and not file.startswith(wrappers) and os.path.basename(file) != "tf_logging.py":
            return file
        frame = frame.f_back
    return ""
