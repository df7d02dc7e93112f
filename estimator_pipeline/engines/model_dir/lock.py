"""The lock on a model directory: only one job at a time trains in it, and a dead owner does not block it.

On a file system with locks (local disks, NFS 4 and later) this is `flock` on a file that is open while the job trains;
the kernel releases it when the process exits. Elsewhere (object stores) it is a lease: a small file that the owner
rewrites every `RENEW_SECS`. A different job may take it if it was not renewed for `LEASE_SECS`, measured by
that job's clock. An owner that lost its lease stops.

Only the task that writes the checkpoints holds the lock.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.cluster.document_exchange import SharedDocuments
from estimator_pipeline.engines.model_dir import disk_errors as disk
from estimator_pipeline.engines.model_dir.layout import DIRECTORY
from estimator_pipeline.errors import ConfigError, PipelineError, TaskFailedError
from estimator_pipeline.utils.logger import logger
from estimator_pipeline.utils.paths import real_path
from estimator_pipeline.utils.process_state import STATE

__all__ = ["hold", "holder", "is_held"]

# A predecessor that was killed may still be closing its files, on this machine or on the server's side.
WAIT_SECS = 15.0
# A crashed machine does not release its locks: an NFS server holds them until its lease expires, usually 90 s.
ELSEWHERE_SECS = 120.0
RENEW_SECS = 20.0
LEASE_SECS = 90.0
_LOOK_SECS = 0.5
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


@contextlib.contextmanager
def hold(model_dir: str, *, owner: str, run_id: str, wait: float | None = None) -> Iterator[None]:
    """Hold the lock on `model_dir`, any path that `tf.io.gfile` can write, within the block.

    Args:
        model_dir: The model directory.
        owner: Name of this task, for the error message of other jobs.
        run_id: ID of this run, for the same message.
        wait: Seconds to wait for the previous owner. None: WAIT_SECS, or ELSEWHERE_SECS for one on a different machine.

    Raises:
        ConfigError: A different job holds the lock, or the directory cannot be written.
        TaskFailedError: The disk has no room for the lock file.
    """
    folder = os.path.join(model_dir, DIRECTORY)
    document = {"task": owner, "host": socket.gethostname(), "pid": os.getpid(), "run_id": run_id, "since": time.time()}
    path = os.path.join(folder, "lock")
    with contextlib.ExitStack() as held:
        try:
            if "://" in path:
                raise _NoLocks
            held.enter_context(_kernel_lock(path, document, model_dir, wait))
        except _NoLocks:
            held.enter_context(_lease(path, document, model_dir, WAIT_SECS if wait is None else wait))
        STATE.lock_names.append(name := real_path(model_dir))
        held.callback(STATE.lock_names.remove, name)
        yield


def is_held(model_dir: str) -> bool:
    """Return whether this process holds the lock; nested calls must not acquire it again."""
    return real_path(model_dir) in STATE.lock_names


def holder(model_dir: str) -> str | None:
    """Describe the owner of the lock on a local directory; None if it is not locked.

    Nothing is written, and the lock is blocked only for the moment of this check.
    """
    path = os.path.join(model_dir, DIRECTORY, "lock")
    with contextlib.suppress(OSError):
        if time.time() - os.stat(path + ".lease").st_mtime < LEASE_SECS:
            return _owner(_read(path + ".lease"))
    with contextlib.suppress(OSError), open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.flock(file, fcntl.LOCK_UN)
        except BlockingIOError:
            return _owner(_read(path))
    return None


class _NoLocks(Exception):
    """This file system has no locks."""


@contextlib.contextmanager
def _kernel_lock(path: str, document: dict[str, Any], model_dir: str, wait: float | None) -> Iterator[None]:
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise _not_writable(model_dir, str(error)) from error
    begun, patience = time.monotonic(), None
    try:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if patience is None:
                    patience = _patience(path, document, model_dir) if wait is None else wait
                if time.monotonic() - begun > patience:
                    raise _in_use(model_dir, _read(path), "") from None
                time.sleep(0.2)
            except OSError as error:
                if error.errno in _NO_LOCKS:
                    raise _NoLocks from None
                raise _not_writable(model_dir, str(error)) from error
        with contextlib.suppress(OSError):
            # Only for messages: the lock is valid even if a full disk has no room for this.
            os.ftruncate(file, 0)
            os.pwrite(file, json.dumps(document).encode(), 0)
        STATE.lock_files[file] = os.fstat(file)
        yield
    finally:
        STATE.lock_files.pop(file, None)
        with contextlib.suppress(OSError):
            # Closing is not enough: a child that was forked a moment ago may still have a copy.
            fcntl.flock(file, fcntl.LOCK_UN)
        with contextlib.suppress(OSError):
            os.close(file)


def _patience(path: str, document: dict[str, Any], model_dir: str) -> float:
    """Return the seconds to wait for the owner of a lock; longer if its machine may have crashed."""
    holder = _read(path)
    if holder.get("host", document["host"]) == document["host"]:
        return WAIT_SECS
    logger.warning(
        "The lock on %s is held by %s, on a different machine. If that machine has crashed, the file server holds the "
        "lock a while longer: waiting up to %.0f s",
        *(model_dir, _owner(holder), ELSEWHERE_SECS),
    )
    return ELSEWHERE_SECS


def _close_locked() -> None:
    """Close the lock files in a forked child, which would hold the locks after its parent's exit."""
    for file, before in STATE.lock_files.items():
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(file), before):
                os.close(file)
    STATE.lock_files.clear()


os.register_at_fork(after_in_child=_close_locked)


