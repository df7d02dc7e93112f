"""What libraries say on standard error while a command trains in its own process: their warnings are left out."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator

__all__ = ["quieten_libraries"]

_LIBRARIES = ("absl", "keras", "tensorflow", "tensorflow_estimator", "tf_keras")
_LEVEL = "TF_CPP_MIN_LOG_LEVEL"


def quieten_libraries() -> None:
    """Imports TensorFlow, and leaves out what it, Keras and absl say that is no error: of old functions, of this CPU.

    What a program prints, logs or warns of by itself stays, also by `tf.compat.v1.logging`, and so does what this
    package says. Where TF_CPP_MIN_LOG_LEVEL is set, TensorFlow's kernels say what it allows: all of it with 0.
    """
    # absl's logger is of a class of its own, which is there once it is imported.
    import absl.logging  # noqa: F401

    from estimator_pipeline import compat

    folders = tuple(
        os.path.join(folder, "")
        for name in _LIBRARIES
        if (spec := importlib.util.find_spec(name)) is not None
        for folder in spec.submodule_search_locations or ()
    )

    def is_kept(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR or not record.pathname.startswith(folders)

    for logger in ("absl", "tensorflow"):
        logging.getLogger(logger).addFilter(is_kept)
    warnings.filterwarnings("ignore", module=rf"({'|'.join(_LIBRARIES)})(\.|$)")
    with contextlib.nullcontext() if os.environ.setdefault(_LEVEL, "3") == "0" else _said_if_it_fails():
        compat.install()


@contextlib.contextmanager
def _said_if_it_fails() -> Iterator[None]:
    """Keeps what is written to the descriptor of standard error, and passes it on where the block raises.

    While TensorFlow is imported its kernels write there whatever the level is (2.21).
    """
    sys.stderr.flush()
    try:
        kept = os.dup(2)
    except OSError:  # it is closed
        yield
        return
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            yield
        except BaseException:
            sys.stderr.flush()
            os.dup2(kept, 2)
            said.seek(0)
            with os.fdopen(os.dup(2), "wb") as stderr:
                shutil.copyfileobj(said, stderr)
            raise
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
