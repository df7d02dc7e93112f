"""A task that waits for its peers reports the missing ones, has a timeout, and can be stopped.

`tf.distribute.MultiWorkerMirroredStrategy()` waits in TensorFlow's C++ code until every task of the cluster has joined,
for an hour and without releasing the GIL. No other thread runs, so there is no heartbeat; Ctrl-C has no effect, and a
handler that TensorFlow sets drops SIGTERM. If the task's port is in use, the error is "Could not start gRPC server".
Here

* the same C function is called with ctypes, which releases the GIL;
* a task whose port is in use reports it, with the process that uses it, before its server starts; addresses that
  cannot work as a cluster are an error, and an own address of a different machine is a warning;
* a thread reports once a minute which tasks do not answer, in the log and to a launcher, sends the launcher's
  heartbeats, and terminates the process after ESTIMATOR_PIPELINE_START_SECS (30 minutes) with an error and exit code 1;
* each task publishes that it has joined, by which it notices later that the leader was started again
  (`coordination_service.require_all_alive`);
* a signal that stops a task (docs/guides/preemption.md) terminates it immediately with the exit code of a preemption,
  since nothing has been trained; Ctrl-C terminates it with 130. Signals with a handler of the program, and Ctrl-C in an
  interactive session, are left alone. After the wait TensorFlow's handlers are restored, except that of SIGTERM for job
  files.

Private use: `tensorflow.python.pywrap_tfe.TFE_EnableCollectiveOps`, with which the eager context starts the task's
server (there is no public function), and the C function of that name and those of TF_Status in
`libtensorflow_cc.so.2`. All are unchanged from 2.15 to 2.21. If the library or a function is missing, TensorFlow's
function is called. Of CPython: `PyOS_getsig` and `PyOS_setsig`, since `signal.signal` works only in the main thread,
which is blocked.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

from estimator_pipeline.cluster import own_port
from estimator_pipeline.cluster.peers import grace_secs
from estimator_pipeline.cluster.start_wait import RollCall
from estimator_pipeline.compat.internals import coordination_service
from estimator_pipeline.errors import PreemptedError, TaskFailedError
from estimator_pipeline.progress import progress_file as progress
from estimator_pipeline.progress.error_lines import error_line
from estimator_pipeline.progress.preemption_signals import signals_of
from estimator_pipeline.utils import startup
from estimator_pipeline.utils.logger import logger

NAME = "missing-peers"
WHAT = (
    "a task reports missing peers once a minute and exits after 30 minutes (ESTIMATOR_PIPELINE_START_SECS); SIGTERM "
    "and Ctrl-C stop it immediately"
)

INTERRUPTED = 130
_TICK_SECS = 0.1
# TensorFlow's default.
_HEARTBEAT_SECS = 10.0
# TensorFlow's timeout is longer than ours by this, so that ours is reported.
_MARGIN_SECS = 300.0


class _JobSettings(NamedTuple):
    """The settings of a job file; None: the environment variable, or the default."""

    seconds: float | None = None
    signals: Sequence[str] | None = None
    # Whether a job file is run, which does not need TensorFlow's SIGTERM handler, which drops the signal.
    is_job: bool = False


# Of this thread: several may run jobs.
_of_thread: ContextVar[_JobSettings] = ContextVar("job settings")


@contextlib.contextmanager
def job_settings(*, seconds: float | None, signals: Sequence[str] | None) -> Iterator[None]:
    """Use the settings of a job file in the block; None leaves a setting to the environment.

    Args:
        seconds: How long a task waits for the others to join.
        signals: Names of the signals that stop a task.
    """
    before = _of_thread.set(_JobSettings(seconds, signals, is_job=True))
    try:
        yield
    finally:
        _of_thread.reset(before)


def _settings() -> _JobSettings:
    return _of_thread.get(_JobSettings())


def roll_call(task: str, peers: Mapping[str, str], *, leader: str | None = None) -> RollCall:
    """Return an object that tracks which of `peers` are missing, for a wait that begins now."""
    return RollCall(task, peers, leader=leader, seconds=_settings().seconds)


def apply() -> None:
    from tensorflow.python import pywrap_tfe

    join = _join_function()
    if join is None:
        return
    original = pywrap_tfe.TFE_EnableCollectiveOps

    @functools.wraps(original)
    def enable(context, server_def):
        _check_server(server_def)
        wait = _wait_of(server_def)
        if wait is None:
            return original(context, server_def)
        with wait:
            join(context, wait.server_def)
        coordination_service.joined(context, wait.task)

    pywrap_tfe.TFE_EnableCollectiveOps = enable


def _join_function() -> Callable[[Any, bytes], None] | None:
    """Return TensorFlow's C function, called without the GIL; None if it is not available."""
    import tensorflow as tf

    path = os.path.join(os.path.dirname(tf.__file__), "libtensorflow_cc.so.2")
    if not os.path.exists(path):
        return None
    # The library is already loaded: this returns a second handle.
    library = ctypes.CDLL(path)
    pointer, python = ctypes.c_void_p, ctypes.pythonapi
    try:
        functions: list[tuple[Any, Any, list[Any]]] = [
            (library.TFE_EnableCollectiveOps, None, [pointer, ctypes.c_char_p, ctypes.c_size_t, pointer]),
            (library.TF_NewStatus, pointer, []),
            (library.TF_GetCode, ctypes.c_int, [pointer]),
            (library.TF_Message, ctypes.c_char_p, [pointer]),
            (library.TF_DeleteStatus, None, [pointer]),
            (python.PyCapsule_GetName, ctypes.c_char_p, [ctypes.py_object]),
            (python.PyCapsule_GetPointer, pointer, [ctypes.py_object, ctypes.c_char_p]),
            (python.PyOS_getsig, pointer, [ctypes.c_int]),
            (python.PyOS_setsig, pointer, [ctypes.c_int, pointer]),
        ]
    except AttributeError:
        return None
    for function, result, arguments in functions:
        function.restype, function.argtypes = result, arguments

    def join(context: Any, server_def: bytes) -> None:
        handle = python.PyCapsule_GetPointer(context, python.PyCapsule_GetName(context))
        status = library.TF_NewStatus()
        try:
            library.TFE_EnableCollectiveOps(handle, server_def, len(server_def), status)
            code, message = library.TF_GetCode(status), library.TF_Message(status).decode("utf-8", "replace")
        finally:
            library.TF_DeleteStatus(status)
        if code:
            raise tf.compat.v1.errors.exception_type_from_error_code(code)(None, None, message)

    return join


