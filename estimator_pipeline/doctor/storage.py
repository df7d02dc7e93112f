"""Checks of the model directory: writes, renames, locks, free space, other jobs, and existing checkpoints."""

from __future__ import annotations

import contextlib
import glob
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

from estimator_pipeline.doctor.context import Context
from estimator_pipeline.doctor.findings import CheckSkipped, DoctorFinding, error, info, of_error, ok, warning
from estimator_pipeline.engines.model_dir.checkpoints import latest_checkpoint
from estimator_pipeline.errors import InputError, PipelineError

__all__ = [
    "check_identity",
    "check_lock",
    "check_model_dir",
    "check_space",
    "checkpoint_and_size",
    "locks_at",
]

_MIB = 2**20
PREFIX = ".doctor-"


def check_model_dir(context: Context) -> Iterator[DoctorFinding]:
    """Check that files can be written, renamed and locked."""
    folder = context.directory
    if "://" in folder:
        if context.deep:
            yield from _remote(folder)
            return
        raise CheckSkipped(f"{folder} is not a local folder; use --deep")
    if os.path.exists(folder) and not os.path.isdir(folder):
        yield error(f"{folder} is a file", "checkpoints need a folder of that name", "set a different model_dir")
        return
    place = _nearest(folder)
    try:
        trial = tempfile.mkdtemp(prefix=PREFIX, dir=place)
    except OSError as problem:
        yield error(
            f"{place} cannot be written: {problem.strerror}"
            + ("" if place == folder else f"; {folder} would be created there"),
            "the chief fails with this error at its start, or at its first checkpoint",
            f"give this user write access to {place}, or set a different run.model_dir",
        )
        return
    try:
        path = os.path.join(trial, "state")
        with open(path, "wb") as file:
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
        os.replace(path, path + ".new")
        findings = list(_locks(trial))
    except OSError as problem:
        yield error(
            f"a file in {place} cannot be written: {problem.strerror}",
            "checkpoints cannot be written either",
            "free some space, or set a different run.model_dir",
        )
        return
    finally:
        shutil.rmtree(trial, ignore_errors=True)
    there = f"{folder} exists" if place == folder else f"{folder} can be created in {place}"
    yield from findings or [ok(f"{there}; files can be written, renamed and locked")]


def _nearest(folder: str) -> str:
    """Return the folder, or its nearest parent that exists."""
    place = os.path.abspath(folder)
    while not os.path.isdir(place) and os.path.dirname(place) != place:
        place = os.path.dirname(place)
    return folder if place == os.path.abspath(folder) else place


def locks_at(path: str) -> str:
    """Return whether `flock` works for a file: "kept", "none" (unsupported) or "not kept" (ignored)."""
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
    state = locks_at(os.path.join(folder, "lock"))
    if state == "none":
        yield warning(
            f"the file system of {os.path.dirname(folder)} does not support file locks",
            "a lease is used instead: after a job was killed, the next one waits for 90 seconds",
            "mount it with locks (Lustre: -o flock; NFS: version 4), or wait",
        )
    elif state == "not kept":
        yield warning(
            f"the file system of {os.path.dirname(folder)} accepts file locks but does not enforce them",
            "two jobs in one model_dir would not detect each other, and would overwrite each other's checkpoints",
            "mount it with locks (Lustre: -o flock, not localflock), and use a separate model_dir for each job",
        )


def _remote(folder: str) -> Iterator[DoctorFinding]:
    from estimator_pipeline import compat

    gfile, errors = compat.tensorflow().io.gfile, compat.tensorflow().errors
    path = f"{folder.rstrip('/')}/{PREFIX}{secrets.token_hex(6)}"
    try:
        gfile.makedirs(folder)
        with gfile.GFile(path, "w") as file:
            file.write("test")
        gfile.rename(path, path + ".b")
        gfile.remove(path + ".b")
    except (errors.OpError, OSError, NotImplementedError) as problem:
        reason = str(getattr(problem, "message", None) or problem)
        yield error(
            f"{folder} cannot be written: {reason}",
            "no checkpoint can be written there",
            "check the credentials of this host"
            if "not implemented" not in reason
            else "mount the storage as a folder: TensorFlow supports folders and gs://, and tensorflow-io, which adds "
            "others, does not load with TensorFlow 2.18 and later",
        )
        return
    yield ok(f"{folder}: a file could be written, renamed and removed")


# Space -----------------------------------------------------------------------------------------------------------


def checkpoint_and_size(folder: str) -> tuple[str, int] | None:
    """Return the path and size in bytes of the latest checkpoint; None if it does not exist."""
    path = latest_checkpoint(folder)
    return None if path is None else (path, sum(map(os.path.getsize, glob.glob(glob.escape(path) + ".*"))))


