"""How a Slurm job stands, in words: by what Slurm says, and by what its supervisor and tasks wrote."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from estimator_pipeline.launch.job_table import JobRow
from estimator_pipeline.launch.slurm.history import TaskFailure
from estimator_pipeline.launch.slurm.logs import progress_text

__all__ = ["ASKED", "ENDED", "FAILED", "NO_ANSWER", "JobStatus", "failed_text", "state_text"]

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
_WORDS = {
    "PENDING": "waiting in the queue",
    "RUNNING": "running",
    "CONFIGURING": "starting",
    "COMPLETING": "ending",
    "COMPLETED": "done",
    "CANCELLED": "cancelled",
    "TIMEOUT": "ended by its time limit",
    "NODE_FAIL": "ended because a node failed",
    "PREEMPTED": "ended for another job",
    "OUT_OF_MEMORY": "ended because memory ran out",
    "SUSPENDED": "suspended",
    "REQUEUED": "going back into the queue",
}
_CAUSES = {2: "bad input", 3: "training diverged"}
_NOT_REQUEUED = "stopped with a checkpoint, and not requeued (exit code 75)"
ASKED = "stopped as asked; the next submission goes on from the last checkpoint (exit code 143)"
# What `status` exits with 1 for: the job has ended without being done, and nobody has asked it to.
FAILED = ("FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE")
NO_ANSWER = "NO_ANSWER"
"""The state of a job where Slurm's controller does not answer."""


@dataclass(frozen=True)
class JobStatus:
    """What is known of a job, or of one element of an array.

    Attributes:
        job_id: "17", or "17_2".
        state: Slurm's word, such as "RUNNING"; once Slurm has forgotten it what the supervisor said, or "UNKNOWN";
            "NO_ANSWER" where its controller does not answer.
        text: The state in words.
        restarts: How often it has been requeued.
        reason: Why it waits.
        nodes: Where it runs, in Slurm's notation.
        run_time: How long it has run, as Slurm writes it.
        time_limit: How long it may.
        exit_code: Of the script, once it has ended.
        progress: What the tasks told: step, loss, steps_per_sec, checkpoint, evaluation; time, of the last word.
        failure: The last failure of a task in the newest run.
        task_restarts: How often the tasks were started again in place in that run.
        failed: Whether it has ended without being done, unasked; or nobody can say how it stands.
    """

    job_id: str
    state: str
    text: str
    name: str = ""
    restarts: int = 0
    reason: str = ""
    nodes: str = ""
    run_time: str = ""
    time_limit: str = ""
    exit_code: int | None = None
    progress: dict[str, Any] = field(default_factory=dict)
    failure: TaskFailure | None = None
    task_restarts: int = 0
    failed: bool = False

    @property
    def ended(self) -> bool:
        """Whether it has ended for good, as far as is known."""
        return self.state in (*ENDED, "UNKNOWN")

    def row(self) -> JobRow:
        """For the table of all jobs."""
        return JobRow(
            job=self.job_id,
            name=self.name,
            # To Slurm a job has failed that stopped as it was asked to.
            state="STOPPED" if self.state == "FAILED" and not self.failed else self.state,
            running=self.state == "RUNNING",
            progress=self.progress,
            restarts=self.restarts + self.task_restarts,
            failure="" if self.failure is None else self.failure.text(),
        )

    def document(self) -> dict[str, Any]:
        """As a JSON document."""
        return {**self.__dict__, "failure": None if self.failure is None else self.failure.document()}

    def lines(self) -> list[str]:
        """For people."""
        words = [f"job {self.job_id} ({self.name}): {self.text}" if self.name else f"job {self.job_id}: {self.text}"]
        if self.run_time and self.state != "PENDING":
            words.append(f"{self.run_time} of {self.time_limit}" if self.time_limit else self.run_time)
        if self.nodes:
            words.append(f"on {self.nodes}")
        if self.restarts:
            words.append(f"requeued {_times(self.restarts)}")
        if self.task_restarts:
            words.append(f"started again in place {_times(self.task_restarts)}")
        lines = [", ".join(words)]
        if self.progress:
            lines.append("  " + progress_text(self.progress, ended=self.ended))
        if self.failure is not None and not self.ended:
            lines.append(f"  last failure: {self.failure.text()}")
        return lines


def state_text(state: str) -> str:
    """A state of Slurm's in words."""
    return _WORDS.get(state, state.lower().replace("_", " "))


def failed_text(code: int | None, failure: TaskFailure | None) -> str:
    """What is said of a job whose script has ended with this exit code.

    Args:
        code: The exit code.
        failure: The last failure of a task.
    """
    if code == 75:
        return _NOT_REQUEUED
    cause = f"failed: {_CAUSES[code]}" if code in _CAUSES else "failed"
    # Older submissions say of a failure that the command has failed, which is less than its exit code.
    if failure is None or failure.log is None:
        return f"{cause} (exit code {code})"
    return f"{cause}: {failure.text()}"


def _times(count: int) -> str:
    return f"{count} time{'s'[: count > 1]}"