def _check_server(text: bytes) -> None:
    from tensorflow.core.protobuf import tensorflow_server_pb2

    server_def = tensorflow_server_pb2.ServerDef.FromString(text)
    addresses = [job.tasks[server_def.task_index] for job in server_def.cluster.job if job.name == server_def.job_name]
    if addresses:
        jobs = {job.name: [address for _, address in sorted(job.tasks.items())] for job in server_def.cluster.job}
        own_port.check_server(jobs, addresses[0], f"{server_def.job_name}:{server_def.task_index}", os.environ)


def _wait_of(text: bytes) -> _Wait | None:
    """Return the wait of the task with this server; None if it has no peers to wait for."""
    from tensorflow.core.protobuf import tensorflow_server_pb2

    server_def = tensorflow_server_pb2.ServerDef.FromString(text)
    coordination = server_def.default_session_config.experimental.coordination_config
    joining = {job.name for job in coordination.coordinated_job_list}
    task = f"{server_def.job_name}:{server_def.task_index}"
    peers = {
        f"{job.name}:{index}": address
        for job in server_def.cluster.job
        for index, address in job.tasks.items()
        if job.name in joining and f"{job.name}:{index}" != task
    }
    if not peers:
        return None
    calls = roll_call(task, peers, leader=coordination_service.task_name(coordination.service_leader))
    # TensorFlow's default timeout is an hour.
    coordination.cluster_register_timeout_in_ms = int(1000 * (calls.seconds + _MARGIN_SECS))
    # A task that pauses for more than TensorFlow's ten seconds must not be lost before our timeout.
    coordination.heartbeat_timeout_in_ms = int(1000 * max(_HEARTBEAT_SECS, grace_secs()))
    return _Wait(calls, server_def.SerializeToString())


