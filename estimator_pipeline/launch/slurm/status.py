"""Status of a Slurm job, from Slurm's records and the job's files."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from estimator_pipeline.launch.job_table import JobRow
from estimator_pipeline.launch.slurm.history import TaskFailure
from estimator_pipeline.launch.slurm.logs import progress_text
from estimator_pipeline.launch.slurm.script import OUTPUT

__all__ = ["ASKED", "ENDED", "FAILED", "NO_ANSWER", "JobStatus", "failed_text", "remedy_of", "state_text"]

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
_TEXTS = {
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
_CAUSES = {2: "bad input", 3: "training diverged"}
_NOT_REQUEUED = "stopped with a checkpoint, and not requeued (exit code 75)"
ASKED = "stopped as asked; the next submission resumes from the last checkpoint (exit code 143)"
# States for which `status` exits with 1: the job ended without being done, and was not cancelled.
FAILED = ("FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE")
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
NO_ANSWER = "NO_ANSWER"
"""The state of a job where Slurm's controller does not answer."""


@dataclass(frozen=True)
class JobStatus:
    """The status of a job, or of one element of an array.

    Attributes:
        job_id: "17", or "17_2".
        state: Slurm's state, such as "RUNNING"; for a job that Slurm has forgotten, the one that follows from the
            supervisor's history, or "UNKNOWN"; "NO_ANSWER" if Slurm's controller does not answer.
        text: The state as text.
        restarts: The number of requeues.
        reason: Why it is pending.
        hint: What to change, if it can never start for that reason.
        nodes: Its nodes, in Slurm's notation.
        run_time: Its run time, in Slurm's notation.
        time_limit: Its time limit, likewise.
        exit_code: The script's exit code, if it has ended.
        progress: The tasks' progress: step, loss, steps_per_sec, checkpoint, evaluation, and time of the last event.
        failure: The last failure of a task in the newest run.
        task_restarts: The number of restarts of the tasks in that run, without a requeue.
        setup: Lines of slurm.setup that failed in that run, and why it did not start the tasks, if it did not.
        failed: Whether it ended without being done or cancelled, can never start, or its state is unknown.
        model_dir: Its model directory.
    """

    job_id: str
    state: str
    text: str
    name: str = ""
    restarts: int = 0
    reason: str = ""
    hint: str = ""
    nodes: str = ""
    run_time: str = ""
    time_limit: str = ""
    exit_code: int | None = None
    progress: dict[str, Any] = field(default_factory=dict)
    failure: TaskFailure | None = None
    task_restarts: int = 0
    setup: tuple[str, ...] = ()
    failed: bool = False
    model_dir: str = ""

    @property
    def ended(self) -> bool:
        """Whether it has ended and is not requeued, as far as is known."""
        return self.state in (*ENDED, "UNKNOWN")

    def row(self) -> JobRow:
        """Return the row for the table of jobs."""
        return JobRow(
            job=self.job_id,
            name=self.name,
            # Slurm reports a job as failed that was asked to stop.
            state="STOPPED" if self.state == "FAILED" and not self.failed else self.state,
            running=self.state == "RUNNING",
            progress=self.progress,
            restarts=self.restarts + self.task_restarts,
            failure=self.text if self.hint else "; ".join(self.setup) if self.failure is None else self.failure.text(),
            model_dir=self.model_dir,
        )

    def document(self) -> dict[str, Any]:
        """Return the status as a JSON document."""
        return {**self.__dict__, "failure": None if self.failure is None else self.failure.document()}

    def lines(self) -> list[str]:
        """Format the status as text."""
        parts = [f"job {self.job_id} ({self.name}): {self.text}" if self.name else f"job {self.job_id}: {self.text}"]
        if self.run_time and self.state != "PENDING":
            parts.append(f"{self.run_time} of {self.time_limit}" if self.time_limit else self.run_time)
        if self.nodes:
            parts.append(f"on {self.nodes}")
        if self.restarts:
            parts.append(f"requeued {_times(self.restarts)}")
        if self.task_restarts:
            parts.append(f"restarted in place {_times(self.task_restarts)}")
        lines = [", ".join(parts), *(f"  {text}" for text in self.setup if text not in self.text)]
        if self.hint:
            lines.append(f"  hint: {self.hint}, then cancel the job and submit it again")
        if self.progress:
            lines.append("  " + progress_text(self.progress, ended=self.ended))
        if self.failure is not None and not self.ended:
            lines.append(f"  last failure: {self.failure.text()}")
        return lines


def state_text(state: str) -> str:
    """Describe a state of Slurm."""
    return _TEXTS.get(state, state.lower().replace("_", " "))


def remedy_of(reason: str) -> str:
    """Return what to change if a job that waits for this reason can never start; "" if it may start."""
    return next((remedy for pattern, remedy in _NEVER.items() if pattern.fullmatch(reason)), "")


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


def _times(count: int) -> str:
    return f"{count} time{'s'[: count > 1]}"
