"""What the schedulers of batch jobs share: submit, find, status, list, logs, stacks and cancel."""

from __future__ import annotations

import abc
import contextlib
import json
import operator
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from estimator_pipeline.cluster.resolution import EVALUATOR_VARIABLE
from estimator_pipeline.errors import ConfigError, PipelineError, TaskFailedError
from estimator_pipeline.launch.batch.runs import (
    OUTPUT,
    SCRIPT_LABEL,
    JobHistory,
    LogReaders,
    failed_element,
    failed_log,
    history_of,
    progress_of,
    runs_of,
    was_asked_to_stop,
)
from estimator_pipeline.launch.batch.submission import (
    RECORD,
    SCHEDULERS,
    SCRIPT,
    BatchPlan,
    Submission,
    newest_records,
    read_submission,
    submissions_folder,
    submissions_in,
)
from estimator_pipeline.launch.job_status import JobEntry, JobStatus, TaskFailure
from estimator_pipeline.launch.local.orphan_guard import RUN_ID_VARIABLE
from estimator_pipeline.launch.local.outcome import end_of
from estimator_pipeline.launch.scheduler import (
    JobList,
    JobReference,
    ListRequest,
    LogFolder,
    LogRequest,
    Scheduler,
    SubmitPlan,
    SubmitRequest,
    SubmitResult,
    check_element,
)
from estimator_pipeline.launch.stacks.requests import newest_heartbeat
from estimator_pipeline.progress.progress_file import PROGRESS_VARIABLE
from estimator_pipeline.utils.deadline import Deadline
from estimator_pipeline.utils.paths import real_path
from estimator_pipeline.utils.text import counted

if TYPE_CHECKING:
    from estimator_pipeline.job import Job

__all__ = ["ASKED", "ENDED", "FAILED", "NO_ANSWER", "BatchScheduler", "JobRecord", "failed_text"]

ENDED = (
    "COMPLETED",
    "CANCELLED",
    "FAILED",
    "TIMEOUT",
    "NODE_FAIL",
    "PREEMPTED",
    "OUT_OF_MEMORY",
    "BOOT_FAIL",
    "DEADLINE",
)
_ENDING = ("COMPLETING", "EXITING")
FAILED = ENDED[2:]
"""States for which `status` exits with 1: the job ended without being done, and was not cancelled."""
NO_ANSWER = "NO_ANSWER"
"""The state of a job whose scheduler does not answer."""
ASKED = "stopped as asked; the next submission resumes from the last checkpoint (exit code 143)"
_NOT_REQUEUED = "stopped with a checkpoint, and not requeued (exit code 75)"
_CAUSES = {2: "bad input", 3: "training diverged"}
_COMMAND_SECS = 60.0
_POLL_SECS = 1.0
_AGE = operator.attrgetter("submitted")


@dataclass(frozen=True)
class JobRecord:
    """What a scheduler reports of a job, or of elements of an array.

    Attributes:
        ids: Its id, and that of its array.
        state: Its state as in `JobStatus`.
        script: The path of its script; None if it is not reported.
        elements: The elements of the array; empty for a job that is not an array.
        of_user: Whether it is a job of this user.
        fields: The scheduler's fields.
    """

    ids: tuple[str, ...]
    state: str
    script: Path | None = None
    elements: frozenset[int] = frozenset()
    of_user: bool = True
    fields: Mapping[str, str] = field(default_factory=dict)

    @property
    def record(self) -> Path | None:
        """The record of its submission, if its script is that of one."""
        return self.script.parent / RECORD if self.script is not None and self.script.name == SCRIPT else None


