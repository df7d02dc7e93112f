"""States of Slurm as text, and what to change."""

from __future__ import annotations

import re

from estimator_pipeline.launch.job_status import TaskFailure
from estimator_pipeline.launch.slurm.script import OUTPUT

__all__ = ["ASKED", "ENDED", "FAILED", "NO_ANSWER", "failed_text", "remedy_of", "state_text"]

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
