"""What a task says while it waits at its start for the others, and when it waits no longer. Imports no TensorFlow."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from estimator_pipeline.cluster import peers as ports
from estimator_pipeline.cluster.peers import START_VARIABLE, probe, start_secs
from estimator_pipeline.errors import WaitError

__all__ = ["RollCall"]

# So many tasks are named; a cluster may have hundreds.
_NAMED = 8
_AT_A_TIME = 32
_WORD_SECS = 5.0


class RollCall:
    """Who of the tasks that this one waits for at its start has not come.

    Args:
        own: this task's name.
        peers: the tasks that it waits for: name -> address.
        leader: the one without which no other can join, if there is one.
        seconds: how long it waits; :func:`~estimator_pipeline.cluster.peers.start_secs` by default.

    Attributes:
        seconds: as given.
        missing: the tasks that did not answer at the last look.
    """

    def __init__(
        self, own: str, peers: Mapping[str, str], *, leader: str | None = None, seconds: float | None = None
    ) -> None:
        self.own, self.leader = own, leader
        self.seconds = start_secs() if seconds is None else seconds
        self.missing: list[str] = []
        self._peers = dict(peers)
        self._born = time.monotonic()
        self._next = self._born + ports.LINE_SECS

    @property
    def due(self) -> bool:
        """Whether it is time for a look."""
        return time.monotonic() >= min(self._next, self._born + self.seconds)

    def look(self) -> str:
        """Tries the ports of all, and gives the line that says what is known.

        Raises:
            WaitError: the time is over.
        """
        with ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="estimator_pipeline-roll-call") as pool:
            found = dict(zip(self._peers, pool.map(_look, self._peers.values()), strict=True))
        self.missing = [task for task, (connected, _) in found.items() if not connected]
        mute = [task for task, (connected, spoke) in found.items() if connected and not spoke]
        now = time.monotonic()
        # What is missed while a look takes long is not made up for.
        self._next = max(self._next + ports.LINE_SECS, now)
        waited, known = now - self._born, self._known(mute)
        if waited < self.seconds:
            return (
                f"{self.own} has waited {waited:.0f} s for the other tasks to join: {known} "
                f"(it gives up after {self.seconds:.0f} s, {START_VARIABLE})"
            )
        named = self.missing or mute
        error = WaitError(
            f"{self.own} waited {self.seconds:.0f} s for the other tasks to join, and "
            f"{self._named(named) if named else 'not all of them'} did not",
            found=known,
            hint=f"see the logs of the missing tasks, and whether their addresses can be reached from here; where a "
            f"start takes longer, give it more seconds: {START_VARIABLE}, or run.start_timeout_secs of a job file",
        )
        error.caused_by = named[0] if named else None
        raise error

    def look_for_missing(self) -> str | None:
        """As :meth:`look`, where a task that answers is not waited for: None, and no error, where all of them do."""
        try:
            line = self.look()
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
            parts.append(f"{self.leader} leads the cluster, and without it nobody can join")
        if mute:
            parts.append(f"the port of {self._named(mute)} answers, and no process speaks there")
        if not parts:
            parts.append("all of them answer at their ports, and not all have joined; see their logs for the one")
        return "; ".join(parts)

    def _named(self, tasks: list[str]) -> str:
        named = ", ".join(f"{task} ({self._peers[task]})" for task in tasks[:_NAMED])
        return named if len(tasks) <= _NAMED else f"{named} and {len(tasks) - _NAMED} more"


def _look(address: str) -> tuple[bool, bool]:
    return probe(address, word=_WORD_SECS)
