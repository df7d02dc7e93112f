"""Slurm as one of the schedulers."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.launch import slurm
from estimator_pipeline.launch.job_status import JobEntry
from estimator_pipeline.launch.scheduler import (
    JSON,
    SET,
    JobList,
    JobReference,
    LogFolder,
    LogRequest,
    Scheduler,
    SubmitOption,
    SubmitPlan,
    SubmitRequest,
    SubmitResult,
    check_element,
)
from estimator_pipeline.launch.stacks.requests import newest_heartbeat

if TYPE_CHECKING:
    from estimator_pipeline.launch.slurm.jobs import Submission

__all__ = ["SlurmScheduler"]


class SlurmScheduler(Scheduler["Submission"]):
    """Batch scripts for sbatch; a job is found by its files, or by the record of its id."""

    name = "slurm"
    title = "Slurm"
    location = "of Slurm"
    program = "scontrol"
    submit_help = """Write a batch script for all tasks of a job, submit it, and print the job id.

    The section `slurm` of the job file sets the resources. If the checks of `doctor` that run without TensorFlow report
    errors in data, functions or limits, nothing is submitted. `status`, `logs` and `cancel` take the same job file.
    Exit codes: 0 if the job was submitted, 2 for bad input, if a job of the same model directory waits or runs, or if
    the scheduler rejected the job.
    """
    submit_options = (
        SET,
        SubmitOption("--array", "Submit an array with one job for each element of this sweep.", "SWEEP.yaml", Path),
        SubmitOption("--at-once", "Run at most this many elements of the array at the same time.", "N", int, least=1),
        SubmitOption(
            "--no-checks", "Skip the checks of data, functions and limits, if only the nodes have them.", kind=bool
        ),
        SubmitOption("--dry-run", "Print the batch script without submitting it.", kind=bool),
        JSON,
    )
    options = frozenset({"checkpoint", "element", "folder"})
    instead = {"now": "leave it out: `scancel --signal=KILL JOBID`."}
    checks = ("identity", "data", "shards", "model", "slurm")
    shows_rejected = True

    def plan(self, request: SubmitRequest) -> SubmitPlan:
        from estimator_pipeline.job import load_job
        from estimator_pipeline.launch.local.plan import new_run_id
        from estimator_pipeline.utils.version import __version__

        sweep, at_once = (request.options.get(name) for name in ("array", "at_once"))
        if at_once is not None and sweep is None:
            raise ConfigError(
                "--at-once requires an array.",
                code="argument/not-applicable",
                hint="name a sweep: --array SWEEP.yaml.",
            )
        job = load_job(request.file, overrides=request.settings)
        elements = slurm.sweep.load_elements(job, request.file, request.settings, sweep) if sweep is not None else []
        plan = slurm.script.plan_slurm(
            job,
            folder=str(slurm.jobs.submissions_folder(job) / new_run_id()),
            working_dir=str(Path.cwd()),
            command=[sys.executable, "-m", "estimator_pipeline"],
            version=__version__,
            elements=elements,
            at_once=at_once,
        )
        document = {"script": plan.script, "folder": plan.folder, "files": plan.files}
        text = json.dumps(document, indent=2)
        return SubmitPlan(plan.script, text, elements or [job], plan, other_python=job.slurm.command is not None)

    def submit(self, plan: SubmitPlan, *, environ: Mapping[str, str]) -> SubmitResult:
        submission = slurm.jobs.submit(plan.content, environ=environ)
        place = f"job {submission.job_id}: script and logs in {submission.folder}"
        return SubmitResult(submission.document(), [(submission.job_id, False), (place, True)])

    def claims(self, reference: JobReference) -> bool:
        """Return whether a folder has submissions, or a job file that of its submissions.

        A namespace, or only a section `kubernetes`, means Kubernetes.
        """
        job = reference.job
        if "namespace" in reference.options:
            return False
        if job is None:
            return bool(_records(reference))
        if job.model_fields_set & {"kubernetes", "slurm"} == {"kubernetes"}:
            return False
        with contextlib.suppress(ConfigError):
            return slurm.jobs.submissions_folder(job).is_dir()
        return False

    def last_active(self, reference: JobReference) -> float:
        """See `Scheduler`: by heartbeats, or the submission itself."""
        times = [0.0]
        for record in _records(reference):
            times.append(record.stat().st_mtime)
            times += map(newest_heartbeat, record.parent.glob("**/run-*/attempt-*"))
        return max(times)

    def find(self, reference: JobReference, *, environ: Mapping[str, str]) -> Submission:
        """Find the newest submission of a job file, or the submission that a folder or an id names."""
        name, job = reference.name, reference.job
        if job is None:
            return slurm.jobs.find_submission(name, environ=environ)
        folder = slurm.jobs.submissions_folder(job)
        return slurm.jobs.find_submission(name, folder=folder, model_dir=job.run.model_dir, environ=environ)

    def status(self, job: Submission, *, environ: Mapping[str, str]) -> JobEntry:
        return JobEntry(job.document(), slurm.jobs.job_status(job, environ=environ))

    def list_jobs(self, options: Mapping[str, Any], *, since: float, environ: Mapping[str, str]) -> JobList:
        listed, left_out = slurm.jobs.list_jobs(options.get("folder", Path()), environ=environ, since=since)
        return JobList([JobEntry(submission.document(), statuses) for submission, statuses in listed], left_out)

    def logs(
        self, job: Submission, reference: JobReference, request: LogRequest, *, environ: Mapping[str, str]
    ) -> None:
        """See `Scheduler`; the script has a log, too."""
        known, element = (slurm.logs.SCRIPT_LABEL, *job.tasks), reference.options.get("element")
        request.check(known)
        prefix = ""
        if request.failed and job.array is not None and element is None:
            element = slurm.history.failed_element(job.log_folders, job.tasks)
            prefix = f"element {element}: "
        element = check_element(element, job.array, noun="logs")
        folder = job.log_folders[element]
        if request.failed:
            for line in slurm.history.failed_log(folder, job.tasks, lines=request.lines):
                request.write(prefix + line)
                prefix = ""
            return
        readers = slurm.logs.LogReaders(folder, job.tasks, wanted=request.task, last=request.lines or None)
        readers.show(request, known, has_ended=lambda: slurm.jobs.job_status(job, environ=environ)[element].ended)

    def stacks(self, job: Submission, reference: JobReference) -> LogFolder:
        element = check_element(reference.options.get("element"), job.array, noun="tasks")
        runs = slurm.logs.runs_of(job.log_folders[element])
        return LogFolder(runs[-1], job.tasks) if runs else LogFolder(job.log_folders[element], job.tasks)

    def cancel(
        self, job: Submission, reference: JobReference, *, environ: Mapping[str, str], report: Callable[[str], None]
    ) -> None:
        slurm.jobs.cancel(job, checkpoint="checkpoint" in reference.options, environ=environ, report=report)


def _records(reference: JobReference) -> list[Path]:
    """Return the records of the submissions of a job file, or in a folder."""
    if reference.is_id:
        return []
    with contextlib.suppress(ConfigError):
        job = reference.job
        return slurm.jobs.records_in(Path(reference.name) if job is None else slurm.jobs.submissions_folder(job))
    return []
