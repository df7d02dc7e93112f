"""One job at a time in a model directory: who trains there holds a lock, which a dead owner does not hold for ever.

On a file system that knows locks (local disks, NFS from version 4 on) the kernel holds it: `flock` on a file that stays
open as long as the job trains, and that the kernel gives back when the process ends, however it ends. Elsewhere
(object stores) it is a lease: a small file that its owner writes anew every :data:`RENEW_SECS`, and that another may
take once it has not been renewed for :data:`LEASE_SECS` by the other's own clock. An owner that finds it taken stops.

Only the task that writes the checkpoints holds it; the other tasks belong to it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.engines.lifecycle.rendezvous.rendezvous import DIRECTORY
from estimator_pipeline.engines.model_dir import disk_errors as disk
from estimator_pipeline.errors import ConfigError, PipelineError, TaskFailedError
from estimator_pipeline.utils.logger import logger

__all__ = ["hold", "holder", "is_held"]

# A predecessor that was killed may still be closing its files, on this machine or on the server's side.
WAIT_SECS = 15.0
# A machine that crashed lets go of nothing: an NFS server holds its locks until its lease is over, 90 s mostly.
ELSEWHERE_SECS = 120.0
RENEW_SECS = 20.0
LEASE_SECS = 90.0
_LOOK_SECS = 0.5
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


@contextlib.contextmanager
def hold(model_dir: str, *, owner: str, run_id: str, wait: float | None = None) -> Iterator[None]:
    """In the block, nobody else trains in `model_dir`.

    Args:
        model_dir: local or anything that `tf.io.gfile` can write.
        owner: this task's name, for the others' message.
        run_id: of this run, for the same.
        wait: seconds that a predecessor has to let go. None: WAIT_SECS, and ELSEWHERE_SECS for one on another machine.

    Raises:
        ConfigError: another job holds it, or the directory cannot be written.
        TaskFailedError: there is no room for the lock's file.
    """
    folder = os.path.join(model_dir, DIRECTORY)
    told = {"task": owner, "host": socket.gethostname(), "pid": os.getpid(), "run_id": run_id, "since": time.time()}
    path = os.path.join(folder, "lock")
    with contextlib.ExitStack() as held:
        try:
            if "://" in path:
                raise _NoLocks
            held.enter_context(_kernel_lock(path, told, model_dir, wait))
        except _NoLocks:
            held.enter_context(_lease(path, told, model_dir, WAIT_SECS if wait is None else wait))
        with _known(model_dir):
            yield


# The directories that this process holds now.
_held: list[str] = []


@contextlib.contextmanager
def _known(model_dir: str) -> Iterator[None]:
    name = _identity(model_dir)
    _held.append(name)
    try:
        yield
    finally:
        _held.remove(name)


def is_held(model_dir: str) -> bool:
    """Whether this process holds the directory: what it calls then must not ask for it again."""
    return _identity(model_dir) in _held


def _identity(model_dir: str) -> str:
    return model_dir if "://" in model_dir else os.path.realpath(model_dir)


def holder(model_dir: str) -> str | None:
    """Who trains in a directory of this machine right now, for a person; None: nobody, as far as locks tell.

    Nothing is written, and nobody is kept from taking the lock for longer than this looks.
    """
    path = os.path.join(model_dir, DIRECTORY, "lock")
    lease = path + ".lease"
    with contextlib.suppress(OSError):
        if time.time() - os.stat(lease).st_mtime < LEASE_SECS:
            return _owner(_read(lease))
    try:
        import fcntl

        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (ImportError, OSError):
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(file, fcntl.LOCK_UN)
    except BlockingIOError:
        return _owner(_read(path))
    except OSError:
        return None
    finally:
        os.close(file)
    return None


class _NoLocks(Exception):
    """This file system has no locks."""


@contextlib.contextmanager
def _kernel_lock(path: str, told: dict[str, Any], model_dir: str, wait: float | None) -> Iterator[None]:
    try:
        import fcntl
    except ImportError:
        raise _NoLocks from None
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
                    patience = _patience(path, told, model_dir) if wait is None else wait
                if time.monotonic() - begun > patience:
                    raise _in_use(model_dir, _read(path), "") from None
                time.sleep(0.2)
            except OSError as error:
                if error.errno in _NO_LOCKS:
                    raise _NoLocks from None
                raise _not_writable(model_dir, str(error)) from error
        with contextlib.suppress(OSError):
            # For people only: what counts is the lock, even where a full disk has no room for this.
            os.ftruncate(file, 0)
            os.pwrite(file, json.dumps(told).encode(), 0)
        _locked[file] = os.fstat(file)
        yield
    finally:
        _locked.pop(file, None)
        with contextlib.suppress(OSError):
            # Not by closing alone: a child that was forked a moment ago may still have its copy.
            fcntl.flock(file, fcntl.LOCK_UN)
        with contextlib.suppress(OSError):
            os.close(file)


def _patience(path: str, told: dict[str, Any], model_dir: str) -> float:
    """How many seconds the owner of a lock has to let go; one on another machine may be gone with it."""
    found = _read(path)
    if found.get("host", told["host"]) == told["host"]:
        return WAIT_SECS
    logger.warning(
        "The lock on %s is held by %s, which is another machine. If that has crashed, its file server holds the lock "
        "for it a while longer: waiting up to %.0f s",
        *(model_dir, _owner(found), ELSEWHERE_SECS),
    )
    return ELSEWHERE_SECS


_locked: dict[int, os.stat_result] = {}


def _close_locked() -> None:
    """A forked child would hold the locks on after its parent's end."""
    for file, before in _locked.items():
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(file), before):
                os.close(file)
    _locked.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_locked)


