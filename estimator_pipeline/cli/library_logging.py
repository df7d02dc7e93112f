"""What libraries say on standard error while a command trains in its own process, and nobody can do anything about."""

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

__all__ = ["leave_out_own_deprecations", "quiet_libraries"]

_LIBRARIES = ("absl", "keras", "tensorflow", "tensorflow_estimator", "tf_keras")
_OURS = ("estimator_pipeline", "model_fns")
# As TensorFlow's log tells it, with the line that calls: "From FILE:LINE: NAME (from MODULE) is deprecated and ...".
_DEPRECATION = re.compile(r"From (.+?):\d+: .* is deprecated", re.DOTALL)
_LEVEL = "TF_CPP_MIN_LOG_LEVEL"


def _folders(packages: Iterable[str]) -> tuple[str, ...]:
    return tuple(
        os.path.join(folder, "")
        for name in packages
        if (spec := importlib.util.find_spec(name)) is not None
        for folder in spec.submodule_search_locations or ()
    )


def leave_out_own_deprecations() -> None:
    """TensorFlow's log tells no more what this package and libraries call that TensorFlow means to remove.

    Who runs a job did not write it, and what it advises ("Use tf.keras instead") is not for them. What the functions of
    a job call by themselves is told as ever. It holds for the rest of the process.
    """
    folders = _folders((*_LIBRARIES, *_OURS))

    def is_kept(record: logging.LogRecord) -> bool:
        found = _DEPRECATION.match(record.getMessage()) if record.levelno == logging.WARNING else None
        return found is None or not found[1].startswith(folders)

    logging.getLogger("tensorflow").addFilter(is_kept)


@contextlib.contextmanager
def quiet_libraries() -> Iterator[None]:
    """A block in which TensorFlow, Keras and absl say nothing that is no error: of old functions, of this CPU.

    What a program prints, logs or warns of by itself stays, also by TensorFlow's logger, and so does what this package
    says. Where TF_CPP_MIN_LOG_LEVEL is set, TensorFlow's kernels say what it allows: all of it with 0. TensorFlow is
    imported at the block's beginning.
    """
    # absl's logger is of a class of its own, which is there once it is imported.
    import absl.logging

    from estimator_pipeline import compat

    folders = _folders(_LIBRARIES)
    passing_on = (os.path.dirname(logging.__file__), os.path.dirname(absl.logging.__file__))

    def is_kept(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR or not _speaker(passing_on).startswith(folders)

    loggers = [logging.getLogger(name) for name in ("absl", "tensorflow")]
    is_loud = os.environ.setdefault(_LEVEL, "3") == "0"
    with contextlib.nullcontext() if is_loud or "tensorflow" in sys.modules else _said_if_it_fails():
        compat.install()
    for logger in loggers:
        logger.addFilter(is_kept)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=rf"({'|'.join(_LIBRARIES)})(\.|$)")
            # They are told of the line that calls, and are of TensorFlow all the same.
            warnings.filterwarnings("ignore", message=r"`(tf|[lL]ayer|[mM]odel)\.[\w.]+` is deprecated")
            yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_kept)


def _speaker(passing_on: tuple[str, ...]) -> str:
    """The file of whoever logs something at this moment.

    What a record says of it is one function too far out for `tf.get_logger().info()` (2.15 to 2.21).
    """
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file != __file__ and not file.startswith(passing_on) and os.path.basename(file) != "tf_logging.py":
            return file
        frame = frame.f_back
    return ""


# It waits for word that all went well (from descriptor 0); where none comes, it says what was kept (1).
_WATCHER = """
import os
if os.read(0, 1) != b"1":
    said, at = os.pread(1, 1 << 16, 0), 0
    while said:
        at += len(said)
        while said:
            said = said[os.write(2, said):]
        said = os.pread(1, 1 << 16, at)
"""


@contextlib.contextmanager
def _said_if_it_fails() -> Iterator[None]:
    """Keeps what is written to the descriptor of standard error, and passes it on where the block does not end well.

    While TensorFlow is imported its kernels write there whatever the level is (2.21). A process that is aborted in it
    (by a CPU without the instructions that TensorFlow was compiled for) passes nothing on any more: a small process
    beside it does. Where there can be none, nothing is kept.
    """
    if os.getpid() == 1:  # of a container, whose processes all end with it
        yield
        return
    sys.stderr.flush()
    with contextlib.ExitStack() as stack:
        try:
            kept = os.dup(2)  # not where it is closed
            stack.callback(os.close, kept)
            said = stack.enter_context(tempfile.TemporaryFile())
            watcher = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _WATCHER],
                stdin=subprocess.PIPE,
                stdout=said,
                start_new_session=True,  # Ctrl-C is for the command, which passes on what was kept
            )
        except OSError:
            yield
            return
        os.dup2(said.fileno(), 2)
        word = b""
        try:
            yield
            word = b"1"
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            with contextlib.suppress(OSError):  # somebody has ended it
                watcher.communicate(word)
