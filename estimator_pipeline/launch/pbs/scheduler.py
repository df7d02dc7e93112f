"""PBS as one of the schedulers: OpenPBS and PBS Professional.

The status comes from `qstat -f`, whose format all versions have, and of jobs that have ended from `qstat -x`, if the
server keeps a history.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from estimator_pipeline.launch.batch.runs import JobHistory
from estimator_pipeline.launch.batch.scheduler import ASKED, ENDED, FAILED, BatchScheduler, JobRecord, failed_text
from estimator_pipeline.launch.batch.submission import SCRIPT, BatchPlan, Submission

if TYPE_CHECKING:
    from estimator_pipeline.job import Job

__all__ = ["PbsScheduler"]

# job_state (OpenPBS: qstat(1B), src/include/job.h).
_STATES = {
    "Q": "QUEUED",
    "H": "HELD",
    "W": "WAITING",
    "T": "MOVING",
    "R": "RUNNING",
    "S": "SUSPENDED",
    "U": "SUSPENDED",
    "E": "EXITING",
    "M": "MOVED",
}
_DELETED = "91"
# Exit_status of a job that exceeded a limit. If SIGTERM ended it, that is 271, and only the comment has the limit.
_LIMITS = {"-29": "TIMEOUT", "-27": "OUT_OF_MEMORY"}
_EXCEEDED = {"walltime": "TIMEOUT", "mem": "OUT_OF_MEMORY", "vmem": "OUT_OF_MEMORY", "pmem": "OUT_OF_MEMORY"}

# Comments of jobs that wait for ever, and what to change.
_NEVER = {
    "Can Never Run": "request less, or change pbs.queue (`pbsnodes -a`, `qstat -Qf`)",
    "job held, too many failed attempts": "check that every host has the folder of the submission (pbs.dir)",
}


class PbsScheduler(BatchScheduler):
    """Batch scripts for qsub."""

    name = "pbs"
    title = "PBS"
    location = "of PBS"
    program = "qstat"
    # Not job files that do not exist.
    notation = re.compile(r"\d+\.(?!ya?ml$|json$)[A-Za-z][-.\w]*")
    submit_help = """Write a batch script for all tasks of a job, submit it, and print the job id.

    The section `pbs` of the job file sets the resources. If the checks of `doctor` that run without TensorFlow report
    errors in data, functions or limits, nothing is submitted. `status`, `logs` and `cancel` take the same job file.
    Exit codes: 0 if the job was submitted, 2 for bad input, if a job of the same model directory waits or runs, or if
    the scheduler rejected the job.
    """
    options = frozenset({"checkpoint", "folder"})
    instead = {
        "now": "leave it out: `qsig -s SIGKILL JOBID`.",
        "element": "leave it out: `submit pbs` does not submit arrays.",
    }
    checks = ("identity", "data", "shards", "model", "pbs")

    ids = re.compile(r"\d+(\.[-.\w]+)?")
    states = {
        "QUEUED": "waiting in the queue",
        "HELD": "held",
        "WAITING": "waiting for its start time",
        "RUNNING": "running",
        "EXITING": "ending",
        "COMPLETED": "done",
        "CANCELLED": "cancelled",
        "TIMEOUT": "ended by its time limit",
        "OUT_OF_MEMORY": "ended because memory ran out",
    }
    submit_command = ("qsub",)
    stop_command = ("qsig", "-s", "SIGTERM")
    cancel_command = ("qdel",)
    gone = re.compile("Unknown Job Id|Job has finished|Request invalid for state of job")
    # Not those that users set for its commands.
    removed = re.compile(r"(?!PBS_(?:CONF_FILE|DEFAULT|SERVER|EXEC|HOME)$)PBS_")
    check_hint = "check whether the server of PBS is up: `qstat -B`."
    submit_hint = "--set pbs.queue=..., pbs.walltime=..."

    def plan_script(self, job: Job, *, elements: Sequence[Job], at_once: int | None, **place: Any) -> BatchPlan:
        from estimator_pipeline.launch.pbs.script import plan_pbs

        return plan_pbs(job, **place)

    def records(self, job_id: str | None, *, environ: Mapping[str, str]) -> list[JobRecord]:
        done = self.run(["qstat", "-f"] if job_id is None else ["qstat", "-x", "-f", job_id], environ)
        if job_id is not None and "job history" in done.stderr:  # the server keeps none, and rejects -x
            done = self.run(["qstat", "-f", job_id], environ)
        if done.returncode == 0:
            return [_record(fields) for fields in _parse(done.stdout)]
        if self.gone.search(done.stderr):
            return []
        raise self.no_answer(job_id, done)

    def forgotten(self, submission: Submission, element: int, *, environ: Mapping[str, str]) -> JobRecord | None:
        """Return the record of a job that has ended, which the list of all jobs does not have."""
        return next(iter(self.records(submission.job_id, environ=environ)), None)

    def describe(self, record: JobRecord, history: JobHistory, *, asked: bool) -> dict[str, Any]:
        state, fields = record.state, record.fields
        comment, status = fields.get("comment", ""), fields.get("Exit_status", "")
        code = int(status) if status.removeprefix("-").isdigit() else None
        if code is not None and code >= 256:
            code += 128 - 256  # ended by a signal
        if asked and state in ("COMPLETED", "FAILED"):
            state, text, code = "FAILED", ASKED, 143
        elif state == "FAILED" and code is None:
            text = "ended without having run: the job of pbs.dependency has failed or does not exist"
        elif state == "FAILED" and code is not None and code < 0:
            text = f"ended by PBS: {comment} (Exit_status {code})"
        elif state == "FAILED":
            text = failed_text(code, history.failure, history.setup_end)
        else:
            text = self.state_text(state)
        waits = state in ("QUEUED", "HELD", "WAITING")
        reason = (comment or fields.get("depend", "")).removeprefix("Not Running: ") if waits else ""
        hint = next((hint for start, hint in _NEVER.items() if reason.startswith(start)), "")
        if reason:
            text = f"cannot start: {reason}" if hint else f"{text} ({reason})"
        hosts = dict.fromkeys(re.findall(r"(?:^|\+)([^/+]+)/", fields.get("exec_host", "")))
        nodes, run_time = ",".join(hosts), fields.get("resources_used.walltime", "")
        limit = fields.get("Resource_List.walltime", "")
        details = [f"{run_time} of {limit}" if limit else run_time] if run_time and not waits else []
        return {
            "state": state,
            "text": text,
            "details": [*details, f"on {nodes}"] if nodes else details,
            "restarts": history.requeues,
            "reason": reason,
            "hint": hint,
            "nodes": nodes,
            "run_time": run_time,
            "time_limit": limit,
            "exit_code": code if state in ENDED else None,
            "failed": (state in FAILED and text != ASKED) or bool(hint),
        }


def _parse(text: str) -> list[dict[str, str]]:
    """Parse `qstat -f`: a line for each field, where a line that starts with a tab continues the one before."""
    jobs: list[dict[str, str]] = []
    for line in text.replace("\n\t", "").splitlines():
        name, separator, value = line.strip().partition(" = ")
        if line.startswith("Job Id: "):
            jobs.append({"Job Id": line.removeprefix("Job Id: ").strip()})
        elif separator and jobs:
            jobs[-1].setdefault(name, value)
    return jobs


def _record(fields: Mapping[str, str]) -> JobRecord:
    from estimator_pipeline.launch.pbs.script import PBS_OUTPUT

    output = Path(fields.get("Output_Path", "").partition(":")[2])
    return JobRecord(
        ids=(fields["Job Id"],),
        state=_state(fields),
        # The server has a copy of the script, without its path.
        script=output.parent / SCRIPT if output.name == PBS_OUTPUT else output,
        of_user=fields.get("Job_Owner", "").partition("@")[0] == pwd.getpwuid(os.getuid()).pw_name,
        fields=fields,
    )


def _state(fields: Mapping[str, str]) -> str:
    letter, status = fields.get("job_state", ""), fields.get("Exit_status", "")
    if letter not in ("F", "X"):
        return _STATES.get(letter, letter or "UNKNOWN")
    exceeded = re.search(r"exceeded resource (\w+)", fields.get("comment", ""))
    if exceeded is not None and exceeded[1] in _EXCEEDED:
        return _EXCEEDED[exceeded[1]]
    if status in _LIMITS:
        return _LIMITS[status]
    if fields.get("substate") == _DELETED:
        return "CANCELLED"
    return "COMPLETED" if status == "0" else "FAILED"
