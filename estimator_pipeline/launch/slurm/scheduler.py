"""Slurm as one of the schedulers.

The status comes from `scontrol show job`, whose format is stable, unlike that of `squeue --json`. It knows a job for
some minutes after its end (MinJobAge). After that `sacct` does, if accounting is set up.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.launch.batch.runs import JobHistory
from estimator_pipeline.launch.batch.scheduler import ASKED, ENDED, FAILED, BatchScheduler, JobRecord, failed_text
from estimator_pipeline.launch.batch.submission import BatchPlan, Submission
from estimator_pipeline.launch.scheduler import SubmitOption, SubmitPlan, SubmitRequest
from estimator_pipeline.launch.supervisor.ranks import numbers

if TYPE_CHECKING:
    from estimator_pipeline.job import Job

__all__ = ["SlurmScheduler", "parse_records"]

# Reasons with which a job waits for ever, unless an administrator changes a limit, and what to change. From
# https://slurm.schedmd.com/job_reason_codes.html. Not those that may pass, such as ReqNodeNotAvail, and limits of all
# jobs of a user.
_NEVER = {
    re.compile(pattern): remedy
    for pattern, remedy in {
        "DependencyNeverSatisfied": "the job of slurm.dependency has failed or does not exist: change or remove it",
        "PartitionTimeLimit": "reduce slurm.time, or change slurm.partition (`scontrol show partition`)",
        "PartitionNodeLimit": "change the number of nodes (slurm.nodes, slurm.tasks_per_node) or slurm.partition; or "
        "the nodes of slurm.nodelist are down (`sinfo`)",
        "PartitionConfig": "the partition does not allow this request: compare the section slurm with "
        "`scontrol show partition`",
        "BadConstraints": "no node has what the job requests (`scontrol show node`): change slurm.constraint, gres, "
        "mem, cpus_per_task or gpus_per_task",
        "MaxMemPerLimit": "reduce slurm.mem or slurm.mem_per_cpu",
        "InvalidAccount|AccountNotAllowed": "change slurm.account or slurm.partition (`sacctmgr show associations`)",
        "InvalidQOS|QOSNotAllowed": "change slurm.qos (`sacctmgr show qos`)",
        "ReservationDeleted": "change the reservation (slurm.sbatch)",
        "DeadLine": "change the deadline (slurm.sbatch)",
        "(Assoc|QOS)Max[A-Za-z]+Per(Job|Node)(Limit)?": "request less: the limit for a job of this account or QOS is "
        "exceeded (`sacctmgr show associations`, `sacctmgr show qos`)",
        "QOSMin[A-Za-z]+": "request more, or change slurm.qos: its minimum is not reached (`sacctmgr show qos`)",
    }.items()
}


class SlurmScheduler(BatchScheduler):
    """Batch scripts for sbatch."""

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
        SubmitOption("--array", "Submit an array with one job for each element of this sweep.", "SWEEP.yaml", Path),
        SubmitOption("--at-once", "Run at most this many elements of the array at the same time.", "N", int, least=1),
    )
    options = frozenset({"checkpoint", "element", "folder"})
    instead = {"now": "leave it out: `scancel --signal=KILL JOBID`."}
    checks = ("identity", "data", "shards", "model", "slurm")

    ids = re.compile(r"\d+(_\d+)?")
    states = {
        "PENDING": "waiting in the queue",
        "RUNNING": "running",
        "CONFIGURING": "starting",
        "COMPLETING": "ending",
        "COMPLETED": "done",
        "CANCELLED": "cancelled",
        "TIMEOUT": "ended by its time limit",
        "NODE_FAIL": "ended because a node failed",
        "PREEMPTED": "preempted by a different job",
        "OUT_OF_MEMORY": "ended because memory ran out",
        "SUSPENDED": "suspended",
        "REQUEUED": "going back into the queue",
    }
    submit_command = ("sbatch", "--parsable")
    # Only to the script: scancel without --batch signals the tasks.
    stop_command = ("scancel", "--batch", "--signal=TERM")
    cancel_command = ("scancel",)
    gone = re.compile("Invalid job id|already completing")
    # Not those that users set for its commands.
    removed = re.compile(r"(?!SLURM_(?:CONF|CLUSTERS|TIME_FORMAT)$)(?:SLURM|SRUN)_")
    check_hint = "check whether Slurm's controller is up: `scontrol ping`."
    submit_hint = "--set slurm.partition=..., slurm.time=..."

    def plan(self, request: SubmitRequest) -> SubmitPlan:
        from estimator_pipeline.job import load_job
        from estimator_pipeline.launch.slurm.sweep import load_elements

        sweep, at_once = (request.options.get(name) for name in ("array", "at_once"))
        if at_once is not None and sweep is None:
            raise ConfigError(
                "--at-once requires an array.",
                code="argument/not-applicable",
                hint="name a sweep: --array SWEEP.yaml.",
            )
        job = load_job(request.file, overrides=request.settings)
        elements = load_elements(job, request.file, request.settings, sweep) if sweep is not None else []
        return self.plan_elements(job, elements, at_once)

    def plan_script(self, job: Job, *, elements: Sequence[Job], at_once: int | None, **place: Any) -> BatchPlan:
        from estimator_pipeline.launch.slurm.script import plan_slurm

        return plan_slurm(job, elements=elements, at_once=at_once, **place)

    def records(self, job_id: str | None, *, environ: Mapping[str, str]) -> list[JobRecord]:
        command = ["scontrol", "show", "job", "--oneliner", *([] if job_id is None else [job_id])]
        done = self.run(command, environ)
        if done.returncode == 0:
            return [_record(fields) for fields in parse_records(done.stdout)]
        if "Invalid job id" in done.stderr:
            return []
        raise self.no_answer(job_id, done)

    def forgotten(self, submission: Submission, element: int, *, environ: Mapping[str, str]) -> JobRecord | None:
        """Return the record of sacct."""
        if shutil.which("sacct", path=environ.get("PATH")) is None:
            return None
        job_id = submission.id_of(element)
        command = ["sacct", "--allocations", "--parsable2", "--noheader", f"--jobs={job_id}"]
        done = self.run([*command, "--format=State,ExitCode,Elapsed,NodeList"], environ)
        values = done.stdout.strip().splitlines()[-1].split("|") if done.returncode == 0 and done.stdout.strip() else []
        if len(values) != 4:
            return None
        names = ("JobState", "ExitCode", "RunTime", "NodeList")
        return _record({"JobId": job_id, **dict(zip(names, [values[0].split()[0], *values[1:]], strict=True))})

    def describe(self, record: JobRecord, history: JobHistory, *, asked: bool) -> dict[str, Any]:
        state, fields = record.state, record.fields
        code = _exit_code(fields.get("ExitCode", ""))
        reason = fields.get("Reason", "None")
        waits = state == "PENDING" and reason not in ("None", "")
        hint = remedy_of(reason) if waits else ""
        asked = asked and state == "FAILED" and code == 143
        text = self.state_text(state)
        if state == "FAILED":
            text = ASKED if asked else failed_text(code, history.failure, history.setup_end)
        elif state == "OUT_OF_MEMORY" and history.failure is not None:
            text = f"{text}: {history.failure.text()}"
        if waits:
            text = f"cannot start: {reason}" if hint else f"{text} ({reason})"
        nodes, run_time, limit = (fields.get(name, "") for name in ("NodeList", "RunTime", "TimeLimit"))
        nodes, limit = ("" if value in ("(null)", "UNLIMITED") else value for value in (nodes, limit))
        details = [] if not run_time or state == "PENDING" else [f"{run_time} of {limit}" if limit else run_time]
        return {
            "state": state,
            "text": text,
            "details": [*details, f"on {nodes}"] if nodes else details,
            "restarts": int(fields["Restarts"]) if fields.get("Restarts", "").isdigit() else 0,
            "reason": reason if waits else "",
            "hint": hint,
            "nodes": nodes,
            "run_time": run_time,
            "time_limit": limit,
            "exit_code": code if state in ENDED else None,
            "failed": (state in FAILED and not asked) or bool(hint),
        }


def parse_records(text: str) -> list[dict[str, str]]:
    """Parse `scontrol show job --oneliner`: KEY=VALUE, where values may have blanks."""
    key = re.compile(r"(?:^|\s)([A-Z][\w/:]*)=")
    records = []
    for line in text.splitlines():
        if not (hits := list(key.finditer(line))):
            continue
        ends = [hit.start() for hit in hits[1:]] + [len(line)]
        record: dict[str, str] = {}
        for hit, end in zip(hits, ends, strict=True):
            record.setdefault(hit[1], line[hit.end() : end].strip())
        if "JobId" in record:
            records.append(record)
    return records


def _record(fields: Mapping[str, str]) -> JobRecord:
    return JobRecord(
        ids=(fields["JobId"], *([fields["ArrayJobId"]] if "ArrayJobId" in fields else [])),
        state=fields.get("JobState", "UNKNOWN"),
        script=Path(fields["Command"]) if "Command" in fields else None,
        # "2", "1-3", "0,4-5%2"
        elements=frozenset(numbers(fields.get("ArrayTaskId", "").partition("%")[0])),
        of_user=fields.get("UserId", "").endswith(f"({os.getuid()})"),
        fields=fields,
    )


def remedy_of(reason: str) -> str:
    """Return what to change if a job that waits for this reason can never start; "" if it may start."""
    return next((remedy for pattern, remedy in _NEVER.items() if pattern.fullmatch(reason)), "")


def _exit_code(text: str) -> int | None:
    code, _, number = text.partition(":")
    if not code.isdigit():
        return None
    return int(code) or (128 + int(number) if number.isdigit() and int(number) else 0)
