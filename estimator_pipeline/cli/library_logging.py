"""Filters for log lines and warnings of libraries that the user of a command cannot act upon."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import re
import subprocess
import sys
import tempfile
import types
import warnings
from collections.abc import Iterable, Iterator

__all__ = ["hide_library_deprecations", "quiet_libraries"]

_LIBRARIES = ("absl", "keras", "tensorflow", "tensorflow_estimator", "tf_keras")
_OURS = ("estimator_pipeline", "model_fns")
# TensorFlow logs the calling line: "From FILE:LINE: NAME (from MODULE) is deprecated and ...".
_DEPRECATION = re.compile(r"From (.+?):\d+: .* is deprecated", re.DOTALL)
_LEVEL = "TF_CPP_MIN_LOG_LEVEL"


def _folders(packages: Iterable[str]) -> tuple[str, ...]:
    return tuple(
        os.path.join(folder, "")
        for name in packages
        if (spec := importlib.util.find_spec(name)) is not None
        for folder in spec.submodule_search_locations or ()
    )


def hide_library_deprecations() -> None:
    """Hide TensorFlow's deprecation warnings about calls in this package and in libraries.

    The user of a job cannot follow their advice ("Use tf.keras instead"). Warnings about calls in the job's functions
    are still logged. The filter is active for the rest of the process.
    """
    folders = _folders((*_LIBRARIES, *_OURS))

    def is_kept(record: logging.LogRecord) -> bool:
        match = _DEPRECATION.match(record.getMessage()) if record.levelno == logging.WARNING else None
        return match is None or not match[1].startswith(folders)

    logging.getLogger("tensorflow").addFilter(is_kept)


@contextlib.contextmanager
def quiet_libraries() -> Iterator[None]:
    """Hide log lines and warnings of TensorFlow, Keras and absl below errors within the block.

    Output of a program and of this package is unchanged, also through TensorFlow's logger. If TF_CPP_MIN_LOG_LEVEL is
    set, TensorFlow's kernels follow it: 0 logs everything. TensorFlow is imported at the start of the block.
    """
    # absl replaces the class of its logger during the import.
    import absl.logging

    from estimator_pipeline import compat

    folders = _folders(_LIBRARIES)
    wrappers = (os.path.dirname(logging.__file__), os.path.dirname(absl.logging.__file__))

    def is_kept(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR or not _logging_file(wrappers).startswith(folders)

    loggers = [logging.getLogger(name) for name in ("absl", "tensorflow")]
    is_loud = os.environ.setdefault(_LEVEL, "3") == "0"
    with contextlib.nullcontext() if is_loud or "tensorflow" in sys.modules else _stderr_on_failure():
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


# Waits on descriptor 0 for the byte of success; without it, copies the held output from descriptor 1 to 2.
_WATCHER = """
import os
if os.read(0, 1) != b"1":
    chunk, at = os.pread(1, 1 << 16, 0), 0
    while chunk:
        at += len(chunk)
        while chunk:
            chunk = chunk[os.write(2, chunk):]
        chunk = os.pread(1, 1 << 16, at)
"""


@contextlib.contextmanager
def _stderr_on_failure() -> Iterator[None]:
    """Hold output to the descriptor of standard error, and write it only if the block fails.

    During TensorFlow's import its kernels write there at any log level (2.21). If the import aborts the process (on a
    CPU without the instructions that TensorFlow was compiled for), a small child process writes the held output. If
    that process cannot start, nothing is held.
    """
    if os.getpid() == 1:  # in a container, whose processes all end with this one
        yield
        return
    sys.stderr.flush()
    with contextlib.ExitStack() as stack:
        try:
            original = os.dup(2)  # fails if descriptor 2 is closed
            stack.callback(os.close, original)
            held = stack.enter_context(tempfile.TemporaryFile())
            watcher = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _WATCHER],
                stdin=subprocess.PIPE,
                stdout=held,
                start_new_session=True,  # Ctrl-C is for the command, after which the held output is written
            )
        except OSError:
            yield
            return
        os.dup2(held.fileno(), 2)
        success = b""
        try:
            yield
            success = b"1"
        finally:
            sys.stderr.flush()
            os.dup2(original, 2)
            with contextlib.suppress(OSError):  # the child process was killed
                watcher.communicate(success)
