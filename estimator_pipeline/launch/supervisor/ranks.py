"""Search for the first failure in a command with several tasks, such as `srun`.

All tasks write events with their times to one progress file. The messages of srun about tasks that end are read from
the command's output:

    srun: error: n2: task 1: Exited with exit code 1
    srun: error: n[1-2]: tasks 0-1: Out Of Memory
    srun: error: Node failure on n2
    slurmstepd-n2: error: Detected 1 oom_kill event in StepId=7.0.

srun sends SIGTERM to the other tasks (`--kill-on-bad-exit`), and a task that loses a peer fails as well. So the first
failure counts; if it names a different task as its cause, that task counts.
"""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from estimator_pipeline.cluster.environments.hostlist import expand_hosts
from estimator_pipeline.errors import ClusterError
from estimator_pipeline.launch.exit_codes import BAD_INPUT
from estimator_pipeline.launch.local.outcome import end_of
from estimator_pipeline.progress.progress_file import Tail, cause_of

__all__ = ["MEMORY", "NO_ALLOCATION", "RankFailure", "Ranks", "numbers"]

MEMORY = "ran out of memory and was killed"
NO_ALLOCATION = "has no allocation any more: Slurm has requeued or ended the job"

# The starter of a PBS job's tasks reports their ends in the same format.
_ENDED = re.compile(r"^(?:srun|pbs_tmrsh): error: (?:(\S+): )?tasks? ([\d,\-\[\]]+): (.+?)\s*$")
_NODE = re.compile(r"^(?:srun|pbs_tmrsh): error: Node failure on (\S+)")
# Memory is enforced by control groups, or by accounting (JobAcctGatherParams=OverMemoryKill). Not all versions name the
# node, and the last message may come from the node of the batch script.
_OUT_OF_MEMORY = re.compile(
    r"(?:slurmstepd-([^\s:]+): )?.*(?:oom[_-]kill event|OOM Killed"
    r"|exceeded (?:virtual )?memory limit \(\d+ > \d+\), being killed)|.*Exceeded (?:job|step) memory limit",
    re.IGNORECASE,
)
# The step daemons write to the end of the tasks' logs.
_LOG_BYTES = 16 * 1024
# srun adds the line "Expired or invalid job" also where the controller only does not answer.
_NO_ALLOCATION = re.compile(
    r"^srun: error: (?:Unable to (?:confirm allocation|create step) for job \d+: (?:Job is pending execution"
    r"|Invalid job id specified|Job/step already completing or completed)|Slurm job \d+ has expired)",
    re.IGNORECASE,
)
# The texts of strsignal(), which srun prints.
_SIGNALS = {signal.strsignal(number): number for number in signal.Signals if number != signal.SIGTERM}
# srun reports an end a moment after the task's last event, or before a different task's.
_SAME_TIME_SECS = 2.0


@dataclass(frozen=True)
class RankFailure:
    """A failure of one task.

    Attributes:
        time: Its time in seconds since 1970.
        task: Its name, "worker:1", or "rank 1" if it has not reported one.
        exit_code: The exit code as in `subprocess`; None if only the error is known.
        error: The error in one line.
        description: The failure, where it is not an exit code.
        caused_by: The task that it reports as the cause of its failure.
        echo: Whether its error is probably a consequence of a different task's failure.
    """

    time: float
    task: str
    exit_code: int | None = None
    error: str = ""
    description: str = ""
    caused_by: str = ""
    echo: bool = False