class BatchScheduler(Scheduler[Submission]):
    """A scheduler of batch scripts. Its jobs are found by their files, or by the record of their id.

    Attributes:
        ids: The notation of its job ids.
        states: State -> its description.
        submit_command: The command that submits a script.
        stop_command: The command that asks a running job to stop with a checkpoint.
        cancel_command: The command that cancels a job.
        gone: The messages of these commands about a job that has ended or that they do not know.
        removed: Variables of this process's task that a job must not inherit, without those of this package.
        check_hint: What to do if the commands do not answer.
        submit_hint: What to change if a job is rejected.
    """

    ids: ClassVar[re.Pattern[str]]
    states: ClassVar[Mapping[str, str]]
    submit_command: ClassVar[tuple[str, ...]]
    stop_command: ClassVar[tuple[str, ...]]
    cancel_command: ClassVar[tuple[str, ...]]
    gone: ClassVar[re.Pattern[str]]
    removed: ClassVar[re.Pattern[str]]
    check_hint: ClassVar[str]
    submit_hint: ClassVar[str]
    shows_rejected = True
    accepts_numbers = True

    # What a scheduler implements ---------------------------------------------------------------------------------

    @abc.abstractmethod
    def plan_script(self, job: Job, *, elements: Sequence[Job], at_once: int | None, **place: Any) -> BatchPlan:
        """Build the submission of a job without writing it. `place`: folder, working_dir, command, version."""

    @abc.abstractmethod
    def records(self, job_id: str | None, *, environ: Mapping[str, str]) -> list[JobRecord]:
        """Return what the scheduler reports of a job, or of all jobs; nothing of a job that it does not know.

        Raises:
            ConfigError: Its commands are not on this machine.
            TaskFailedError: It does not answer.
        """

    @abc.abstractmethod
    def describe(self, record: JobRecord, history: JobHistory, *, asked: bool) -> dict[str, Any]:
        """Return the fields of `JobStatus` that the scheduler knows, with `state`, `text` and `failed`.

        Args:
            record: What the scheduler reports.
            history: What the files of the newest run show.
            asked: Whether the script has logged that it was asked to stop.
        """

    def forgotten(self, submission: Submission, element: int, *, environ: Mapping[str, str]) -> JobRecord | None:
        """Return the record of a job that `records` no longer has, if a different command has it."""
        return None

    def state_text(self, state: str) -> str:
        """Describe a state of the scheduler."""
        return self.states.get(state, state.lower().replace("_", " "))

    # Submit ------------------------------------------------------------------------------------------------------

    def plan(self, request: SubmitRequest) -> SubmitPlan:
        from estimator_pipeline.job import load_job

        return self.plan_elements(load_job(request.file, overrides=request.settings))

    def plan_elements(self, job: Job, elements: Sequence[Job] = (), at_once: int | None = None) -> SubmitPlan:
        """Build the plan of a job, or of an array of these jobs."""
        from estimator_pipeline.launch.local.plan import new_run_id
        from estimator_pipeline.utils.version import __version__

        plan = self.plan_script(
            job,
            elements=elements,
            at_once=at_once,
            folder=str(submissions_folder(job, self.name, title=self.title) / new_run_id()),
            working_dir=str(Path.cwd()),
            command=[sys.executable, "-m", "estimator_pipeline"],
            version=__version__,
        )
        text = json.dumps({"script": plan.script, "folder": str(plan.submission.folder), "files": plan.files}, indent=2)
        other_python = getattr(job, self.name).command is not None
        return SubmitPlan(plan.script, text, elements or [job], plan, other_python=other_python)

    def submit(self, plan: SubmitPlan, *, environ: Mapping[str, str]) -> SubmitResult:
        """See `Scheduler`. It is an error if a job of the same model directory has not ended, without a dependency."""
        batch: BatchPlan = plan.content
        self._require(self.submit_command[0], environ)
        if not batch.has_dependency:
            self._check_model_dirs(batch, environ)
        batch.write()
        folder = batch.submission.folder
        done = self.run([*self.submit_command, *batch.submit_options, str(folder / SCRIPT)], self.clean(environ))
        job_id = done.stdout.strip().splitlines()[-1].partition(";")[0] if done.stdout.strip() else ""
        if done.returncode != 0 or not self.ids.fullmatch(job_id):
            shutil.rmtree(folder, ignore_errors=True)
            raise ConfigError(
                f"{self.title} rejected the job.",
                code="scheduler/refused",
                found=output_of(done),
                hint=f"change the section {self.name} of the job file ({self.submit_hint}); `--dry-run` shows the "
                "script.",
            )
        submission = replace(batch.submission, job_id=job_id, submitted=time.time())
        submission.write()
        place = f"job {job_id}: script and logs in {folder}"
        return SubmitResult(submission.document(), [(job_id, False), (place, True)])

    def clean(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Remove the variables of this process's task, which a job would inherit."""
        ours = ("TF_CONFIG", RUN_ID_VARIABLE, EVALUATOR_VARIABLE, PROGRESS_VARIABLE)
        return {name: value for name, value in environ.items() if name not in ours and not self.removed.match(name)}

    def _check_model_dirs(self, plan: BatchPlan, environ: Mapping[str, str]) -> None:
        """Raise an error if a job with a model directory of this plan waits or runs."""
        wanted = set(map(real_path, plan.submission.model_dirs))
        for submission, records in self._alive(plan.submission.folder.parent, environ):
            is_array = submission.array is not None
            states = {i: record for record in records for i in (record.elements if is_array else (0,))}
            for element, model_dir in enumerate(submission.model_dirs):
                if element not in states or real_path(model_dir) not in wanted:
                    continue
                job_id = submission.id_of(element)
                state = self.state_text(states[element].state)
                raise ConfigError(
                    f"job {job_id} ({submission.name}) of the same model directory is {state}; nothing is submitted.",
                    code="jobs/exists",
                    found=f"run.model_dir {model_dir}",
                    hint=f"wait for its end, cancel it (`estimator-pipeline cancel {job_id}`), or set a different "
                    f"run.model_dir; with {self.name}.dependency: afterany:{job_id} the new job starts after it.",
                )

    def _alive(self, folder: Path, environ: Mapping[str, str]) -> Iterator[tuple[Submission, list[JobRecord]]]:
        """Iterate over the submissions that the scheduler has not ended, with its records of them.

        Args:
            folder: A folder of submissions. Those elsewhere are found by the scheduler's records of their scripts.
            environ: The environment of the scheduler's commands. Nothing is alive if they do not answer.
        """
        try:
            # A job that is ending does not keep a model directory from the next one for long.
            records = [
                record for record in self.records(None, environ=environ) if record.state not in (*ENDED, *_ENDING)
            ]
        except PipelineError:
            return
        files = dict.fromkeys(folder.glob(f"*/{RECORD}")) if records else {}
        files |= {record.record: None for record in records if record.record is not None}
        for file in files:
            with contextlib.suppress(ConfigError):
                submission = read_submission(file)
                # Slurm starts again with id 1 when it loses its state.
                same = [
                    record
                    for record in records
                    if submission.job_id in record.ids
                    and (record.script is None or record.script.parent.name == submission.folder.name)
                ]
                if same:
                    yield submission, same

    # Find --------------------------------------------------------------------------------------------------------

    def claims(self, reference: JobReference) -> bool:
        """Return whether the newest submission in a folder, or of a job file, is one to this scheduler.

        A job file with sections of several schedulers was submitted to this one if its folder of submissions exists. A
        namespace means Kubernetes.
        """
        if "namespace" in reference.options:
            return False
        if reference.is_id:
            return self.notation is not None and self.notation.fullmatch(reference.name) is not None
        job = reference.job
        if job is None:
            newest = max(_read_all(submissions_in(Path(reference.name))), key=_AGE, default=None)
            return newest is not None and newest.scheduler == self.name
        sections = job.model_fields_set & {*SCHEDULERS, "kubernetes"}
        if sections and self.name not in sections:
            return False
        with contextlib.suppress(ConfigError):
            return submissions_folder(job, self.name, title=self.title).is_dir()
        return False

    def last_active(self, reference: JobReference) -> float:
        """See `Scheduler`: by heartbeats, or the submission itself."""
        job = reference.job
        place = Path(reference.name) if job is None else submissions_folder(job, self.name, title=self.title)
        times = [0.0]
        for submission in _read_all(submissions_in(place)):
            if submission.scheduler == self.name:
                attempts = submission.folder.glob("**/run-*/attempt-*")
                times += [submission.submitted, *map(newest_heartbeat, attempts)]
        return max(times)

    def find(self, reference: JobReference, *, environ: Mapping[str, str]) -> Submission:
        """Find the newest submission of a job file, or the submission that a folder or an id names.

        Of several submissions, the newest counts, or an earlier one of the same model directory that still waits or
        runs.
        """
        name, job = reference.name, reference.job
        if job is None and self.ids.fullmatch(name):
            return self._find_id(name, environ)
        place = Path(name) if job is None else submissions_folder(job, self.name, title=self.title)
        files = submissions_in(place)
        submissions = [read for file in files if (read := read_submission(file)).scheduler == self.name]
        if job is not None:
            # The section's `dir` may have submissions of several model directories.
            same = [submission for submission in submissions if submission.trains_in(job.run.model_dir)]
            submissions = same or submissions
        if not submissions:
            raise ConfigError(
                f"{name}: nothing has been submitted to {self.title} here.",
                code="jobs/not-found",
                found=f"no {RECORD} in {place}, or in folders in it",
                hint="name a job file that was submitted (with the same --set), a submission's folder or a job's id.",
            )
        newest = max(submissions, key=_AGE)
        if len(files) == 1:
            return newest
        wanted = set(map(real_path, newest.model_dirs))
        alive = [other for other, _ in self._alive(newest.folder.parent, environ)]
        same = [other for other in alive if wanted.intersection(map(real_path, other.model_dirs))]
        return max(same, key=_AGE, default=newest)

    def _find_id(self, job_id: str, environ: Mapping[str, str]) -> Submission:
        records = self.records(job_id, environ=environ)
        file = records[0].record if records else None
        if file is not None and file.is_file():
            return read_submission(file)
        raise ConfigError(
            f"{job_id}: {self.title} knows no such job of estimator-pipeline.",
            code="jobs/not-found",
            found=f"its script is {records[0].script or '.'}"
            if records
            else "no such job, or it ended some minutes ago",
            hint="name the job file, or the submission's folder.",
        )

    # Status ------------------------------------------------------------------------------------------------------

    def status(self, job: Submission, *, environ: Mapping[str, str]) -> JobEntry:
        """Return the status of a job, or of each array element; by its files if the scheduler does not answer."""
        try:
            records = self.records(job.job_id, environ=environ)
        except TaskFailedError as error:
            return JobEntry(job.document(), self._without_answer(job, error))
        return JobEntry(job.document(), self._statuses(job, records, environ))

    def list_jobs(self, request: ListRequest, *, environ: Mapping[str, str]) -> JobList:
        """List this user's jobs, and those submitted below a folder, by default the current one.

        Of the submissions to one model directory, only the newest is listed, and others that the scheduler still knows.
        """
        known: list[JobRecord] = []
        no_answer: PipelineError | None = None
        try:
            known = self.records(None, environ=environ)
        except PipelineError as error:
            no_answer = error
        files = {path.parent.resolve(): path for path in newest_records(request.records[RECORD])}
        for record in known:
            if record.of_user and record.record is not None:
                files.setdefault(record.record.parent.resolve(), record.record)
        jobs, left_out = [], 0
        for submission in _read_all(files.values()):
            if submission.scheduler != self.name:
                continue
            records = [record for record in known if submission.job_id in record.ids]
            has_ended = no_answer is None and all(record.state in ENDED for record in records)
            if has_ended and submission.last_change() < request.since:
                left_out += 1
            elif no_answer is not None:
                jobs.append((submission, self._without_answer(submission, no_answer)))
            else:
                jobs.append((submission, self._statuses(submission, records, environ)))
        jobs.sort(key=lambda job: job[0].submitted, reverse=True)
        return JobList([JobEntry(submission.document(), statuses) for submission, statuses in jobs], left_out)

    def _statuses(
        self, submission: Submission, records: Sequence[JobRecord], environ: Mapping[str, str]
    ) -> list[JobStatus]:
        """Return the status of a job by the scheduler's records, or what other commands and its files show."""
        statuses = []
        for element in range(submission.array or 1):
            same = (record for record in records if submission.array is None or element in record.elements)
            # The first component of a heterogeneous job runs the script.
            record = next(same, None) or self.forgotten(submission, element, environ=environ)
            folder = submission.log_folders[element]
            history, asked = history_of(folder, submission.tasks), was_asked_to_stop(folder)
            if record is None:
                status = self._status_of_files(submission, element, history, asked=asked)
            else:
                described = self.describe(record, history, asked=asked)
                is_fine = described["state"] == "COMPLETED" or described["text"] == ASKED
                failure = None if is_fine else history.failure
                status = _status(submission, element, history, failure=failure, **described)
            statuses.append(status)
        return statuses

    def _status_of_files(self, submission: Submission, element: int, history: JobHistory, *, asked: bool) -> JobStatus:
        """Return the status of a job that the scheduler has forgotten."""
        folder = submission.log_folders[element]
        lines = end_of(folder / OUTPUT, offset=0, limit=4096).rstrip().splitlines()
        text = f"{self.title} no longer knows the job"
        if history.failure is not None and history.end == "gave_up":
            text += f"; it failed: {history.failure.text()}"
        elif lines:
            text += f"; the last line of its output: {lines[-1]}"
        state = {"done": "COMPLETED", "gave_up": "FAILED"}.get(history.end, "UNKNOWN")
        return _status(
            submission,
            element,
            history,
            state="CANCELLED" if asked else state,
            text=text,
            failure=None if asked or history.end == "done" else history.failure,
            failed=not asked and history.end != "done",
        )

    def _without_answer(self, submission: Submission, error: PipelineError) -> list[JobStatus]:
        """Return the status without an answer of the scheduler, from the tasks' progress."""
        why = error.found or error.message
        text = f"{self.title} does not answer ({why}); this is the job's last reported progress"
        histories = [history_of(folder, submission.tasks) for folder in submission.log_folders]
        return [
            _status(submission, element, history, state=NO_ANSWER, text=text, failure=history.failure, failed=True)
            for element, history in enumerate(histories)
        ]

    # Logs, stacks, cancel ----------------------------------------------------------------------------------------

    def logs(
        self, job: Submission, reference: JobReference, request: LogRequest, *, environ: Mapping[str, str]
    ) -> None:
        """See `Scheduler`; the script has a log, too."""
        known, element = (SCRIPT_LABEL, *job.tasks), reference.options.get("element")
        request.check(known)
        prefix = ""
        if request.failed and job.array is not None and element is None:
            element = failed_element(job.log_folders, job.tasks)
            prefix = f"element {element}: "
        element = check_element(element, job.array, noun="logs")
        folder = job.log_folders[element]
        if request.failed:
            for line in failed_log(folder, job.tasks, lines=request.lines):
                request.write(prefix + line)
                prefix = ""
            return
        readers = LogReaders(folder, job.tasks, wanted=request.task, last=request.lines or None)
        readers.show(request, known, has_ended=lambda: self._has_ended(job, element, environ))

    def _has_ended(self, job: Submission, element: int, environ: Mapping[str, str]) -> bool:
        with contextlib.suppress(ConfigError):
            job = read_submission(job.folder / RECORD)  # the script may have submitted a further job
        return self.status(job, environ=environ).jobs[element].ended

    def stacks(self, job: Submission, reference: JobReference) -> LogFolder:
        folder = job.log_folders[check_element(reference.options.get("element"), job.array, noun="tasks")]
        return LogFolder((runs_of(folder) or [folder])[-1], job.tasks)

    def cancel(
        self, job: Submission, reference: JobReference, *, environ: Mapping[str, str], report: Callable[[str], None]
    ) -> None:
        """Cancel a job; with --checkpoint, let the tasks stop with a checkpoint first.

        Otherwise they have the time that the scheduler waits between SIGTERM and SIGKILL.
        """

        def alive() -> list[JobStatus]:
            return [status for status in self.status(job, environ=environ).jobs if not status.ended]

        left = alive()
        if not left:
            report(f"job {job.job_id} has ended already")
            return
        if "checkpoint" in reference.options and any(status.state == "RUNNING" for status in left):
            # The script stops the tasks, and does not requeue the job then.
            self._run_checked([*self.stop_command, job.job_id], environ)
            report(f"job {job.job_id}: asked to stop with a checkpoint")
            for _ in Deadline(job.stop_seconds).polls(_POLL_SECS):
                left = alive()
                if not any(status.state in ("RUNNING", *_ENDING) for status in left):
                    break
        if left:
            self._run_checked([*self.cancel_command, job.job_id], environ)
            report(f"job {job.job_id}: cancelled")

    # Commands ----------------------------------------------------------------------------------------------------

    def run(self, command: Sequence[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Run a command of the scheduler.

        Raises:
            ConfigError: It is not on this machine.
            TaskFailedError: It does not answer.
        """
        self._require(command[0], environ)
        try:
            return subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                timeout=_COMMAND_SECS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise TaskFailedError(
                f"{command[0]} did not answer within {_COMMAND_SECS:.0f} seconds.",
                code="scheduler/unavailable",
                hint=self.check_hint,
            ) from None

    def no_answer(self, job_id: str | None, done: subprocess.CompletedProcess[str]) -> TaskFailedError:
        """Return the error of a command that does not report the status of a job, or of all jobs."""
        return TaskFailedError(
            f"{self.title} does not report the status of {'its jobs' if job_id is None else f'job {job_id}'}.",
            code="scheduler/unavailable",
            found=output_of(done),
            hint=self.check_hint,
        )

    def _run_checked(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        done = self.run(command, environ)
        # The job may have ended in the meantime, which is not an error.
        if done.returncode != 0 and not self.gone.search(done.stderr):
            raise TaskFailedError(f"{' '.join(command)} failed.", code="scheduler/refused", found=output_of(done))

    def _require(self, program: str, environ: Mapping[str, str]) -> None:
        if shutil.which(program, path=environ.get("PATH")) is None:
            raise ConfigError(
                f"there is no {program} on this machine.",
                code="scheduler/unavailable",
                found="no such program on PATH",
                hint=f"run this where {self.title}'s commands are (a login node), or `module load {self.name}`; "
                "`--dry-run` prints the script anywhere.",
            )


def output_of(done: subprocess.CompletedProcess[str]) -> str:
    """Return the messages of a command in one line."""
    text = " ".join((done.stderr or done.stdout).split())
    return text or f"exit code {done.returncode}, and no message"


def failed_text(code: int | None, failure: TaskFailure | None, setup_end: str = "") -> str:
    """Describe a job whose script has failed with this exit code.

    Args:
        code: The exit code.
        failure: The last failure of a task.
        setup_end: Why the script did not start the tasks.
    """
    if setup_end and code == 75:
        return f"{setup_end}, and not requeued (exit code 75)"
    if setup_end:
        return f"failed: {setup_end} ({OUTPUT})"
    if code == 75:
        return _NOT_REQUEUED
    cause = f"failed: {_CAUSES[code]}" if code in _CAUSES else "failed"
    # The histories of older submissions name no log, only that the command failed.
    if failure is None or failure.log is None:
        return f"{cause} (exit code {code})"
    return f"{cause}: {failure.text()}"


def _read_all(files: Iterable[Path]) -> Iterator[Submission]:
    """Read the valid ones of these records."""
    for file in files:
        with contextlib.suppress(ConfigError):
            yield read_submission(file)


def _status(
    submission: Submission,
    element: int,
    history: JobHistory,
    *,
    state: str,
    details: Sequence[str] = (),
    restarts: int = 0,
    **fields: Any,
) -> JobStatus:
    """Return a status with what the files of the job show, whether the scheduler still knows the job or not."""
    requeued = [f"requeued {counted(restarts, 'time')}"] if restarts else []
    in_place = [f"restarted in place {counted(history.restarts, 'time')}"] if history.restarts else []
    return JobStatus(
        job_id=submission.id_of(element),
        state=state,
        name=submission.name,
        progress=progress_of(submission.log_folders[element]),
        restarts=restarts,
        task_restarts=history.restarts,
        setup=history.setup_lines,
        model_dir=submission.model_dirs[element] if element < len(submission.model_dirs) else "",
        phase="ended" if state in (*ENDED, "UNKNOWN") else "running" if state == "RUNNING" else "waiting",
        details=(*details, *requeued, *in_place),
        **fields,
    )