@contextlib.contextmanager
def _lease(path: str, told: dict[str, Any], model_dir: str, wait: float) -> Iterator[None]:
    path += ".lease"
    # Process numbers come again, in containers all the time: a lease is known by what nobody else writes.
    told = {**told, "nonce": secrets.token_hex(8)}
    _take_lease(path, told, model_dir, wait)
    stop = threading.Event()
    taken: list[dict[str, Any]] = []  # by whom
    training = threading.get_ident()

    def renew() -> None:
        count = 0
        while not stop.wait(RENEW_SECS):
            count += 1
            try:
                found = _read_lease(path)
                if not found and not stop.wait(_LOOK_SECS):
                    # Nobody else writes here but who takes it, and it may be amid that.
                    found = _read_lease(path)
                if stop.is_set():
                    return
                if taken or (found and found.get("nonce") != told["nonce"]):
                    # This machine stood still for longer than a lease. To write it anew would take it from who has it.
                    # Each time anew: what a destructor is told is lost.
                    taken.append(found or {})
                    _raise_in(training, _LeaseLost)
                else:
                    # Whoever took it since the look finds this, and stops in turn: one of the two goes on.
                    _write_lease(path, {**told, "renewed": count})
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
            hint="this job has stopped, and the other goes on; where machines stand still for so long, give each job a "
            "model_dir of its own",
        )


class _LeaseLost(BaseException):
    """What ends a training whose lease another has. No error, so that nothing on its way handles it as one."""


def _raise_in(thread: int, kind: type[BaseException] | None) -> None:
    """Have a thread raise `kind` as soon as it is back in Python; None takes back what it has not raised yet.

    A signal would not do: a job that a script has put into the background ignores SIGINT.
    """
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), kind and ctypes.py_object(kind))


def _take_lease(path: str, told: dict[str, Any], model_dir: str, wait: float) -> None:
    """Takes the lease once its last owner has given it back, or has not renewed it for LEASE_SECS."""
    tf = compat.tensorflow()
    try:
        tf.io.gfile.makedirs(os.path.dirname(path))
    except tf.errors.OpError as error:
        raise _not_writable(model_dir, error.message) from error
    seen, since = _read_lease(path), time.monotonic()
    asked, renewed = since, False
    while seen is not None:
        before = time.monotonic()
        time.sleep(_LOOK_SECS)
        # Before it is read: what is found unchanged was so until then.
        looked = time.monotonic()
        found = _read_lease(path)
        if found != seen:
            seen, since, renewed = found, time.monotonic(), True
        else:
            # Where this machine stood still, the owner's may have done so too: that is no time without a renewal.
            since += max(0.0, looked - before - 2 * _LOOK_SECS)
            if looked - since > LEASE_SECS:
                logger.warning("The lock on %s was left behind by %s; taken over", model_dir, _owner(seen))
                break
        if seen is not None and renewed and looked - asked > max(wait, 2 * RENEW_SECS):
            raise _in_use(model_dir, seen, f"; it is renewed every {RENEW_SECS:.0f} s")
    _write_lease(path, {**told, "renewed": 0})
    # Two that found it free at the same time: the later writer has it, and the other sees that.
    time.sleep(1.0)
    found = _read_lease(path)
    if found is None or found.get("nonce") != told["nonce"]:
        raise _in_use(model_dir, found or {}, "")


def _write_lease(path: str, document: dict[str, Any]) -> None:
    with compat.tensorflow().io.gfile.GFile(path, "w") as file:
        file.write(json.dumps(document))


def _read_lease(path: str) -> dict[str, Any] | None:
    tf = compat.tensorflow()
    try:
        with tf.io.gfile.GFile(path, "r") as file:
            found = json.loads(file.read())
    except tf.errors.NotFoundError:
        return None
    except (ValueError, tf.errors.OpError):
        return {}
    return found if isinstance(found, dict) else {}


def _read(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _owner(told: dict[str, Any]) -> str:
    if not told:
        return "an unknown owner"
    since = told.get("since")
    when = "" if since is None else time.strftime(", since %Y-%m-%d %H:%M:%S", time.localtime(since))
    return f"{told.get('task', 'a task')}, process {told.get('pid', '?')} on {told.get('host', '?')}{when}"


def _in_use(model_dir: str, told: dict[str, Any], more: str) -> ConfigError:
    return ConfigError(
        f"another job trains in {model_dir}, and two would spoil each other's checkpoints",
        code="model-dir/in-use",
        found=_owner(told) + more,
        hint="wait for its end or end it, or give this job a model_dir of its own",
    )


def _not_writable(model_dir: str, why: str) -> PipelineError:
    # With room the same start succeeds: that is no bad input, which a supervisor would not start again.
    kind = TaskFailedError if disk.has_no_room(why) else ConfigError
    return kind(
        f"the model directory {model_dir} cannot be written",
        found=why,
        hint="give a model_dir that every task can write, and that has room for the checkpoints",
    )
