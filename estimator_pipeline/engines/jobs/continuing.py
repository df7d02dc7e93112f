"""Runs that continue on further data: which files are new, and from which step they are read.

A start trains either the data with which the run began, or one continuation. Each task finds out which from the model
directory and the files; the tasks compare their findings before the first step.
"""

from __future__ import annotations

import dataclasses
import glob
import os
from collections.abc import Mapping, Sequence
from typing import Any

from estimator_pipeline.engines.jobs.data import compression_of, job_inputs
from estimator_pipeline.engines.jobs.file_data import evaluation_data, open_file_data
from estimator_pipeline.engines.model_dir import run_identity
from estimator_pipeline.engines.model_dir.checkpoints import latest_checkpoint
from estimator_pipeline.engines.model_dir.continuations import (
    Continuation,
    add_continuation,
    leave_continuations,
    read_continuations,
    trained_steps,
)
from estimator_pipeline.engines.model_dir.layout import PREFIXES, checkpoint_step
from estimator_pipeline.engines.model_dir.run_identity import CONTENT, RunIdentity
from estimator_pipeline.errors import ConfigError, TaskFailedError
from estimator_pipeline.inputs.input_fn import Inputs
from estimator_pipeline.inputs.source import file_digest
from estimator_pipeline.inputs.sources.paths import find_files
from estimator_pipeline.inputs.sources.tfrecord import digests_of
from estimator_pipeline.job import Job
from estimator_pipeline.progress.progress_file import ProgressWriter
from estimator_pipeline.utils.logger import logger
from estimator_pipeline.utils.text import few

__all__ = ["TrainingPlan", "nothing_new", "plan_training"]

# Facts of a run identity about the data with which the run began.
_OF_DATA = ("input.records", "input.fingerprint", "input.shuffle_window", CONTENT)


@dataclasses.dataclass(frozen=True)
class TrainingPlan:
    """The data that a start trains.

    Attributes:
        job: The job.
        origin: The global step before the first one of these data.
        continuation: The continuation; None: the data with which the run began.
        inputs: The data; None: those of the job file.
        known: The facts of the run identity about the data with which the run began.
    """

    job: Job
    origin: int
    continuation: Continuation | None = None
    inputs: Inputs | None = None
    known: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def read(self, job: Job) -> Any:
        """Return the data."""
        if self.inputs is not None:
            return self.inputs
        data = job_inputs(job)
        return data.with_origin(self.origin) if self.origin else data

    def identity(self, identity: RunIdentity) -> RunIdentity:
        """Return the run identity with the data with which the run began."""
        if self.continuation is None:
            return identity
        fixed = {**identity.fixed, **self.known}
        return dataclasses.replace(identity, fixed=fixed, files={}, epochs=None)

    @property
    def facts(self) -> dict[str, Any]:
        """What all tasks of a start must have in common."""
        current = self.continuation
        files = None if current is None else {os.path.basename(path): digest for path, digest in current.files.items()}
        return {"the steps on other data": self.origin, "input.continue_with": files}

    def begin(self, step: int, progress: ProgressWriter) -> None:
        """Add a new continuation to the run, in the task that holds the model directory.

        Args:
            step: The step of the checkpoint from which training starts.
            progress: Of this task.

        Raises:
            TaskFailedError: It is not the checkpoint of the plan: a newer one is damaged.
        """
        current = self.continuation
        if current is None:
            leave_continuations(self.job.run.model_dir, step)
            return
        if not current.origin <= step <= current.end:
            raise TaskFailedError(
                f"training starts at step {step}, and {few(list(current.files), 3)} at step {current.origin + 1}",
                code="model-dir/damaged",
                found="a damaged checkpoint has been set aside",
                hint="start the job again: it finds out which data come next",
            )
        add_continuation(self.job.run.model_dir, current)
        logger.info("%s", current)
        if self.job.eval.early_stopping is not None:
            logger.info("eval.early_stopping does not apply: each record of a continuation is trained")
        progress.emit("stage", text=str(current))

    def finish(self, step: int) -> None:
        """Record that the continuation is evaluated and exported, at the end of a start that reached `step`."""
        current = self.continuation
        if current is not None and step >= current.end and not current.finished:
            add_continuation(self.job.run.model_dir, dataclasses.replace(current, finished=True))


