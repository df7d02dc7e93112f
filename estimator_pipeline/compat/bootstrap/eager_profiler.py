"""`tensorflow.python.eager.profiler`, which TensorFlow 2.20 removed: starts, stops and saves one profile.

Reimplemented with the profiler session of `tf.profiler.experimental`. As in TensorFlow's later profiler, the result is
an XSpace, and `save` names its file so that TensorBoard's profile plugin finds it.

Private use: `profiler.internal._pywrap_profiler` for the session, and `client._pywrap_events_writer` for the empty
event file by which TensorBoard finds the folder. No public API returns the result to the caller.
"""

from __future__ import annotations

import datetime
import os
import socket
import threading
from types import TracebackType
from typing import Any

__all__ = [
    "Profiler",
    "ProfilerAlreadyRunningError",
    "ProfilerNotRunningError",
    "maybe_create_event_file",
    "save",
    "start",
    "start_profiler_server",
    "stop",
]

_EVENT_FILE_SUFFIX = ".profile-empty"  # TensorBoard's plugin looks for it
_lock = threading.Lock()
_session: Any = None


class ProfilerAlreadyRunningError(Exception):
    """Raised if the process already has a profiler session."""


class ProfilerNotRunningError(Exception):
    """Raised if there is no session to stop."""


def start(options: dict[str, Any] | None = None) -> None:
    """Start a session. `options`: fields of `tf.profiler.experimental.ProfilerOptions`, as a dictionary."""
    import tensorflow as tf
    from tensorflow.python.profiler.internal import _pywrap_profiler

    global _session
    with _lock:
        if _session is not None:
            raise ProfilerAlreadyRunningError("Another profiler is running.")
        session = _pywrap_profiler.ProfilerSession()
        try:
            session.start("", options or {})
        except tf.errors.AlreadyExistsError:
            raise ProfilerAlreadyRunningError("Another profiler is running.")
        _session = session


def stop() -> bytes:
    """Stop the session and return its result, a serialized XSpace."""
    global _session
    with _lock:
        if _session is None:
            raise ProfilerNotRunningError("Cannot stop profiling. No profiler is running.")
        session, _session = _session, None
        return session.stop()


def maybe_create_event_file(logdir: str) -> None:
    """Write the event file that marks `logdir` as having profiles, if it does not exist."""
    import tensorflow as tf
    from tensorflow.python.client import _pywrap_events_writer

    if not any(name.endswith(_EVENT_FILE_SUFFIX) for name in tf.io.gfile.listdir(logdir)):
        writer = _pywrap_events_writer.EventsWriter(tf.compat.as_bytes(os.path.join(logdir, "events")))
        writer.InitWithSuffix(tf.compat.as_bytes(_EVENT_FILE_SUFFIX))


def save(logdir: str, result: bytes) -> None:
    """Write the result of `stop` as a new run of the profile plugin in `logdir`."""
    import tensorflow as tf

    run = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    folder = os.path.join(logdir, "plugins", "profile", run)
    tf.io.gfile.makedirs(folder)
    maybe_create_event_file(logdir)
    with tf.io.gfile.GFile(os.path.join(folder, f"{socket.gethostname()}.xplane.pb"), "wb") as file:
        file.write(result)


def start_profiler_server(port: int) -> None:
    """Serve profiles of this process on a port until the process exits."""
    import tensorflow as tf

    tf.profiler.experimental.server.start(port)


class Profiler:
    """Context manager that profiles its block and saves the profile in a log directory."""

    def __init__(self, logdir: str) -> None:
        self._logdir = logdir

    def __enter__(self) -> None:
        start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        save(self._logdir, stop())
