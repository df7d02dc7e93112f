"""Filters for log lines and warnings of libraries that the user of a command cannot act upon."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import types
import warnings
from collections.abc import Iterator

__all__ = ["quiet_libraries"]


@contextlib.contextmanager
def quiet_libraries() -> Iterator[None]:
    """Hide log lines and warnings of TensorFlow, Keras and absl below errors within the block.

    Output of a program and of this package is unchanged, also through TensorFlow's logger. If TF_CPP_MIN_LOG_LEVEL is
    set, TensorFlow's kernels follow it: 0 logs everything. TensorFlow is imported at the start of the block.
    """
    # absl replaces the class of its logger during the import.
    import absl.logging

    from estimator_pipeline import compat
    from estimator_pipeline.compat.bootstrap import log_lines, start_lines

    folders = log_lines.folders(log_lines.LIBRARIES)
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
            warnings.filterwarnings("ignore", module=rf"({'|'.join(log_lines.LIBRARIES)})(\.|$)")
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
