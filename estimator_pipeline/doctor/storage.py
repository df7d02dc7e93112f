"""The model directory: whether it can be written, renames and locks; its room, its owner, its last checkpoint."""

from __future__ import annotations

import contextlib
import errno
import glob
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

from estimator_pipeline.doctor.context import Context
from estimator_pipeline.doctor.findings import DoctorFinding, NotLookedAt, error, info, of_error, ok, warning
from estimator_pipeline.errors import InputError, PipelineError

__all__ = [
    "check_checkpoint",
    "check_identity",
    "check_lock",
    "check_model_dir",
    "check_space",
    "latest_checkpoint",
    "locks_at",
]

_MIB = 2**20
_RENAMES = 40
PREFIX = ".doctor-"


def check_model_dir(context: Context) -> Iterator[DoctorFinding]:
    """Whether files can be written there, replaced at one stroke, and locked."""
    folder = context.directory
    if "://" in folder:
        if context.deep:
            yield from _remote(folder)
            return
        raise NotLookedAt(f"{folder} is no folder of this machine; --deep tries it")
    if os.path.exists(folder) and not os.path.isdir(folder):
        yield error(f"{folder} is a file", "checkpoints go into a folder of that name", "give another model_dir")
        return
    place = _nearest(folder)
    try:
        trial = tempfile.mkdtemp(prefix=PREFIX, dir=place)
    except OSError as problem:
        yield error(
            f"{place} cannot be written: {problem.strerror}"
            + ("" if place == folder else f"; {folder} is to be made there"),
            "the chief ends with this at its start, or at its first checkpoint",
            f"give this user write access to {place}, or give another run.model_dir"
            + (_modes(place) if problem.errno in (errno.EACCES, errno.EPERM) else ""),
        )
        return
    try:
        found = [*_renames(trial), *_locks(trial)]
    except OSError as problem:
        yield error(
            f"a file in {place} cannot be written: {problem.strerror}",
            "so a checkpoint cannot be either",
            "make room, or give another run.model_dir",
        )
        return
    finally:
        shutil.rmtree(trial, ignore_errors=True)
    there = f"{folder} is there" if place == folder else f"{folder} can be made in {place}"
    yield from found or [ok(f"{there}; files can be written, renamed and locked")]


def _nearest(folder: str) -> str:
    """The folder itself, or the one above it that is there."""
    place = os.path.abspath(folder)
    while not os.path.isdir(place) and os.path.dirname(place) != place:
        place = os.path.dirname(place)
    return folder if place == os.path.abspath(folder) else place


def _modes(place: str) -> str:
    with contextlib.suppress(OSError):
        found = os.stat(place)
        return f" (it is {stat.filemode(found.st_mode)} of user {found.st_uid}, and this is user {os.getuid()})"
    return ""


def _renames(folder: str) -> Iterator[DoctorFinding]:
    """Replaces a file again and again while another thread reads it: a reader must always find a whole one."""
    path = os.path.join(folder, "state")
    whole = {f"{i}" * 4096 for i in range(10)}
    _write(path, "0" * 4096)
    torn: list[str] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            try:
                with open(path, encoding="ascii") as file:
                    text = file.read()
            except OSError as problem:
                # A file that is open on an NFS server while it is replaced there is stale, and not torn.
                if problem.errno != errno.ESTALE:
                    torn.append(problem.strerror or str(problem))
                continue
            if text not in whole:
                torn.append(f"{len(text)} of 4096 bytes")

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        for i in range(_RENAMES):
            _write(path + ".new", f"{i % 10}" * 4096)
            os.replace(path + ".new", path)
    finally:
        done.set()
        reader.join(10)
    if torn:
        yield error(
            f"a file that is replaced by renaming is seen in between ({torn[0]}, {len(torn)} time(s))",
            "the state file `checkpoint` and the tasks' messages are replaced so; a reader takes half of one for news, "
            "or restarts at step 0",
            "put run.model_dir on a file system with atomic renames (local disks, NFS, Lustre, CephFS)",
        )


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def locks_at(path: str) -> str:
    """What `flock` does with a file here: "kept", "none" (not known to the file system) or "not kept"."""
    import fcntl

    first = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    second = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return "kept"
        return "not kept"
    except OSError:
        return "none"
    finally:
        os.close(second)
        os.close(first)


