"""Which task failed first, where one command has started several of them: a line of `srun`.

All of them write to one progress file, each event with its time. What srun prints when a task ends is read from the
command's output as it comes:

    srun: error: n2: task 1: Exited with exit code 1
    srun: error: n[1-2]: tasks 0-1: Out Of Memory
    srun: error: Node failure on n2

srun ends the other tasks by SIGTERM (`--kill-on-bad-exit`), and a task that loses another one fails as well. So the
first failure counts, and of one that names another task, that task's.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from estimator_pipeline.launch.exit_codes import BAD_INPUT
from estimator_pipeline.progress.progress_file import Tail, cause_of

__all__ = ["MEMORY", "RankFailure", "Ranks", "numbers"]

MEMORY = "ran out of memory and was killed"

_ENDED = re.compile(r"^srun: error: (?:\S+: )?tasks? ([\d,\-\[\]]+): (.+?)\s*$")
_NODE = re.compile(r"^srun: error: Node failure on (\S+)")
_OUT_OF_MEMORY = re.compile(r"oom[_-]kill event|OOM Killed", re.IGNORECASE)
# As strsignal() says it, which srun prints.
_SIGNALS = {signal.strsignal(number): number for number in signal.Signals if number != signal.SIGTERM}
# srun sees an end a moment after the task's own last word, or before another task's.
_SAME_TIME_SECS = 2.0


@dataclass(frozen=True)
class RankFailure:
    """A failure of one task.

    Attributes:
        time: When, in seconds since 1970.
        task: Its name, "worker:1", or "rank 1" where it has not told that.
        exit_code: As subprocess gives it; None where only its words are known.
        error: In one line.
        what: What has become of it, where that is no exit code.
        caused_by: The task whose failure it names as the reason of its own.
        echo: Whether it fails by what happened to another task, as far as its error can tell.
    """

    time: float
    task: str
    exit_code: int | None = None
    error: str = ""
    what: str = ""
    caused_by: str = ""
    echo: bool = False


class Ranks:
    """The tasks of one command.

    Args:
        output: What it prints.
    """

    def __init__(self, output: Tail) -> None:
        self._output = output
        self._names: dict[int, str] = {}
        self._processes: dict[str, str] = {}
        self._told: list[RankFailure] = []
        self._seen: list[tuple[float, int | None, str]] = []
        self._memory = False

    def event(self, event: Mapping[str, Any]) -> None:
        """Takes over what a task tells."""
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
            self._told.append(
                RankFailure(
                    float(at) if isinstance(at, int | float) else 0.0,
                    name,
                    BAD_INPUT if event.get("refusal") else None,
                    error,
                    caused_by=caused_by if caused_by != name else "",
                    echo=bool(event.get("echo")),
                )
            )

    def look(self, now: float) -> None:
        """Reads what the command has printed since the last look.

        Args:
            now: In seconds since 1970.
        """
        for line in self._output.lines():
            self._memory = self._memory or bool(_OUT_OF_MEMORY.search(line))
            if found := _NODE.match(line):
                self._seen.append((now, None, f"ran on the node {found[1]}, which failed"))
            elif found := _ENDED.match(line):
                self._seen += [(now, rank, found[2]) for rank in numbers(found[1])]

    def task_of(self, process: str) -> str:
        """Whose process it is, by machine and number as in the name of its heartbeat; "" where nobody has told."""
        return self._processes.get(process, "")

    def first(self) -> RankFailure | None:
        """The failure that the others followed; None where nobody has said anything."""
        seen = [found for at, rank, how in self._seen if (found := self._of_srun(at, rank, how)) is not None]
        # Of a task that has told its error srun sees the end later, and perhaps after that of another one. Tasks that
        # end by SIGTERM srun has mostly ended itself.
        told = {one.task for one in self._told}
        silent = [one for one in seen if one.task not in told and one.exit_code != -signal.SIGTERM]
        own = sorted([*(one for one in self._told if not one.caused_by and not one.echo), *silent], key=_time)
        first = next(iter([*own, *sorted([*self._told, *seen], key=_time)]), None)
        named = next((one for one in sorted(self._told, key=_time) if one.caused_by), None)
        if named is not None and (first is None or named.time < first.time - _SAME_TIME_SECS or first.caused_by):
            # Of one that hangs nobody sees an end before it is killed for that.
            return RankFailure(named.time, named.caused_by, error=named.error)
        if first is None or first.exit_code is not None or first.what:
            return first
        code = next((one.exit_code for one in seen if one.task == first.task), None)
        return replace(first, exit_code=code)

    def _of_srun(self, at: float, rank: int | None, how: str) -> RankFailure | None:
        if rank is None:
            return RankFailure(at, "a task", what=how)
        name = self._names.get(rank, f"rank {rank}")
        if how.startswith("Exited with exit code "):
            return RankFailure(at, name, int(how.rpartition(" ")[2]))
        if how.startswith("Out Of Memory"):
            return RankFailure(at, name, -signal.SIGKILL, what=MEMORY)
        if how.startswith("Terminated"):
            return RankFailure(at, name, -signal.SIGTERM)
        number = next((number for word, number in _SIGNALS.items() if word and how.startswith(word)), None)
        if number is None:
            return None
        return RankFailure(at, name, -number, what=MEMORY if number == signal.SIGKILL and self._memory else "")


def _time(one: RankFailure) -> float:
    return one.time


def numbers(text: str) -> list[int]:
    """ "1", "0-2,5": the numbers of a list of Slurm's, in order."""
    found: list[int] = []
    for part in text.strip("[]").split(","):
        first, dash, last = part.partition("-")
        if first.isdigit() and (not dash or last.isdigit()):
            found += range(int(first), int(last if dash else first) + 1)
    return found