class Ranks:
    """The tasks of one command.

    Args:
        output: The output of the command.
        logs: The folder to which srun writes the output of the tasks, as task-RANK.log; None if it is in `output`.

    Attributes:
        has_allocation: Whether the job still has the allocation in which srun would start the tasks.
    """

    def __init__(self, output: Tail, *, logs: Path | None = None) -> None:
        self._output = output
        self._logs = logs
        # Of earlier attempts.
        self._sizes: dict[Path, int] = {}
        for log in self._task_logs():
            with contextlib.suppress(OSError):
                self._sizes[log] = log.stat().st_size
        self._names: dict[int, str] = {}
        self._processes: dict[str, str] = {}
        self._reported: list[RankFailure] = []
        self._seen: list[tuple[float, int | None, str, str]] = []
        # The nodes on which memory ran out; "" for an unknown node.
        self._memory: set[str] = set()
        self.has_allocation = True

    def event(self, event: Mapping[str, Any]) -> None:
        """Record an event of a task."""
        task, rank, kind = str(event.get("task") or ""), event.get("rank"), event["event"]
        if task and isinstance(rank, int):
            self._names[rank] = task
        if task and event.get("process"):
            self._processes[str(event["process"])] = task
        error, caused_by = str(event.get("error") or ""), cause_of(event)
        if kind not in ("raised", "end") or event.get("status") == "preempted" or not (error or caused_by):
            return
        name = task or (f"rank {rank}" if isinstance(rank, int) else "")
        if name:
            at = event.get("time")
            self._reported.append(
                RankFailure(
                    float(at) if isinstance(at, int | float) else 0.0,
                    name,
                    BAD_INPUT if event.get("refusal") and event.get("status") != "diverged" else None,
                    error,
                    caused_by=caused_by if caused_by != name else "",
                    echo=bool(event.get("echo")),
                )
            )

    def poll(self, now: float) -> None:
        """Read the new output of the command at `now`, in seconds since 1970."""
        for line in self._output.lines():
            if match := _OUT_OF_MEMORY.match(line):
                self._memory.add(match[1] or "")
            elif match := _NODE.match(line):
                self._seen.append((now, None, "", f"ran on the node {match[1]}, which failed"))
            elif match := _ENDED.match(line):
                self._seen += [(now, rank, match[1] or "", match[3]) for rank in numbers(match[2])]
            elif _NO_ALLOCATION.match(line):
                self.has_allocation = False

    def _task_logs(self) -> list[Path]:
        return [] if self._logs is None else list(self._logs.glob("task-*.log"))

    def task_of(self, process: str) -> str:
        """Return the task of a process "HOST-PROCESS"; "" if no task has reported it."""
        return self._processes.get(process, "")

    def first(self) -> RankFailure | None:
        """Return the failure that caused the others; None if no failure is known."""
        for log in self._task_logs():
            for line in end_of(log, offset=self._sizes.get(log, 0), limit=_LOG_BYTES).splitlines():
                if line.startswith("slurmstepd") and (match := _OUT_OF_MEMORY.match(line)):
                    self._memory.add(match[1] or "")
        seen = [failure for entry in self._seen if (failure := self._of_srun(*entry)) is not None]
        # srun reports the end of a task later than the task reports its error, perhaps after the end of a different
        # task. Tasks that end by SIGTERM were mostly terminated by srun.
        with_error = {failure.task for failure in self._reported}
        silent = [
            failure for failure in seen if failure.task not in with_error and failure.exit_code != -signal.SIGTERM
        ]
        if any(failure.description == MEMORY for failure in silent):
            # Slurm kills the whole step then, and srun may report a task of a different node first.
            silent = [
                failure for failure in silent if failure.description == MEMORY or failure.exit_code != -signal.SIGKILL
            ]
        causes = [failure for failure in self._reported if not failure.caused_by and not failure.echo]
        independent = sorted([*causes, *silent], key=_time)
        first = next(iter([*independent, *sorted([*self._reported, *seen], key=_time)]), None)
        named = next((failure for failure in sorted(self._reported, key=_time) if failure.caused_by), None)
        if named is not None and (first is None or named.time < first.time - _SAME_TIME_SECS or first.caused_by):
            # A hung task has no end of which srun could report before it is killed.
            return RankFailure(named.time, named.caused_by, error=named.error)
        if first is None or first.exit_code is not None or first.description:
            return first
        code = next((failure.exit_code for failure in seen if failure.task == first.task), None)
        return replace(first, exit_code=code)

    def _of_srun(self, at: float, rank: int | None, nodes: str, how: str) -> RankFailure | None:
        if rank is None:
            return RankFailure(at, "a task", description=how)
        name = self._names.get(rank, f"rank {rank}")
        if how.startswith("Exited with exit code "):
            return RankFailure(at, name, int(how.rpartition(" ")[2]))
        if how.startswith("Out Of Memory"):
            return RankFailure(at, name, -signal.SIGKILL, description=MEMORY)
        if how.startswith("Terminated"):
            return RankFailure(at, name, -signal.SIGTERM)
        number = next((number for word, number in _SIGNALS.items() if word and how.startswith(word)), None)
        if number is None:
            return None
        killed = number == signal.SIGKILL and self._out_of_memory(nodes)
        return RankFailure(at, name, -number, description=MEMORY if killed else "")

    def _out_of_memory(self, nodes: str) -> bool:
        """Return whether memory ran out on one of these nodes; any node counts where srun or Slurm names none."""
        if not nodes or "" in self._memory:
            return bool(self._memory)
        with contextlib.suppress(ClusterError):
            return not self._memory.isdisjoint(expand_hosts(nodes))
        return False


def _time(failure: RankFailure) -> float:
    return failure.time


def numbers(text: str) -> list[int]:
    """Parse a Slurm list of numbers, such as "1" or "0-2,5", in order."""
    ranks: list[int] = []
    for part in text.strip("[]").split(","):
        first, dash, last = part.partition("-")
        if first.isdigit() and (not dash or last.isdigit()):
            ranks += range(int(first), int(last if dash else first) + 1)
    return ranks