def plan_training(job: Job, run_id: str = "") -> TrainingPlan:
    """Return the data that this start of the job trains.

    Args:
        job: The job.
        run_id: The ID that the tasks of this start have in common; "" without one.

    Raises:
        ConfigError: There is nothing to continue, nothing new, or different files have to be trained first.
        InputError: A file is missing or damaged.
    """
    model_dir, section = job.run.model_dir, job.input
    continuations, step = read_continuations(model_dir), _latest_step(job)
    if section.continue_with is None:
        unfinished = next((each for each in continuations if each.origin < step < each.end), None)
        if unfinished is not None and not job.run.accept_changes:
            raise _unfinished(unfinished, step)
        return TrainingPlan(job, trained_steps(continuations, step))
    selected = _select(job, continuations, step, run_id)
    if selected is None:
        raise ConfigError(
            "nothing new: the run has trained on all of these files",
            code="model-dir/nothing-to-train",
            found=few(find_files(section.continue_with, kind="training"), 3),
            hint="name files with other records",
        )
    begun, files, waiting = selected
    # One of which no step is trained is replaced.
    number = 1 + sum(each.origin < step for each in continuations)
    origin, epochs = step, section.continue_epochs
    if begun is not None:
        number, origin, epochs = begun.number, begun.origin, begun.epochs
    source = open_file_data(job, list(files), labelled=True).inputs.eval_input_fn.source
    base = evaluation_data(job)
    options = dataclasses.replace(
        base.options, epochs=epochs, drop_remainder=False, merge_remainder=True, shard_policy="data",
        worker_seeds="same", origin=origin, continuation=number,
    )  # fmt: skip
    inputs = base.with_training(source, options)
    shards = inputs.train_shards()
    if not shards.remainder:
        inputs = base.with_training(source, dataclasses.replace(options, drop_remainder=True, merge_remainder=False))
    if begun is not None:
        current = dataclasses.replace(begun, run=run_id)
    else:
        current = Continuation(
            number=number,
            files=files,
            records=source.num_records,
            epochs=epochs,
            origin=origin,
            steps=(shards.full_steps or 0) + shards.tail_steps,
            checkpoint=f"{PREFIXES[job.run.engine]}-{origin}",
            run=run_id,
        )
    if waiting:
        logger.warning(
            "%s is trained first: it was interrupted. Start the job again for %s",
            few(list(files), 3), few(list(waiting), 3),
        )  # fmt: skip
    document = run_identity.read_identity(model_dir) or {}
    known = {name: value for name, value in document.get("fixed", {}).items() if name in _OF_DATA}
    return TrainingPlan(job, origin, current, inputs, known)


def nothing_new(job: Job) -> str | None:
    """Return a sentence if the run has trained on all files of `input.continue_with`, else None.

    Raises:
        ConfigError: See `plan_training`.
    """
    files = job.input.continue_with
    if files is None:
        return None
    continuations, step = read_continuations(job.run.model_dir), _latest_step(job)
    if _select(job, continuations, step) is not None:
        return None
    paths = find_files(files, kind="training")
    return f"nothing new: the run in {job.run.model_dir} has trained on {few(list(paths), 3)} up to step {step}"


