"""Log lines and timeout of a task that waits at its start for the others. Imports no TensorFlow."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from estimator_pipeline.cluster import peers as ports
from estimator_pipeline.cluster.peers import START_VARIABLE, probe, start_secs
from estimator_pipeline.errors import WaitError
from estimator_pipeline.utils.text import few

__all__ = ["RollCall"]

# The number of tasks named in a line; a cluster may have hundreds.
_NAMED = 8
_AT_A_TIME = 32
_WORD_SECS = 5.0


class RollCall:
    """The tasks that this task waits for at its start and that have not joined.

    Args:
        task: The name of this task.
        peers: The addresses of the tasks that it waits for, by name.
        leader: The task that must start before others can join, if any.
        seconds: The timeout; defaults to `start_secs`.

    Attributes:
        seconds: The timeout.
        missing: The tasks that did not answer at the last check.
    """

    def __init__(
        self, task: str, peers: Mapping[str, str], *, leader: str | None = None, seconds: float | None = None
    ) -> None:
        self.task, self.leader = task, leader
        self.seconds = start_secs() if seconds is None else seconds
        self.missing: list[str] = []
        self._peers = dict(peers)
        self._born = time.monotonic()
        self._next = self._born + ports.LINE_SECS

    @property
    def due(self) -> bool:
        """Whether it is time for a check."""
        return time.monotonic() >= min(self._next, self._born + self.seconds)

    def poll(self) -> str:
        """Connect to the ports of all tasks, and return a log line.

        Raises:
            WaitError: The timeout is over.
        """
        with ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="estimator_pipeline-roll-call") as pool:
            answers = dict(zip(self._peers, pool.map(_look, self._peers.values()), strict=True))
        self.missing = [task for task, (connected, _) in answers.items() if not connected]
        mute = [task for task, (connected, spoke) in answers.items() if connected and not spoke]
        now = time.monotonic()
        # Checks that are missed during a slow check are skipped.
        self._next = max(self._next + ports.LINE_SECS, now)
        waited, known = now - self._born, self._known(mute)
        if waited < self.seconds:
            return (
                f"{self.task} has waited {waited:.0f} s for the other tasks to join: {known} "
                f"(timeout {self.seconds:.0f} s, {START_VARIABLE})"
            )
        named = self.missing or mute
        error = WaitError(
            f"{self.task} waited {self.seconds:.0f} s for the other tasks to join, and "
            f"{self._named(named) if named else 'not all of them'} did not",
            found=known,
            hint="see the logs of the missing tasks, and whether their addresses can be reached from here; if the "
            f"start takes longer, raise {START_VARIABLE}, or run.start_timeout_secs in the job file",
        )
        error.caused_by = named[0] if named else None
        raise error

    def look_for_missing(self) -> str | None:
        """Check like `poll`, but only for tasks that do not answer; None if all answer."""
        try:
            line = self.poll()
        except WaitError:
            if self.missing:
                raise
            return None
        return line if self.missing else None

    def _known(self, mute: list[str]) -> str:
        parts = []
        if self.missing:
            parts.append(f"nothing answers at the port of {self._named(self.missing)}")
        if self.leader in self.missing:
            parts.append(f"{self.leader} leads the cluster, and no task can join without it")
        if mute:
            parts.append(f"the port of {self._named(mute)} accepts connections, but its process sends nothing")
        if not parts:
            parts.append("all tasks answer at their ports, but not all have joined; see their logs")
        return "; ".join(parts)

    def _named(self, tasks: list[str]) -> str:
        return few((f"{task} ({self._peers[task]})" for task in tasks), _NAMED)


def _look(address: str) -> tuple[bool, bool]:
    return probe(address, word=_WORD_SECS)