class _Wait:
    """Context in which the main thread is in TensorFlow's C++ code; threads report and handle signals.

    Args:
        calls: The peers to wait for.
        server_def: The task's serialized server.
    """

    def __init__(self, calls: RollCall, server_def: bytes) -> None:
        self.server_def = server_def
        self.task = calls.task
        self._calls, self._over = calls, threading.Event()
        self._progress = progress.from_environ(os.environ)
        self._threads = [
            threading.Thread(target=target, name=f"estimator_pipeline-{name}", daemon=True)
            for name, target in (("start-signals", self._watch), ("missing-peers", self._call))
        ]
        self._leaving = threading.Lock()
        self._ours: dict[int, int | None] = {}  # signal -> C handler during the wait; None: the default
        self._theirs: dict[int, int | None] = {}  # the same without SIGINT -> TensorFlow's C handler
        self._heard: list[int] = []
        self._reader: socket.socket | None = None

    def __enter__(self) -> None:
        progress.start_heartbeat(os.environ)
        if threading.current_thread() is threading.main_thread():
            self._listen()
        for thread in self._threads:
            thread.start()

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        # The other thread may be connecting to a port.
        self._threads[0].join()
        if self._reader is not None:
            self._stop_listening()

    # -- signals ----------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        asking = signals_of(_settings().signals, os.environ)
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._before_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in {*asking, signal.SIGTERM}:
            if signal.getsignal(number) == signal.SIG_DFL:
                self._theirs[number] = ctypes.pythonapi.PyOS_getsig(number)
                # SIGTERM terminates the process by default, unless it is a stop signal.
                signal.signal(number, self._handle if number in asking else signal.SIG_DFL)
                self._ours[number] = ctypes.pythonapi.PyOS_getsig(number)
        if signal.getsignal(signal.SIGINT) == signal.default_int_handler and not startup.is_interactive():
            self._ours[signal.SIGINT] = ctypes.pythonapi.PyOS_getsig(signal.SIGINT)

    def _handle(self, number: int, frame: Any) -> None:
        self._heard.append(number)

    def _stop_listening(self) -> None:
        self._keep()
        signal.set_wakeup_fd(self._before_fd)
        for number, theirs in self._theirs.items():
            signal.signal(number, signal.SIG_DFL)
            if not _settings().is_job:
                ctypes.pythonapi.PyOS_setsig(number, theirs)
        assert self._reader is not None
        self._hear()
        self._reader.close()
        self._writer.close()
        if self._heard:
            self._end_asked(self._heard[0])

    def _hear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            assert self._reader is not None
            for number in self._reader.recv(64):
                if number in self._ours:
                    self._heard.append(number)
                if self._before_fd >= 0:
                    with contextlib.suppress(OSError):
                        os.write(self._before_fd, bytes([number]))

    def _keep(self) -> None:
        """Restore our handlers, since TensorFlow sets its own when its server starts, during the wait."""
        for number in self._theirs:
            now = ctypes.pythonapi.PyOS_getsig(number)
            if now != self._ours[number]:
                self._theirs[number] = now
                ctypes.pythonapi.PyOS_setsig(number, self._ours[number])

    # -- the threads ------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._over.wait(_TICK_SECS):
            self._keep()
            if self._reader is not None:
                self._hear()
            if self._heard:
                self._end_asked(self._heard[0])

    def _call(self) -> None:
        while not self._over.wait(_TICK_SECS):
            if not self._calls.due:
                continue
            try:
                line = self._calls.poll()
            except TaskFailedError as error:
                if not self._over.is_set():
                    details = {"caused_by": error.caused_by, "task": self._calls.task, "error": error_line(error)}
                    self._end(str(error), error.exit_code, status="failed", **details)
                return
            if not self._over.is_set():
                logger.warning("%s", line)
                self._progress.emit("warning", text=line)

    def _end_asked(self, number: int) -> None:
        by = signal.Signals(number).name
        where = "it was waiting for the other tasks to join, and nothing had been trained"
        if number == signal.SIGINT:
            self._end(f"{self._calls.task} was interrupted: {where}", INTERRUPTED)
        else:
            error = PreemptedError(
                f"{self._calls.task} was asked to stop ({by}): {where}",
                hint="run the same command again: it resumes from the last checkpoint, if there is one",
            )
            self._end(str(error), progress.code_of_preemption(os.environ, error.exit_code), status="preempted")

    def _end(self, message: str, code: int, **end: Any) -> None:
        """Terminate the process, once: its main thread is in C++ code, where exceptions cannot reach it."""
        self._leaving.acquire()
        if end:
            self._progress.emit("end", **end)
        with contextlib.suppress(OSError, ValueError):
            print(message, file=sys.stderr, flush=True)
            sys.stdout.flush()
        progress.stop_heartbeat()
        os._exit(code)