def check_space(context: Context) -> Iterator[DoctorFinding]:
    """Check the free space for future checkpoints, by the size of the last one."""
    folder = _nearest(context.local_directory)
    usage = shutil.disk_usage(folder)
    free = f"{size_of(usage.free)} free of {size_of(usage.total)} at {folder}"
    latest = checkpoint_and_size(context.local_directory)
    if latest is None:
        if usage.free < 100 * _MIB:
            yield warning(
                f"{free}; no checkpoint yet",
                "the job fails at a checkpoint when the disk is full",
                "free some space, or set a different run.model_dir",
            )
            return
        yield ok(f"{free}; no checkpoint yet")
        return
    path, each = latest
    kept = len(glob.glob(os.path.join(glob.escape(context.local_directory), "*.ckpt-*.index")))
    keep = 5 if context.job is None else context.job.run.keep_checkpoint_max
    # A new checkpoint is written before the oldest is removed. Without a limit, five more are assumed.
    more = 1 + max(0, (keep or kept + 5) - kept)
    usage_text = f"{free}; {os.path.basename(path)} has {size_of(each)}"
    if usage.free < 2 * each:
        yield error(
            usage_text,
            "one of the next two checkpoints fills the disk, and the job fails",
            "free some space, lower run.keep_checkpoint_max, or set a different run.model_dir",
        )
    elif usage.free < more * each:
        yield warning(
            f"{usage_text}, and {more} more checkpoints will be written",
            "the disk is full before old checkpoints are removed",
            "free some space, or lower run.keep_checkpoint_max",
        )
    else:
        yield ok(usage_text)


def size_of(count: float) -> str:
    """Format a number of bytes."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


# Other jobs and existing checkpoints -----------------------------------------------------------------------------


def check_lock(context: Context) -> Iterator[DoctorFinding]:
    """Check that no other job trains in this directory, and that its checkpoints are of the same engine."""
    from estimator_pipeline.engines.model_dir.lock import holder

    folder = context.local_directory
    owner = holder(folder)
    if owner is not None:
        yield error(
            f"a job is training in {folder} now: {owner}",
            "a second job waits for 15 seconds and then fails; two would overwrite each other's checkpoints",
            "wait for the other job or stop it, or set a different run.model_dir",
        )
        return
    yield ok(f"no job trains in {folder}")
    latest = checkpoint_and_size(folder)
    if latest is not None:
        yield _resumes(context, folder, os.path.basename(latest[0]))


def _resumes(context: Context, folder: str, latest: str) -> DoctorFinding:
    from estimator_pipeline.engines.model_dir.layout import PREFIXES

    engine = context.job.run.engine if context.job is not None else None
    other = next((name for name, prefix in PREFIXES.items() if latest.startswith(f"{prefix}-")), None)
    if engine is not None and other not in (None, engine):
        return error(
            f"{folder} has checkpoints of the engine {other} ({latest}), and the job's engine is {engine}",
            "variable names and optimizer slots differ, and the job cannot resume from them",
            "set a different run.model_dir for this job",
        )
    return info(
        f"the job resumes from {latest} in {folder}",
        "a run resumes from existing checkpoints",
        "set a different run.model_dir to train from the start",
    )


def check_identity(context: Context) -> Iterator[DoctorFinding]:
    """Compare the job with the run that wrote the checkpoints, like `train`; with `deep` its data too."""
    from estimator_pipeline.engines.model_dir import run_identity as identity

    job, folder = context.needed_job(), context.local_directory
    latest = checkpoint_and_size(folder)
    if latest is None:
        raise CheckSkipped(f"no checkpoint in {folder}")
    before = identity.read_local(folder)
    if before is None:
        raise CheckSkipped(f"{folder} has no stored run identity")
    step = int(latest[0].rpartition("-")[2]) if latest[0].rpartition("-")[2].isdigit() else 0
    try:
        now = _identity(context)
        meant = identity.changes_meant(before, now, step=step, model_dir=folder, accept=job.run.accept_changes)
    except PipelineError as problem:
        yield of_error(problem, "the chief fails with this error at its start, and so do the other tasks")
        return
    if meant:
        yield info(
            f"training resumes at step {step} with changed settings: {identity.words(meant, now.files)}",
            "the steps before were trained with the previous settings",
            "restore the previous settings, or set a different run.model_dir, if that is not intended",
        )
        return
    yield ok(f"the job matches the run that trained to step {step}" + ("" if context.deep else "; data not compared"))


def _identity(context: Context) -> Any:
    from estimator_pipeline.doctor.job.data_files import NotPrepared, files_of
    from estimator_pipeline.doctor.machine import import_tensorflow
    from estimator_pipeline.engines.jobs import job_identity
    from estimator_pipeline.engines.model_dir import run_identity as identity
    from estimator_pipeline.inputs.wrapping import with_policy

    job = context.needed_job()
    if context.deep:
        # The check of the data reports missing data; this check downloads none.
        with contextlib.suppress(InputError, NotPrepared, CheckSkipped):
            files_of(context)
            from estimator_pipeline.engines.jobs.build import build

            import_tensorflow(context)
            built = build(job)
            input_fn = with_policy(built.data.train_input_fn, identity.policy_of(context.local_directory))
            tasks = context.num_training_tasks
            return job_identity.of_data(job, input_fn, num_pipelines=tasks, max_steps=built.max_steps)
    return job_identity.of_job_file(job)