@contextlib.contextmanager
def _lease(path: str, document: dict[str, Any], model_dir: str, wait: float) -> Iterator[None]:
    path += ".lease"
    # Process IDs are reused, in containers all the time: a random nonce identifies the lease.
    document = {**document, "nonce": secrets.token_hex(8)}
    _take_lease(path, document, model_dir, wait)
    stop = threading.Event()
    taken: list[dict[str, Any]] = []  # documents of the new owner
    training = threading.get_ident()

    def renew() -> None:
        count = 0
        while not stop.wait(RENEW_SECS):
            count += 1
            try:
                current = _read_lease(path)
                if not current and not stop.wait(_LOOK_SECS):
                    # Only a job that takes the lease writes here, and it may be writing now.
                    current = _read_lease(path)
                if stop.is_set():
                    return
                if taken or (current and current.get("nonce") != document["nonce"]):
                    # This machine was suspended for longer than a lease. Renewing it would take it from the new owner.
                    # Raised at each renewal: an exception raised inside a destructor is lost.
                    taken.append(current or {})
                    _raise_in(training, _LeaseLost)
                else:
                    # A job that took the lease since the read sees this and stops, so only one of the two continues.
                    _write_lease(path, {**document, "renewed": count})
            except compat.tensorflow().errors.OpError as error:
                logger.warning("The lock on %s could not be renewed: %s", model_dir, error.message)

    thread = threading.Thread(target=renew, name="estimator_pipeline-lock", daemon=True)
    thread.start()
    try:
        try:
            yield
        finally:
            stop.set()
            thread.join(RENEW_SECS)
            _raise_in(training, None)
            if not taken:
                with contextlib.suppress(compat.tensorflow().errors.OpError):
                    compat.tensorflow().io.gfile.remove(path)
    except _LeaseLost:
        pass
    if taken:
        raise ConfigError(
            f"the lock on {model_dir} was not renewed for {LEASE_SECS:.0f} s, and another job has taken it",
            code="model-dir/in-use",
            found=_owner(taken[0]),
            hint="this job has stopped, and the other continues; if machines are suspended for so long, give each job "
            "a separate model_dir",
        )


class _LeaseLost(BaseException):
    """Stops a training that lost its lease. Not an Exception, so that no handler on the way catches it."""


def _raise_in(thread: int, kind: type[BaseException] | None) -> None:
    """Raise `kind` in a thread as soon as it runs Python code; None cancels an exception not raised yet.

    A signal would not work: a job that a script started in the background ignores SIGINT.
    """
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), kind and ctypes.py_object(kind))


def _take_lease(path: str, document: dict[str, Any], model_dir: str, wait: float) -> None:
    """Take the lease once its last owner has released it, or has not renewed it for LEASE_SECS."""
    tf = compat.tensorflow()
    try:
        tf.io.gfile.makedirs(os.path.dirname(path))
    except tf.errors.OpError as error:
        raise _not_writable(model_dir, error.message) from error
    seen, since = _read_lease(path), time.monotonic()
    start, renewed = since, False
    while seen is not None:
        before = time.monotonic()
        time.sleep(_LOOK_SECS)
        # The time before the read: an unchanged lease was unchanged until then.
        looked = time.monotonic()
        current = _read_lease(path)
        if current != seen:
            seen, since, renewed = current, time.monotonic(), True
        else:
            # If this machine was suspended, the owner's may have been too: do not count that as time without renewal.
            since += max(0.0, looked - before - 2 * _LOOK_SECS)
            if looked - since > LEASE_SECS:
                logger.warning("The lock on %s was abandoned by %s; taken over", model_dir, _owner(seen))
                break
        if seen is not None and renewed and looked - start > max(wait, 2 * RENEW_SECS):
            raise _in_use(model_dir, seen, f"; it is renewed every {RENEW_SECS:.0f} s")
    _write_lease(path, {**document, "renewed": 0})
    # If two jobs take a free lease at the same time, the later writer gets it, and the other detects that here.
    time.sleep(1.0)
    current = _read_lease(path)
    if current is None or current.get("nonce") != document["nonce"]:
        raise _in_use(model_dir, current or {}, "")


def _write_lease(path: str, document: dict[str, Any]) -> None:
    with compat.tensorflow().io.gfile.GFile(path, "w") as file:
        file.write(json.dumps(document))


def _read_lease(path: str) -> dict[str, Any] | None:
    tf = compat.tensorflow()
    try:
        with tf.io.gfile.GFile(path, "r") as file:
            document = json.loads(file.read())
    except tf.errors.NotFoundError:
        return None
    except (ValueError, tf.errors.OpError):
        return {}
    return document if isinstance(document, dict) else {}


def _read(path: str) -> dict[str, Any]:
    folder, name = os.path.split(path)
    return SharedDocuments(folder).read(name) or {}


def _owner(document: dict[str, Any]) -> str:
    if not document:
        return "an unknown owner"
    since = document.get("since")
    when = "" if since is None else time.strftime(", since %Y-%m-%d %H:%M:%S", time.localtime(since))
    return f"{document.get('task', 'a task')}, process {document.get('pid', '?')} on {document.get('host', '?')}{when}"


def _in_use(model_dir: str, document: dict[str, Any], more: str) -> ConfigError:
    return ConfigError(
        f"another job trains in {model_dir}, and two would overwrite each other's checkpoints",
        code="model-dir/in-use",
        found=_owner(document) + more,
        hint="wait for it to finish, stop it, or give this job a separate model_dir",
    )


def _not_writable(model_dir: str, why: str) -> PipelineError:
    # With free space the same start succeeds: not bad input, which a supervisor would not restart.
    kind = TaskFailedError if disk.has_no_room(why) else ConfigError
    return kind(
        f"the model directory {model_dir} cannot be written",
        found=why,
        hint="use a model_dir that every task can write, with space for the checkpoints",
    )