def _locks(folder: str) -> Iterator[DoctorFinding]:
    found = locks_at(os.path.join(folder, "lock"))
    if found == "none":
        yield warning(
            f"the file system of {os.path.dirname(folder)} has no file locks",
            "a lease is kept instead: a job that was killed keeps the next one waiting for 90 seconds",
            "mount it with locks (Lustre: -o flock; NFS: version 4), or wait",
        )
    elif found == "not kept":
        yield warning(
            f"the file system of {os.path.dirname(folder)} takes file locks and does not keep them",
            "two jobs in one model_dir would not notice each other, and spoil each other's checkpoints",
            "mount it with locks (Lustre: -o flock, not localflock), and see that no two jobs share a model_dir",
        )


def _remote(folder: str) -> Iterator[DoctorFinding]:
    from estimator_pipeline import compat

    gfile, errors = compat.tensorflow().io.gfile, compat.tensorflow().errors
    path = f"{folder.rstrip('/')}/{PREFIX}{secrets.token_hex(6)}"
    try:
        gfile.makedirs(folder)
        with gfile.GFile(path, "w") as file:
            file.write("a trial")
        gfile.rename(path, path + ".b")
        gfile.remove(path + ".b")
    except (errors.OpError, OSError, NotImplementedError) as problem:
        said = str(getattr(problem, "message", None) or problem)
        yield error(
            f"{folder} cannot be written: {said}",
            "no checkpoint can be written there",
            "see the credentials of this host"
            if "not implemented" not in said
            else "TensorFlow itself knows folders and gs://; others came with tensorflow-io, which TensorFlow 2.18 and "
            "later cannot load: mount the storage as a folder",
        )
        return
    yield ok(f"{folder}: a file could be written, renamed and removed")


# Room ------------------------------------------------------------------------------------------------------------


def latest_checkpoint(folder: str) -> tuple[str, int] | None:
    """The checkpoint that the state file names last, and its bytes; None where there is none whose files are there."""
    try:
        with open(os.path.join(folder, "checkpoint"), encoding="utf-8") as file:
            found = re.search(r'^model_checkpoint_path: "(.*)"', file.read(), re.MULTILINE)
    except (OSError, UnicodeDecodeError):
        return None
    if found is None:
        return None
    path = os.path.join(folder, found[1])
    files = glob.glob(glob.escape(path) + ".*")
    return (path, sum(map(os.path.getsize, files))) if files else None


def check_space(context: Context) -> Iterator[DoctorFinding]:
    """Room for the checkpoints that are to come, measured by the last one."""
    folder = _nearest(context.local_directory)
    usage = shutil.disk_usage(folder)
    files = os.statvfs(folder)
    free = f"{size_of(usage.free)} free of {size_of(usage.total)} at {folder}"
    if files.f_files and not files.f_favail:
        yield error(
            f"no file can be made any more at {folder}: the file system has no free inodes",
            "a checkpoint is several files",
            "remove files that are not needed",
        )
        return
    latest = latest_checkpoint(context.local_directory)
    if latest is None:
        if usage.free < 100 * _MIB:
            yield warning(
                f"{free}, and no checkpoint to measure by",
                "a full disk ends the job at its next checkpoint",
                "make room, or give another run.model_dir",
            )
            return
        yield ok(f"{free}; no checkpoint yet to measure by")
        return
    path, each = latest
    kept = len(glob.glob(os.path.join(glob.escape(context.local_directory), "*.ckpt-*.index")))
    keep = 5 if context.job is None else context.job.run.keep_checkpoint_max
    # The new one is written before the oldest is removed. Without a limit nobody knows how many there will be.
    more = 1 + max(0, (keep or kept + 5) - kept)
    told = f"{free}; {os.path.basename(path)} has {size_of(each)}"
    if usage.free < 2 * each:
        yield error(
            f"{told}",
            "the next checkpoint, or the one after it, fills the disk, and the job ends there",
            "make room, lower run.keep_checkpoint_max, or give another run.model_dir",
        )
    elif usage.free < more * each:
        yield warning(
            f"{told}, and {more} more of them are to come",
            "the disk is full before old checkpoints are removed",
            "make room, or lower run.keep_checkpoint_max",
        )
    else:
        yield ok(told)