def _select(
    job: Job, continuations: Sequence[Continuation], step: int, run_id: str = ""
) -> tuple[Continuation | None, dict[str, str], list[str]] | None:
    """Return the continuation to resume, the files to train, and files that have to wait.

    The continuation is None if the files begin a new one; the result is None if there is nothing new.
    """
    model_dir, section = job.run.model_dir, job.input
    if step <= 0:
        raise ConfigError(
            f"the run in {model_dir} has not trained yet, and --continue-with continues a run",
            code="argument/not-applicable",
            found="no checkpoint",
            hint="train it first, without --continue-with",
        )
    assert section.continue_with is not None
    digests = _digests(job, find_files(section.continue_with, kind="training"))
    document = run_identity.read_identity(model_dir) or {}
    began: Mapping[str, str] = document.get("fixed", {}).get(CONTENT) or {}
    trained = set(began.values()).union(*(each.files.values() for each in continuations if each.end <= step))
    _refuse_overwritten(job, digests, continuations, began)
    new = {path: digest for path, digest in digests.items() if digest not in trained}
    twice = sorted({digest for digest in new.values() if list(new.values()).count(digest) > 1})
    if twice:
        same = [path for path, digest in new.items() if digest == twice[0]]
        raise ConfigError(
            "two files have the same content, and their records would be read twice",
            code="argument/conflict",
            found=few(same, 3),
            hint="name one of them",
        )
    begun = _begun(continuations, step, run_id, nothing_new=not new)
    if begun is None:
        return (None, new, []) if new else None
    paths = {digest: path for path, digest in digests.items()}
    if not set(begun.files.values()) <= paths.keys():
        if job.run.accept_changes and new:
            return None, new, []
        raise _unfinished(begun, step)
    files = {paths[digest]: digest for digest in begun.files.values()}
    return begun, files, [path for path in new if path not in files]


def _begun(continuations: Sequence[Continuation], step: int, run_id: str, *, nothing_new: bool) -> Continuation | None:
    """Return the continuation that was begun and that this start resumes, if any.

    It is the last one: if another task of this start has begun it; if some of its steps are trained; or if all are, and
    they are not evaluated and exported.
    """
    last = continuations[-1] if continuations else None
    if last is None:
        return None
    if run_id and last.run == run_id:
        return last
    if last.end > step:
        return last if step > last.origin else None
    return last if nothing_new and not last.finished else None


def _refuse_overwritten(
    job: Job, digests: Mapping[str, str], continuations: Sequence[Continuation], began: Mapping[str, str]
) -> None:
    """Refuse a file in which the run has read other records: it may have some of them still."""
    if job.run.accept_changes:
        return
    before = {path: digest for each in continuations for path, digest in each.files.items()}
    section: Any = job.input
    first = [section.train] if isinstance(section.train, str) else section.train
    names = {os.path.abspath(path) for pattern in first for path in glob.glob(pattern) or [pattern]}
    for path, digest in digests.items():
        earlier = before.get(path) or (began.get(os.path.basename(path)) if os.path.abspath(path) in names else None)
        if earlier is not None and earlier != digest:
            raise ConfigError(
                f"{path} has other content than when the run trained on it",
                code="model-dir/other-run",
                found="records that it still has would be read twice",
                hint="write new records to a new file; or pass --accept-changes to train on all records of this one",
            )


def _unfinished(unfinished: Continuation, step: int) -> ConfigError:
    files = " ".join(unfinished.files)
    return ConfigError(
        f"the run has not finished {few(list(unfinished.files), 3)}",
        code="model-dir/other-run",
        found=f"step {step} of {unfinished.end}",
        hint=f"finish it first: --continue-with {files}",
    )


def _digests(job: Job, paths: Sequence[str]) -> dict[str, str]:
    """Return the digest of each file, as the run identity has it."""
    section: Any = job.input
    if section.source == "tfrecord":
        return digests_of(paths, compression_of(section), os.environ)
    return {path: file_digest(path) for path in paths}


def _latest_step(job: Job) -> int:
    """Return the step of the latest checkpoint, 0 without one."""
    latest = latest_checkpoint(job.run.model_dir)
    return 0 if latest is None else checkpoint_step(latest)