def size_of(count: float) -> str:
    """Bytes for a person."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


# Who is there, and what is there -----------------------------------------------------------------------------------


def check_lock(context: Context) -> Iterator[DoctorFinding]:
    """Whether another job trains in this directory, or what is there belongs to another engine."""
    from estimator_pipeline.engines.model_dir.lock import holder

    folder = context.local_directory
    owner = holder(folder)
    if owner is not None:
        yield error(
            f"a job trains in {folder} right now: {owner}",
            "a second one waits for 15 seconds and ends; two would spoil each other's checkpoints",
            "wait for its end or end it, or give this job a run.model_dir of its own",
        )
        return
    yield ok(f"nobody trains in {folder}")
    latest = latest_checkpoint(folder)
    if latest is not None:
        yield _goes_on(context, folder, os.path.basename(latest[0]))


def _goes_on(context: Context, folder: str, latest: str) -> DoctorFinding:
    from estimator_pipeline.engines.model_dir.layout import PREFIXES

    engine = context.job.run.engine if context.job is not None else None
    other = next((name for name, prefix in PREFIXES.items() if latest.startswith(f"{prefix}-")), None)
    if engine is not None and other not in (None, engine):
        return error(
            f"{folder} has checkpoints of the engine {other} ({latest}), and the job's engine is {engine}",
            "names and optimizer slots differ, and the job refuses to go on from them",
            "give this job a run.model_dir of its own",
        )
    state: Any = None
    with (
        contextlib.suppress(OSError, ValueError),
        open(os.path.join(folder, "estimator_pipeline", "training.json"), encoding="utf-8") as file,
    ):
        state = json.load(file)
    how = f", where the last run is {state.get('state')}" if isinstance(state, dict) and state.get("state") else ""
    return info(
        f"the job goes on from {latest} in {folder}{how}",
        "a run goes on from the checkpoints that it finds",
        "give another run.model_dir to train from the start",
    )


def check_identity(context: Context) -> Iterator[DoctorFinding]:
    """Whether the job is the one whose checkpoints are there, as `train` looks; with `deep` its data too."""
    from estimator_pipeline.engines.model_dir import run_identity as identity

    job, folder = context.needed_job(), context.local_directory
    latest = latest_checkpoint(folder)
    if latest is None:
        raise NotLookedAt(f"no checkpoint in {folder}")
    before = identity.read_local(folder)
    if before is None:
        raise NotLookedAt(f"nobody wrote down what the run in {folder} is made of")
    step = int(latest[0].rpartition("-")[2]) if latest[0].rpartition("-")[2].isdigit() else 0
    try:
        now = _identity(context)
        meant = identity.changes_meant(before, now, step=step, model_dir=folder, accept=job.run.accept_changes)
    except PipelineError as problem:
        yield of_error(problem, "the chief ends with this error at its start, and the other tasks with it")
        return
    if meant:
        yield info(
            f"training goes on from step {step} with a change: {identity.words(meant, now.files)}",
            "what was trained so far was trained otherwise",
            "give what it was, or a run.model_dir of its own, if that is not meant",
        )
        return
    yield ok(f"the job is the one that trained to step {step}" + ("" if context.deep else ", its data not looked at"))


def _identity(context: Context) -> Any:
    from estimator_pipeline.doctor.job.data_files import NotPrepared, files_of
    from estimator_pipeline.doctor.machine import import_tensorflow
    from estimator_pipeline.engines.jobs import job_identity
    from estimator_pipeline.engines.model_dir import run_identity as identity

    job = context.needed_job()
    if context.deep:
        # Data that are not there are told by their own check, and nothing is downloaded for this one.
        with contextlib.suppress(InputError, NotPrepared, NotLookedAt):
            files_of(context)
            from estimator_pipeline.engines.jobs.common import job_inputs, max_steps_of

            import_tensorflow(context)
            data = job_inputs(job)
            if hasattr(data, "follow"):
                data.follow(identity.policy_of(context.local_directory))
            return job_identity.of_data(
                job, data, num_pipelines=context.num_training_tasks, max_steps=max_steps_of(job, data)
            )
    return job_identity.of_job_file(job)


def check_checkpoint(context: Context) -> Iterator[DoctorFinding]:
    """Whether every tensor of the latest checkpoint can be read."""
    if not context.deep:
        raise NotLookedAt("--deep reads it")
    folder = context.local_directory
    latest = latest_checkpoint(folder)
    if latest is None:
        raise NotLookedAt(f"no checkpoint in {folder}")
    from estimator_pipeline.doctor.machine import import_tensorflow
    from estimator_pipeline.engines.model_dir.checkpoint_recovery import damage

    try:
        import_tensorflow(context)
        reason = damage(latest[0])
    except PipelineError as problem:
        yield of_error(problem, "the job ends with this error at its start")
        return
    if reason is not None:
        yield warning(
            f"{latest[0]} is damaged: {reason}",
            "it is set aside when the job starts, and the steps since the one before are made again",
            "put a good copy back, or let the job go on from the one before",
        )
        return
    yield ok(f"{latest[0]} is whole")
